"""What a person sees while the demo runs: sentences, and on a terminal a picture that moves.

Problem: a fleet that changes without a stop looks like nothing happens. Choice: what was done
is a sentence with its second; on a terminal a table of groups and slots stands below and is
drawn anew twice a second; in a pipe the same state is a sentence every few seconds. A thread
looks at the cluster, and a look that fails is left out; one that fails by a defect says so, in
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
from fleet.demo.coverage import Due, Held, JournalEntry, coverage, records_between
from fleet.demo.measure import Meter, Stretch
from fleet.errors import FleetError
from fleet.manager.cycle import Fleet
from fleet.model import GroupSnapshot
from fleet.slots import Slot

_LOOK_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 10.0
_WIDTH: Final = 100
_COLUMNS: Final = ("slot", "partitions", "phase", "code", "owner", "batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group as a person sees it."""

    group: str
    state: str
    members: int
    standbys: int
    lag: int | None
    rebalances: int | None
    """Recorded since the step in hand began."""
    slots: tuple[tuple[str, ...], ...]
    """Rows of `_COLUMNS`."""

    def sentence(self) -> str:
        """The group in one line."""
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        return (
            f"{self.group}: {self.state}, {self.members} members, {self.standbys} standby, "
            f"{lag} records waiting"
        )


def _console() -> Console:
    """Standard output; a pipe has no width of its own and gets what the tables need."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


Look = Callable[[], Sequence[GroupView]]


class Show:
    """Tells what happens. A context manager; `say` may be called from any thread."""

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
        """Draw no more; sentences and tables still come."""
        self.unwatch()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def chapter(self, title: str) -> None:
        """Begin a part of the story."""
        self._chapter = title
        self._print(Text(f"\n{self._second()} {title}", style="bold"))

    def say(self, sentence: str) -> None:
        """Tell what was done."""
        self._last = sentence
        self._print(Text(f"{self._second()}   {sentence.strip()}"))

    def table(self, table: RenderableType) -> None:
        """Show a result."""
        self._print(table)

    def watch(self, look: Look) -> None:
        """Look at the cluster every second from now on, in a thread."""
        self.unwatch()
        self._stop = threading.Event()  # of this watch: an earlier look may outlast its own
        self._watcher = threading.Thread(
            target=self._look, args=(look, self._stop), name="view", daemon=True
        )
        self._watcher.start()

    def unwatch(self) -> None:
        """Stop looking; returns when the last look is over."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(timeout=15.0)
            self._watcher = None
        self._pictures = ()

    def _look(self, look: Look, stop: threading.Event) -> None:
        told, defects = self._clock.monotonic(), set[str]()
        while not stop.wait(_LOOK_SECONDS):
            try:
                pictures = look()
            except FleetError:
                continue
            except Exception as error:  # noqa: BLE001 - this thread alone would end of it
                if (defect := _in_one_line(error)) not in defects:
                    defects.add(defect)
                    self.say(f"the view could not look: {defect}; this is a defect, report it")
                continue
            if stop.is_set():
                return
            self._pictures = pictures
            if self._live is None and self._clock.monotonic() - told >= _TOLD_SECONDS:
                told = self._clock.monotonic()
                for picture in self._pictures:
                    if picture.members:
                        self._print(Text(f"{self._second()}   ({picture.sentence()})"))

    def _second(self) -> str:
        return f"[{self._clock.monotonic() - self._began:4.0f} s]"

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=isinstance(what, Text))

    def _render(self) -> RenderableType:
        head = Text.assemble(
            "\n", (self._chapter, "bold"), f"  {self._second()}  ", (self._last, "dim")
        )
        return Group(head, *(_drawn(picture) for picture in self._pictures if picture.slots))


def _in_one_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _drawn(picture: GroupView) -> RenderableType:
    counted = (
        "" if picture.rebalances is None else f", {picture.rebalances} rebalances in this step"
    )
    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for name in _COLUMNS:
        drawn.add_column(name, justify="right" if name in {"slot", "batches"} else "left")
    for slot in picture.slots:
        drawn.add_row(*slot)
    return Group(Text(picture.sentence() + counted), drawn)


# The picture of the demo's groups, taken from a snapshot, the slots and the processes.


def pictures(fleet: Fleet, meter: Meter | None = None) -> tuple[GroupView, ...]:
    """Every declared group as it is now; `meter` counts the rebalances of the open step."""
    snapshot = fleet.snapshot([declared.group for declared in fleet.spec.fleets])
    found = []
    for declared in fleet.spec.fleets:
        group = declared.group
        seen = snapshot.groups.get(group)
        slots = [s for s in fleet.slots(group) if s.owner is not None]
        standbys = sum(1 for r in fleet.reports(group) if r.phase == "standby")
        found.append(
            GroupView(
                group=group,
                state=seen.state.value if seen else "not there yet",
                members=len(seen.members) if seen else 0,
                standbys=standbys,
                lag=seen.lag if seen else None,
                rebalances=_rebalances(meter, group),
                slots=tuple(_slot(slot, seen) for slot in slots),
            )
        )
    return tuple(found)


def _rebalances(meter: Meter | None, group: str) -> int | None:
    """Recorded in the open step of this group; None where it has none."""
    if meter is None:
        return None
    for stretch in meter.stretches:
        if stretch.group == group and stretch.counted is None:
            return meter.so_far(stretch).rebalances
    return None


def _slot(slot: Slot, seen: GroupSnapshot | None) -> tuple[str, ...]:
    owned = 0
    for member in seen.members if seen else ():
        if member.member_id == slot.member_id or member.instance_id == slot.instance_id():
            owned = len(member.partitions)
    told = (slot.phase.value, (slot.revision or "")[:6], slot.owner or "", str(slot.batches))
    return str(slot.number), "■" * owned, *told


# What the demo promises and what was recorded: the coordinator's numbers, rows in the journal and
# records in the topic [33, 34]; nothing is what an actor says of itself.


ORDINARY: Final = "ordinary"

_TITLES: Final = {
    "up": "up: 3 workers to 6",
    "roll": "roll: 6 to new code",
    "down": "down: 6 workers to 3",
    ORDINARY: "ordinary: 3 one by one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the demo. Times in seconds; `longest_downtime_s` None = no partition moved."""

    name: str
    group: str
    expected_rebalances: int
    """The most that the plan allows; the ordinary way: what is usual."""
    recorded_rebalances: int
    moved_partitions: int
    longest_downtime_s: float | None
    records: int
    lost: int
    twice: int
    seconds: float


def report_json(bootstrap_servers: str, steps: Sequence[StepResult]) -> dict[str, Any]:
    """The whole of demo-report.json."""
    return {
        "bootstrap_servers": bootstrap_servers,
        "steps": [_rounded(asdict(step)) for step in steps],
    }


def _rounded(step: dict[str, Any]) -> dict[str, Any]:
    pause = step["longest_downtime_s"]
    told = None if pause is None else round(pause, 3)
    return {**step, "longest_downtime_s": told, "seconds": round(step["seconds"], 1)}


def results(
    stretches: Sequence[Stretch],
    entries: Iterable[JournalEntry],
    due: Mapping[str, Due],
    held: Held,
) -> tuple[StepResult, ...]:
    """One result per closed stretch. `due` names, per group, the offsets that had to be processed;
    `held` is what the topic held when all was over.

    What was lost or repeated before a group's first step is charged to that step.
    """
    journal = tuple(entries)
    made: list[StepResult] = []
    covered = {
        group: coverage(journal, group=group, due=partitions, held=held)
        for group, partitions in due.items()
    }
    for stretch in stretches:
        if stretch.counted is None or stretch.ended_at is None:
            continue
        same = [s.started_at for s in stretches if s.group == stretch.group]
        first = stretch.started_at == min(same)
        start = float("-inf") if first else stretch.started_at
        end = min((at for at in same if at > stretch.started_at), default=float("inf"))
        found = covered[stretch.group]
        made.append(
            StepResult(
                name=stretch.name,
                group=stretch.group,
                expected_rebalances=stretch.expected,
                recorded_rebalances=stretch.counted.rebalances,
                moved_partitions=stretch.counted.moved,
                longest_downtime_s=stretch.counted.longest_downtime_s,
                records=records_between(
                    journal, group=stretch.group, start=stretch.started_at, end=stretch.ended_at
                ),
                lost=found.lost_between(start, end),
                twice=found.twice_between(start, end),
                seconds=stretch.ended_at - stretch.started_at,
            )
        )
    return tuple(made)


def broken_promises(steps: Sequence[StepResult], wanted: Sequence[str]) -> tuple[str, ...]:
    """What differs from what was promised, a sentence each; () = all held.

    `wanted` names the steps that must be there. The ordinary way promises no number of
    rebalances, and its restarts may process a batch again; but nothing may be lost by it.
    """
    found = [
        f"step {name} was not reached"
        for name in wanted
        if name not in {step.name for step in steps}
    ]
    for step in steps:
        managed = step.name != ORDINARY
        if managed and step.recorded_rebalances > step.expected_rebalances:
            found.append(
                f"{step.name}: the coordinator recorded {step.recorded_rebalances} rebalances, "
                f"at most {step.expected_rebalances} were promised"
            )
        if managed and step.expected_rebalances and not step.recorded_rebalances:
            found.append(f"{step.name}: no rebalance was recorded, so the step changed nothing")
        if step.lost:
            found.append(f"{step.name}: {step.lost} records were never processed")
        if managed and step.twice:
            found.append(f"{step.name}: {step.twice} records were processed more than once")
    return tuple(found)


def table(steps: Sequence[StepResult]) -> Table:
    """The table at the end, at most 100 columns wide."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True, pad_edge=False)
    shown.add_column("step", no_wrap=True)
    for heading in (
        "rebalances\nexpected",
        "\nrecorded",
        "partitions\nmoved",
        "longest\npause",
        "\nrecords",
        "\nlost",
        "processed\ntwice",
        "\ntook",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        shown.add_row(*_row(step))
    return shown


def _row(step: StepResult) -> tuple[str, ...]:
    pause = step.longest_downtime_s
    few = "≤ " if step.expected_rebalances > 1 and step.name != ORDINARY else ""
    return (
        _TITLES.get(step.name, step.name),
        f"{few}{step.expected_rebalances}",
        str(step.recorded_rebalances),
        str(step.moved_partitions),
        "-" if pause is None else f"{pause:.2f} s",
        str(step.records),
        str(step.lost),
        str(step.twice),
        f"{step.seconds:.0f} s",
    )
