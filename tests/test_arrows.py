"""What may import what: no circle, pure rooms stay pure, each foreign client has its rooms.

Circles are looked for among imports that run when a module is loaded; the other rules count every
import statement, also those inside functions and under TYPE_CHECKING.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.needs import repository

ROOT = repository()
PACKAGES = ("fleet", "assets", "k8s")
NO_PRODUCT = ("benchmarks", "tests")
ENTRIES = ("fleet.__main__", "fleet.worker.__main__", "fleet.cli")

# Rooms that do no I/O: of others only values, of the standard library only what is pure.
PURE = (
    *("fleet.model", "fleet.decide", "fleet.sim"),
    *("fleet.slots.transitions", "fleet.log.replay"),
)
VALUES = (
    "fleet.collector",
    "fleet.config.spec",
    "fleet.config.settings",
    "fleet.config.topic_patterns",
    "fleet.decide",
    "fleet.errors",
    "fleet.lag.gap",
    "fleet.log.encoding",
    "fleet.log.records",
    "fleet.log.replay",
    "fleet.model",
    "fleet.sim",
    "fleet.slots",
    "fleet.text",
)
_IMPURE = """
asyncio http io logging multiprocessing os pathlib select shutil socket sqlite3 subprocess tempfile
threading time urllib
"""
IMPURE = frozenset(_IMPURE.split())

# Each third-party client and the only places that import it.
CLIENTS: dict[str, tuple[str, ...]] = {
    "dagster": ("assets", "fleet.dagster"),
    "kubernetes": ("k8s", "fleet.kubernetes"),
    "confluent_kafka": (
        "fleet.formats",
        "fleet.log.readers",
        "fleet.kafka_source",
        "fleet.sinks",
        "fleet.worker",
        "fleet.broker",
        "fleet.demo",
    ),
    "kafka": ("fleet.act.kafka", "fleet.kafka_source", "fleet.observe"),
    "pyspark": (
        "fleet.formats",
        "fleet.kafka_source",
        "fleet.history",
        "fleet.worker",
        "fleet.testing",
        "fleet.sinks",
        "fleet.demo",
    ),
    "prometheus_client": ("fleet.exporter", "fleet.report", "fleet.worker"),
}
INTEGRATIONS = ("fleet.dagster", "fleet.kubernetes", "assets", "k8s")
"""fleet finds them through entry points and workspace.yaml: nothing else imports them."""


def within(module: str, places: tuple[str, ...]) -> bool:
    """Whether a module is one of the places or inside one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `from a import b` is a.b where a.b is ours."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{above}.{base}" if base else above
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                yield node.lineno, deeper if is_ours(deeper) else base


def is_ours(module: str) -> bool:
    """Whether a dotted name is a module or package of this repository."""
    path = ROOT.joinpath(*module.split("."))
    return module.partition(".")[0] in PACKAGES and (
        path.is_dir() or path.with_suffix(".py").exists()
    )


def objection(module: str, imported: str) -> str | None:
    """Why `module` may not import `imported`; None where it may."""
    head = imported.partition(".")[0]
    if head in NO_PRODUCT:
        return f"{head} is no part of the product"
    if head in CLIENTS and not within(module, CLIENTS[head]):
        return f"only {', '.join(CLIENTS[head])} may import {head}"
    pure = within(module, PURE)
    if head not in PACKAGES:
        external = head not in sys.stdlib_module_names or head in IMPURE
        return f"{module} does no I/O and uses no third party" if pure and external else None
    if within(imported, INTEGRATIONS) and not within(module, INTEGRATIONS):
        return f"{module} may not import {head}: it is found through an entry point"
    if imported in ENTRIES:  # a run of Dagster does what a person does: the command
        known = within(module, (*INTEGRATIONS, *ENTRIES))
        return None if known else f"nothing imports {imported}"
    if pure and not within(imported, VALUES):
        return f"{module} may use only {', '.join(VALUES)}"
    return None


@cache
def modules() -> list[Path]:
    """Every Python file of the three packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def drawn() -> tuple[tuple[str, str, str], ...]:
    """(module, imported, file and line) of every import."""
    return tuple(
        (name_of(path), imported, f"{path.relative_to(ROOT)}:{line}")
        for path in modules()
        for line, imported in imports(
            ast.parse(path.read_text(encoding="utf-8")),
            name_of(path),
            is_package=path.name == "__init__.py",
        )
    )


def test_imports_go_one_way() -> None:
    """Pure rooms use values only, and no client is outside its room."""
    wrong: dict[str, None] = {}
    for module, imported, where in drawn():
        reason = objection(module, imported)
        if reason is not None:
            wrong[f"{where}: imports {imported}: {reason}"] = None
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_circle() -> None:
    """No module needs, while it is loaded, one that needs it in turn."""
    needed: dict[str, set[str]] = {}
    for path in modules():
        name = name_of(path)
        loaded = [
            node
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        found = imports(ast.Module(loaded, []), name, is_package=path.name == "__init__.py")
        needed[name] = {each for _, each in found if is_ours(each)} - {name}
    try:
        tuple(TopologicalSorter(needed).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' → '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        pytest.param("fleet.log.readers.tail", "confluent_kafka", True, id="client-in-its-room"),
        pytest.param("fleet.decide.plans", "confluent_kafka", False, id="client-elsewhere"),
        pytest.param("fleet.act.kafka", "kafka.admin", True, id="kafka-python-in-act-kafka"),
        pytest.param("fleet.act.runtime", "kafka", False, id="kafka-python-elsewhere"),
        pytest.param("fleet.decide.plans", "fleet.model", True, id="values"),
        pytest.param("fleet.decide.plans", "time", False, id="decide-reads-no-time"),
        pytest.param("fleet.decide.plans", "pydantic", False, id="decide-has-no-third-party"),
        pytest.param("fleet.decide.plans", "fleet.config.load", False, id="decide-reads-no-file"),
        pytest.param("fleet.cli", "assets", False, id="fleet-knows-no-assets"),
        pytest.param("fleet.act.runtime", "k8s.cluster", False, id="fleet-knows-no-k8s"),
        pytest.param("fleet.demo.stage", "benchmarks.ground", False, id="no-benchmark"),
    ],
)
def test_the_arrows_themselves(module: str, imported: str, allowed: bool) -> None:
    """The tables say what the design says."""
    assert (objection(module, imported) is None) is allowed


def test_relative_and_hidden_imports_are_seen() -> None:
    """An import inside a function or written with dots is found under its full name."""
    source = "def f():\n    from ..act import kafka\n    from fleet import model\n"
    found = [n for _, n in imports(ast.parse(source), "fleet.decide.plans", is_package=False)]
    assert found[1] == "fleet.model"
    assert found[0].startswith("fleet.act")
