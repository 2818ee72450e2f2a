"""A scripted group on a real broker: members come and go, and what the log said is kept.

Every member has a thread that polls it, or is a process where it has to be stopped or killed
(tests/support/member.py): a member that is not polled holds up the others' rounds. Every
partition gets a record every 0.1 s and every record is committed: steady input, steady commits.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient, MemberToRemove

from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import Record
from fleet.log.replay.causes import Replay
from fleet.model.rebalances import MembershipSpan, Rebalance
from fleet.model.sessions import SessionAtRemoval

CLASSIC = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 10_000}
CONSUMER = {"group.protocol": "consumer", "max.poll.interval.ms": 10_000}
SESSION_S, HEARTBEAT_S = 3.0, 0.5


class Polled:
    """A member of this process, on a thread of its own; it commits what it consumed."""

    def __init__(self, config: Mapping[str, Any], topics: Sequence[str]) -> None:
        self._commits = not config["enable.auto.commit"]
        self._consumer = Consumer(dict(config))
        self._wanted: list[str] | None = list(topics)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        """From now on, to these; also where they are the same."""
        self._wanted = list(topics)

    def close(self) -> None:
        """As a client ends."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            wanted, self._wanted = self._wanted, None
            if wanted is not None:
                self._consumer.subscribe(wanted)
            last = {}
            for message in self._consumer.consume(50, timeout=0.05):
                if message.error() is None:
                    last[message.topic(), message.partition()] = message.offset() + 1
            if last and self._commits:
                offsets = [KafkaPartition(topic, n, at) for (topic, n), at in last.items()]
                with suppress(KafkaException):  # a rebalance came in between
                    self._consumer.commit(offsets=offsets, asynchronous=False)
        self._consumer.close()


class Lane:
    """One group, its members, and its replay."""

    def __init__(
        self, bootstrap: str, group: str, topics: Mapping[str, int], **config: Any
    ) -> None:
        self.bootstrap, self.group, self.config = bootstrap, group, config
        self.topics = dict(topics)
        self.members: dict[str, Polled] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "topic.metadata.refresh.interval.ms": 500}
        )
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.log = GroupLog({"bootstrap.servers": bootstrap}, clock=SystemClock())
        self.replay = Replay("main", group)
        self.records: list[Record] = []
        self.rebalances: list[Rebalance] = []
        self.memberships: list[MembershipSpan] = []
        self.expected: list[str] = []
        self.producing = True
        self._produced_at = self._read_at = 0.0
        made = self.admin.create_topics([NewTopic(name, n, 1) for name, n in topics.items()])
        for each in made.values():
            each.result(120)
        self.session(SESSION_S)

    def session(self, seconds: float) -> None:
        """The session timeout under KIP-848, for the group and told to its replay."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in (
                ("consumer.session.timeout.ms", str(int(seconds * 1000))),
                ("consumer.heartbeat.interval.ms", str(int(HEARTBEAT_S * 1000))),
            )
        ]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(120)
        removal = SessionAtRemoval(
            least_s=seconds, most_s=seconds, silent_s=seconds - HEARTBEAT_S, sure=True
        )
        self.replay.ask_session(lambda *_: removal)

    # --- what happens -----------------------------------------------------------------------

    def start(self, *names: str, static: bool = False, topics: Sequence[str] = (), **own: Any):
        """Members of this process."""
        for name in names:
            config = self._config(name, static=static, own=own)
            self.members[name] = Polled(config, list(topics) or [next(iter(self.topics))])

    def spawn(self, name: str, *, static: bool = False, **own: Any) -> None:
        """A member that is a process."""
        config = self._config(name, static=static, own=own)
        command = [sys.executable, "-m", "tests.support.member", json.dumps(config)]
        self.processes[name] = subprocess.Popen([*command, next(iter(self.topics))])

    def _config(self, name: str, *, static: bool, own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 700,
            "log_level": 0,
            **({"group.instance.id": name} if static else {}),
            **(own or self.config),
        }

    def close(self, *names: str) -> None:
        """As a client ends; a static one leaves nobody a word (classic), or epoch -2."""
        for name in names:
            self.members.pop(name).close()

    def signal(self, name: str, which: signal.Signals) -> None:
        """To a process; after SIGKILL it is gone."""
        self.processes[name].send_signal(which)
        if which == signal.SIGKILL:
            self.processes.pop(name).wait()

    def leave(self, *names: str) -> None:
        """Stop static members, and one LeaveGroup request for all of them."""
        self.close(*names)
        admin = KafkaAdminClient(bootstrap_servers=[self.bootstrap])
        try:
            admin.remove_group_members(
                self.group, [MemberToRemove(member_id="", group_instance_id=n) for n in names]
            )
        finally:
            admin.close()

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(120)
        self.topics[topic] = partitions

    def delete(self) -> None:
        """The group, once it is empty."""
        for _ in range(50):
            try:
                self.admin.delete_consumer_groups([self.group])[self.group].result(120)
            except KafkaException:
                time.sleep(0.2)
            else:
                return
        raise AssertionError(f"{self.group} could not be deleted")

    # --- and what the log says --------------------------------------------------------------

    def step(self, act: Callable[[], object], *expected: str, limit: float = 120.0) -> None:
        """Act; then poll until what is expected came about and it is quiet, or time is up."""
        self.expected += expected
        since = len(self.rebalances)
        act()
        end = time.monotonic() + limit
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 0.6 and time.monotonic() < end:
            self._poll()
            causes = [str(row.cause) for row in self.rebalances[since:]]
            done = all(cause in causes for cause in expected) and not self.replay.pending()
            if self._read() or not done:
                quiet_since = time.monotonic()

    def rest(self) -> None:
        """No more input; wait until what was still on its way is in the log, and read it."""
        self.producing = False
        quiet_since, end = time.monotonic(), time.monotonic() + 120
        while time.monotonic() - quiet_since < 1.2 and time.monotonic() < end:
            before = len(self.records)
            self.run(0.2)
            self._read()
            if len(self.records) > before:
                quiet_since = time.monotonic()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._poll()

    def _poll(self) -> None:
        if self.producing and time.monotonic() - self._produced_at > 0.1:
            for topic, partitions in self.topics.items():
                for number in range(partitions):
                    with suppress(KafkaException):  # a new partition is not known at once
                        self.producer.produce(topic, b"x", partition=number)
            self.producer.poll(0)
            self._produced_at = time.monotonic()
        time.sleep(0.03)

    def _read(self) -> bool:
        """Follow the log; whether membership moved on."""
        if time.monotonic() - self._read_at < 0.15:
            return False
        self._read_at = time.monotonic()
        since = self.records[-1].offset + 1 if self.records else 0
        fresh = self.log.read(self.group, since)
        self.records += fresh
        partition = self.log.partition_of(self.group)
        for record in fresh:
            for row in self.replay.feed(partition or 0, record):
                if isinstance(row, Rebalance):
                    self.rebalances.append(row)
                else:
                    self.memberships.append(row)
        return any(record.type not in {0, 1} for record in fresh)

    def end(self) -> None:
        """Everything that is left."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for consumer in self.members.values():
            consumer.close()
        self.log.close()
