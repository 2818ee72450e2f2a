"""The table of planted faults fits the code: each can still be planted, and its tests are there.

Whether the tests notice is what `make mutants` tells.
"""

import ast
import re

import pytest

from tests.mutants.planting import Fault, Stale
from tests.mutants.table import FAULTS, WITHOUT
from tests.support.needs import repository

ROOT = repository()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted(fault: Fault) -> None:
    """Its node stands once, what comes of it is Python, and its tests are there."""
    before = ast.unparse(ast.parse((ROOT / fault.file).read_text(encoding="utf-8")))
    assert ast.unparse(ast.parse(fault.planted(ROOT))) != before
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), test


def test_every_rule_has_a_fault_or_says_why_not() -> None:
    """A name is written once, and begins with its rule's number or its topic."""
    rules = (ROOT / "docs" / "contributing" / "rules.md").read_text(encoding="utf-8")
    numbers = {f"{int(number):02}" for number in re.findall(r"^## (\d+)\.", rules, re.MULTILINE)}
    planted = {fault.name[:2] for fault in FAULTS if fault.name[0].isdigit()}
    assert planted | WITHOUT.keys() == numbers
    assert not planted & WITHOUT.keys()
    table = (ROOT / "tests" / "mutants" / "table.py").read_text(encoding="utf-8")
    assert [fault.name for fault in FAULTS if table.count(f'"{fault.name}": (') != 1] == []


def test_a_stale_fault_says_what_to_do(tmp_path) -> None:
    """Formatting and comments do not matter; the message names the next step."""
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "a.py").write_text(
        "def f(x):\n    return (x  # why\n        + 1)\n\ndef g(x):\n    return x + 1, x + 1\n"
    )
    planted = Fault("m", "a:f", "t", "x + 1", "x - 1").planted(tmp_path)
    assert planted.startswith("def f(x):\n    return x - 1\n")
    with pytest.raises(Stale, match="m: its node is there 2 times in a:g; the code has changed"):
        Fault("m", "a:g", "t", "x + 1", "x").planted(tmp_path)
    with pytest.raises(Stale, match="m: its node is not there in a:f"):
        Fault("m", "a:f", "t", "return x", "pass").planted(tmp_path)
    with pytest.raises(Stale, match=r"a:C\.f is not there"):
        Fault("m", "a:C.f", "t", "x", "y").planted(tmp_path)
    with pytest.raises(Stale, match=r"fleet/b\.py is not there"):
        Fault("m", "b:f", "t", "x", "y").planted(tmp_path)
