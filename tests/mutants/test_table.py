"""The table of planted faults fits the code: each can still be planted, and its tests are there.

Whether the tests notice is what `make mutants` tells.
"""

import ast
from collections import Counter
from functools import cache

import pytest

from tests.mutants.mutant import Mutant, Stale, table
from tests.support.needs import repository

Statements = list[tuple[str, ast.stmt]]

ROOT = repository()
TABLE = table()


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.name)
def test_it_can_be_planted(mutant: Mutant) -> None:
    """Its text stands exactly once, what comes of it is Python, and other Python than before."""
    before, after = without_it(mutant.file), statements(mutant.planted(ROOT))
    assert as_python(after, but=before) != as_python(before, but=after)


@cache
def without_it(file: str) -> Statements:
    """A file without any fault."""
    return statements((ROOT / file).read_text(encoding="utf-8"))


def statements(text: str) -> Statements:
    """What a module's classes and itself consist of, by its lines; SyntaxError: no Python."""
    lines, found, bodies = text.splitlines(), list[tuple[str, ast.stmt]](), [ast.parse(text).body]
    for body in bodies:
        for node in body:
            first, last = node.lineno - 1, node.end_lineno
            if isinstance(node, ast.ClassDef):
                bodies.append(node.body)
                last, node.body = node.body[0].lineno - 1, []
            first -= len(getattr(node, "decorator_list", ()))
            found.append(("\n".join(lines[first:last]), node))
    return found


def as_python(some: Statements, *, but: Statements) -> list[str]:
    """Of those that stand otherwise in the other one: telling all of a file takes 10 ms."""
    others = {lines for lines, _ in but}
    return [ast.dump(node) for lines, node in some if lines not in others]


def test_names_are_told_apart() -> None:
    """A name chooses one fault, and no place in a table hides another one of itself."""
    assert [name for name, count in Counter(each.name for each in TABLE).items() if count > 1] == []
    for file in (ROOT / "tests" / "mutants").glob("table_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            keys = list(map(ast.unparse, filter(None, getattr(node, "keys", ()))))
            assert len(set(keys)) == len(keys), file.name


def test_every_fault_has_tests() -> None:
    """Files that are there; a single test is looked for by its name."""
    gone = []
    for test in sorted({test for mutant in TABLE for test in mutant.tests}):
        file, _, name = test.partition("::")
        path = ROOT / file
        if not path.exists() or (name and f"def {name.partition('[')[0]}(" not in path.read_text()):
            gone.append(test)
    assert gone == []
    assert [each.name for each in TABLE if not each.tests] == []


def test_a_stale_fault_says_what_to_do(tmp_path) -> None:
    """Whoever changed the line has to know what the table wants of him."""
    (tmp_path / "a.py").write_text("one = 1\none = 1\n")
    twice = Mutant(name="m", file="a.py", old="one = 1", new="one = 2", tests=("t",))
    with pytest.raises(Stale, match=r"m: its text is there 2 times in a\.py; the code has changed"):
        twice.planted(tmp_path)
    with pytest.raises(Stale, match=r"b\.py is not there"):
        Mutant(name="m", file="b.py", old="x", new="y", tests=("t",)).planted(tmp_path)
