"""Six fleets side by side that meet one fault at a time: every way of being a member.

Problem: twenty faults by six ways of membership are 120 cells, and what takes long in each is
waiting: for a session, for quiet. Choice: six fleets of one home, on three brokers, meet a fault
at the same moment, and what it cost each is counted by one run of Kafka's own tool. Cost: the
seconds are those of a busy machine, and a fleet begins a fault with the workers that the last
one left.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.act.kafka import GroupAdmin
from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.slots import Phase, Slot
from tests.faults import invariants
from tests.faults.six_fleets import WAYS, FaultShop, biggest, is_unclean
from tests.support.kafka_tools import Record, count_rebalances, dump_records

LEASE = 3.0
SESSION = 20.0
POLL_INTERVAL = 60.0
"""Of a classic group also the rebalance timeout."""
DRAIN = 20.0
SLOTS = 2
PARTITIONS = 4
RATE = 20
QUIET = 5.0
"""Seconds without a change until a group is settled [25]."""
JOB = '''"""Slow where it is told to be; its sink may be full. Journal first."""
import os, time, uuid
from pathlib import Path
from fleet.demo.orders import write_journal

VERSION = 1
PLACE = Path(os.environ["WEATHER"])


def process(df, context):
    seq = "try_cast(cast(value AS STRING) AS LONG) AS seq"
    rows = df.selectExpr("topic", "partition", seq).toArrow()
    if context.warm:
        return
    part = PLACE / "sink" / uuid.uuid4().hex
    try:
        part.write_bytes(b"0" * 4096)
    finally:
        part.unlink(missing_ok=True)
    write_journal(context, rows)
    slow = PLACE / f"slow-{context.worker}"
    if slow.exists():
        seconds = float(slow.read_text())
        slow.unlink()
        time.sleep(seconds)
'''
Way = str
"""A key of WAYS."""


ExpectedCost = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Owner:
    """A worker at work."""

    slot: int
    worker: str
    pid: int


class Target(FaultShop):
    """One of the fleets, and what can be done to it alone."""

    copies = 3

    def __init__(self, home: Path, place: Path, brokers: Broker, way: Way) -> None:
        name = way.replace(", ", "-")
        terms = WAYS[way]
        self.way = way
        self.brokers = brokers
        self.since = 0.0
        """Journal entries before are of a topic that is gone."""
        if terms.get("protocol") != "consumer":
            terms = {**terms, "session_timeout": f"{SESSION:g}s"}
        super().__init__(
            home,
            place,
            brokers.status().bootstrap_servers,
            name,
            **terms,
            max_poll_interval=f"{POLL_INTERVAL:g}s",
            batch={"max_wait": "1s"},
        )
        self.write_code(JOB)
        rollout = {"canary_batches": 1, "bake": "2s", "warm_timeout": "5m"}
        self.declare(rollout={**rollout, "drain_timeout": f"{DRAIN:g}s"})
        self.create_topic(PARTITIONS)
        self.create_another("letters", 1)
        if self.is_consumer:
            servers = self.bootstrap
            with GroupAdmin(bootstrap=servers, kafka_python_config={}) as admin:
                setting = "consumer.session.timeout.ms"
                admin.set_group_setting(self.group, setting, f"{SESSION * 1000:.0f}")

    @property
    def is_consumer(self) -> bool:
        """Whether it is a KIP-848 group."""
        return WAYS[self.way].get("protocol") == "consumer"

    # --- how it is ----------------------------------------------------------------------------

    def slots(self) -> list[Slot]:
        with self.fleet() as fleet:
            return sorted(fleet.slots(self.group), key=lambda s: s.number)

    def owners(self) -> list[Owner]:
        """Those whose slot is active, by slot."""
        with self.fleet() as fleet:
            pids = {w.name: w.pid for w in fleet.workers(self.group) if w.running}
            slots = fleet.slots(self.group)
        return [
            Owner(s.number, str(s.owner), pids[s.owner])
            for s in sorted(slots, key=lambda s: s.number)
            if s.phase is Phase.ACTIVE and s.owner in pids
        ]

    def victim(self) -> Owner:
        """The owner of the lowest slot."""
        return self.owners()[0]

    def at_work(self) -> bool:
        """Two active slots, and every partition has one owner."""
        return self.all_active(SLOTS) and self.owned()

    def cooldown(self) -> bool:
        """At work, with a warm standby."""
        return self.has_standby() and self.at_work()

    def owned(self) -> bool:
        """By what the coordinator answers."""
        with self.fleet() as fleet:
            group = fleet.snapshot([self.group]).groups[self.group]
        has = [tp for member in group.members for tp in member.partitions]
        return group.state == "Stable" and len(has) == len(set(has)) == self.partitions

    def settle(self) -> None:
        """Until nothing changes for a while [25]."""
        clock = SystemClock()
        since = clock.monotonic()
        while clock.monotonic() - since < QUIET:
            clock.sleep(1.0)
            if not self.owned():
                self.until(self.owned, "every partition to have one owner")
                since = clock.monotonic()

    def entries(self) -> list[Any]:
        """Of the topic that there is now."""
        return [entry for entry in super().entries() if entry.at >= self.since]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is so before a fault, and after it."""

    lost: int
    twice: int
    events: int
    entries: int
    rebalances: int
    since: float
    """What was made of the topic before is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens, and what may come of it.

    `alone` is done to each fleet, all at once; `shared` once, to what they have in common, and
    before that. The expected costs are at most so many rebalances: range, cooperative-sticky,
    KIP-848; None: it cannot happen there. `source`: where the expected cost is from. clean: nobody
    ends, nothing is processed twice. quiet: nothing is written meanwhile, as a producer that loses
    all brokers may write a record twice, and nothing could be said of it.
    """

    name: str
    static: ExpectedCost
    dynamic: ExpectedCost
    source: str
    alone: Callable[[Target], None] | None = None
    shared: Callable[["Ground"], None] | None = None
    clean: bool = False
    quiet: bool = False
    killed: int = 0
    """Workers that the fault itself ends."""

    def most(self, way: Way) -> int | None:
        """Rebalances that it may cost there."""
        row = self.dynamic if way.endswith("dynamic") else self.static
        return row[("range", "cooperative", "consumer").index(way.partition(",")[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fault over one fleet."""

    fault: str
    way: Way
    most: int
    rebalances: int
    lost: int
    twice: int
    unclean: int
    """Slots given up without their commit, batches void, workers that ended by an error or -9."""
    seconds: float
    """From its beginning until both slots were active, and every partition had one owner."""
    broken: tuple[str, ...]


class Ground:
    """All of them."""

    def __init__(self, targets: Mapping[Way, Target], brokers: Broker, clock: Path) -> None:
        self.targets = targets
        self.brokers = brokers
        self.clock = clock
        """What is added to the time of day of brokers, supervisor, Spark and workers."""

    def begin(self) -> None:
        """Each at work, with a standby."""
        self._each(lambda t: t.apply(SLOTS))
        with self._streams():
            self._each(lambda t: t.until(t.cooldown, "two active slots and a standby"))
            self._each(Target.settle)
        self._each(Target.await_drained)

    def play(self, fault: Fault) -> list[Cell]:
        """One fault under a steady stream, until all is as before; its cells."""
        ways = [way for way in self.targets if fault.most(way) is not None]
        before = self._look(ways)
        with self._streams():
            time.sleep(2)
        with contextlib.nullcontext() if fault.quiet else self._streams():
            began = time.monotonic()
            if fault.shared is not None:
                fault.shared(self)
            took = self._each(lambda t: self._one(fault, t, began), ways)
        with self._streams():
            self._each(Target.settle, ways)
        self._each(Target.await_drained)
        after = self._look(ways)
        return [
            self._cell(fault, way, (before[way][0], *after[way]), seconds)
            for way, seconds in zip(ways, took, strict=True)
        ]

    def _one(self, fault: Fault, target: Target, began: float) -> float:
        if fault.alone is not None:
            fault.alone(target)
        target.say(f"{target.group}: {fault.name}: over")
        target.until(target.at_work, f"{target.group} to be at work after {fault.name}")
        took = time.monotonic() - began
        target.until(target.cooldown, f"a standby of {target.group} after {fault.name}")
        return took

    def _cell(
        self, fault: Fault, way: Way, seen: tuple["Look", "Look", Sequence[Record]], seconds: float
    ) -> Cell:
        was, now, records = seen
        if now.since != was.since:  # another topic
            was = replace(was, lost=0, twice=0, entries=0)
        target, most = self.targets[way], fault.most(way)
        assert most is not None
        events = target.events()[was.events :]
        unclean = fault.killed + sum(map(is_unclean, events))
        cell = Cell(
            fault=fault.name,
            way=way,
            most=most,
            rebalances=now.rebalances - was.rebalances,
            lost=now.lost - was.lost,
            twice=now.twice - was.twice,
            unclean=unclean,
            seconds=seconds,
            broken=tuple(self._broken(target, records)),
        )
        hand = biggest(target.entries()[was.entries :])
        found = judged(cell, hand=hand, clean=fault.clean)
        if fault.clean and unclean:
            target.say(f"unclean: {[e for e in events if is_unclean(e)]}")
        return replace(cell, broken=(*cell.broken, *found))

    def _broken(self, target: Target, records: Sequence[Record]) -> Iterator[str]:
        """Invariants that the coordinator's records decide, over the fleet's whole life."""
        seen = invariants.Evidence(
            topic=target.topic,
            records=records,
            events=[],
            journal=[],
            held={},
            ends={tp.partition: end for tp, end in target.ends().items()},
            troubles=[],
            protocol="consumer" if target.is_consumer else "classic",
        )
        for check in (invariants.one_owner, invariants.all_assigned, invariants.grows):
            yield from check(seen)
        if not target.since:  # a topic recreated begins anew
            yield from invariants.never_back(seen)

    def _look(self, ways: Sequence[Way]) -> dict[Way, tuple[Look, Sequence[Record]]]:
        records = dump_records(self.brokers, [self.targets[way].group for way in ways])
        found = {}
        for way in ways:
            target = self.targets[way]
            mine = [record for record in records if record.group == target.group]
            lost, twice = target.lost_and_duplicates()
            look = Look(
                lost=lost,
                twice=twice,
                events=len(target.events()),
                entries=len(target.entries()),
                rebalances=count_rebalances(mine),
                since=target.since,
            )
            found[way] = (look, mine)
        return found

    def _each(self, act: Callable[[Target], Any], ways: Sequence[Way] | None = None) -> list[Any]:
        """Do it to all of them at once; the answers, or the first error when all are through."""
        chosen = [self.targets[way] for way in (self.targets if ways is None else ways)]
        with ThreadPoolExecutor(len(chosen)) as pool:
            return [each.result() for each in [pool.submit(act, target) for target in chosen]]

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for target in self.targets.values():
                stack.enter_context(target.stream(RATE))
            yield


def judged(cell: Cell, *, hand: int, clean: bool) -> Iterator[str]:
    """What is not as it should be; hand: the most records of one call, clean: nobody may end."""
    if cell.rebalances > cell.most:
        yield f"{cell.rebalances} rebalances, at most {cell.most} are due"
    if cell.lost:
        yield f"{cell.lost} records lost"
    if cell.twice > cell.unclean * hand:
        yield f"{cell.twice} records twice after {cell.unclean} unclean ends"
    if clean and cell.unclean:
        yield f"{cell.unclean} unclean ends"
