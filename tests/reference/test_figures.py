"""What pages say in figures is what the code has: limits, defaults, goals, releases, sizes.

A figure that stands in two places goes wrong in one of them. Each test here builds the sentence
from the constant and looks for it on the page.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fleet.errors
from benchmarks import failover, roll, sync_join
from fleet.broker.jars import KAFKA
from fleet.cli import COMMANDS, cli
from fleet.config.spec import (
    BatchSpec,
    ClassicWorker,
    FleetSpec,
    KubernetesRuntimeSpec,
    LocalRuntimeSpec,
    StormSpec,
)
from fleet.decide import storms
from fleet.decide.lag_status import Grace
from fleet.history.tables import TABLES
from fleet.worker.batch import adaptive_reader, batches, columnar, executor, poison_search
from fleet.worker.member import pipeline
from tests.conformance.test_other_brokers import RELEASES
from tests.promises.test_cells import MOST
from tests.reference.pages import keys
from tests.support.needs import repository

COST = "docs/concepts/cost.md"
READING = "docs/concepts/reading-modes.md"
DELIVERY = "docs/concepts/delivery.md"
STORMS = "docs/concepts/storms.md"
METRICS = "docs/reference/metrics.md"
REWIND = "docs/troubleshoot/runbooks/group-rewind.md"
BATCH = BatchSpec()
GRACE = Grace()
WORDS = {2: "two", 3: "three", 8: "eight", 10: "ten"}
DEMO_TAKES = "two to four minutes"


def said(page: str) -> str:
    """A page's text in one line."""
    return " ".join((repository() / page).read_text(encoding="utf-8").split())


def default(name: str) -> float:
    """Default of a key of every worker."""
    value = ClassicWorker.model_fields[name].get_default()
    assert isinstance(value, float)
    return value


FIGURES = [
    (READING, f"at most `batch.inline` records ({BATCH.inline:,})"),
    (READING, f"When {WORDS[adaptive_reader.ENTER]} times `batch.inline` records wait"),
    (READING, f"({adaptive_reader.ENTER * BATCH.inline:,})"),
    (READING, f"up to `batch.ranges` records ({BATCH.ranges:,})"),
    (READING, f"`batch.max_wait` ({BATCH.max_wait * 1000:g} ms)"),
    (READING, f"A batch of up to {batches.ONE_TASK:,} records"),
    (READING, f"longer than {batches.QUICK:g} s"),
    (READING, f"`batch.memory` MiB together ({BATCH.memory};"),
    (READING, f"at most {WORDS[columnar._MOST_CORES]} cores"),
    (READING, f"`batch.max_seconds` ({BATCH.max_seconds:g} s)"),
    (DELIVERY, f"The batch runs {WORDS[len(executor.RETRY_PAUSES) + 1]} times in all"),
    (DELIVERY, f"After {WORDS[pipeline.TOGETHER]} deaths"),
    (DELIVERY, f"kills {WORDS[pipeline.ALONE]} more workers alone"),
    (DELIVERY, f"more than {poison_search.MOST} of the latest {poison_search.WINDOW:,} records"),
    (DELIVERY, f"({default('entrypoint_failure_timeout') / 60:g} minutes)"),
    (DELIVERY, f"`worker.metadata_refresh` ({default('metadata_refresh'):g} s)"),
    (STORMS, f"{WORDS[storms.TOGETHER].capitalize()} or more groups in a storm at once"),
    (STORMS, f"rebalances: {StormSpec().rebalances} "),
    (STORMS, f"window: {StormSpec().window / 60:g}m"),
    (STORMS, f"cooldown: {StormSpec().cooldown / 60:g}m"),
    (METRICS, f"{GRACE.least:g} s or {WORDS[GRACE.gaps]} usual gaps between commits"),
    (METRICS, f"at most {GRACE.most / 60:g} minutes"),
    (METRICS, f"at most {GRACE.allowed} record waits"),
    (METRICS, f"the commit moved back in the last {GRACE.rewound / 60:g} minutes"),
    (REWIND, f"moved back in the last {GRACE.rewound / 60:g} minutes"),
    (REWIND, f"or after {GRACE.rewound / 60:g} minutes"),
    (METRICS, f"{WORDS[storms.TOGETHER]} or more groups"),
    ("docs/how-to/alerts.md", f"{WORDS[storms.TOGETHER]} or more groups in a storm"),
    (COST, f"downtime of a partition ≤ {roll.MOST_DOWNTIME:g} s"),
    (COST, f"settled in ≤ {sync_join.MOST_SETTLED:g} s"),
    (COST, f"downtime ≤ {sync_join.MOST_DOWNTIME:g} s and one batch"),
    (COST, f"processed again within {failover.MOST_SECONDS:g} s |"),
    (COST, f"{LocalRuntimeSpec().lease:g} s on one machine"),
    (COST, f"{KubernetesRuntimeSpec(kind='kubernetes').lease:g} s on Kubernetes"),
    (COST, f"| {KAFKA} | all tests; the embedded broker |"),
    (COST, f"| {', '.join(RELEASES)} | `make conformance`"),
    ("README.md", f"Tested on Kafka {KAFKA}, and whole changes on {' and '.join(RELEASES)}."),
    ("CHANGELOG.md", f"tested on {KAFKA}, whole changes on {' and '.join(RELEASES)}."),
    ("README.md", DEMO_TAKES),
    ("docs/start/demo.md", DEMO_TAKES),
]


@pytest.mark.parametrize(("page", "words"), FIGURES)
def test_a_page_says_the_code_s_figure(page: str, words: str) -> None:
    """The sentence is there, with the constant in it."""
    assert words in said(page)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_the_history_has_a_row(table: str) -> None:
    """And no other has one; `cluster` is a common rule of the page."""
    page = (repository() / "docs/reference/history-tables.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    cells = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == {*TABLES[table].names} - {"cluster"}


def test_the_demo_s_help_says_how_long_it_takes() -> None:
    """As README and its page do."""
    command = cli.get_command(click.Context(cli), "demo")
    assert command is not None
    assert DEMO_TAKES in " ".join((command.help or "").split()).lower()


ROWS = {
    "roll all workers to new code": "roll all 4 workers",
    "a worker is killed": "worker killed (-9)",
    "k workers more": "+2 workers by a synchronized join",
    "k workers fewer": "-2 workers",
}


@pytest.mark.parametrize("row", ROWS)
def test_the_guarantees_are_those_that_are_tested(row: str) -> None:
    """The largest number of each cell is what the tests allow."""
    (line,) = re.findall(rf"^\| {row}.*$", (repository() / COST).read_text(), re.MULTILINE)
    cells = line.strip("| ").split(" | ")[1:]
    largest = tuple(max(map(int, re.findall(r"\d+", cell))) for cell in cells)
    assert largest == MOST[ROWS[row]]


def test_descriptions_of_keys_name_no_rule() -> None:
    """A number in brackets means something in the code only."""
    assert not [key for key, *_, text in keys(FleetSpec, "") if re.search(r"\[\d+\]", text)]


def test_the_tree_of_errors_is_whole() -> None:
    """Every class is in the module's picture, under its parent."""
    depth: list[tuple[int, str]] = []
    drawn = {}
    for line in (fleet.errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│├└─ ]*)([A-Z]\w+)  ", line):
            at = len(match[1])
            depth = [each for each in depth if each[0] < at]
            drawn[match[2]] = depth[-1][1] if depth else "Exception"
            depth.append((at, match[2]))
    there = {
        name: each.__bases__[0].__name__
        for name, each in inspect.getmembers(fleet.errors, inspect.isclass)
        if each.__module__ == fleet.errors.__name__
    }
    assert drawn == there


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """String constants of a module that may reach a user: none of its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    } | {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in documents:
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


def test_messages_name_pages_of_the_documentation() -> None:
    """Who installed the wheel has no folder docs/; what `documentation:` names is a page."""
    wrong = []
    for path in sorted((repository() / "fleet").rglob("*.py")):
        for line, text in strings(path):
            named = re.findall(r"documentation: ([\w/-]+)", text)
            lost = [each for each in named if not (repository() / "docs" / f"{each}.md").exists()]
            if lost or re.search(r"\bdocs/[\w./-]+\.md", text):
                wrong.append(f"{path.relative_to(repository())}:{line}: {text!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_no_files_of_the_repository(name: str) -> None:
    """Of a command, and of those below it."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for each in _below(command):
        texts = [each.help or "", *(getattr(p, "help", "") or "" for p in each.params)]
        assert not [text for text in texts if "docs/" in text], each.name


def _below(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from _below(inner)
