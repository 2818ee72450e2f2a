"""One group's records out of `__consumer_offsets`, read while they are being written.

Problem: receipts need what the coordinator recorded about one group, from a position on, again
and again within seconds; the group's records share one partition of an internal topic with
those of many others. Choice: one Consumer, assigned by hand to that partition, kept and
reused; other groups' records are dropped by a comparison of key bytes before anything is
decoded; a repeated read goes on where the last one ended. It never subscribes and never
commits, so that it leaves no trace in the log it reads. Reads are uncommitted: membership
records are not transactional, and an open transaction of somebody else must not hide them.
Cost: a group that has not changed for long is searched for backwards, at worst through its
whole partition (some 300,000 records a second).
"""

import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.kafka_source.failures import DENIED
from fleet.log.records import (
    TOPIC,
    AssignmentEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    Record,
    Tombstone,
    Unreadable,
    decode,
    partition_for,
)
from fleet.system.closing import Closing

READS_ONLY: Final[Mapping[str, Any]] = {
    "group.id": "fleet-reads-only",  # never joined, never committed with
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",  # a position that compaction or retention took away
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 10,  # the end is reached within 10 ms
    "log_level": 0,  # what matters is raised
}
_BACKWARDS: Final = (2_000, 20_000)
_COMMITS_KEPT: Final = 21
"""Commits per partition before a position: 20 gaps, for the median gap [27]."""
_COMMIT_TYPES: Final = (0, 1)
_GENERATION_TYPE: Final = 2
_ABSENT: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own codes are spelled so
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_RETRY_PAUSE = 0.2
T = TypeVar("T")


class OutOfTime(Unreachable):
    """What `GroupLog.end_within` gave was not enough."""


class GroupLog(Closing):
    """Reads one group at a time. Not for several threads at once.

    `config` is librdkafka's, with bootstrap.servers and security; `timeout` bounds each question
    to a broker, in seconds, and how long a reading may get no further. Raises Unreadable where
    the topic may not be read, Unreachable where no broker answers.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Clock,
        timeout: float = 10.0,
        isolation: str = "read_uncommitted",
    ) -> None:
        self._address = str(config.get("bootstrap.servers", "?"))
        self._config = {**config, **READS_ONLY, "isolation.level": isolation}
        self._clock = clock
        self._timeout = timeout
        self._consumer: Consumer | None = None
        self._partitions = 0
        self._ends = math.inf
        self._seen: tuple[str, int, int, tuple[Record, ...]] | None = None

    def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def end_within(self, seconds: float) -> None:
        """From now on all readings together take no longer: OutOfTime is raised then."""
        self._ends = self._clock.monotonic() + seconds

    def partition_of(self, group: str) -> int | None:
        """The group's partition; None while the topic does not exist (no group ever was)."""
        if not self._partitions:
            found = self._ask(lambda c, t: c.list_topics(TOPIC, timeout=t)).topics.get(TOPIC)
            if found is None or found.error is not None:
                if found is not None and found.error.code() in DENIED:
                    raise self._denied(found.error)
                return None
            self._partitions = len(found.partitions)
        return partition_for(group, self._partitions) if self._partitions else None

    def position(self, group: str) -> int:
        """Where the group's partition ends now: the offset of the next record."""
        return self._bounds(group)[1]

    def position_at(self, group: str, at: float) -> int:
        """The position of the first record written at or after wall time `at`."""
        partition = self.partition_of(group)
        if partition is None:
            return 0
        wanted = [TopicPartition(TOPIC, partition, int(at * 1000))]
        found = self._ask(lambda c, t: c.offsets_for_times(wanted, timeout=t))[0]
        if found.error is not None:
            raise self._failed(found.error)
        return int(found.offset) if found.offset >= 0 else self.position(group)

    def read(self, group: str, since: int, *, until: int | None = None) -> tuple[Record, ...]:
        """The group's records from position `since` up to `until`, or to the end at this call."""
        end = self.position(group) if until is None else until
        if until is not None:
            return self._stretch(group, since, end)
        known: tuple[Record, ...] = ()
        at = since
        if self._seen is not None and self._seen[:2] == (group, since) and self._seen[2] <= end:
            at, known = self._seen[2:]
        records = known + self._stretch(group, at, end)
        self._seen = (group, since, end, records)
        return records

    def last_state(self, group: str, before: int) -> tuple[Record, ...]:
        """The records before a position that say who owned what there, in order of the log.

        A classic group needs its last GroupMetadata; a KIP-848 group needs all that was
        written for its members. With them come the last commits of each partition, against
        which pauses are measured [27]. Empty where the group did not exist.
        """
        start, end = self._bounds(group)
        before = min(before, end)
        for back in _BACKWARDS:
            since = max(start, before - back)
            found = self._last(group, since, before)
            if since == start or _is_classic(found):
                return found
        return self._last(group, start, before)

    def last_commits(self, group: str) -> tuple[Record, ...]:
        """The last commits of each partition in all of the log, and what deleted them, in order."""
        return self._last(group, *self._bounds(group))

    # --- the consumer -----------------------------------------------------------------------

    def _bounds(self, group: str) -> tuple[int, int]:
        partition = self.partition_of(group)
        if partition is None:
            return 0, 0
        where = TopicPartition(TOPIC, partition)
        try:
            low, high = self._ask(lambda c, t: c.get_watermark_offsets(where, timeout=t))
        except _Absent:
            return 0, 0
        return int(low), int(high)

    def _stretch(self, group: str, since: int, until: int) -> tuple[Record, ...]:
        found: list[Record] = []
        self._walk(group, since, until, lambda raw: found.append(_decoded(raw)))
        return tuple(found)

    def _last(self, group: str, since: int, until: int) -> tuple[Record, ...]:
        last = _Last()
        self._walk(group, since, until, last.add)
        return last.records()

    def _walk(self, group: str, since: int, until: int, keep: Callable[["_Raw"], None]) -> None:
        partition = self.partition_of(group)
        if partition is None or since >= until:
            return
        name = group.encode()
        prefix = struct.pack(">h", len(name)) + name
        consumer = self._open()
        consumer.assign([TopicPartition(TOPIC, partition, since)])
        at, deadline = since, self._clock.monotonic() + self._timeout
        try:
            while at < until:
                if self._clock.monotonic() > self._ends:
                    raise OutOfTime(
                        f"partition {partition} of {TOPIC} was read up to offset {at} of {until} "
                        "in the time there was; `fleet history tail` keeps tables that answer at "
                        "once"
                    )
                reached = self._take(consumer, prefix, until, keep)
                if reached > at:
                    at, deadline = reached, self._clock.monotonic() + self._timeout
                elif self._clock.monotonic() > deadline:
                    raise Unreachable(
                        f"partition {partition} of {TOPIC} at {self._address} was read up to "
                        f"offset {at} of {until}, and no further for {self._timeout:.0f} s; see "
                        "whether its leader is up, then try again"
                    )
        finally:
            consumer.unassign()  # or it would go on asking the broker 100 times a second

    def _take(
        self, consumer: Consumer, prefix: bytes, until: int, keep: Callable[["_Raw"], None]
    ) -> int:
        """Consume once; the offset up to which everything was read, -1 where nothing came."""
        reached = -1
        for message in consumer.consume(num_messages=5_000, timeout=0.01):
            error, offset = message.error(), message.offset() or 0
            if error is not None:
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka looks for a coordinator, which is not needed here
                failed = self._failed(error)
                if not isinstance(failed, Unreachable):  # what passes is bounded by the caller
                    raise failed
            elif offset < until:
                key = message.key()
                if key is not None and key[2 : 2 + len(prefix)] == prefix:
                    keep(_Raw(key, message.value(), offset, message.timestamp()[1]))
                offset += 1
            # Past the end by position, not by the last record: compaction leaves gaps.
            reached = max(reached, offset)
            if reached >= until:
                break
        return reached

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        return self._consumer

    def _ask(self, question: Callable[[Consumer, float], T]) -> T:
        """Ask until the timeout: a topic just born has no leader yet, a broker comes back."""
        deadline = self._clock.monotonic() + self._timeout
        while True:
            try:
                return question(self._open(), self._timeout)
            except KafkaException as error:
                failed = self._failed(error.args[0])
                if not isinstance(failed, Unreachable) or self._clock.monotonic() >= deadline:
                    raise failed from error
                self._clock.sleep(_RETRY_PAUSE)

    def _failed(self, error: KafkaError) -> FleetError:
        if error.code() in DENIED:
            return self._denied(error)
        # Of a topic that was there it is librdkafka's word for a broker that is away: no position
        # 0, and no rebalance that was not counted.
        if error.code() in _ABSENT and not self._partitions:
            return _Absent(f"{TOPIC} does not exist at {self._address}")
        return Unreachable(
            f"{TOPIC} at {self._address} cannot be read: {error.str()}; see whether the broker "
            "is up and the address is right"
        )

    def _denied(self, error: KafkaError) -> Unreadable:
        return Unreadable(
            f"{TOPIC} at {self._address} may not be read ({error.str()}); grant Read on that "
            "topic, or receipts stay unverified"
        )


class _Absent(FleetError):
    """The topic is not there (yet)."""


def _is_classic(records: tuple[Record, ...]) -> bool:
    """Whether the last word on membership in these records is a classic one."""
    for record in reversed(records):
        if isinstance(record, GroupMetadata):
            return True
        if isinstance(record, Tombstone) and record.type == 2:
            return True
        if isinstance(record, AssignmentEpoch | CurrentAssignment | ConsumerGroupMember):
            return False
    return False


class _Raw(NamedTuple):
    """A record of the group as it was read; most are replaced before anybody looks into them."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp: int


class _Last:
    """What of a stretch nothing in it replaced: no earlier generation, the last few commits."""

    def __init__(self) -> None:
        self._kept: list[_Raw] = []
        self._commits: defaultdict[bytes, deque[_Raw]] = defaultdict(
            lambda: deque(maxlen=_COMMITS_KEPT)
        )
        self._generation: _Raw | None = None

    def add(self, raw: _Raw) -> None:
        """The next one of the log."""
        kind = int.from_bytes(raw.key[:2], "big", signed=True)
        if kind in _COMMIT_TYPES:
            self._commits[raw.key].append(raw)
        elif kind == _GENERATION_TYPE:
            self._generation = raw
        else:
            self._kept.append(raw)

    def records(self) -> tuple[Record, ...]:
        """In order of the log."""
        kept = [*self._kept, *(raw for each in self._commits.values() for raw in each)]
        if self._generation is not None:
            kept.append(self._generation)
        return tuple(map(_decoded, sorted(kept, key=lambda raw: raw.offset)))


def _decoded(raw: _Raw) -> Record:
    return decode(raw.key, raw.value, offset=raw.offset, timestamp=raw.timestamp)
