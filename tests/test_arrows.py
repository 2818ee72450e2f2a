"""Imports between rooms go one way. Think hard about the layering before changing a table here.

Every import statement counts, also those inside functions and under TYPE_CHECKING. A room is
a folder of fleet/, or `assets`, or `k8s`; a module directly in fleet/ is common ground, and so is
what a folder of COMMON holds.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.needs import repository

ROOT = repository()
PACKAGES = ("fleet", "assets", "k8s")
MOST_LINES = 450

# Modules that may name several rooms, and anything in fleet.
CONDUCTORS = (
    "fleet.cycle",
    "fleet.opening",
    "fleet.exporting",  # observe → decide → report, on a schedule
    "fleet.exporting_storms",
    "fleet.keeping_up",  # observe, history → decide
    "fleet.picturing",
    "fleet.cli",
    "fleet.__main__",
    "fleet.commands",
    "fleet.demo",
    "fleet.bench",
)

# Values and state that every room uses: they know no room.
COMMON = ("fleet.lag", "fleet.slots")

# What a room may import beside itself and common ground.
ARROWS: dict[str, tuple[str, ...]] = {
    "fleet.broker": (),
    "fleet.log": (),
    "fleet.observe": ("fleet.log",),
    "fleet.kafka_source": (),
    "fleet.history": ("fleet.kafka_source", "fleet.log"),
    "fleet.decide": (),
    "fleet.sim": ("fleet.decide",),
    "fleet.act": ("fleet.decide",),
    "fleet.worker": (  # its leave, where the shared Spark server is
        "fleet.kafka_source",
        "fleet.act.kafka",
        "fleet.act.batched_leave",
        "fleet.act.spark_server",
    ),
    "fleet.report": (  # shows what was decided
        "fleet.decide.storms",
        "fleet.decide.storm_watch",
    ),
    "k8s": ("fleet",),
    "assets": ("fleet", "k8s"),
}

# Rooms that do no I/O: of common ground only values, of the standard library only what is pure.
PURE = ("fleet.decide", "fleet.sim")
VALUES = (
    "fleet.model",
    "fleet.errors",
    "fleet.spec",
    "fleet.settings",
    "fleet.slots",
    "fleet.counted",
    "fleet.rebalances",
    "fleet.text",
)
IMPURE = frozenset(
    {
        *(
            "asyncio",
            "http",
            "io",
            "logging",
            "multiprocessing",
            "os",
            "pathlib",
            "select",
            "shutil",
        ),
        *("socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib"),
    }
)

# Each third-party client and the only places that import it.
CLIENTS: dict[str, tuple[str, ...]] = {
    "dagster": ("assets",),
    "kubernetes": ("k8s",),
    "confluent_kafka": (
        "fleet.log.readers",
        "fleet.observe",
        "fleet.kafka_source",
        "fleet.worker",
        "fleet.broker",
        "fleet.demo",
        "fleet.bench",
    ),
    "kafka": ("fleet.act.kafka",),
    "pyspark": (
        "fleet.kafka_source",
        "fleet.history",
        "fleet.worker",
        "fleet.demo",
        "fleet.bench.streaming",
    ),
    "prometheus_client": ("fleet.report", "fleet.worker"),
}


def within(module: str, places: tuple[str, ...]) -> bool:
    """Whether a module is one of the places or inside one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def room(module: str) -> str | None:
    """The room of a module; None for common ground and the package fleet itself."""
    head, *rest = module.split(".")
    if head != "fleet":
        return head
    found = f"fleet.{rest[0]}" if rest and (ROOT / "fleet" / rest[0]).is_dir() else None
    return None if found in COMMON else found


def imports(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `from a import b` is a.b where a.b is ours."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
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
    if head in CLIENTS and not within(module, CLIENTS[head]):
        return f"only {', '.join(CLIENTS[head])} may import {head}"
    mine = room(module)
    pure = mine in PURE
    if head not in PACKAGES:
        foreign = head not in sys.stdlib_module_names or head in IMPURE
        return f"{mine} does no I/O and uses no third party" if pure and foreign else None
    if head != "fleet" and module.partition(".")[0] == "fleet":
        return f"fleet imports no {head}: it is found through an entry point"
    if within(module, CONDUCTORS) or imported == "fleet":
        return None
    if within(imported, CONDUCTORS) and head == "fleet" and mine not in {"assets", "k8s"}:
        return "nothing but a conductor imports a conductor"
    theirs = room(imported)
    if theirs is None:
        if pure and imported not in VALUES:
            return f"{mine} may use only {', '.join(VALUES)} of common ground"
        return None
    if mine is None:
        return "common ground knows no room"
    if theirs == mine or within(imported, ARROWS.get(mine, ())):
        return None
    return f"{mine} may not import {theirs}"


def modules() -> list[Path]:
    """Every Python file of the three packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_go_one_way() -> None:
    """No import against the arrows, and no client outside its room."""
    wrong: dict[str, None] = {}
    for path in modules():
        module = name_of(path)
        source = path.read_text(encoding="utf-8")
        for line, imported in imports(source, module, is_package=path.name == "__init__.py"):
            reason = objection(module, imported)
            if reason is not None:
                wrong[f"{path.relative_to(ROOT)}:{line}: imports {imported}: {reason}"] = None
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_circle() -> None:
    """No module imports itself by way of others, not even for a type: each reads downward."""
    graph: dict[str, set[str]] = {}
    for path in modules():
        module = name_of(path)
        source = path.read_text(encoding="utf-8")
        found = imports(source, module, is_package=path.name == "__init__.py")
        graph[module] = {name for _, name in found if is_ours(name)} - {module}
    assert tuple(TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_every_room_is_in_a_table() -> None:
    """A new folder of fleet/ states its arrows here."""
    rooms = {room(name_of(path)) for path in modules()} - {None}
    known = {*ARROWS, *(name for name in CONDUCTORS if room(name) is not None)}
    assert rooms <= known, f"rooms without arrows: {sorted(str(r) for r in rooms - known)}"


def test_files_stay_short() -> None:
    """A file that outgrows the limit holds two things."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MOST_LINES}
    assert not long, f"over {MOST_LINES} lines: {long}"


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        pytest.param("fleet.observe.admin", "confluent_kafka", True, id="client-in-its-room"),
        pytest.param("fleet.decide.plans", "confluent_kafka", False, id="client-elsewhere"),
        pytest.param("fleet.act.kafka", "kafka.admin", True, id="kafka-python-in-act-kafka"),
        pytest.param("fleet.log.replay.causes", "confluent_kafka", False, id="replay-is-pure"),
        pytest.param("fleet.observe.ledger", "fleet.history.rows", False, id="look-and-past"),
        pytest.param("fleet.history.lag_rows", "fleet.observe.admin", False, id="past-and-look"),
        pytest.param("fleet.act.performer", "kafka", False, id="kafka-python-elsewhere"),
        pytest.param("fleet.decide.plans", "fleet.model", True, id="values"),
        pytest.param("fleet.decide.plans", "fleet.clock", False, id="decide-reads-no-clock"),
        pytest.param("fleet.decide.plans", "time", False, id="decide-reads-no-time"),
        pytest.param("fleet.decide.plans", "pydantic", False, id="decide-has-no-third-party"),
        pytest.param("fleet.observe.admin", "fleet.act.kafka", False, id="siblings-are-strangers"),
        pytest.param("fleet.cycle", "fleet.act.kafka", True, id="cycle-names-all"),
        pytest.param("fleet.act.performer", "fleet.cycle", False, id="nobody-imports-cycle"),
        pytest.param("assets.checks", "fleet.cycle", True, id="assets-use-fleet"),
        pytest.param("fleet.cli", "assets", False, id="fleet-knows-no-assets"),
        pytest.param("fleet.act.local", "k8s.kubernetes_runtime", False, id="fleet-knows-no-k8s"),
        pytest.param("k8s.kubernetes_runtime", "assets", False, id="k8s-knows-no-assets"),
        pytest.param("fleet.model", "fleet.broker", False, id="common-ground-knows-no-room"),
    ],
)
def test_the_arrows_themselves(module: str, imported: str, allowed: bool) -> None:
    """The tables say what the design says."""
    assert (objection(module, imported) is None) is allowed


def test_relative_and_hidden_imports_are_seen() -> None:
    """An import inside a function or written with dots is found under its full name."""
    source = "def f():\n    from ..act import kafka\n    from fleet import model\n"
    found = [name for _, name in imports(source, "fleet.decide.plans", is_package=False)]
    assert found[1] == "fleet.model"
    assert found[0].startswith("fleet.act")
