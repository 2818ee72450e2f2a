"""`fleet bench gate`: what k joins together cost on a live group, beside k joins as they come.

Problem: k workers that join one after another rebalance a group up to k times (k and more with
cooperative-sticky); the gate makes them one change, if all subscribe within one join round.
Choice: k warm workers go through the gate of a live group and leave again by one batched leave,
many times, reusing the same processes; rebalances come from the coordinator's records, the
spread of the joins from the workers' own events. The same again with members that hear of a
change by heartbeats as Kafka's clients send them: every 3 s in the classic protocol, every 5 s
under KIP-848. Then the ordinary way: dynamic workers beside the same base join each when it is
ready, started at once as a Deployment does it and in turn as a StatefulSet does it, and are ended
together. A change is settled with the last record that it brings: of joins since the first
subscribe, of a leave since the first member closed. Cost: 10 to 15 s a run.

Goals, each over all runs: joins through the gate cost 1 rebalance with range, at most 2 with
cooperative-sticky and with consumer (assignments); their subscribes are at most 100 ms apart;
a batched leave costs 1 (cooperative-sticky at most 2 [28]); nothing lost, nothing twice; both are
settled within 1.5 s at p95, and pause no partition for longer than 0.8 s + the median batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.bench.figures import spread
from fleet.bench.gate_figures import BASE, GateOptions, GateResult, GateRun, Round, Took
from fleet.bench.ground import Ground
from fleet.bench.spent import Spent
from fleet.model.counted import Counted
from fleet.slots import Phase
from fleet.testbed.settling import await_settled

_NUDGES: Final = "FLEET_NUDGES"
"""What `fleet.worker.member.nudging` asks its environment for."""
_CONSUMER_HEARTBEAT: Final = 5.0
_GOLDEN: Final = 0.618
"""Parts of 1 that follow one another by it are spread evenly, however many there are."""
_WARM_SECONDS: Final = 300.0
_JOIN_SECONDS: Final = 180.0


def run(ground: Ground, protocol: str, options: GateOptions) -> GateResult:
    """All ways on one protocol. Raises FleetError where a change does not end well."""
    ours = _gates(ground, protocol, options, patient=False)
    patient = _gates(ground, protocol, options, patient=True)
    at_once, in_turn = _ordinary(ground, protocol, options)
    return GateResult(
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
        twice=ours.twice + patient.twice,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """All gates of one group."""

    runs: tuple[GateRun, ...]
    cpu: dict[str, float]
    batch: float
    lost: int
    twice: int


def _light(ground: Ground, group: str, **keys: Any) -> dict[str, Any]:
    """Workers whose batches need no job of Spark: a dozen of them fit on two cores."""
    env = {**ground.environment(group), "BENCH_SPARK": "0", **keys.pop("env", {})}
    return {"env": env, **keys}


def _waiting(protocol: str) -> dict[str, Any]:
    """Members that hear of a change by heartbeats alone, as clients come."""
    if protocol == "consumer":
        return {"env": {_NUDGES: "0"}}
    return {"heartbeat_interval": "3s"}


def _gates(ground: Ground, protocol: str, options: GateOptions, *, patient: bool) -> Gates:
    group = f"gate-{protocol}" + ("-patient" if patient else "")
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
    runs: list[GateRun] = []
    times = options.patient_runs if patient else options.runs
    spent = Spent({"broker": ground.broker_pids, "workers": lambda: ground.worker_pids(group)})
    how = ", by heartbeats" if patient else ""
    for number in range(times):
        for k in options.joins:
            runs.append(_one_gate(ground, group, k, _parts(heartbeat, len(runs))))
            ground.say(f"{protocol}{how}, run {number + 1} of {times}: {runs[-1].sentence()}")
            ground.wait(warm, _JOIN_SECONDS, f"{most} warm workers")
    cpu = {name: seconds / max(1, len(runs)) for name, seconds in spent.seconds().items()}
    batches = spread(ground.batch_seconds(group))
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    lost, twice = ground.account(group)
    batch = 0.0 if batches is None else batches.p50
    return Gates(runs=tuple(runs), cpu=cpu, batch=batch, lost=lost, twice=twice)


def _one_gate(ground: Ground, group: str, k: int, waits: tuple[float, float]) -> GateRun:
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
    ground: Ground, group: str, k: int, began: float, found: tuple[Counted, ...]
) -> GateRun:
    """One run: its joins, then its leave."""
    joining, leaving = found
    told = [(event, at) for _, event, at in ground.events(group) if at >= began]
    subscribed = [at for event, at in told if event == "subscribed"]
    closed = [at for event, at in told if event == "closed"]
    return GateRun(
        k=k,
        joins=_rounds(joining),
        leaves=_rounds(leaving),
        spread=max(subscribed) - min(subscribed) if len(subscribed) == k else None,
        join=_took(joining, subscribed),
        leave=_took(leaving, closed),
    )


def _took(counted: Counted, began: Sequence[float]) -> Took:
    """From the first of these to the last record of what they brought."""
    ended = [each.ended_at for each in counted.generations]
    known = max(ended) - min(began) if ended and began else None
    pause = counted.longest_pause_s
    return Took(
        settled=None if known is None else round(max(0.0, known), 3),
        pause=None if pause is None else round(pause, 3),
    )


def _rounds(counted: Counted) -> tuple[Round, ...]:
    return tuple(Round(joined=len(g.joined), moved=len(g.moved)) for g in counted.generations)


def _ordinary(
    ground: Ground, protocol: str, options: GateOptions
) -> tuple[tuple[GateRun, ...], tuple[GateRun, ...]]:
    """Dynamic workers beside the same base; (started at once, started in turn)."""
    group = f"gate-{protocol}-ordinary"
    worker = _light(ground, group, membership="dynamic")
    ground.declare(group, protocol=protocol, slots=BASE, worker=worker)
    ground.start_group(group)
    revision = ground.apply(group).plan.revision
    ground.steady(group)
    found: dict[bool, list[GateRun]] = {False: [], True: []}
    for _ in range(options.ordinary_runs):
        for k in options.joins:
            for in_turn in (False, True):
                one = _as_they_come(ground, group, revision, k, in_turn=in_turn)
                found[in_turn].append(one)
                how = "in turn" if in_turn else "at once"
                ground.say(f"{protocol}, the ordinary way, {how}: {one.sentence()}")
    ground.dismiss(group)
    return tuple(found[False]), tuple(found[True])


def _as_they_come(ground: Ground, group: str, revision: str, k: int, *, in_turn: bool) -> GateRun:
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
        slots = [slot for slot in ground.fleet.slots(group) if slot.holder]
        return sum(slot.phase is Phase.ACTIVE for slot in slots) == count

    ground.wait(joined, _JOIN_SECONDS, f"{count} members of {group}")
