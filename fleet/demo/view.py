"""Shows the demo's progress: sentences, and on a terminal a table that follows.

Problem: a fleet that changes without a stop looks as if nothing happens. Choice: each action is a
sentence with its second. A terminal also shows the slots as `fleet status GROUP` does; a pipe gets
a sentence every few seconds. A thread reads the cluster and skips a read that fails. A defect is
one line: the view never stops the demo.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fleet.clock import Clock
from fleet.commands.groups.group_status import SLOTS, Managed, as_table, managed_of, slot_rows
from fleet.demo.coverage import Due, JournalEntry, TopicRecords, coverage, records_between
from fleet.demo.measure import MeasuredStep, Meter
from fleet.errors import FleetError
from fleet.manager.cycle import Fleet
from fleet.model import GroupSnapshot

_LOOK_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 10.0
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group as the view shows it."""

    group: str
    seen: GroupSnapshot | None
    managed: Managed
    rebalances: int | None
    """Recorded since the current step began."""

    def sentence(self) -> str:
        """Describes the group in one line."""
        seen = self.seen
        lag = "unknown" if seen is None or seen.lag is None else f"{seen.lag:,}"
        return (
            f"{self.group}: {seen.state.value if seen else 'not on the cluster yet'}, "
            f"{len(seen.members) if seen else 0} members, {self.managed.standby} standby, "
            f"{lag} records waiting"
        )


def _console() -> Console:
    """Opens standard output; a pipe has no width and gets the width of the tables."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


ReadGroups = Callable[[], Sequence[GroupView]]


class Show:
    """Prints the demo's progress. A context manager; any thread may call `say`."""

    def __init__(self, *, clock: Clock, console: Console | None = None) -> None:
        self._console = console or _console()
        self._clock = clock
        self._began = clock.monotonic()
        self._chapter = ""
        self._last = ""
        self._pictures: Sequence[GroupView] = ()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> "Show":
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=2,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rest()

    def rest(self) -> None:
        """Stops the live table; sentences and results are still printed."""
        self.unwatch()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def chapter(self, title: str) -> None:
        """Begins a part of the scenario."""
        self._chapter = title
        self._print(Text(f"\n{self._second()} {title}", style="bold"))

    def say(self, sentence: str) -> None:
        """Prints a sentence with its second."""
        self._last = sentence
        self._print(Text(f"{self._second()}   {sentence.strip()}"))

    def table(self, table: RenderableType) -> None:
        """Prints a result table."""
        self._print(table)

    def watch(self, look: ReadGroups) -> None:
        """Reads the cluster every second from now on, in a thread."""
        self.unwatch()
        self._stop = threading.Event()  # of this watch: an earlier read may outlast its own
        self._watcher = threading.Thread(
            target=self._look, args=(look, self._stop), name="view", daemon=True
        )
        self._watcher.start()

    def unwatch(self) -> None:
        """Stops reading; returns when the last read is over."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(timeout=15.0)
            self._watcher = None
        self._pictures = ()

    def _look(self, look: ReadGroups, stop: threading.Event) -> None:
        told, defects = self._clock.monotonic(), set[str]()
        while not stop.wait(_LOOK_SECONDS):
            try:
                pictures = look()
            except FleetError:
                continue
            except Exception as error:  # noqa: BLE001 - it would stop this thread silently
                if (defect := _in_one_line(error)) not in defects:
                    defects.add(defect)
                    self.say(f"the view failed: {defect}; this is a defect, report it")
                continue
            if stop.is_set():
                return
            self._pictures = pictures
            if self._live is None and self._clock.monotonic() - told >= _TOLD_SECONDS:
                told = self._clock.monotonic()
                for picture in self._pictures:
                    if picture.seen is not None and picture.seen.members:
                        self._print(Text(f"{self._second()}   ({picture.sentence()})"))

    def _second(self) -> str:
        return f"[{self._clock.monotonic() - self._began:4.0f} s]"

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=isinstance(what, Text))

    def _render(self) -> RenderableType:
        head = Text.assemble(
            "\n", (self._chapter, "bold"), f"  {self._second()}  ", (self._last, "dim")
        )
        shown = (picture for picture in self._pictures if picture.managed.owned)
        return Group(head, *(_render_group(picture) for picture in shown))


def _in_one_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _render_group(picture: GroupView) -> RenderableType:
    counted = (
        "" if picture.rebalances is None else f", {picture.rebalances} rebalances in this step"
    )
    rows = as_table(SLOTS, slot_rows(picture.managed), 0.0)
    return Group(Text(picture.sentence() + counted), rows)


# The views of the demo's groups, from a snapshot, the slots and the processes.


def group_views(fleet: Fleet, meter: Meter | None = None) -> tuple[GroupView, ...]:
    """Reads every declared group; `meter` counts the rebalances of the open step."""
    groups = [declared.group for declared in fleet.spec.fleets]
    seen = fleet.snapshot(groups).groups
    return tuple(
        GroupView(
            group=group,
            seen=seen.get(group),
            managed=managed_of(fleet, group),
            rebalances=_rebalances(meter, group),
        )
        for group in groups
    )


def _rebalances(meter: Meter | None, group: str) -> int | None:
    """Counts the rebalances in the open step of this group; None if it has none."""
    if meter is None:
        return None
    for step in meter.steps:
        if step.group == group and step.counted is None:
            return meter.so_far(step).rebalances
    return None


# The demo's guarantees and what was recorded: the coordinator's numbers, rows in the journal and
# records in the topic [33, 34]. No figure is a worker's own report.


BASELINE: Final = "baseline"

_TITLES: Final = {
    "up": "up: 3 workers to 6",
    "roll": "roll: 6 to new code",
    "down": "down: 6 workers to 3",
    BASELINE: "baseline: 6 restarted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the demo. Times are in seconds; no downtime is known if no partition moved."""

    name: str
    group: str
    expected_rebalances: int
    """The plan's upper bound; for the baseline the usual number."""
    recorded_rebalances: int
    moved_partitions: int
    longest_downtime_s: float | None
    downtime_partition_s: float
    """Downtime of all partitions together, in partition-seconds."""
    records: int
    lost: int
    duplicates: int
    seconds: float


def report_json(bootstrap_servers: str, steps: Sequence[StepResult]) -> dict[str, Any]:
    """Builds the content of demo-report.json."""
    return {
        "bootstrap_servers": bootstrap_servers,
        "steps": [_rounded(asdict(step)) for step in steps],
    }


def _rounded(step: dict[str, Any]) -> dict[str, Any]:
    longest, total = step["longest_downtime_s"], step["downtime_partition_s"]
    downtime = {
        "longest_downtime_s": None if longest is None else round(longest, 3),
        "downtime_partition_s": round(total, 3),
    }
    return {**step, **downtime, "seconds": round(step["seconds"], 1)}


def results(
    steps: Sequence[MeasuredStep],
    entries: Iterable[JournalEntry],
    due: Mapping[str, Due],
    topic_records: TopicRecords,
) -> tuple[StepResult, ...]:
    """Returns one result per closed step.

    `due` names the offsets that each group had to process. `topic_records` is read after the last
    step. Records lost or repeated before a group's first step count for that step.
    """
    journal = tuple(entries)
    made: list[StepResult] = []
    covered = {
        group: coverage(journal, group=group, due=partitions, topic_records=topic_records)
        for group, partitions in due.items()
    }
    for step in steps:
        if step.counted is None or step.ended_at is None:
            continue
        same = [s.started_at for s in steps if s.group == step.group]
        first = step.started_at == min(same)
        start = float("-inf") if first else step.started_at
        end = min((at for at in same if at > step.started_at), default=float("inf"))
        found = covered[step.group]
        made.append(
            StepResult(
                name=step.name,
                group=step.group,
                expected_rebalances=step.expected,
                recorded_rebalances=step.counted.rebalances,
                moved_partitions=step.counted.moved,
                longest_downtime_s=step.counted.longest_downtime_s,
                downtime_partition_s=sum(step.counted.every_downtime),
                records=records_between(
                    journal, group=step.group, start=step.started_at, end=step.ended_at
                ),
                lost=found.lost_between(start, end),
                duplicates=found.duplicates_between(start, end),
                seconds=step.ended_at - step.started_at,
            )
        )
    return tuple(made)


def broken_guarantees(steps: Sequence[StepResult], wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns a sentence for each broken guarantee; () means that all held.

    `wanted` names the required steps. The baseline guarantees no number of rebalances, and its
    restarts may process a batch again; but it must not lose a record.
    """
    found = [
        f"step {name} was not reached"
        for name in wanted
        if name not in {step.name for step in steps}
    ]
    for step in steps:
        managed = step.name != BASELINE
        if managed and step.recorded_rebalances > step.expected_rebalances:
            found.append(
                f"{step.name}: the coordinator recorded {step.recorded_rebalances} rebalances, "
                f"the plan allows at most {step.expected_rebalances}"
            )
        if managed and step.expected_rebalances and not step.recorded_rebalances:
            found.append(f"{step.name}: the coordinator recorded no rebalance: nothing changed")
        if step.lost:
            found.append(f"{step.name}: {step.lost} records were never processed")
        if managed and step.duplicates:
            found.append(f"{step.name}: {step.duplicates} records were processed more than once")
    return tuple(found)


def table(steps: Sequence[StepResult]) -> Table:
    """Builds the table at the end, at most 100 columns wide."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, pad_edge=False)
    shown.add_column("step", no_wrap=True)
    for heading in (
        "rebalances\nexpected",
        "\nrecorded",
        "\nmoved",
        "downtime\nlongest",
        "partition\nseconds",
        "\nrecords",
        "\nlost",
        "dupli-\ncates",
        "\ntook",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        shown.add_row(*_row(step))
    return shown


def _row(step: StepResult) -> tuple[str, ...]:
    longest = step.longest_downtime_s
    few = "≤ " if step.expected_rebalances > 1 and step.name != BASELINE else ""
    return (
        _TITLES.get(step.name, step.name),
        f"{few}{step.expected_rebalances}",
        str(step.recorded_rebalances),
        str(step.moved_partitions),
        "-" if longest is None else f"{longest:.2f} s",
        f"{step.downtime_partition_s:.1f}",
        str(step.records),
        str(step.lost),
        str(step.duplicates),
        f"{step.seconds:.0f} s",
    )
