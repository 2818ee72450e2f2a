"""`fleet bench gate`: what k joins together cost on a live group, beside k joins as they come.

Problem: k workers that join one after another rebalance a group up to k times (k and more with
cooperative-sticky); the gate makes them one change, if all subscribe within one join round.
Choice: k warm workers go through the gate of a live group and leave again by one batched leave,
many times, reusing the same processes; rebalances come from the coordinator's records, the
spread of the joins from the workers' own events. Then k dynamic workers are started beside the
same base and join each when it is ready, and are ended together, as an autoscaler does it.
Cost: about 25 s a run.

Goals, each over all runs: joins through the gate cost 1 rebalance with range, at most 2 with
cooperative-sticky and with consumer (assignments); their subscribes are at most 100 ms apart;
a batched leave costs 1 (cooperative-sticky at most 2 [28]); nothing lost, nothing twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet.bench.figures import Goal, Spread, all_met, spread
from fleet.bench.ground import Ground
from fleet.demo.ordinary import await_settled
from fleet.errors import FleetError
from fleet.slots import Phase

BASE: Final = 2
"""Members of the group before the gate opens."""
MOST_SPREAD: Final = 0.1
MOST_JOINS: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 2}
MOST_LEAVES: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 1}
_WARM_SECONDS: Final = 300.0
_JOIN_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be measured."""

    joins: tuple[int, ...] = (2, 5, 10)
    runs: int = 12
    ordinary_runs: int = 1
    max_rebalances: int | None = None
    """The goal per gate; None: the protocol's."""
    max_spread: float = MOST_SPREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """k joins through the gate, and the leave after them."""

    k: int
    joining: int
    """Rebalances recorded for the joins."""
    leaving: int
    spread: float | None
    """Seconds between the first and the last subscribe; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryRun:
    """k joins as they come, and their ends together."""

    k: int
    joining: int
    leaving: int
    spread: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Both ways on one protocol."""

    protocol: str
    wish: Wish
    runs: tuple[GateRun, ...]
    ordinary: tuple[OrdinaryRun, ...]
    lost: int
    twice: int

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        most = self.wish.max_rebalances
        joins = MOST_JOINS[self.protocol] if most is None else most
        spreads = [run.spread for run in self.runs]
        known = [each for each in spreads if each is not None]
        widest = max(known) if known and len(known) == len(spreads) else None
        least = min((run.joining for run in self.runs), default=None)
        missing = len(self.wish.joins) * self.wish.runs - len(self.runs)
        return (
            Goal(what="rebalances per gate", limit=joins, measured=_most(self.runs, "joining")),
            Goal(what="gates without any rebalance", limit=0, measured=float(least == 0)),
            Goal(
                what="rebalances per batched leave",
                limit=MOST_LEAVES[self.protocol],
                measured=_most(self.runs, "leaving"),
            ),
            Goal(what="spread of joins, seconds", limit=self.wish.max_spread, measured=widest),
            Goal(what="records lost", limit=0, measured=self.lost),
            Goal(what="records processed twice", limit=0, measured=self.twice),
            Goal(what="runs missing", limit=0, measured=missing),
        )

    @property
    def met(self) -> bool:
        """Every goal is met."""
        return all_met(self.goals())

    def as_json(self) -> dict[str, Any]:
        """An element of `protocols`."""
        return {
            "protocol": self.protocol,
            "base": BASE,
            "joins": [self._one(k) for k in self.wish.joins],
            "lost": self.lost,
            "twice": self.twice,
            "goals": [goal.as_json() for goal in self.goals()],
        }

    def _one(self, k: int) -> dict[str, Any]:
        mine = [run for run in self.runs if run.k == k]
        theirs = [run for run in self.ordinary if run.k == k]
        spreads = self.spreads(k)
        return {
            "k": k,
            "runs": len(mine),
            "rebalances": [run.joining for run in mine],
            "leave_rebalances": [run.leaving for run in mine],
            "spread_seconds": None if spreads is None else spreads.as_json(),
            "ordinary": {
                "runs": len(theirs),
                "rebalances": [run.joining for run in theirs],
                "leave_rebalances": [run.leaving for run in theirs],
                "spread_seconds": [
                    None if run.spread is None else round(run.spread, 3) for run in theirs
                ],
            },
        }

    def spreads(self, k: int) -> Spread | None:
        """Of the gates of k."""
        return spread(r.spread for r in self.runs if r.k == k and r.spread is not None)

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading and a line per k."""
        shown: list[tuple[str, ...]] = [
            ("joins", "runs", "rebalances", "spread p50", "max", "leave", "ordinary: joins", "ends")
        ]
        for k in self.wish.joins:
            mine = [run for run in self.runs if run.k == k]
            theirs = [run for run in self.ordinary if run.k == k]
            spreads = self.spreads(k)
            both = ("-", "-") if spreads is None else _milliseconds(spreads)
            shown.append(
                (
                    f"+{k}",
                    str(len(mine)),
                    told(run.joining for run in mine),
                    *both,
                    told(run.leaving for run in mine),
                    told(run.joining for run in theirs),
                    told(run.leaving for run in theirs),
                )
            )
        return shown

    def remarks(self) -> list[str]:
        """What the table has no column for."""
        told = f"2 (x3) = 2 rebalances in 3 runs; lost {self.lost}, twice {self.twice}"
        return [f"beside {BASE} members; {told}"]


def _most(runs: Sequence[GateRun], what: str) -> int | None:
    return max((getattr(run, what) for run in runs), default=None)


def _milliseconds(spreads: Spread) -> tuple[str, str]:
    return f"{spreads.p50 * 1000:.0f} ms", f"{spreads.max * 1000:.0f} ms"


def told(counts: Any) -> str:
    """`1 (x11), 2 (x1)`: each count and how often it was."""
    found = sorted(Counter(counts).items())
    return ", ".join(f"{count} (x{times})" for count, times in found) or "-"


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, protocol: str, wish: Wish) -> GateResult:
    """Both ways on one protocol. Raises FleetError where a change does not end well."""
    runs, (lost, twice) = _gates(ground, protocol, wish)
    return GateResult(
        protocol=protocol,
        wish=wish,
        runs=runs,
        ordinary=_as_they_come(ground, protocol, wish),
        lost=lost,
        twice=twice,
    )


def _gates(
    ground: Ground, protocol: str, wish: Wish
) -> tuple[tuple[GateRun, ...], tuple[int, int]]:
    group = f"gate-{protocol}"
    ground.declare(group, protocol=protocol, slots=BASE, worker=_light(ground, group))
    ground.begin(group)
    revision = ground.apply(group).plan.revision
    most = max(wish.joins)
    ground.runtime.start(group, revision, most)
    ground.runtime.keeping = True
    crew = ground.crew(group)
    ground.say(f"warming {most} workers")
    ground.wait(lambda: len(crew.warm(revision)) == most, _WARM_SECONDS, f"{most} warm workers")
    ground.steady(group)
    runs = []
    for number in range(wish.runs):
        for k in wish.joins:
            runs.append(_one_gate(ground, group, k))
            ground.say(f"{protocol}: run {number + 1} of {wish.runs}, {runs[-1]}")
            ground.wait(lambda: len(crew.warm(revision)) == most, _JOIN_SECONDS, "warm workers")
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    return tuple(runs), ground.account(group)


def _one_gate(ground: Ground, group: str, k: int) -> GateRun:
    began = ground.clock.now()
    with ground.measured(group) as joining:
        ground.apply(group, wanted=BASE + k)
    with ground.measured(group) as leaving:
        ground.apply(group, wanted=BASE)
    return GateRun(
        k=k,
        joining=joining[0].rebalances,
        leaving=leaving[0].rebalances,
        spread=_spread_since(ground, group, began, k),
    )


def _spread_since(ground: Ground, group: str, since: float, k: int) -> float | None:
    at = [at for _, event, at in ground.events(group) if event == "subscribed" and at >= since]
    return max(at) - min(at) if len(at) == k else None


def _light(ground: Ground, group: str, **keys: Any) -> dict[str, Any]:
    """Workers whose batches need no Spark query: a dozen of them fit on two cores."""
    return {"env": {**ground.environment(group), "BENCH_SPARK": "0"}, **keys}


def _as_they_come(ground: Ground, protocol: str, wish: Wish) -> tuple[OrdinaryRun, ...]:
    group = f"gate-{protocol}-ordinary"
    worker = _light(ground, group, membership="dynamic")
    ground.declare(group, protocol=protocol, slots=BASE, worker=worker)
    ground.begin(group)
    revision = ground.apply(group).plan.revision
    ground.steady(group)
    runs = []
    for _ in range(wish.ordinary_runs):
        for k in wish.joins:
            runs.append(_one_after_another(ground, group, revision, k))
            ground.say(f"{protocol}, the ordinary way: {runs[-1]}")
    ground.dismiss(group)
    return tuple(runs)


def _one_after_another(ground: Ground, group: str, revision: str, k: int) -> OrdinaryRun:
    """Open the slots first, so that each worker joins as soon as it is ready."""
    began = ground.clock.now()
    new = frozenset(range(BASE, BASE + k))
    with ground.measured(group) as joining:
        _open_only(ground, group, frozenset(range(BASE)) | new)
        names = ground.runtime.start(group, revision, k)
        ground.wait(lambda: _active(ground, group, new), _JOIN_SECONDS, f"{k} joins")
        await_settled(ground.fleet, group, clock=ground.clock)
    with ground.measured(group) as leaving:
        ground.runtime.remove(names, grace=20.0)
        ground.wait(lambda: len(ground.runtime.workers(group)) == BASE, _JOIN_SECONDS, "ends")
        _open_only(ground, group, frozenset(range(BASE)))
        await_settled(ground.fleet, group, clock=ground.clock)
    return OrdinaryRun(
        k=k,
        joining=joining[0].rebalances,
        leaving=leaving[0].rebalances,
        spread=_spread_since(ground, group, began, k),
    )


def _open_only(ground: Ground, group: str, numbers: frozenset[int]) -> None:
    store = ground.fleet.store
    gate = store.gate(group)
    if store.write_gate(replace(gate, open=numbers, open_at=ground.clock.now())) is None:
        raise FleetError(f"somebody else writes the gate of group {group}")


def _active(ground: Ground, group: str, numbers: frozenset[int]) -> bool:
    slots = {slot.number: slot.phase for slot in ground.fleet.slots(group)}
    return all(slots.get(number) is Phase.ACTIVE for number in numbers)
