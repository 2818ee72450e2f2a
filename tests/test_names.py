"""One name is one class over the whole product."""

import re
from collections import defaultdict
from pathlib import Path

from tests.support.needs import repository

ROOT = repository()
ROOMS = ("fleet", "assets", "k8s")


def _files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def test_no_class_name_means_two_things() -> None:
    """Whoever searches for a class finds one, also where it is a module's own."""
    places = defaultdict(list)
    for path in _files():
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"^ *class (\w+)[(:]", text, re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            places[found[1]].append(f"{path.relative_to(ROOT)}:{line}")
    assert not (twice := {name: at for name, at in places.items() if len(at) > 1}), twice
