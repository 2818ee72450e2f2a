"""`make bench-roll`: what handing every slot over to new code costs, beside rolling restarts.

Problem: "a roll costs nothing" must hold for every handover of a hundred, not for a lucky one.
Choice: real code changes are rolled out, one slot after the other, until there were enough
handovers; rebalances and pauses come from the coordinator's records [27], lost and twice from
the journal [34]. Then a group of as many dynamic members is restarted one by one on the same
topic and cores, as a plain rolling restart does. Cost: a worker's start per handover, some ten
minutes per protocol.

Goals: 0 rebalances over all rolls; the downtime of a partition at p95 at most 0.2 s beyond its
usual gap between commits; nothing lost, nothing processed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from benchmarks.command import measure, number_option, protocol_option, rate_option, run_options
from benchmarks.figures import Goal, Judged, Spread, ratio, spread
from benchmarks.ground import Ground
from fleet.demo.measure import OneByOne, await_settled
from fleet.model.rebalances import Counted

MOST_PAUSE: Final = 0.2
"""Seconds beyond the usual gap between commits, as docs/concepts/cost.md states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOptions:
    """What is to be measured."""

    handovers: int = 100
    slots: int = 6
    ordinary_rolls: int = 3
    max_pause: float = MOST_PAUSE
    """The goal for the p95 pause, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What all rolls of one way came to."""

    rolls: int
    handovers: int
    """Slots handed over, or members restarted."""
    rebalances: int
    moved: int
    """Partitions that changed owner by a rebalance."""
    pauses: Spread | None
    lost: int
    twice: int
    seconds: float
    """Of all rolls together."""

    @property
    def per_roll(self) -> float:
        """Rebalances of one roll."""
        return self.rebalances / self.rolls

    @property
    def paused_per_roll(self) -> float | None:
        """Partition-seconds of pause in one roll."""
        return None if self.pauses is None else self.pauses.total / self.rolls

    def as_json(self) -> dict[str, Any]:
        """One way's figures."""
        return {
            "rolls": self.rolls,
            "handovers": self.handovers,
            "rebalances": self.rebalances,
            "rebalances_per_roll": self.per_roll,
            "moved_partitions": self.moved,
            "downtime_seconds": self.pauses,
            "paused_partition_seconds_per_roll": self.paused_per_roll,
            "lost": self.lost,
            "twice": self.twice,
            "seconds_per_roll": self.seconds / self.rolls,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult(Judged):
    """Both ways on one protocol."""

    protocol: str
    options: RollOptions
    batch: Spread | None
    ours: Side
    ordinary: Side

    def goals(self) -> tuple[Goal, ...]:
        """See Judged."""
        limit = self.options.max_pause
        pause = None if self.ours.pauses is None else self.ours.pauses.p95
        short = max(0, self.options.handovers - self.ours.handovers)
        return (
            Goal("rebalances of all rolls", 0, self.ours.rebalances),
            Goal("pause of a partition at p95, seconds", limit, pause),
            Goal("records lost", 0, self.ours.lost),
            Goal("records processed twice", 0, self.ours.twice),
            Goal("handovers missing", 0, short),
        )

    def ratios(self) -> dict[str, float | None]:
        """How many times more the ordinary way costs; None where ours is 0."""
        ours, theirs = self.ours, self.ordinary
        p95 = [side.pauses.p95 if side.pauses else None for side in (theirs, ours)]
        return {
            "rebalances_per_roll": ratio(theirs.per_roll, ours.per_roll),
            "pause_p95": ratio(*p95),
            "paused_partition_seconds_per_roll": ratio(
                theirs.paused_per_roll, ours.paused_per_roll
            ),
        }

    def figures(self) -> dict[str, Any]:
        """See Judged; with the goals an element of `protocols`."""
        return {
            "protocol": self.protocol,
            "slots": self.options.slots,
            "batch_seconds": self.batch,
            "fleet": self.ours,
            "ordinary": self.ordinary,
            "ordinary_to_fleet": self.ratios(),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading and a line per way."""
        return [
            ("way", "rolls", "handovers", "rebalances", "pause p50", "p95", "max", "lost", "twice"),
            _row("fleet", self.ours),
            _row("ordinary", self.ordinary),
        ]

    def remarks(self) -> list[str]:
        """See Judged."""
        batch = "unknown" if self.batch is None else f"{self.batch.p50:.2f} s"
        times = ", ".join(
            f"{name.replace('_', ' ')} {'-' if value is None else f'{value:g}'}"
            for name, value in self.ratios().items()
        )
        usual = f"{self.ordinary.per_roll:.1f} rebalances in an ordinary roll"
        return [
            f"{self.options.slots} slots; median batch {batch}; {usual}",
            f"ordinary way to fleet, times (- = fleet's figure is 0): {times}",
        ]


def _row(name: str, side: Side) -> tuple[str, ...]:
    pauses = side.pauses
    shown = ("-",) * 3 if pauses is None else (f"{pauses.p50:.2f} s", f"{pauses.p95:.2f} s")
    longest = () if pauses is None else (f"{pauses.max:.2f} s",)
    counts = (str(side.rolls), str(side.handovers), str(side.rebalances))
    return (name, *counts, *shown, *longest, str(side.lost), str(side.twice))


def side_of(
    stretches: Sequence[Counted], *, handovers: int, account: tuple[int, int], seconds: float
) -> Side:
    """All rolls of one way, one stretch of the records each."""
    lost, twice = account
    return Side(
        rolls=len(stretches),
        handovers=handovers,
        rebalances=sum(each.rebalances for each in stretches),
        moved=sum(each.moved for each in stretches),
        pauses=spread(pause for each in stretches for pause in each.every_downtime),
        lost=lost,
        twice=twice,
        seconds=seconds,
    )


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, protocol: str, options: RollOptions) -> RollResult:
    """Both ways on one protocol. Raises FleetError where a change does not end well."""
    ours, batch = _managed(ground, protocol, options)
    return RollResult(
        protocol=protocol,
        options=options,
        batch=batch,
        ours=ours,
        ordinary=_ordinary(ground, protocol, options),
    )


def _managed(ground: Ground, protocol: str, options: RollOptions) -> tuple[Side, Spread | None]:
    group = f"roll-{protocol}"
    replicas = {"min": 0, "max": options.slots, "standby": 1}
    ground.declare(group, protocol=protocol, slots=options.slots, replicas=replicas)
    ground.start_group(group)
    ground.apply(group)
    ground.steady(group)
    stretches: list[Counted] = []
    handovers, seconds = 0, 0.0
    while handovers < options.handovers:
        ground.new_code()
        began = ground.clock.monotonic()
        with ground.measured(group) as found:
            ground.apply(group)
        seconds += ground.clock.monotonic() - began
        stretches += found
        done = found[0].replacements
        handovers += done
        ground.say(f"{protocol}: {handovers} of {options.handovers} handovers")
        if not done:
            break  # the verdict says so; another roll would do no better
    batches = spread(ground.batch_seconds(group))
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    account = ground.account(group)
    return side_of(stretches, handovers=handovers, account=account, seconds=seconds), batches


def _ordinary(ground: Ground, protocol: str, options: RollOptions) -> Side:
    group = f"roll-{protocol}-ordinary"
    worker = {"membership": "dynamic"}
    ground.declare(group, protocol=protocol, slots=options.slots, worker=worker)
    ground.start_group(group)
    ground.apply(group)
    ground.steady(group)
    restarts = OneByOne(fleet=ground.fleet, group=group, clock=ground.clock, say=ground.say)
    stretches: list[Counted] = []
    handovers, seconds = 0, 0.0
    for _ in range(options.ordinary_rolls):
        began = ground.clock.monotonic()
        with ground.measured(group) as found:
            handovers += restarts.run()
            seconds += ground.clock.monotonic() - began
            await_settled(ground.fleet, group, clock=ground.clock)
        stretches += found
    ground.dismiss(group)
    account = ground.account(group)
    return side_of(stretches, handovers=handovers, account=account, seconds=seconds)


@click.command()
@protocol_option
@number_option(
    "--handovers", 100, "Number of handovers at least, in rolls of all slots.", 1, 100_000
)
@number_option("--slots", 6, "Number of workers to roll.", 1, 64)
@number_option("--ordinary-rolls", 3, "Number of rolling restarts done the ordinary way.", 1, 1000)
@rate_option
@number_option(
    "--max-pause",
    MOST_PAUSE,
    "Goal for the p95 pause in seconds.",
    0,
)
@run_options
def roll(
    *,
    protocol: str,
    handovers: int,
    slots: int,
    ordinary_rolls: int,
    rate: int,
    max_pause: float,
    quick: bool,
    keep: bool,
    output: str,
) -> None:
    """Hand every slot over to new code, again and again.

    Goals: 0 rebalances over all rolls; a partition's pause at p95 at most 0.2 s; no record lost,
    none processed twice. Beside it as many dynamic members are restarted one by one, on the same
    topic and cores. Pauses run from the last commit of the old owner to the
    first of the new one, less the usual gap between commits, by the coordinator's records.
    About ten minutes per protocol.
    """
    options = RollOptions(
        handovers=2 if quick else handovers,
        slots=2 if quick else slots,
        ordinary_rolls=1 if quick else ordinary_rolls,
        max_pause=max_pause,
    )
    measure(
        "roll",
        protocol=protocol,
        partitions=2 * options.slots,
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, options),
    )
