"""`make bench-packing`: the experiment of Landau et al. (arXiv 2402.06085) with our packings.

Problem: a packing that moves everything at each step is small and useless. Choice: their random
walk: each partition's rate begins evenly spread over the capacity of a worker, and changes by at
most ±δ of it at each step. Each algorithm sizes the group from its own last owners; counted are
members and the R-score. Then records flow, 30 s a step: Modified Worst Fit beside as many members
as Kafka assigns round robin once. A moved partition stops for 5 s, and a member reads a fifth more
than a packing fills, since it could never catch up otherwise. Cost: our rates are seeded, not
theirs; orderings are compared, no figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, Goal, PlotArea, legend, svg
from fleet.commands.invocation import verbose_option
from fleet.decide.assignments import NOBODY, Owners
from fleet.decide.packing import ALGORITHMS, members_of, r_score
from fleet.lag.lag_columns import Floats

CAPACITY: Final = 100.0
"""Records/s to which a packing fills a member."""
READS: Final = 1.2 * CAPACITY
"""Records/s that a member reads."""
PARTITIONS: Final = 32
DELTAS: Final = (0, 5, 10, 15, 20, 25)
"""Most that a rate changes in one step, in percent of the capacity."""
FLOW: Final = 10
"""The δ of the latencies."""
STEP: Final = 30
"""Seconds of a step."""
STOPPED: Final = 5
"""Seconds for which a moved partition is read by nobody."""
OFF_THE_FRONT: Final = frozenset({"MWFP"})
"""Algorithms of the paper that another beats in members and R-score."""
_TIE: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What an algorithm needs at one δ: means over all steps."""

    algorithm: str
    delta: int
    members: float
    r: float
    """Workers' worth of records that are not read in each second of a rebalance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingResult(BenchmarkResult):
    """Members and R-score of each algorithm, and the age of records beside Kafka's assignment."""

    seed: int
    found: tuple[Packed, ...]
    members: int
    """Members of Modified Worst Fit in the latencies, its mean over the steps."""
    p99: float
    """Seconds until 99 % of the records of Modified Worst Fit are read."""
    kafka_p99: float
    """The same of as many members that own partitions by round robin."""
    kafka_members: int | None
    """Members that round robin needs for the p99 of Modified Worst Fit; None: too many."""

    def means(self) -> dict[str, tuple[float, float]]:
        """Returns members and R-score of each algorithm over all δ but 0."""
        return {
            name: (
                float(np.mean([each.members for each in mine])),
                float(np.mean([each.r for each in mine])),
            )
            for name in ALGORITHMS
            if (mine := [each for each in self.found if each.algorithm == name and each.delta])
        }

    def front(self) -> set[str]:
        """Returns algorithms that no other beats in members and R-score."""
        means, below = self.means(), 1.0 - _TIE
        return {
            name
            for name, (members, r) in means.items()
            if not any(m < below * members and s < below * r for m, s in means.values())
        }

    def goals(self) -> tuple[Goal, ...]:
        """Returns the orderings of the paper."""
        means = self.means()
        fewest = min(members for members, _ in means.values())
        calmest = min(r for _, r in means.values())
        modified = {name: each[0] for name, each in means.items() if name.startswith("M")}
        wrong = self.front() ^ (set(ALGORITHMS) - OFF_THE_FRONT)
        return (
            Goal("members of BFD, of the fewest", 1.0 + _TIE, means["BFD"][0] / fewest),
            Goal("R-score of MWF, of the least", 1.0, means["MWF"][1] / calmest),
            Goal(
                "members of MBFP, of the fewest modified",
                1.0,
                modified["MBFP"] / min(modified.values()),
            ),
            Goal("algorithms that the paper has on the other side of the front", 0, len(wrong)),
            Goal("p99 of MWF, of round robin's at equal members", 1.0, self.p99 / self.kafka_p99),
        )

    def figures(self) -> dict[str, Any]:
        """Returns the figures, with one line per algorithm."""
        return {
            "seed": self.seed,
            "means": {
                name: {"members": round(members, 2), "r": round(r, 3)}
                for name, (members, r) in self.means().items()
            },
            "front": sorted(self.front()),
            "mwf_members": self.members,
            "mwf_p99_seconds": round(self.p99, 1),
            "kafka_p99_seconds": round(self.kafka_p99, 1),
            "kafka_members": self.kafka_members,
        }


def rates_of(delta: int, *, steps: int, seed: int) -> Floats:
    """Returns the random walk of all partitions, a row per step."""
    rng = np.random.default_rng([seed, delta])
    rows = [rng.uniform(0.0, CAPACITY, PARTITIONS)]
    for _ in range(steps - 1):
        change = rng.uniform(-delta, delta, PARTITIONS) / 100.0 * CAPACITY
        rows.append(np.clip(rows[-1] + change, 0.0, CAPACITY))
    return np.array(rows)


def packed_by(algorithm: str, rates: Floats) -> list[Owners]:
    """Returns the owners at each step, from those of the step before."""
    found: list[Owners] = []
    owners: Owners = (NOBODY,) * rates.shape[1]
    for row in rates.tolist():
        owners = ALGORITHMS[algorithm](row, CAPACITY, owners)
        found.append(owners)
    return found


def tally(algorithm: str, delta: int, rates: Floats) -> Packed:
    """Returns the means of an algorithm."""
    owners = packed_by(algorithm, rates)
    moved = [
        r_score(row, before, after, CAPACITY)
        for row, before, after in zip(rates[1:].tolist(), owners, owners[1:], strict=False)
    ]
    return Packed(
        algorithm=algorithm,
        delta=delta,
        members=float(np.mean([members_of(each) for each in owners])),
        r=float(np.mean(moved)),
    )


def p99_of(rates: Floats, owners: Sequence[Owners]) -> float:
    """Returns the 99th percentile of the seconds until a record is read.

    A record that is not read before the end counts as read there.
    """
    count = rates.shape[1]
    waiting, before = np.zeros(count), np.array(owners[0])
    came, read = np.zeros((len(rates) * STEP, count)), np.zeros((len(rates) * STEP, count))
    for step, row in enumerate(rates):
        now = np.array(owners[step])
        moved, before = now != before, now
        for second in range(STEP):
            waiting += row
            can = np.where(moved & (second < STOPPED), 0.0, waiting)
            of_member = np.bincount(now, weights=can)
            done = can * (READS / np.maximum(of_member, READS))[now]
            waiting -= done
            came[step * STEP + second], read[step * STEP + second] = row, done
    ages = []
    seconds = np.arange(1.0, len(came) + 1)
    for arrived, taken in zip(came.cumsum(axis=0).T, read.cumsum(axis=0).T, strict=True):
        ages.append(np.interp(arrived, taken, seconds) - seconds)
    every, weights = np.array(ages).T.ravel(), came.ravel()
    order = np.argsort(every)
    part = weights[order].cumsum() / weights.sum()
    return float(every[order][np.searchsorted(part, 0.99)])


def by_round_robin(members: int, steps: int) -> list[Owners]:
    """Returns owners that stay, as Kafka assigns them without rates."""
    return [tuple(place % members for place in range(PARTITIONS))] * steps


def run(*, steps: int, seed: int, say: Callable[[str], None] = lambda _: None) -> PackingResult:
    """Plays all algorithms, in this process."""
    found = []
    for delta in DELTAS:
        say(f"δ {delta} %")
        rates = rates_of(delta, steps=steps, seed=seed)
        found += [tally(name, delta, rates) for name in ALGORITHMS]
    say("latencies")
    rates = rates_of(FLOW, steps=steps, seed=seed)
    owners = packed_by("MWF", rates)
    members = round(float(np.mean([members_of(each) for each in owners])))
    p99 = p99_of(rates, owners)
    ages = (
        (more, p99_of(rates, by_round_robin(more, steps)))
        for more in range(members, PARTITIONS + 1)
    )
    _, kafka_p99 = next(ages)
    return PackingResult(
        seed=seed,
        found=tuple(found),
        members=members,
        p99=p99,
        kafka_p99=kafka_p99,
        kafka_members=next((more for more, age in ages if age <= p99), None),
    )


# For people.

_COLOURS: Final[Mapping[str, str]] = {
    "FFD": "#999999",
    "BFD": "#000000",
    "WFD": "#56b4e9",
    "MBF": "#e69f00",
    "MWF": "#009e73",
    "MBFP": "#0072b2",
    "MWFP": "#d55e00",
}
_WIDTH, _HEIGHT = 660.0, 320.0
_AREA: Final = PlotArea(50.0, 560.0, 30.0, 280.0)


def plotted(result: PackingResult) -> str:
    """An SVG: R-score by members above the fewest, a line per algorithm with a point per δ."""
    return svg(_WIDTH, _HEIGHT, _drawn(result))


def _drawn(result: PackingResult) -> Iterator[str]:
    shown = [each for each in result.found if each.delta]
    fewest = {
        delta: min(each.members for each in shown if each.delta == delta) for delta in DELTAS[1:]
    }
    excess = {each: each.members / fewest[each.delta] - 1.0 for each in shown}
    right, top = max(excess.values()) * 1.1, max(each.r for each in shown) * 1.1
    title = "R-score by members above the fewest; points: δ of 5 to 25 %, larger is more"
    yield from _AREA.axes(title, (right, "+{:.1%}"), (top, "{:.1f}"))
    for number, (name, colour) in enumerate(_COLOURS.items()):
        mine = [each for each in shown if each.algorithm == name]
        at = [
            (*_AREA.place(excess[each] / right, each.r / top), 1.5 + each.delta / 8)
            for each in mine
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}"/>'
        for x, y, size in at:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{colour}"/>'
        yield from legend(_AREA.right + 20, _AREA.top + 12 + number * 16, name, colour)


@click.command(epilog="Example:  make bench-packing ARGS='--seed 2'")
@number_option("--steps", 500, "Steps of the random walk.", 10, 5_000)
@number_option("--seed", 1, "Seed of the rates.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="SVG of the R-score by members above the fewest.",
)
@verbose_option
def packing(*, steps: int, seed: int, plot: Path | None) -> None:
    """Repeat the packing experiment of Landau et al.; no broker.

    Goals are the orderings of the paper. Best Fit Decreasing needs the fewest members. Modified
    Worst Fit (MWF) moves least, MBFP needs the fewest members of the modified ones, and only MWFP
    is off the front. 99 % of records are read sooner by MWF than by round robin with as many
    members. Half a minute.
    """
    with running("packing") as (say, _):
        result = run(steps=steps, seed=seed, say=say)
    if plot is not None:
        plot.write_text(plotted(result), encoding="utf-8")
    tell("packing", [result])
