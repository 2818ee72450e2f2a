"""A fleet that lives through bad weather: what its disk, store, machine, brokers and sink can do.

One fleet per way of membership, at work under a steady stream; it has a broker and, where this
user may mount, a disk of its own. Its journal, its events and what steers its entrypoint are
beside that disk, since they are the test's. After each fault everything is healed, and it is
judged what the rows say, who is still a member by the coordinator's records, and whether anybody
ended uncleanly.
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from fleet.broker import Broker
from fleet.demo.coverage import JournalEntry, numbers
from fleet.slots import Phase
from fleet.slots.sqlite import DATABASE
from fleet.system.processes import home_processes
from tests.support.kafka_tools import Record, dump_group_records
from tests.support.manager_process import await_said, end, spawn_manager
from tests.support.workshop import Workshop

LEASE = 3.0
SLOTS = 2
RATE = 50
BATCH = 100
SINK_AWAY = float(os.environ.get("FLEET_SINK_AWAY", "12"))
"""Seconds; the real thing is 600."""
WAYS: dict[str, dict[str, str]] = {
    "range": {"assignor": "range"},
    "cooperative": {"assignor": "cooperative-sticky"},
    "consumer": {"protocol": "consumer"},
    "range, dynamic": {"assignor": "range", "membership": "dynamic"},
    "cooperative, dynamic": {"assignor": "cooperative-sticky", "membership": "dynamic"},
    "consumer, dynamic": {"protocol": "consumer", "membership": "dynamic"},
}
JOB = '''"""Refused by its sink before anything is done, or journal first; some records kill it."""
import os, signal, time
from pathlib import Path
from fleet.demo.orders import write_journal

VERSION = 1
PLACE = Path(os.environ["WEATHER"])


def process(df, context):
    seq = "try_cast(cast(value AS STRING) AS LONG) AS seq"
    rows = df.selectExpr("topic", "partition", seq).toArrow()
    if context.warm:
        return
    if (PLACE / "sink-away").exists():
        raise ConnectionError("the sink is away")
    write_journal(context, rows)
    deadly = PLACE / "deadly"
    if deadly.exists() and int(deadly.read_text()) in rows["seq"].to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
'''


class WeatherShop(Workshop):
    """A workshop whose evidence is not on its own disk."""

    def __init__(self, home: Path, place: Path, bootstrap: str, group: str, **worker: Any) -> None:
        super().__init__(home, bootstrap, group, **worker)
        self.place = place
        self.journal = place / "journal"
        self.letters = f"{group}-letters"
        self.write_code(JOB)
        terms: dict[str, Any] = {
            "batch": {"inline": BATCH, "max_wait": "300ms", **worker.get("batch", {})},
            "dead_letter_topic": self.letters,
            "entrypoint_failure_timeout": f"{max(60.0, 1.5 * SINK_AWAY):g}s",
            "env": {
                "FLEET_JOURNAL": str(self.journal),
                "FLEET_EVENTS": str(place / "events"),
                "WEATHER": str(place),
            },
        }
        if worker.get("protocol") != "consumer":  # whose heartbeat is the broker's
            terms["heartbeat_interval"] = "1s"
        self.declare(worker=terms, runtime={"kind": "local", "lease": f"{LEASE:g}s"})

    def has_standby(self) -> bool:
        """A warm worker that lives and holds no slot."""
        with self.fleet() as fleet:
            owners = {s.owner for s in fleet.slots(self.group)}
            running = {w.name for w in fleet.workers(self.group) if w.running}
            warm = {r.worker for r in fleet.reports(self.group) if r.phase == "standby"}
        return bool((warm & running) - owners)

    def events(self) -> list[dict[str, Any]]:
        """All that the workers told."""
        path = self.place / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What was so before a fault."""

    lost: int
    twice: int
    events: int
    entries: int
    members: frozenset[str]
    """By the coordinator's records."""
    tokens: dict[int, int]
    """Slot → the token of its take."""
    letters: int
    """Records in the dead letter topic."""


class Weather:
    """One fleet of two workers and a standby, and what can happen to it."""

    def __init__(self, shop: WeatherShop, broker: Broker) -> None:
        self.shop = shop
        self.broker = broker
        self._draw = random.Random(13)

    # --- faults ------------------------------------------------------------------------------

    def store_read_only(self) -> None:
        """The store is read and not written, for up to three leases: another process locks it."""
        path = self.shop.home / DATABASE
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as locking:
            # After each release owners and standbys race for the first write.
            for leases in (1.4, 2.1, 3.0):
                locking.execute("BEGIN IMMEDIATE")
                time.sleep(leases * LEASE)
                locking.execute("ROLLBACK")
                time.sleep(LEASE / 2)

    def disk_full(self) -> None:
        """Nothing can be written under the home, for three leases: store and logs alike."""
        filler = self.shop.home / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while file.write(b"\0" * size) == size:
                            pass
            time.sleep(3 * LEASE)
        finally:
            filler.unlink()

    def machine_frozen(self) -> None:
        """Workers, supervisor, Spark and broker stop for longer than a lease, and go on in turn."""
        pids = [each.process.pid for each in home_processes(self.shop.home)]
        pids += [node.pid for node in self.broker.status().nodes if node.pid is not None]
        self._each(pids, signal.SIGSTOP)
        time.sleep(LEASE + 2)
        self._draw.shuffle(pids)
        self._each(pids, signal.SIGCONT)

    def _each(self, pids: Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def brokers_away_in_a_roll(self) -> None:
        """New code is rolled out while no broker answers; what is not done then is done after."""
        self.shop.new_code()
        manager = spawn_manager(self.shop, SLOTS)
        try:
            await_said(self.shop, lambda said: "canary" in said, "the roll to begin")
            self.broker.kill()
            time.sleep(4 * LEASE)
            self.broker.start(wait=300)
            manager.join(180)
        finally:
            end(self.shop, manager)
        self.shop.apply(SLOTS)

    def a_record_that_kills(self) -> None:
        """Whoever gets it dies by SIGKILL, until it is a dead letter."""
        shop, number = self.shop, next(self.shop.numbers)
        (shop.place / "deadly").write_text(str(number))
        before = self._letters()
        producer = shop.producer()
        producer.produce(shop.topic, str(number).encode(), partition=0)
        producer.flush(120)
        shop.until(lambda: self._letters() > before, "the record to be a dead letter")

    def sink_away(self) -> None:
        """Every call is refused for a while."""
        (self.shop.place / "sink-away").touch()
        time.sleep(SINK_AWAY)
        (self.shop.place / "sink-away").unlink()

    # --- before and after ----------------------------------------------------------------------

    def cooldown(self) -> bool:
        """Two active slots, and a warm standby beside them."""
        return self.shop.all_active(SLOTS) and self.shop.has_standby()

    def begin(self) -> None:
        """The fleet at work."""
        self.shop.apply(SLOTS)
        with self.shop.stream(RATE):
            self.shop.until(self.cooldown, "two active slots and a standby")
        self.shop.await_drained()

    def look(self) -> Before:
        """All that a fault is judged by."""
        lost, twice = self.shop.lost_and_duplicates()
        with self.shop.fleet() as fleet:
            slots = [s for s in fleet.slots(self.shop.group) if s.phase is Phase.ACTIVE]
        return Before(
            lost=lost,
            twice=twice,
            events=len(self.shop.events()),
            entries=len(self.shop.entries()),
            members=members(dump_group_records(self.broker, self.shop.group)),
            tokens={slot.number: slot.token for slot in slots},
            letters=self._letters(),
        )

    def play(self, fault: "Fault") -> list[str]:
        """One fault under a steady stream, until all is well and processed; what is broken."""
        before = self.look()
        with self.shop.stream(RATE):
            time.sleep(2)
            fault.happens(self)
            self.shop.say(f"{fault.name}: over")
            self.shop.until(self.cooldown, f"the fleet to be well after {fault.name}")
            time.sleep(1)
        self.shop.await_drained()
        return list(self._judge(fault, before, self.look()))

    def _judge(self, fault: "Fault", before: Before, after: Before) -> Iterator[str]:
        entries = self.shop.entries()[before.entries :]
        told = self.shop.events()[before.events :]
        lost, twice = after.lost - before.lost, after.twice - before.twice
        killed = self._killed(entries)
        unclean = len(killed) + sum(map(is_unclean, told))
        self.shop.say(f"{fault.name}: {lost} lost, {twice} twice, {unclean} unclean ends")
        if lost:
            yield f"{lost} records lost"
        if twice > unclean * biggest(entries):
            yield f"{twice} records twice after {unclean} unclean ends"
        if fault.nobody_ends:
            if unclean:
                yield f"{unclean} unclean ends: {[e for e in told if is_unclean(e)]}"
            if after.members != before.members:
                yield f"members {set(before.members)} became {set(after.members)}"
            if after.tokens != before.tokens:
                yield f"slots were taken from the living: {before.tokens}, {after.tokens}"
        if after.letters - before.letters != fault.letters:
            yield f"{after.letters - before.letters} dead letters, {fault.letters} are due"

    def _killed(self, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
        """The calls that ended their worker."""
        deadly = self.shop.place / "deadly"
        number = int(deadly.read_text()) if deadly.exists() else -1
        return [e for e in entries if number in numbers(e.rows).tolist()]

    def _letters(self) -> int:
        reader = Consumer({**self.shop.client(), "group.id": "letters"})
        try:
            ends = reader.get_watermark_offsets(TopicPartition(self.shop.letters, 0), timeout=20)
        finally:
            reader.close()
        assert ends is not None
        return int(ends[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a fleet, and what may come of it."""

    name: str
    happens: Callable[[Weather], None]
    nobody_ends: bool = True
    """Every member is the same as before, and none of them ended."""
    letters: int = 0
    """Dead letters that are due."""


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="store read-only", happens=Weather.store_read_only),
        Fault(name="disk full", happens=Weather.disk_full),
        Fault(name="machine frozen", happens=Weather.machine_frozen),
        Fault(name="sink away", happens=Weather.sink_away),
        Fault(
            name="brokers away in a roll", happens=Weather.brokers_away_in_a_roll, nobody_ends=False
        ),
        Fault(
            name="a record that kills",
            happens=Weather.a_record_that_kills,
            nobody_ends=False,
            letters=1,
        ),
    )
}


def members(records: Sequence[Record]) -> frozenset[str]:
    """Ids of those who are members at the end of a group's records, classic or KIP-848."""
    found: set[str] = set()
    for record in records:
        if record.type == 2:
            told = (record.value or {}).get("members") or ()
            found = {str(member["memberId"]) for member in told}
        elif record.type == 5:
            member = str(record.key["memberId"])
            (found.discard if record.value is None else found.add)(member)
    return frozenset(found)


def is_unclean(event: dict[str, Any]) -> bool:
    """A slot given up or a batch over without its commit, or an end by an error."""
    kind = event["event"]
    return (
        kind == "void"
        or (kind == "released" and not event["clean"])
        or (kind == "exit" and event["code"] != 0)
    )


def biggest(entries: Sequence[JournalEntry]) -> int:
    """Most records that one worker was called for at one moment."""
    calls: dict[tuple[str, float], int] = {}
    for entry in entries:
        key = (entry.worker, entry.at)
        calls[key] = calls.get(key, 0) + entry.records
    return max(calls.values(), default=0)


@contextlib.contextmanager
def disk_of_its_own(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small tmpfs; root only."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "none", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
