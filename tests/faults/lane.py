"""One group of real workers that schedules are played on, with what a supervisor would do.

Problem: 200 schedules must fit into an hour, and starting Spark's client is what costs. Choice:
a lane keeps its workers from schedule to schedule and replaces those that end; several lanes
share a Spark server, but each has its own broker, so that one that is taken away is away for one
lane; Kafka's own dump runs once per schedule. After a schedule everything is healed and must come
to rest in bounded time (I11); the evidence is over the whole life of the lane. Cost: a schedule
begins with whatever workers the last one left, so a seed alone does not give the same run again.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka import Producer

from fleet.act.kafka import GroupAdmin
from fleet.broker import Broker
from fleet.slots import Phase
from fleet.worker.group_query import CHECK_EVERY, GRACE
from tests.faults.collecting import Collector
from tests.faults.invariants import Trouble, broken, rebalances, times
from tests.faults.schedules import LEASE, SESSION, Act, Kind
from tests.support.waiting import meanwhile, until
from tests.worker.conftest import Group

HEARTBEAT = 2.0
REBALANCE = 20.0
"""Of the group: max_poll_interval."""
START = 30.0
"""Seconds that a replacement may need on a busy machine until it is warm."""
FIRST_START = 180.0
"""The same, when all lanes begin at once."""
MOST_SLOTS = 3
BATCH = 20
JOB = """
import random, time
from worker_job import write_journal


def process(df, context):
    if not context.warm:
        write_journal(df, context)
        time.sleep(random.uniform(0, 0.4))
"""
CONSUMER = "consumer"
"""In the place of an assignor: KIP-848."""


class Lane:
    """See the module."""

    def __init__(self, group: Group, broker: Broker, assignor: str) -> None:
        self.group = group
        self.broker = broker
        self.assignor = assignor
        self.troubles: list[Trouble] = []
        self.away: list[Trouble] = []
        """When the broker was not there."""
        self.allowed = 0
        """Rebalances that the schedule in hand may cost (I8)."""
        self.unclean = 0
        self.took: dict[str, float] = {}
        """What the last schedule's seconds were spent on."""
        self._collector = Collector(group, broker, protocol=self.protocol)
        self._before: int | None = None
        """Rebalances recorded up to the last schedule."""
        self._outages = self._orphaned = 0
        """Of the broker, and of partitions, up to the last schedule."""
        self._count = 0
        self._asleep: dict[str, tuple[float, float]] = {}
        """Stopped worker → (since, until)."""
        self._missing: dict[int, float] = {}
        """Open slot → since when nobody well holds it."""
        self._charged: set[int] = set()
        self._terminated: set[str] = set()
        self._numbers = itertools.count()
        """Of the records: one number, one record."""
        (group.folder / "lane_job.py").write_text(JOB)
        if self.protocol == CONSUMER:  # its terms are the group's
            with GroupAdmin(bootstrap=group.bootstrap, kafka_python_config={}) as admin:
                for name, seconds in (("session.timeout", SESSION), ("heartbeat.interval", 1.0)):
                    setting = f"consumer.{name}.ms"
                    admin.set_group_setting(group.name, setting, f"{seconds * 1000:.0f}")

    @property
    def protocol(self) -> str:
        """As declared: classic or consumer."""
        return CONSUMER if self.assignor == CONSUMER else "classic"

    # --- what a supervisor does ------------------------------------------------------------

    def _start(self) -> None:
        self._count += 1
        self.group.start(
            f"{self.group.name}-w{self._count}",  # reports are kept by the worker's name alone
            env={},
            lease=LEASE,
            entrypoint="lane_job:process",
            max_poll_interval=f"{REBALANCE:g}s",
            batch={"max_wait": "100ms", "inline": BATCH},
            **self._terms(),
        )

    def _terms(self) -> dict[str, str]:
        if self.protocol == CONSUMER:
            return {"protocol": CONSUMER}
        return {
            "assignor": self.assignor,
            "session_timeout": f"{SESSION:g}s",
            "heartbeat_interval": f"{HEARTBEAT:g}s",
        }

    def living(self) -> list[str]:
        """Workers whose process runs, stopped ones too."""
        return [n for n, p in self.group.processes.items() if p.poll() is None]

    def tick(self) -> None:
        """Wake who has slept enough, replace the dead, note who is missing."""
        now = time.time()
        for worker, (since, end) in list(self._asleep.items()):
            if now >= end:
                self._wake(worker, since)
        well = set(self.living()) - set(self._asleep)
        wanted = len(self.group.store.targets(self.group.name).open) + 1
        for _ in range(wanted - len(self.living())):
            self._start()
        slots = {s.number: s for s in self.group.store.slots(self.group.name)}
        for number in self.group.store.targets(self.group.name).open:
            slot = slots.get(number)
            if slot is not None and slot.owner in well and slot.phase is Phase.ACTIVE:
                self._missing.pop(number, None)
                self._charged.discard(number)
                continue
            away = now - self._missing.setdefault(number, now)
            if away > SESSION - 3 * HEARTBEAT and number not in self._charged:
                self._charged.add(number)  # its session may end, and it joins again
                self.allowed += 4

    def _wake(self, worker: str, since: float) -> None:
        del self._asleep[worker]
        self.troubles.append(Trouble(worker, since, time.time() + SESSION))
        process = self.group.processes[worker]
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)

    # --- a schedule ------------------------------------------------------------------------

    def play(self, acts: tuple[Act, ...]) -> list[str]:
        """Play it, heal, and say what is broken."""
        self.took = {}
        with self._timed("begin"):
            self._begin()
        with self._timed("first count"):
            if self._before is None:
                self._before = rebalances(self._collector.evidence(()))
        journal_before = len(self.group.journal())
        with self._timed("acts"), meanwhile(self._records):
            began = time.monotonic()
            for act in acts:
                while time.monotonic() - began < act.at:
                    self.tick()
                    time.sleep(0.1)
                self._do(act)
        with self._timed("rest"):
            self._heal()
        with self._timed("judging"):
            return self._judge(journal_before)

    def _judge(self, journal_before: int) -> list[str]:
        seen = self._collector.evidence([*self.troubles, *self.away])
        found = broken(seen)
        orphaned = len(self.group.events("orphans"))
        self.allowed += 4 * (orphaned - self._orphaned)
        away = self.away[self._outages :]
        self.unclean += len(away) * (MOST_SLOTS + 1)
        self.allowed += sum(4 * MOST_SLOTS for t in away if t.until - t.since > SESSION / 2)
        cost = rebalances(seen) - self._before
        if cost > self.allowed:
            found.append(f"I8: {cost} rebalances, {self.allowed} are explained")
        repeated = _repeated(self.group.journal(), journal_before)
        if repeated > self.unclean * 4 * BATCH:
            found.append(f"I6: {repeated} records twice after {self.unclean} unclean ends")
        self._before += cost
        self._outages += len(away)
        self._orphaned = orphaned
        self.allowed, self.unclean = 0, 0
        self._charged.clear()
        return found + self._strange_ends()

    @contextmanager
    def _timed(self, what: str):
        since = time.monotonic()
        try:
            yield
        finally:
            self.took[what] = time.monotonic() - since

    def _begin(self) -> None:
        """Two active slots and a warm standby."""
        targets = self.group.store.targets(self.group.name)
        if not targets.open:
            for _ in range(3):
                self._start()
            first = set(self.living())
            self._wait(lambda: first <= self._standbys(), "three warm workers", FIRST_START)
            self.group.change_targets(
                lambda g: replace(g, open=frozenset({0, 1}), open_at=time.time() + 1.0)
            )
        self._wait(self._calm, "two active slots and a standby", START + SESSION + REBALANCE)

    def _standbys(self) -> set[str]:
        """Workers that say that they are warm."""
        reports = self.group.store.reports(self.group.name)
        return {r.worker for r in reports if r.phase == "standby"}

    def _calm(self) -> bool:
        targets = self.group.store.targets(self.group.name)
        slots = {s.number: s for s in self.group.store.slots(self.group.name)}
        owners = [slots[n].owner for n in targets.open if n in slots]
        living = set(self.living())
        return (
            not targets.leaving
            and all(n in slots and slots[n].phase is Phase.ACTIVE for n in targets.open)
            and set(owners) <= living
            and len(set(owners)) == len(targets.open)
            and bool((self._standbys() - set(owners)) & living)
        )

    def _do(self, act: Act) -> None:
        targets = self.group.store.targets(self.group.name)
        slots = [s for s in self.group.store.slots(self.group.name) if s.number in targets.open]
        owners = sorted({s.owner for s in slots if s.owner} & set(self.living()))
        if act.kind is Kind.BOUNCE:
            self._bounce(act.seconds)
        elif act.kind is Kind.JOIN and not targets.leaving and len(targets.open) < MOST_SLOTS:
            number = min(set(range(MOST_SLOTS)) - targets.open)
            self.allowed += 2
            self.group.change_targets(
                lambda g: replace(g, open=g.open | {number}, open_at=time.time() + 0.5)
            )
        elif act.kind is Kind.LEAVE and not targets.leaving and len(targets.open) > 1:
            number = sorted(targets.open)[act.which % len(targets.open)]
            self.allowed += 3
            self.group.change_targets(
                lambda g: replace(g, leaving=frozenset({number}), plan_id="schedule")
            )
        elif owners and act.kind in {Kind.DRAIN, Kind.KILL, Kind.STOP}:
            self._hit(owners[act.which % len(owners)], act)

    def _bounce(self, seconds: float) -> None:
        since = time.time()
        self.broker.kill()
        time.sleep(seconds)
        self.broker.start()
        self.away.append(Trouble(None, since, time.time()))

    def _hit(self, worker: str, act: Act) -> None:
        process, now = self.group.processes[worker], time.time()
        if act.kind is Kind.DRAIN:
            self._terminated.add(worker)
            process.terminate()
        elif act.kind is Kind.KILL:
            self.unclean += 1
            self.allowed += self._expected_cost_of_a_death()
            self.troubles.append(Trouble(worker, now, float("inf")))
            self._asleep.pop(worker, None)
            process.kill()
        elif worker not in self._asleep:
            self.unclean += 1
            if act.seconds > LEASE / 2:
                self.allowed += self._expected_cost_of_a_death()
            self._asleep[worker] = (now, now + act.seconds)
            os.kill(process.pid, signal.SIGSTOP)

    def _expected_cost_of_a_death(self) -> int:
        """KIP-848: the new owner sends the dead one's leave and joins [17]; classic: it replaces
        it.
        """
        return 2 if self.protocol == CONSUMER else 0

    def _heal(self) -> None:
        """All that is stopped goes on; I11: at rest in bounded time."""
        for worker, (since, _) in list(self._asleep.items()):
            self._asleep[worker] = (since, 0.0)
        limit = SESSION + REBALANCE + 2 * HEARTBEAT + START + GRACE + 2 * CHECK_EVERY
        # The second round of a cooperative rebalance may be to come: every partition has an owner.
        self._wait(
            lambda: self._calm() and self._collector.drained() and self._collector.settled(),
            "rest (I11)",
            limit,
        )

    def _wait(self, condition: Callable[[], bool], what: str, limit: float) -> None:
        """I11's bound begins anew with whatever moves: a slow machine is slow in every step."""

        def held() -> bool:
            if condition():
                return True
            self.tick()
            return False

        until(held, what, progress=self.group.moving, still=limit, every=0.2,
              picture=self._picture)  # fmt: skip

    # --- evidence --------------------------------------------------------------------------

    def _records(self, stop: threading.Event) -> None:
        """A steady stream; what was acknowledged is in the log once."""
        options = {"bootstrap.servers": self.group.bootstrap, "enable.idempotence": True}
        producer, number = Producer({**options, "logger": _silent()}), 0
        while not stop.wait(0.2):
            for _ in range(8):
                key = str(next(self._numbers)).encode()
                producer.produce(self.group.topic, b"x", key=key, partition=number % 4)
                number += 1
            producer.poll(0)
        producer.flush(120)

    def _strange_ends(self) -> list[str]:
        """I11: a worker lives, or has ended as asked, or with a sentence."""
        found = []
        for name, process in self.group.processes.items():
            code = process.poll()
            last_lines = (self.group.folder / f"{name}.log").read_text().splitlines()[-1:]
            if code is None or code == -signal.SIGKILL:
                continue
            if code != 0 and not (last_lines and "ended: " in last_lines[0]):
                found.append(f"I11: {name} ended with {code} and no sentence: {last_lines}")
            if code == 0 and name not in self._terminated:
                found.append(f"I11: {name} ended with 0, and nobody had asked: {last_lines}")
        return found

    def _picture(self) -> str:
        store, name = self.group.store, self.group.name
        facts = [str(store.targets(name)), *map(str, store.slots(name)), f"living {self.living()}"]
        facts.append(f"last look: {self._collector.found}")
        return "\n".join([*facts, self.group.logs()])


def _repeated(journal: list[dict], before: int) -> int:
    """Rows that calls of this schedule got and a call had got already."""
    called = times(journal[before:])
    again = sum((times(journal[:before]) & called).values())
    return again + sum(count - 1 for count in called.values())


def _silent():
    import logging

    logger = logging.Logger("silent")  # noqa: LOG001 - nobody else's
    logger.addHandler(logging.NullHandler())
    return logger
