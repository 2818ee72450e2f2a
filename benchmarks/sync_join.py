"""`make bench-sync-join`: what k joins together cost on a live group, beside k joins as they come.

Problem: k workers that join one after another rebalance a group up to k times (k and more with
cooperative-sticky); the synchronized joins makes them one change, if all subscribe within one join
round. Choice: k warm workers go by a synchronized join of a live group and leave again by one
batched leave, many times, reusing the same processes; rebalances come from the coordinator's
records, the spread of the joins from the workers' own events. The same again with members that hear
of a change by heartbeats as Kafka's clients send them: every 3 s in the classic protocol, every 5 s
under KIP-848. Then the baseline: dynamic workers beside the same base join each when it is
ready, started at once as a Deployment does it and in turn as a StatefulSet does it, and are ended
together. A change is settled with the last record that it brings: of joins since the first
subscribe, of a leave since the first member closed. Cost: 10 to 15 s a run.

Goals, each over all runs: joins by a synchronized join cost 1 rebalance with range, at most 2 with
cooperative-sticky and with consumer (assignments); their subscribes are at most 100 ms apart;
a batched leave costs 1 (cooperative-sticky at most 2 [28]); no loss, no duplicates; both are
settled within 1.5 s at p95, and no downtime of a partition longer than 0.8 s + the median batch.
"""

from collections import Counter
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
from benchmarks.figures import BenchmarkResult, CpuUsage, Goal, spread
from benchmarks.ground import Ground
from fleet.demo.measure import await_settled
from fleet.model.rebalances import RebalanceCounts
from fleet.slots import Phase

BASE: Final = 2
"""Members of the group before the synchronized joins opens."""
MOST_SPREAD: Final = 0.1
MOST_JOINS: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 2}
MOST_LEAVES: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 1}
MOST_SETTLED: Final = 1.5
MOST_DOWNTIME: Final = 0.8
"""Seconds beside one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncJoinOptions:
    """What is to be measured."""

    joins: tuple[int, ...] = (2, 5, 10)
    runs: int = 12
    baseline_runs: int = 1
    patient_runs: int = 2
    """Of members that wait for their heartbeats."""
    fresh: bool = False
    """New processes for every synchronized join, instead of the same ones again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One rebalance as the coordinator recorded it."""

    joined: int
    moved: int
    """Partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTimes:
    """Seconds of one change; None where they are not known."""

    settled: float | None = None
    downtime: float | None = None
    """The longest of a partition [27]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncJoinRun:
    """k joins, together or as they come, and the leave after them."""

    k: int
    joins: tuple[Round, ...]
    """What was recorded for the joins."""
    leaves: tuple[Round, ...]
    spread: float | None
    """Seconds between the first and the last subscribe; None where it is not known."""
    join: ChangeTimes = ChangeTimes()
    leave: ChangeTimes = ChangeTimes()

    def sentence(self) -> str:
        """Describes the run in a sentence."""
        apart = "" if self.spread is None else f", subscribes {self.spread * 1000:.0f} ms apart"
        rounds = "; ".join(f"{r.joined} joined, {r.moved} moved" for r in self.joins)
        return (
            f"+{self.k}: {len(self.joins)} rebalance(s) ({rounds}){apart}, "
            f"{_times_text(self.join)}; "
            f"-{self.k}: {len(self.leaves)} rebalance(s), {_times_text(self.leave)}"
        )


@dataclass(frozen=True, kw_only=True)
class SyncJoinResult(BenchmarkResult):
    """Both ways on one protocol."""

    protocol: str
    options: SyncJoinOptions
    runs: tuple[SyncJoinRun, ...]
    patient: tuple[SyncJoinRun, ...]
    """The same synchronized joins with members that wait for their heartbeats."""
    cpu: dict[str, float]
    """CPU seconds of the synchronized joins and its leave, by process: the broker's, the
    workers'.
    """
    patient_cpu: dict[str, float]
    batch: float
    """Seconds of the median batch."""
    at_once: tuple[SyncJoinRun, ...]
    """The baseline: k dynamic workers started together, each joins when it is ready."""
    in_turn: tuple[SyncJoinRun, ...]
    """The baseline: each started when the one before it has joined."""
    lost: int
    duplicates: int

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        spreads = [run.spread for run in self.runs]
        known = [each for each in spreads if each is not None]
        widest = max(known) if known and len(known) == len(spreads) else None
        least = min((len(run.joins) for run in self.runs), default=None)
        missing = len(self.options.joins) * self.options.runs - len(self.runs)
        settled, downtime_p95 = _worst(self.runs, "settled"), _worst(self.runs, "downtime")
        return (
            Goal("settled at p95, seconds", MOST_SETTLED, settled),
            Goal("longest downtime at p95, seconds", MOST_DOWNTIME + self.batch, downtime_p95),
            Goal(
                "rebalances per synchronized joins",
                MOST_JOINS[self.protocol],
                max((len(run.joins) for run in self.runs), default=None),
            ),
            Goal("synchronized joins without any rebalance", 0, float(least == 0)),
            Goal(
                "rebalances per batched leave",
                MOST_LEAVES[self.protocol],
                max((len(run.leaves) for run in self.runs), default=None),
            ),
            Goal("spread of joins, seconds", MOST_SPREAD, widest),
            Goal("records lost", 0, self.lost),
            Goal("duplicate records", 0, self.duplicates),
            Goal("runs missing", 0, missing),
        )

    def figures(self) -> dict[str, Any]:
        """Of each way and k what its runs came to; the runs themselves are told as they end."""
        ways = {
            "synchronized": self.runs,
            "by heartbeats": self.patient,
            "baseline, at once": self.at_once,
            "baseline, in turn": self.in_turn,
        }
        return {
            "protocol": self.protocol,
            "joins": {
                f"+{k} {way}": _summary([run for run in runs if run.k == k])
                for k in self.options.joins
                for way, runs in ways.items()
            },
            "batch": self.batch,
            "cpu": {"synchronized": self.cpu, "by heartbeats": self.patient_cpu},
            "lost": self.lost,
            "duplicates": self.duplicates,
        }


def _summary(runs: Sequence[SyncJoinRun]) -> dict[str, Any]:
    """Spreads of the runs; of rebalances how many runs had how many."""
    known: dict[str, Any] = {
        "spread": spread(run.spread for run in runs if run.spread is not None),
        "rebalances": dict(Counter(len(run.joins) for run in runs)),
        "leave_rebalances": dict(Counter(len(run.leaves) for run in runs)),
    }
    for change in ("join", "leave"):
        for what in ("settled", "downtime"):
            values = (getattr(getattr(run, change), what) for run in runs)
            known[f"{change}_{what}"] = spread(each for each in values if each is not None)
    return known


def _times_text(took: ChangeTimes) -> str:
    parts = []
    if took.settled is not None:
        parts.append(f"settled after {took.settled:.2f} s")
    if took.downtime is not None:
        parts.append(f"longest downtime {took.downtime:.2f} s")
    return ", ".join(parts) or "nothing known of its time"


def _worst(runs: Sequence[SyncJoinRun], what: str) -> float | None:
    """At p95 over all changes up and down; None where one is not known."""
    found = [getattr(took, what) for run in runs for took in (run.join, run.leave)]
    known = spread(each for each in found if each is not None)
    return None if known is None or known.measured < len(found) else known.p95


_RESUBSCRIBES: Final = "FLEET_RESUBSCRIBES"
"""What `fleet.worker.member.membership` asks its environment for."""
_CONSUMER_HEARTBEAT: Final = 5.0
_GOLDEN: Final = 0.618
"""Parts of 1 that follow one another by it are spread evenly, however many there are."""
_WARM_SECONDS: Final = 300.0
_JOIN_SECONDS: Final = 180.0


def run(ground: Ground, protocol: str, options: SyncJoinOptions) -> SyncJoinResult:
    """All ways on one protocol. Raises FleetError where a change does not end well."""
    ours = _sync_joins(ground, protocol, options, patient=False)
    patient = _sync_joins(ground, protocol, options, patient=True)
    at_once, in_turn = _baseline(ground, protocol, options)
    return SyncJoinResult(
        protocol=protocol,
        options=options,
        runs=ours.runs,
        patient=patient.runs,
        cpu=ours.cpu,
        patient_cpu=patient.cpu,
        batch=ours.batch,
        at_once=at_once,
        in_turn=in_turn,
        lost=ours.lost + patient.lost,
        duplicates=ours.duplicates + patient.duplicates,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncJoins:
    """All synchronized joins of one group."""

    runs: tuple[SyncJoinRun, ...]
    cpu: dict[str, float]
    batch: float
    lost: int
    duplicates: int


def _light(ground: Ground, group: str, **keys: Any) -> dict[str, Any]:
    """Workers whose batches need no job of Spark: a dozen of them fit on two cores."""
    env = {**ground.environment(group), "BENCH_SPARK": "0", **keys.pop("env", {})}
    return {"env": env, **keys}


def _waiting(protocol: str) -> dict[str, Any]:
    """Members that hear of a change by heartbeats alone, as clients come."""
    if protocol == "consumer":
        return {"env": {_RESUBSCRIBES: "0"}}
    return {"heartbeat_interval": "3s"}


def _sync_joins(
    ground: Ground, protocol: str, options: SyncJoinOptions, *, patient: bool
) -> SyncJoins:
    group = f"sync_join-{protocol}" + ("-patient" if patient else "")
    worker = _light(ground, group, **(_waiting(protocol) if patient else {}))
    ground.declare(group, protocol=protocol, slots=BASE, worker=worker)
    ground.start_group(group)
    revision = ground.apply(group).plan.revision
    most = 0 if options.fresh else max(options.joins)
    ground.runtime.keeping = not options.fresh
    ground.runtime.start(group, revision, most)
    pool = ground.pool(group)

    def warm() -> bool:
        return len(pool.warm(revision)) == most

    heartbeat = _heartbeat(ground, group)
    ground.say(f"warming {most} workers")
    ground.wait(warm, _WARM_SECONDS, f"{most} warm workers")
    ground.steady(group)
    runs: list[SyncJoinRun] = []
    times = options.patient_runs if patient else options.runs
    spent = CpuUsage({"broker": ground.broker_pids, "workers": lambda: ground.worker_pids(group)})
    how = ", by heartbeats" if patient else ""
    for number in range(times):
        for k in options.joins:
            runs.append(_one_sync_join(ground, group, k, _parts(heartbeat, len(runs))))
            ground.say(f"{protocol}{how}, run {number + 1} of {times}: {runs[-1].sentence()}")
            ground.wait(warm, _JOIN_SECONDS, f"{most} warm workers")
    cpu = {name: seconds / max(1, len(runs)) for name, seconds in spent.seconds().items()}
    batches = spread(ground.batch_seconds(group))
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    lost, duplicates = ground.account(group)
    batch = 0.0 if batches is None else batches.p50
    return SyncJoins(runs=tuple(runs), cpu=cpu, batch=batch, lost=lost, duplicates=duplicates)


def _one_sync_join(ground: Ground, group: str, k: int, waits: tuple[float, float]) -> SyncJoinRun:
    ground.clock.sleep(waits[0])
    began = ground.clock.now()
    with ground.measured(group) as joining:
        ground.apply(group, wanted=BASE + k)
    ground.clock.sleep(waits[1])
    with ground.measured(group) as leaving:
        ground.apply(group, wanted=BASE)
    return _run_of(ground, group, k, began, (*joining, *leaving))


def _heartbeat(ground: Ground, group: str) -> float:
    """Seconds; a KIP-848 group's worker has none of its own."""
    worker = ground.fleet.group(group).worker
    return float(getattr(worker, "heartbeat_interval", _CONSUMER_HEARTBEAT))


def _parts(heartbeat: float, number: int) -> tuple[float, float]:
    """Changes come at any moment of a heartbeat: one always as long after another as the settling
    takes may find every heartbeat just due.
    """
    return heartbeat * (number * _GOLDEN % 1.0), heartbeat * ((number + 1) * _GOLDEN % 1.0)


def _run_of(
    ground: Ground, group: str, k: int, began: float, found: tuple[RebalanceCounts, ...]
) -> SyncJoinRun:
    """One run: its joins, then its leave."""
    joining, leaving = found
    told = [(event, at) for _, event, at in ground.events(group) if at >= began]
    subscribed = [at for event, at in told if event == "subscribed"]
    closed = [at for event, at in told if event == "closed"]
    return SyncJoinRun(
        k=k,
        joins=_rounds(joining),
        leaves=_rounds(leaving),
        spread=max(subscribed) - min(subscribed) if len(subscribed) == k else None,
        join=_took(joining, subscribed),
        leave=_took(leaving, closed),
    )


def _took(counted: RebalanceCounts, began: Sequence[float]) -> ChangeTimes:
    """From the first of these to the last record of what they brought."""
    ended = [each.ended_at for each in counted.generations]
    known = max(ended) - min(began) if ended and began else None
    downtime = counted.longest_downtime_s
    return ChangeTimes(
        settled=None if known is None else round(max(0.0, known), 3),
        downtime=None if downtime is None else round(downtime, 3),
    )


def _rounds(counted: RebalanceCounts) -> tuple[Round, ...]:
    return tuple(Round(joined=len(g.joined), moved=len(g.moved)) for g in counted.generations)


def _baseline(
    ground: Ground, protocol: str, options: SyncJoinOptions
) -> tuple[tuple[SyncJoinRun, ...], tuple[SyncJoinRun, ...]]:
    """Dynamic workers beside the same base; (started at once, started in turn)."""
    group = f"sync_join-{protocol}-baseline"
    worker = _light(ground, group, membership="dynamic")
    ground.declare(group, protocol=protocol, slots=BASE, worker=worker)
    ground.start_group(group)
    revision = ground.apply(group).plan.revision
    ground.steady(group)
    found: dict[bool, list[SyncJoinRun]] = {False: [], True: []}
    for _ in range(options.baseline_runs):
        for k in options.joins:
            for in_turn in (False, True):
                one = _as_they_come(ground, group, revision, k, in_turn=in_turn)
                found[in_turn].append(one)
                how = "in turn" if in_turn else "at once"
                ground.say(f"{protocol}, the baseline, {how}: {one.sentence()}")
    ground.dismiss(group)
    return tuple(found[False]), tuple(found[True])


def _as_they_come(
    ground: Ground, group: str, revision: str, k: int, *, in_turn: bool
) -> SyncJoinRun:
    """Open the slots first, so that each worker joins as soon as it is ready; end all at once."""
    began = ground.clock.now()
    base = frozenset(range(BASE))
    names: list[str] = []
    with ground.measured(group) as joining:
        ground.open_only(group, base | frozenset(range(BASE, BASE + k)))
        for count in [1] * k if in_turn else [k]:
            names += ground.runtime.start(group, revision, count)
            _await_active(ground, group, BASE + len(names))
        await_settled(ground.fleet, group, clock=ground.clock)
    with ground.measured(group) as leaving:
        ground.runtime.remove(names, grace=20.0)
        ground.wait(lambda: len(ground.runtime.workers(group)) == BASE, _JOIN_SECONDS, "the ends")
        ground.open_only(group, base)
        await_settled(ground.fleet, group, clock=ground.clock)
    return _run_of(ground, group, k, began, (*joining, *leaving))


def _await_active(ground: Ground, group: str, count: int) -> None:
    def joined() -> bool:
        slots = [slot for slot in ground.fleet.slots(group) if slot.owner]
        return sum(slot.phase is Phase.ACTIVE for slot in slots) == count

    ground.wait(joined, _JOIN_SECONDS, f"{count} members of {group}")


@click.command()
@protocol_option
@click.option(
    "--joins",
    type=click.IntRange(2, 62),
    multiple=True,
    default=(2, 5, 10),
    show_default=True,
    metavar="K",
    help="Number of workers that join together; repeatable.",
)
@number_option("--runs", 12, "Number of synchronized joins for each K.", 1, 1000)
@number_option("--baseline-runs", 1, "Number of baseline scale-ups for each K.", 1, 1000)
@number_option(
    "--patient-runs",
    2,
    "Number of joins for each K with members that wait for heartbeats.",
    0,
    1000,
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Start new processes for every join instead of reusing them: truer, and slower.",
)
@rate_option
@quick_option
@keep_option
def sync_join(*, asked: tuple[str, ...], rate: int, quick: bool, keep: bool, **wanted: Any) -> None:
    """Let k warm workers join a live group together, and leave together.

    Goals, each over all runs: k joins cost 1 rebalance with range, at most 2 with
    cooperative-sticky and consumer; their subscribes are at most 100 ms apart; one batched
    leave of k costs 1 (cooperative-sticky: at most 2); no record lost, no duplicates; both
    are settled within 1.5 s and no downtime of a partition longer than 0.8 s + the median batch, at
    p95. Beside it the same with members that wait for their heartbeats, and k dynamic workers that
    join as each is ready: started at once, and in turn. 10 to 15 s the synchronized joins.
    """
    small = {"joins": (2,), "runs": 1, "baseline_runs": 1, "patient_runs": 1}
    options = SyncJoinOptions(**{**wanted, **(small if quick else {})})
    measure(
        "sync-join",
        asked=asked,
        partitions=2 * (BASE + max(options.joins)),
        rate=rate,
        keep=keep,
        run=lambda ground, each: run(ground, each, options),
    )
