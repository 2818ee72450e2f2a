"""Imports between rooms go one way. Think hard about the layering before changing a table here.

Every import statement counts, also those inside functions and under TYPE_CHECKING. A room is a
folder with modules; what starts a process (`__main__`, `fleet.cli`) stands above all of them.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.needs import repository

ROOT = repository()
PACKAGES = ("fleet", "assets", "k8s")
NO_PRODUCT = ("benchmarks", "tests")
MOST_LINES = 1000
MOST_FLOORS = 12
MOST_ARROWS = 124
"""Between the folders of fleet/, `assets` and `k8s`, whatever rooms they have inside."""
ENTRIES = (
    *("fleet.__main__", "fleet.worker.__main__", "fleet.cli"),
    *("fleet.dagster", "fleet.dagster.definitions"),  # what a Dagster project loads
)

# What every room may use.
GROUND = (
    *("fleet", "fleet.errors", "fleet.clock", "fleet.collector", "fleet.leaving"),
    *("fleet.text", "fleet.model", "fleet.extras"),
)

# What a room may import beside itself and the ground: rooms, not what is inside of these. All of
# them are in fleet/ but for `assets` and `k8s`; a line that is indented goes on.
DRAWN = """
assets:
act: config decide slots system
act.change: act act.steps config slots
act.local: act config decide slots system
act.steps: act config decide slots
broker: config security system
commands: config decide manager slots
commands.change: act broker commands config decide demo lag manager slots system
commands.doctor: act broker commands config decide lag manager security slots system
commands.groups: act commands config decide decide.storms lag log.readers manager report slots
    system
commands.page: commands commands.groups config decide.storms lag log.readers manager report
    slots system ui
commands.parts: act act.local broker commands config demo exporter history history.tables
    decide kafka_source manager report system testing worker worker.batch worker.slot
commands.simulate: commands config decide.forecast manager sim.scenarios
config: lag
dagster: config decide decide.storms history.tables lag manager report slots
dagster.watch: config dagster decide decide.storms history.tables lag manager slots
decide: config decide.storms slots
decide.forecast: config decide sim.scenarios
decide.storms: config slots
demo: broker decide log log.readers log.replay manager security slots system
exporter: decide.storms lag log.readers manager observe slots system
formats:
history: history.tables kafka_source lag log log.replay
history.tables: system
kafka_source: config system
kubernetes: config decide kubernetes.client kubernetes.deployment kubernetes.leases
    kubernetes.manifests slots worker
kubernetes.client: decide slots system
kubernetes.deployment: config decide kubernetes.client kubernetes.leases kubernetes.manifests
    slots system
kubernetes.leases: kubernetes.client slots
kubernetes.manifests: act config kubernetes.client kubernetes.leases report system
lag:
log:
log.readers: kafka_source lag log log.replay system
log.replay: lag log
manager: act act.change act.local act.steps broker config decide decide.forecast decide.storms
    history history.tables kafka_source lag log log.readers log.replay observe report security slots
    system worker worker.batch
observe: kafka_source lag log log.readers log.replay observe.messages
observe.messages:
report: config decide
sinks: kafka_source
security: config kafka_source
sim:
sim.assignors: sim.hashing
sim.coordinator: log sim sim.assignors sim.hashing
sim.hashing:
sim.scenarios: log sim.assignors sim.coordinator
slots:
system: config
testing: broker kafka_source worker.batch
ui: decide report slots system
worker: config kafka_source slots system
worker.batch: config kafka_source system worker
worker.member: config slots worker worker.batch worker.offsets
worker.offsets: config kafka_source log log.readers worker
worker.slot: act config kafka_source security slots system worker worker.batch worker.member
    worker.offsets
k8s:
k8s.cluster: system
k8s.images: system k8s.cluster
"""


def _named(short: str) -> str:
    return short if short.partition(".")[0] in PACKAGES else f"fleet.{short}"


ARROWS: dict[str, tuple[str, ...]] = {
    _named(mine): tuple(map(_named, theirs.split()))
    for line in DRAWN.replace("\n    ", " ").strip().splitlines()
    for mine, _, theirs in [line.partition(":")]
}

# Rooms that do no I/O: of others only values, of the standard library only what is pure.
PURE = ("fleet.model", "fleet.decide", "fleet.sim")
VALUES = (
    "fleet.collector",
    "fleet.config.spec",
    "fleet.config.settings",
    "fleet.config.topic_patterns",
    "fleet.decide",
    "fleet.errors",
    "fleet.log.encoding",
    "fleet.log.records",
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


def room(module: str) -> str | None:
    """The room of a module; None for the ground and for what starts a process."""
    if module in ENTRIES or module.endswith(".__main__") or within(module, GROUND[1:]):
        return None
    parts = module.split(".")
    if not any(ROOT.joinpath(*parts).glob("*.py")):
        parts = parts[:-1] if len(parts) > 2 or parts[0] != "fleet" else parts
    return ".".join(parts) if parts != ["fleet"] else None


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
    if head in NO_PRODUCT:
        return f"{head} is no part of the product"
    if head in CLIENTS and not within(module, CLIENTS[head]):
        return f"only {', '.join(CLIENTS[head])} may import {head}"
    mine = room(module)
    pure = within(module, PURE)
    if head not in PACKAGES:
        foreign = head not in sys.stdlib_module_names or head in IMPURE
        return f"{mine} does no I/O and uses no third party" if pure and foreign else None
    if within(imported, INTEGRATIONS) and not within(module, INTEGRATIONS):
        return f"{module} may not import {head}: it is found through an entry point"
    theirs = room(imported)
    if module in ENTRIES or module.endswith(".__main__"):
        return None
    if theirs is None:
        calls = within(module, INTEGRATIONS)  # a run does what a person does: the command
        return f"nothing imports {imported}" if imported in ENTRIES and not calls else None
    if pure and not within(imported, VALUES):
        return f"{mine} may use only {', '.join(VALUES)}"
    if mine is None:
        return "the ground knows no room"
    if theirs == mine or theirs in ARROWS.get(mine, ()):
        return None
    return f"{mine} may not import {theirs}"


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
            path.read_text(encoding="utf-8"), name_of(path), is_package=path.name == "__init__.py"
        )
    )


def test_imports_go_one_way() -> None:
    """No import against the arrows, and no client outside its room."""
    wrong: dict[str, None] = {}
    for module, imported, where in drawn():
        reason = objection(module, imported)
        if reason is not None:
            wrong[f"{where}: imports {imported}: {reason}"] = None
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_arrow_is_needed() -> None:
    """An arrow that no import uses, or of a room that is not there, goes."""
    used = {(room(module), room(imported)) for module, imported, _ in drawn()}
    stale = [f"{mine} → {t}" for mine, all_of in ARROWS.items() for t in all_of]
    stale = [each for each in stale if tuple(each.split(" → ")) not in used]
    assert not stale, stale


def test_rooms_stand_on_floors() -> None:
    """No circle; a room stands above every room that it imports."""

    def floor(name: str, above: tuple[str, ...]) -> int:
        assert name not in above, f"a circle: {' → '.join((*above, name))}"
        return 1 + max((floor(each, (*above, name)) for each in ARROWS.get(name, ())), default=1)

    floors = {name: floor(name, ()) for name in ARROWS}
    assert max(floors.values()) <= MOST_FLOORS, floors


def test_arrows_stay_few() -> None:
    """Between the folders of fleet/; what is inside of one is its own business."""

    def outer(name: str) -> str:
        return ".".join(name.split(".")[: 2 if name.startswith("fleet.") else 1])

    arrows = {(outer(mine), outer(each)) for mine, all_of in ARROWS.items() for each in all_of}
    assert len({pair for pair in arrows if pair[0] != pair[1]}) <= MOST_ARROWS


def test_files_stay_short() -> None:
    """A file that outgrows the limit holds two things."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MOST_LINES}
    assert not long, f"over {MOST_LINES} lines: {long}"


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
        pytest.param("fleet.observe.admin", "fleet.act.kafka", False, id="siblings-are-strangers"),
        pytest.param("fleet.manager.cycle", "fleet.act.kafka", True, id="manager-names-all"),
        pytest.param("fleet.act.runtime", "fleet.manager.cycle", False, id="not-upwards"),
        pytest.param(
            "fleet.worker.events", "fleet.worker.slot.process", False, id="rooms-in-rooms"
        ),
        pytest.param("fleet.cli", "assets", False, id="fleet-knows-no-assets"),
        pytest.param("fleet.act.runtime", "k8s.cluster", False, id="fleet-knows-no-k8s"),
        pytest.param(
            "k8s.images.image_build", "assets.definitions", False, id="k8s-knows-no-assets"
        ),
        pytest.param("fleet.model", "fleet.broker", False, id="the-ground-knows-no-room"),
        pytest.param("fleet.demo.stage", "benchmarks.ground", False, id="no-benchmark"),
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
