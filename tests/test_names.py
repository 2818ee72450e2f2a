"""One name is one thing, in classes and files over the whole product."""

import re
from collections import defaultdict
from pathlib import Path

from tests.support.needs import repository

ROOT = repository()
ROOMS = ("fleet", "assets", "k8s")
OWN = ("__init__", "__main__")
NAMED_BY_USERS = ("fleet/commands", "assets")
"""A command's module is called as its command, the Dagster project's as what a team declares."""
KEPT = {
    "source": "users import fleet.history.source",
}


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


def test_no_module_name_means_two_things() -> None:
    """Rooms are modules, too: `history` is the room, so no other room has a file of that name."""
    places = defaultdict(list)
    for path in _files():
        folder = path.parent.relative_to(ROOT).as_posix()
        if folder.startswith(NAMED_BY_USERS):
            continue
        if path.stem == "__init__":
            places[path.parent.name].append(folder)
        elif path.stem not in OWN:
            places[path.stem].append(path.relative_to(ROOT).as_posix())
    twice = {n: at for n, at in places.items() if len(at) > 1 and n not in KEPT}
    assert not twice, twice
