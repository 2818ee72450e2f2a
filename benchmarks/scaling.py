"""`make bench-scaling`: rules of scaling on real load, beside a clairvoyant's and the floor.

Problem: each rule of scaling looks good on the load for which it was tuned. Choice: two weeks of
ten public series, spread over 12 unequal partitions by seed, with a worker of 1,000 records/s that
needs 30 s to start; the model is that of `fleet simulate scaling`. Every rule meets the same load
and pays the same for a change. Cost: drain_time was tuned on seed 1; other seeds show what that is
worth. The generated shapes are then replayed through drain_time and through KEDA's rule with the
threshold that spends as many worker hours.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, Goal, PlotArea, legend, plain, svg
from fleet.backtest.comparison import RULES, Comparison, compare
from fleet.backtest.load import DAY, SHAPES, LoadSeries, mixed, read_traces, shape
from fleet.backtest.ours import PolicyRule, policy_rule, replayed_spec
from fleet.backtest.replay import TICK, Observation, Setting, replay
from fleet.backtest.rules import keda
from fleet.commands.invocation import verbose_option
from fleet.decide.assignments import NOBODY, owners_after

DATA: Final = Path(__file__).parent / "data" / "posts.csv"
PARTITIONS: Final = 12
RATE: Final = 2_000.0
"""Mean records/s of the group: two workers' worth."""
_GROUPS: Final = 1_000
_WIDE: Final = 48
"""Partitions of each group when many groups are decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """How long the load is, and how it is spread."""

    days: float = 14.0
    seed: int = 1
    late: float = 1.05
    """Most late hours, of the floor."""
    workers: float = 1.25
    """Most worker hours, of the clairvoyant's."""
    rebalances: float = 2.0
    """Most rebalances, of Flink's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """What drain_time and KEDA's rule cost on a generated shape, at equal worker hours."""

    backlog: float
    """Records times seconds that they waited."""
    keda_backlog: float
    worker_hours: float
    keda_hours: float
    rebalances: int
    keda_rebalances: int
    keda_threshold: float
    """Its `lagThreshold`, chosen for the worker hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingResult(BenchmarkResult):
    """What each rule cost, and how fast ours decides."""

    options: ScalingOptions
    found: Comparison
    replayed: float
    """CPU seconds of replaying drain_time."""
    decided: float
    """CPU seconds of deciding about 1,000 groups once."""
    shapes: Mapping[str, ShapeResult]

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        options, told = self.options, self.found.outcomes
        ours, best, flink = told["drain_time"], told["clairvoyant"], told["flink"]
        floor = self.found.floor_hours
        right = ours.right_at_once(self.found.load)
        return (
            Goal("late hours", options.late * floor, ours.late_hours),
            Goal("worker hours", options.workers * best.worker_hours, ours.worker_hours),
            Goal("rebalances", options.rebalances * flink.rebalances, ours.rebalances),
            Goal("steps up of the right size", 0.9, right, at_least=True),
            Goal("CPU seconds of the replay", 10.0, self.replayed),
            Goal("CPU seconds for 1,000 groups of 48 partitions", 1.0, self.decided),
            *(
                goal
                for name, each in self.shapes.items()
                for goal in (
                    Goal(f"{name}: backlog, of KEDA's", 1.0, each.backlog / each.keda_backlog),
                    Goal(
                        f"{name}: rebalances, of KEDA's",
                        1 / 3,
                        each.rebalances / max(1, each.keda_rebalances),
                    ),
                )
            ),
        )

    def figures(self) -> dict[str, Any]:
        """Returns the figures for JSON."""
        return {
            "seed": self.options.seed,
            "replayed_cpu_seconds": round(self.replayed, 2),
            "decided_cpu_seconds": round(self.decided, 3),
            **self.found.as_json(),
            "shapes": plain(self.shapes),
        }


def load_of(options: ScalingOptions) -> LoadSeries:
    """The ten series, spread over the partitions by seed."""
    series = read_traces([DATA])
    spread = mixed(series.first(options.days * DAY), partitions=PARTITIONS, seed=options.seed)
    return spread.scaled_to(RATE)


def run(options: ScalingOptions, say: Callable[[str], None]) -> ScalingResult:
    """All rules on the load, in this process."""
    load, setting = load_of(options), Setting()
    began = time.process_time()
    ours = compare(load, setting, ["drain_time"], progress=say)
    replayed = time.process_time() - began
    found = compare(load, setting, [name for name in RULES if name != "drain_time"], progress=say)
    both = {**ours.outcomes, **found.outcomes}
    return ScalingResult(
        options=options,
        found=replace(found, outcomes=both),
        replayed=replayed,
        decided=decided_in(_GROUPS),
        shapes={name: on_shape(name, seed=options.seed, say=say) for name in SHAPES},
    )


def on_shape(
    name: str,
    *,
    seed: int,
    days: float = 1.0,
    tries: int = 8,
    say: Callable[[str], None] = lambda _: None,
) -> ShapeResult:
    """Replays a shape through drain_time, and through KEDA's rule with as many worker hours."""
    say(name)
    load = shape(name, partitions=PARTITIONS, days=days, mean=2_500, capacity=1_000, seed=seed)
    setting = Setting(first=4)
    ours = replay(load, policy_rule({"policy": "drain_time"}, partitions=PARTITIONS), setting)
    low, high = 100.0, 1_000_000.0
    for _ in range(tries):  # a larger threshold spends less
        threshold = (low * high) ** 0.5
        other = replay(load, keda(threshold, stabilisation=0.0), setting)
        low, high = (
            (threshold, high) if other.worker_hours > ours.worker_hours else (low, threshold)
        )
    return ShapeResult(
        backlog=ours.backlog_seconds,
        keda_backlog=other.backlog_seconds,
        worker_hours=ours.worker_hours,
        keda_hours=other.worker_hours,
        rebalances=ours.rebalances,
        keda_rebalances=other.rebalances,
        keda_threshold=threshold,
    )


def decided_in(groups: int) -> float:
    """CPU seconds of one decision about each of so many unlike groups."""
    spec = replayed_spec({"policy": "drain_time"}, partitions=_WIDE)
    rules = [PolicyRule(spec) for _ in range(groups)]
    spent = 0.0
    for number, rule in enumerate(rules):
        members = 2 + number % 12
        owners = owners_after("cooperative-sticky", (_WIDE,), (NOBODY,) * _WIDE, members)
        for at in (0.0, 30.0):
            arrive = tuple(20.0 + (number * 7 + p * 13) % 200 for p in range(_WIDE))
            waits = tuple(10.0 * each for each in arrive)
            seen = Observation(at, 30.0, members, 0, owners, arrive, arrive, waits, 25.0, True)
            began = time.process_time()
            rule(seen)
            spent += time.process_time() - began if at else 0.0
    return spent


# For people.

_COLOURS: Final[Mapping[str, str]] = {
    "drain_time": "#009e73",
    "clairvoyant": "#0072b2",
    "flink": "#d55e00",
    "keda-5m": "#e69f00",
}
_WIDTH, _HEIGHT = 660.0, 300.0
_AREA: Final = PlotArea(50.0, _WIDTH - 10, 30.0, 250.0)


def plotted(found: Comparison) -> str:
    """An SVG: late hours by worker hours of each rule, and the workers of the busiest day."""
    day = f'<g transform="translate(0 {_HEIGHT:g})">'
    return svg(_WIDTH, 2 * _HEIGHT, [*_costs(found), day, *_day(found), "</g>"])


def _costs(found: Comparison) -> Iterator[str]:
    told = found.outcomes
    right = max(each.worker_hours for each in told.values()) * 1.15
    top = max(each.late_hours for each in told.values()) * 1.1

    left, floor = _AREA.place(0, found.floor_hours / top)
    yield f'<path d="M{left:g} {floor:.1f}H{_AREA.right:g}" stroke="#999" stroke-dasharray="4 3"/>'
    yield f'<text x="{left + 4:g}" y="{floor - 4:.1f}">floor {found.floor_hours:.1f} h</text>'
    title = "late hours by worker hours; rebalances"
    yield from _AREA.axes(title, (right, "{:,.0f} h"), (top, "{:.0f} h"))
    points = []
    for name, each in told.items():
        x, y = _AREA.place(each.worker_hours / right, each.late_hours / top)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS.get(name, "#777")}"/>'
        points.append((x, y, f"{name}: {each.rebalances:,}"))
    yield from _labels(points)


def _labels(points: Sequence[tuple[float, float, str]]) -> Iterator[str]:
    """Writes beside each point, from the right, in the nearest row without a point or a text."""
    taken = [(x, y + 3, 4.0) for x, y, _ in points]
    for x, y, text in sorted(points, reverse=True):
        half = 2.8 * len(text)
        rows = [y + down for down in (-7, 14, -19, 26, -31, 38, -43)]
        free = (
            row
            for row in rows
            if all(abs(row - other) > 9 or abs(x - by) > half + wide for by, other, wide in taken)
        )
        at = next(free, rows[0])
        taken.append((x, at, half))
        yield f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="middle">{text}</text>'


def _day(found: Comparison) -> Iterator[str]:
    ticks = round(DAY / TICK)
    best = found.outcomes["clairvoyant"].members
    first = max(
        range(0, max(1, len(best) - ticks), ticks), key=lambda at: best[at : at + ticks].sum()
    )
    most = found.load.partitions

    def points(name: str) -> str:
        members = found.outcomes[name].members[first : first + ticks : 12]
        places = (
            _AREA.place(n / len(members), each / most) for n, each in enumerate(members.tolist())
        )
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

    yield from _AREA.axes("workers on the busiest day", (24, "{:g}:00"), (most, "{:g}"))
    shown = [name for name in _COLOURS if name != "keda-5m"]
    for number, name in enumerate(shown):
        look = f'fill="none" stroke="{_COLOURS[name]}" stroke-width="1.4"'
        yield f'<polyline points="{points(name)}" {look}/>'
        yield from legend(_AREA.left + 10 + number * 110, _HEIGHT - 11, name, _COLOURS[name])


@click.command(epilog="Example:  make bench-scaling ARGS='--seed 2'")
@number_option("--days", 14.0, "Days of load, up to 14.", 1, 14)
@number_option("--seed", 1, "Seed that spreads the series over partitions.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="SVG of late hours by worker hours, and of one day.",
)
@verbose_option
def scaling(*, days: float, seed: int, plot: Path | None) -> None:
    """Replay two weeks of real load through rules of scaling; no broker.

    Goals of drain_time: late hours at most 1.05 of the floor, worker hours at most 1.25 of the
    clairvoyant's, at most twice Flink's rebalances, 90 % of the steps up of the right size at once;
    10 s of CPU for the replay, 1 s for 1,000 groups of 48 partitions. On each generated shape no
    more backlog than by KEDA's rule with as many worker hours, and a third of its rebalances. A
    minute.
    """
    options = ScalingOptions(days=days, seed=seed)
    with running("scaling") as (say, _):
        result = run(options, say)
    if plot is not None:
        plot.write_text(plotted(result.found), encoding="utf-8")
    tell("scaling", [result])
