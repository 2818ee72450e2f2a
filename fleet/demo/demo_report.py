"""What the demo promises, what was recorded, and how both are shown.

Pure: values in, a table, JSON and a list of broken promises out. Recorded numbers are the
coordinator's, lost and twice come from the rows in the journal and the records in the topic
[33, 34]; nothing here is what an actor says of itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.table import Table

from fleet.demo.coverage import Due, Held, coverage, records_between
from fleet.demo.journal import JournalEntry
from fleet.demo.measure import Stretch

ORDINARY: Final = "ordinary"

_TITLES: Final = {
    "up": "up: 3 workers to 6",
    "roll": "roll: 6 to new code",
    "down": "down: 6 workers to 3",
    ORDINARY: "ordinary: 3 one by one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the demo. Times in seconds; `longest_pause_s` None = no partition moved."""

    name: str
    group: str
    expected_rebalances: int
    """The most that the plan allows; the ordinary way: what is usual."""
    recorded_rebalances: int
    moved_partitions: int
    longest_pause_s: float | None
    records: int
    lost: int
    twice: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """An element of `steps` in demo-report.json."""
        pause = self.longest_pause_s
        return {
            "name": self.name,
            "group": self.group,
            "expected_rebalances": self.expected_rebalances,
            "recorded_rebalances": self.recorded_rebalances,
            "moved_partitions": self.moved_partitions,
            "longest_pause_s": None if pause is None else round(pause, 3),
            "records": self.records,
            "lost": self.lost,
            "twice": self.twice,
            "seconds": round(self.seconds, 1),
        }


def report_json(bootstrap_servers: str, steps: Sequence[StepResult]) -> dict[str, Any]:
    """The whole of demo-report.json."""
    return {
        "bootstrap_servers": bootstrap_servers,
        "steps": [step.as_json() for step in steps],
    }


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
                longest_pause_s=stretch.counted.longest_pause_s,
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
    found = [f"step {name} was not reached" for name in wanted if name not in _names(steps)]
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
    pause = step.longest_pause_s
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


def _names(steps: Sequence[StepResult]) -> set[str]:
    return {step.name for step in steps}
