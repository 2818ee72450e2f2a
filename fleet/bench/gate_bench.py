"""`fleet bench gate`: what k joins together cost on a live group, beside k joins as they come.

Problem: k workers that join one after another rebalance a group up to k times (k and more with
cooperative-sticky); the gate makes them one change, if all subscribe within one join round.
Choice: k warm workers go through the gate of a live group and leave again by one batched leave,
many times, reusing the same processes; rebalances come from the coordinator's records, the
spread of the joins from the workers' own events. Then the ordinary way: dynamic workers beside
the same base join each when it is ready, started at once as a Deployment does it and in turn
as a StatefulSet does it, and are ended together. Cost: about 20 s a run.

Goals, each over all runs: joins through the gate cost 1 rebalance with range, at most 2 with
cooperative-sticky and with consumer (assignments); their subscribes are at most 100 ms apart;
a batched leave costs 1 (cooperative-sticky at most 2 [28]); nothing lost, nothing twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fleet.bench.figures import Goal, Judged, Spread, spread
from fleet.bench.ground import Ground
from fleet.model.counted import Counted
from fleet.slots import Phase
from fleet.testbed.settling import await_settled

BASE: Final = 2
"""Members of the group before the gate opens."""
MOST_SPREAD: Final = 0.1
MOST_JOINS: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 2}
MOST_LEAVES: Final = {"range": 1, "cooperative-sticky": 2, "consumer": 1}
_WARM_SECONDS: Final = 300.0
_JOIN_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What is to be measured."""

    joins: tuple[int, ...] = (2, 5, 10)
    runs: int = 12
    ordinary_runs: int = 1
    max_rebalances: int | None = None
    """The goal per gate; None: the protocol's."""
    max_spread: float = MOST_SPREAD
    fresh: bool = False
    """New processes for every gate, instead of the same ones again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One recorded rebalance."""

    joined: int
    moved: int
    """Partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """k joins, together or as they come, and the leave after them."""

    k: int
    joins: tuple[Round, ...]
    """What was recorded for the joins."""
    leaves: tuple[Round, ...]
    spread: float | None
    """Seconds between the first and the last subscribe; None where it is not known."""

    @property
    def joining(self) -> int:
        """Rebalances of the joins."""
        return len(self.joins)

    @property
    def leaving(self) -> int:
        """Rebalances of the leave."""
        return len(self.leaves)

    def sentence(self) -> str:
        """For people."""
        apart = "" if self.spread is None else f", subscribes {self.spread * 1000:.0f} ms apart"
        rounds = "; ".join(f"{r.joined} joined, {r.moved} moved" for r in self.joins)
        return (
            f"+{self.k}: {self.joining} rebalance(s) ({rounds}){apart}; "
            f"-{self.k}: {self.leaving} rebalance(s)"
        )

    def as_json(self) -> dict[str, Any]:
        """One run."""
        return {
            "rebalances": self.joining,
            "rounds": [asdict(each) for each in self.joins],
            "leave_rebalances": self.leaving,
            "spread_seconds": None if self.spread is None else round(self.spread, 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult(Judged):
    """Both ways on one protocol."""

    protocol: str
    wish: GateOptions
    runs: tuple[GateRun, ...]
    at_once: tuple[GateRun, ...]
    """The ordinary way: k dynamic workers started together, each joins when it is ready."""
    in_turn: tuple[GateRun, ...]
    """The ordinary way: each started when the one before it has joined."""
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

    def figures(self) -> dict[str, Any]:
        """See Judged; with the goals an element of `protocols`."""
        return {
            "protocol": self.protocol,
            "base": BASE,
            "fresh": self.wish.fresh,
            "joins": [self._one(k) for k in self.wish.joins],
            "lost": self.lost,
            "twice": self.twice,
        }

    def _one(self, k: int) -> dict[str, Any]:
        spreads = self.spreads(k)
        return {
            "k": k,
            "gate": [run.as_json() for run in of(k, self.runs)],
            "spread_seconds": None if spreads is None else spreads.as_json(),
            "ordinary_at_once": [run.as_json() for run in of(k, self.at_once)],
            "ordinary_in_turn": [run.as_json() for run in of(k, self.in_turn)],
        }

    def spreads(self, k: int) -> Spread | None:
        """Of the gates of k."""
        return spread(r.spread for r in self.runs if r.k == k and r.spread is not None)

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading and a line per k."""
        head = ("joins", "gates", "rebalances", "spread p50", "max", "leave")
        shown: list[tuple[str, ...]] = [(*head, "ordinary: at once", "in turn", "leave")]
        for k in self.wish.joins:
            mine, spreads = of(k, self.runs), self.spreads(k)
            at_once, in_turn = of(k, self.at_once), of(k, self.in_turn)
            shown.append(
                (
                    f"+{k}",
                    str(len(mine)),
                    told(run.joining for run in mine),
                    *(("-", "-") if spreads is None else _milliseconds(spreads)),
                    told(run.leaving for run in mine),
                    told(run.joining for run in at_once),
                    told(run.joining for run in in_turn),
                    told(run.leaving for run in (*at_once, *in_turn)),
                )
            )
        return shown

    def remarks(self) -> list[str]:
        """What the table has no column for."""
        how = "2 (x3): 2 rebalances in each of 3 runs"
        return [f"beside {BASE} members; {how}; lost {self.lost}, twice {self.twice}"]


def of(k: int, runs: Sequence[GateRun]) -> list[GateRun]:
    """The runs of k joins."""
    return [run for run in runs if run.k == k]


def _most(runs: Sequence[GateRun], what: str) -> int | None:
    return max((getattr(run, what) for run in runs), default=None)


def _milliseconds(spreads: Spread) -> tuple[str, str]:
    return f"{spreads.p50 * 1000:.0f} ms", f"{spreads.max * 1000:.0f} ms"


def told(counts: Any) -> str:
    """`1 (x11), 2 (x1)`: each count and how often it was."""
    found = sorted(Counter(counts).items())
    return ", ".join(f"{count} (x{times})" for count, times in found) or "-"


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, protocol: str, wish: GateOptions) -> GateResult:
    """Both ways on one protocol. Raises FleetError where a change does not end well."""
    runs, (lost, twice) = _gates(ground, protocol, wish)
    at_once, in_turn = _ordinary(ground, protocol, wish)
    return GateResult(
        protocol=protocol,
        wish=wish,
        runs=runs,
        at_once=at_once,
        in_turn=in_turn,
        lost=lost,
        twice=twice,
    )


def _light(ground: Ground, group: str, **keys: Any) -> dict[str, Any]:
    """Workers whose batches need no job of Spark: a dozen of them fit on two cores."""
    return {"env": {**ground.environment(group), "BENCH_SPARK": "0"}, **keys}


def _gates(
    ground: Ground, protocol: str, wish: GateOptions
) -> tuple[tuple[GateRun, ...], tuple[int, int]]:
    group = f"gate-{protocol}"
    ground.declare(group, protocol=protocol, slots=BASE, worker=_light(ground, group))
    ground.start_group(group)
    revision = ground.apply(group).plan.revision
    most = 0 if wish.fresh else max(wish.joins)
    ground.runtime.keeping = not wish.fresh
    ground.runtime.start(group, revision, most)
    pool = ground.pool(group)

    def warm() -> bool:
        return len(pool.warm(revision)) == most

    ground.say(f"warming {most} workers")
    ground.wait(warm, _WARM_SECONDS, f"{most} warm workers")
    ground.steady(group)
    runs = []
    for number in range(wish.runs):
        for k in wish.joins:
            runs.append(_one_gate(ground, group, k))
            ground.say(f"{protocol}, run {number + 1} of {wish.runs}: {runs[-1].sentence()}")
            ground.wait(warm, _JOIN_SECONDS, f"{most} warm workers")
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    return tuple(runs), ground.account(group)


def _one_gate(ground: Ground, group: str, k: int) -> GateRun:
    began = ground.clock.now()
    with ground.measured(group) as joining:
        ground.apply(group, wanted=BASE + k)
    with ground.measured(group) as leaving:
        ground.apply(group, wanted=BASE)
    return _run_of(ground, group, k, began, (*joining, *leaving))


def _run_of(
    ground: Ground, group: str, k: int, began: float, found: tuple[Counted, ...]
) -> GateRun:
    """One run: its joins, then its leave."""
    joining, leaving = found
    at = [at for _, event, at in ground.events(group) if event == "subscribed" and at >= began]
    return GateRun(
        k=k,
        joins=_rounds(joining),
        leaves=_rounds(leaving),
        spread=max(at) - min(at) if len(at) == k else None,
    )


def _rounds(counted: Counted) -> tuple[Round, ...]:
    return tuple(Round(joined=len(g.joined), moved=len(g.moved)) for g in counted.generations)


def _ordinary(
    ground: Ground, protocol: str, wish: GateOptions
) -> tuple[tuple[GateRun, ...], tuple[GateRun, ...]]:
    """Dynamic workers beside the same base; (started at once, started in turn)."""
    group = f"gate-{protocol}-ordinary"
    worker = _light(ground, group, membership="dynamic")
    ground.declare(group, protocol=protocol, slots=BASE, worker=worker)
    ground.start_group(group)
    revision = ground.apply(group).plan.revision
    ground.steady(group)
    found: dict[bool, list[GateRun]] = {False: [], True: []}
    for _ in range(wish.ordinary_runs):
        for k in wish.joins:
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
