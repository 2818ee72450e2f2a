"""`make bench-roll`: what handing every slot over to new code costs, beside rolling restarts.

Problem: "a roll costs nothing" must hold for every handover of a hundred, not for a lucky one.
Choice: Fleet rolls real code changes, slot by slot, until there are enough handovers. Rebalances
and downtimes come from the coordinator's records [27], losses and duplicates from the journal [34].
Then a group of as many dynamic members restarts one by one on the same topic and cores, as the
baseline. Cost: a worker's start per handover, some ten minutes per protocol.

Goals: 0 rebalances over all rolls; the downtime of a partition at p95 at most 0.2 s beyond its
usual gap between commits; nothing lost, no duplicates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from benchmarks.command import (
    keep_option,
    measure,
    number_option,
    protocol_option,
    quick_option,
    rate_option,
)
from benchmarks.figures import BenchmarkResult, Goal, Spread, ratio, spread
from benchmarks.ground import Ground
from fleet.demo.measure import await_settled, restart_one_by_one
from fleet.model.rebalances import RebalanceCounts

MOST_DOWNTIME: Final = 0.2
"""Seconds beyond the usual gap between commits, as docs/concepts/cost.md states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOptions:
    """What is to be measured."""

    handovers: int = 100
    slots: int = 6
    baseline_rolls: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What all rolls of one way came to."""

    rolls: int
    handovers: int
    """Slots handed over, or members restarted."""
    rebalances: int
    moved: int
    """Partitions that changed owner by a rebalance."""
    downtimes: Spread | None
    lost: int
    duplicates: int
    seconds: float
    """Of all rolls together."""

    @property
    def per_roll(self) -> float:
        """Rebalances of one roll."""
        return self.rebalances / self.rolls

    @property
    def downtime_per_roll(self) -> float | None:
        """Partition-seconds of downtime in one roll."""
        return None if self.downtimes is None else self.downtimes.total / self.rolls


@dataclass(frozen=True, kw_only=True)
class RollResult(BenchmarkResult):
    """Both ways on one protocol."""

    protocol: str
    slots: int
    wanted: int
    """Handovers, at least."""
    batch: Spread | None
    ours: Side
    baseline: Side

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        downtime = None if self.ours.downtimes is None else self.ours.downtimes.p95
        short = max(0, self.wanted - self.ours.handovers)
        return (
            Goal("rebalances of all rolls", 0, self.ours.rebalances),
            Goal("downtime of a partition at p95, seconds", MOST_DOWNTIME, downtime),
            Goal("records lost", 0, self.ours.lost),
            Goal("duplicate records", 0, self.ours.duplicates),
            Goal("handovers missing", 0, short),
        )

    def ratios(self) -> dict[str, float | None]:
        """How many times more the baseline costs; None where ours is 0."""
        ours, theirs = self.ours, self.baseline
        p95 = [side.downtimes.p95 if side.downtimes else None for side in (theirs, ours)]
        return {
            "rebalances_per_roll": ratio(theirs.per_roll, ours.per_roll),
            "downtime_p95": ratio(*p95),
            "downtime_partition_seconds_per_roll": ratio(
                theirs.downtime_per_roll, ours.downtime_per_roll
            ),
        }

    def figures(self) -> dict[str, Any]:
        """With the ratios."""
        return {**super().figures(), "baseline_to_fleet": self.ratios()}


def side_of(
    stretches: Sequence[RebalanceCounts],
    *,
    handovers: int,
    account: tuple[int, int],
    seconds: float,
) -> Side:
    """All rolls of one way, one stretch of the records each."""
    lost, duplicates = account
    return Side(
        rolls=len(stretches),
        handovers=handovers,
        rebalances=sum(each.rebalances for each in stretches),
        moved=sum(each.moved for each in stretches),
        downtimes=spread(downtime for each in stretches for downtime in each.every_downtime),
        lost=lost,
        duplicates=duplicates,
        seconds=seconds,
    )


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, protocol: str, options: RollOptions) -> RollResult:
    """Both ways on one protocol. Raises FleetError where a change does not end well."""
    ours, batch = _managed(ground, protocol, options)
    return RollResult(
        protocol=protocol,
        slots=options.slots,
        wanted=options.handovers,
        batch=batch,
        ours=ours,
        baseline=_baseline(ground, protocol, options),
    )


def _managed(ground: Ground, protocol: str, options: RollOptions) -> tuple[Side, Spread | None]:
    group = f"roll-{protocol}"
    replicas = {"min": 0, "max": options.slots, "standby": 1}
    ground.declare(group, protocol=protocol, slots=options.slots, replicas=replicas)
    ground.start_group(group)
    ground.apply(group)
    ground.steady(group)
    stretches: list[RebalanceCounts] = []
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


def _baseline(ground: Ground, protocol: str, options: RollOptions) -> Side:
    group = f"roll-{protocol}-baseline"
    worker = {"membership": "dynamic"}
    ground.declare(group, protocol=protocol, slots=options.slots, worker=worker)
    ground.start_group(group)
    ground.apply(group)
    ground.steady(group)
    stretches: list[RebalanceCounts] = []
    handovers, seconds = 0, 0.0
    for _ in range(options.baseline_rolls):
        began = ground.clock.monotonic()
        with ground.measured(group) as found:
            handovers += restart_one_by_one(ground.fleet, group, clock=ground.clock, say=ground.say)
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
@number_option("--baseline-rolls", 3, "Number of rolling restarts of the baseline.", 1, 1000)
@rate_option
@quick_option
@keep_option
def roll(*, asked: tuple[str, ...], rate: int, quick: bool, keep: bool, **wanted: int) -> None:
    """Hand every slot over to new code, again and again.

    Goals: 0 rebalances over all rolls; a partition's downtime at p95 at most 0.2 s; no
    record lost, no duplicates. Beside it as many dynamic members are restarted one by
    one, on the same topic and cores. Pauses run from the last commit of the old owner to the
    first of the new one, less the usual gap between commits, by the coordinator's records.
    About ten minutes per protocol.
    """
    small = {"handovers": 2, "slots": 2, "baseline_rolls": 1}
    options = RollOptions(**(small if quick else wanted))
    measure(
        "roll",
        asked=asked,
        partitions=2 * options.slots,
        rate=rate,
        keep=keep,
        run=lambda ground, each: run(ground, each, options),
    )
