"""A cluster in memory behind confluent-kafka's Consumer and AdminClient, for one member.

Real where our own code depends on it: isolation, offset reset, ends of partitions, pauses, what a
commit is answered with, and rebalance callbacks inside consume() and close().
"""

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.model import TopicPartition
from tests.support.written_log import WrittenLog, WrittenPart, batch

NOW = 1_700_000_000_123


class Message:
    """One record, or an error, as a consumer hands it over."""

    def __init__(self, tp: TopicPartition, offset: int, **told: Any) -> None:
        self._tp, self._offset, self._told = tp, offset, told

    def __len__(self) -> int:
        return len(self.value() or b"")

    def error(self) -> Any:
        """None for a record."""
        return self._told.get("error")

    def topic(self) -> str:
        return self._tp.topic

    def partition(self) -> int:
        return self._tp.partition

    def offset(self) -> int:
        """Its offset; of an end of partition the position."""
        return self._offset

    def key(self) -> bytes | None:
        return self._told.get("key")

    def value(self) -> bytes | None:
        return self._told.get("value")

    def timestamp(self) -> tuple[int, int]:
        return self._told.get("timestamp", (1, NOW))

    def headers(self) -> Any:
        """As confluent-kafka has them: not UTF-8 is an error, and asking again is fatal."""
        found = self._told.get("headers")
        if callable(found):
            return found()
        return found


def not_utf8(raw: bytes) -> Callable[[], Any]:
    """Headers with this key, as confluent-kafka 2.16.1 has them."""
    asked: list[int] = []

    def headers() -> Any:
        assert not asked, "the second answer holds a null pointer: the process would end here"
        asked.append(1)
        return raw.decode()

    return headers


@dataclass
class Part:
    """One partition's log: messages by offset, and where it begins and ends."""

    messages: list[Message] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    first: int = 0
    high: int = 0
    stable: int | None = None
    """Last stable offset, while a transaction is open."""

    def end(self, *, committed: bool) -> int:
        """Where a reader of this isolation gets to."""
        return self.stable if committed and self.stable is not None else self.high


@dataclass
class MemoryKafka:
    """The cluster, and what its one member did, in order."""

    cluster_id: str = "this-cluster"
    ids: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """Of each topic's leaders; 0 at first."""
    parts: dict[TopicPartition, Part] = field(default_factory=dict)
    commits: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    done: list[tuple[str, Any]] = field(default_factory=list)
    """(what, of what): assign, unassign, commit, close, read."""
    answers: deque[int] = field(default_factory=deque)
    """Codes for the next commits; 0 and none left: written."""
    silent: deque[int] = field(default_factory=deque)
    """Codes with which the next DescribeTopics fail; none left: answered."""
    member: str = "m1"
    under_way: bool = False
    """Whether a pause is too late for what the next poll brings."""
    subscribed: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    """(topics, thread) of each subscribe."""
    asked: int = 0
    """Questions about offsets, commits included."""
    unreadable: set[TopicPartition] = field(default_factory=set)
    """What a member's client cannot unpack, so that it gets no further."""
    damaged: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """Records whose batch has a wrong checksum."""
    leaderless: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Partitions without a leader: the code that is answered; None: an offset that is none."""
    unknown: list[TopicPartition] = field(default_factory=list)
    """Partitions that the next description of their topic does not have yet."""
    todo: deque[Callable[["MemoryConsumer"], None]] = field(default_factory=deque)
    at_close: tuple[TopicPartition, ...] = ()
    """What the member is given only while it closes."""
    lock: Any = field(default_factory=threading.RLock)

    def make(self, topic: str, partitions: int, topic_id: str = "id-1") -> None:
        """A topic, or partitions added to it; another id: recreated, without its commits."""
        if self.ids.get(topic, topic_id) != topic_id:
            for kept in (self.parts, self.commits):
                for tp in [tp for tp in kept if tp.topic == topic]:
                    del kept[tp]
        self.ids[topic] = topic_id
        for number in range(partitions):
            self.parts.setdefault(TopicPartition(topic, number), Part())

    def produce(self, tp: TopicPartition, *values: bytes, aborted: bool = False, **told) -> None:
        """Records at the end of a partition."""
        with self.lock:
            part = self.parts[tp]
            for value in values:
                part.messages.append(Message(tp, part.high, value=value, **told))
                if aborted:
                    part.aborted.add(part.high)
                part.high += 1

    def mark(self, tp: TopicPartition, count: int = 1) -> None:
        """Transaction markers: offsets without records."""
        with self.lock:
            self.parts[tp].high += count

    def truncate(self, tp: TopicPartition, before: int) -> None:
        self.parts[tp].first = before

    def assign(self, *tps: TopicPartition) -> None:
        """At its next poll the member is given these."""
        self.todo.append(lambda consumer: consumer.on_assign(consumer, _kafka(tps)))

    def revoke(self, *tps: TopicPartition) -> None:
        """At its next poll these are taken from it."""
        self.todo.append(lambda consumer: consumer.on_revoke(consumer, _kafka(tps)))

    def lose(self, *tps: TopicPartition) -> None:
        """At its next poll it hears that they are somebody else's already."""
        self.todo.append(lambda consumer: consumer.on_lost(consumer, _kafka(tps)))

    def committed(self, tp: TopicPartition) -> list[int]:
        """Every offset that was committed for it, in order."""
        return [of[tp] for what, of in self.done if what == "commit" and tp in of]

    def consumer(self, options: Any) -> "MemoryConsumer":
        """In place of confluent_kafka.Consumer."""
        return MemoryConsumer(self, options)

    def reading(self, login: Any, *, isolation: str) -> WrittenLog:
        """In place of what a Spark task reads by: the log as it is now, a batch each record."""
        committed = isolation == "read_committed"
        parts = {}
        with self.lock:
            for tp, part in self.parts.items():
                end = part.end(committed=committed)
                left_out = part.aborted if committed else frozenset()
                written = WrittenPart(first=part.first)
                for message in part.messages:
                    at = message.offset()
                    if part.first <= at < end and at not in left_out:
                        record = (message.key(), message.value(), ())
                        stamp = message.timestamp()[1]
                        data = batch(at, [record], timestamp=stamp)
                        if (tp, at) in self.damaged:
                            data = data[:-1] + bytes([data[-1] ^ 1])
                        written.add(data, at + 1)
                if written.end < end:
                    written.add(batch(end - 1, {}), end)
                parts[tp.topic, tp.partition] = written
        return WrittenLog(parts)

    def admin(self, options: Any) -> "MemoryAdmin":
        """In place of confluent_kafka.admin.AdminClient."""
        return MemoryAdmin(self)


def _kafka(tps: Iterable[TopicPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(tp.topic, tp.partition) for tp in tps]


def _tp(each: KafkaPartition) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)


class _Client:
    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        found = {}
        for name in [topic] if topic is not None else self.kafka.ids:
            numbers = [tp.partition for tp in self.kafka.parts if tp.topic == name]
            error = None if numbers else KafkaError(3)
            found[name] = SimpleNamespace(error=error, partitions=dict.fromkeys(numbers))
        return SimpleNamespace(topics=found, cluster_id=self.kafka.cluster_id)


class MemoryAdmin(_Client):
    """What is asked of leaders and the controller."""

    def list_offsets(self, asked: Any, *, isolation_level: Any, request_timeout: float) -> Any:
        """Futures by partition; earliest is asked for with -2, latest with -1."""
        self.kafka.asked += 1
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        found = {}
        for each, spec in asked.items():
            future: Future[Any] = Future()
            part, why = self.kafka.parts.get(_tp(each)), self.kafka.leaderless.get(_tp(each), 0)
            if part is None:  # seen: of what metadata has no leader of
                future.set_exception(KafkaException(KafkaError(-156, "No leaders found")))
            elif why:
                future.set_exception(KafkaException(KafkaError(why)))
            elif why is None:  # seen: after the timeout, without an error
                future.set_result(SimpleNamespace(offset=-1001))
            else:
                at = part.first if spec._value == -2 else part.end(committed=committed)
                future.set_result(SimpleNamespace(offset=at))
            found[each] = future
        return found

    def describe_topics(self, topics: Any, *, request_timeout: float) -> Any:
        found = {}
        code = self.kafka.silent.popleft() if self.kafka.silent else 0
        for name in topics.topic_names:
            found[name] = future = Future()
            if code:
                future.set_exception(KafkaException(KafkaError(code)))
            elif name in self.kafka.ids:
                lacks = {tp for tp in self.kafka.unknown if tp.topic == name}
                self.kafka.unknown = [tp for tp in self.kafka.unknown if tp not in lacks]
                there = self.kafka.parts.keys() - lacks
                numbers = [tp.partition for tp in there if tp.topic == name]
                parts = [SimpleNamespace(id=number) for number in numbers]
                future.set_result(SimpleNamespace(topic_id=self.kafka.ids[name], partitions=parts))
            else:
                future.set_exception(KafkaException(KafkaError(3)))
        return found


class MemoryConsumer(_Client):
    """The member's client; also of a task, which only assigns and reads."""

    def __init__(self, kafka: MemoryKafka, options: Any) -> None:
        super().__init__(kafka)
        self.options = dict(options)
        self.at: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.epochs: dict[str, int] = {}
        """The highest that this client knew of a topic's name: of lower ones it fetches nothing."""
        self.ends: dict[TopicPartition, int] = {}
        """As the last fetches told them."""
        self.ended: set[TopicPartition] = set()
        self.on_assign = self.on_revoke = self.on_lost = lambda *_: None
        self.joined = self.closing = False

    def _note(self, what: str, of: Any) -> None:
        if self.joined:  # a task's reads are nobody's membership
            self.kafka.done.append((what, of))

    # --- membership ---------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], *, on_assign, on_revoke, on_lost) -> None:
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost
        self.joined = True
        self.kafka.subscribed.append((tuple(topics), threading.current_thread().name))

    def unsubscribe(self) -> None:
        self.kafka.revoke(*self.at)

    def memberid(self) -> str:
        """As the coordinator knows it."""
        return self.kafka.member

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:" + struct.pack("=i", 1) + b"g\0" + self.kafka.member.encode() + b"\0\0"

    def assign(self, partitions: Sequence[KafkaPartition]) -> None:
        self.at.clear()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Sequence[KafkaPartition]) -> None:
        """More partitions, at their offsets."""
        for each in partitions:
            self.at[_tp(each)] = each.offset
            self.ended.discard(_tp(each))
        self._note("assign", {_tp(each): each.offset for each in partitions})

    def incremental_unassign(self, partitions: Sequence[KafkaPartition]) -> None:
        for each in partitions:
            self.at.pop(_tp(each), None)
        self._note("unassign", {_tp(each) for each in partitions})

    def unassign(self) -> None:
        self.incremental_unassign(_kafka(list(self.at)))

    def close(self) -> None:
        """An assignment that comes meanwhile is told; about offsets nobody is asked any more."""
        self.closing = True
        if self.kafka.at_close:
            self.on_assign(self, _kafka(self.kafka.at_close))
        if self.at:
            self.on_revoke(self, _kafka(list(self.at)))
        self.at.clear()
        self._note("close", None)

    # --- offsets ------------------------------------------------------------------------

    def committed(self, partitions: Sequence[KafkaPartition], timeout: float) -> Any:
        """What the coordinator has."""
        self.kafka.asked += 1
        if self.closing:
            raise KafkaException(KafkaError(-197))
        found = []
        for each in partitions:
            offset, metadata = self.kafka.commits.get(_tp(each), (-1001, ""))
            found.append(KafkaPartition(each.topic, each.partition, offset, metadata=metadata))
        return found

    def commit(self, *, offsets: Sequence[KafkaPartition], asynchronous: bool) -> Any:
        """Written, or answered with the next code."""
        self.kafka.asked += 1
        code = self.kafka.answers.popleft() if self.kafka.answers else 0
        committed = {_tp(each): each.offset for each in offsets}
        if code:
            self._note("refused", committed)
            raise KafkaException(KafkaError(code))
        for each in offsets:
            self.kafka.commits[_tp(each)] = (each.offset, each.metadata)
        self._note("commit", committed)
        return []

    # --- records ------------------------------------------------------------------------

    def pause(self, partitions: Sequence[KafkaPartition]) -> None:
        """Fetch them no more."""
        self.paused |= {_tp(each) for each in partitions}

    def resume(self, partitions: Sequence[KafkaPartition]) -> None:
        self.paused -= {_tp(each) for each in partitions}

    def seek(self, each: KafkaPartition) -> None:
        if _tp(each) not in self.at:
            raise KafkaException(KafkaError(-172))
        self.at[_tp(each)] = each.offset
        self.ended.discard(_tp(each))

    def get_watermark_offsets(self, each: KafkaPartition, **_: Any) -> tuple[int, int]:
        """Log start, and the end that the last fetch told."""
        part = self.kafka.parts.get(_tp(each), Part())
        return part.first, self.ends.get(_tp(each), -1001)

    @property
    def _committed(self) -> bool:
        return bool(self.options["isolation.level"] == "read_committed")

    def consume(self, count: int, timeout: float) -> list[Message]:
        """Callbacks first; then records, ends, errors."""
        while self.kafka.todo:
            self.kafka.todo.popleft()(self)
        found: list[Message] = []
        with self.kafka.lock:
            paused = frozenset() if self.kafka.under_way else self.paused
            for tp in sorted(self.at.keys() - paused):
                found += self._read(tp, count - len(found))
                if len(found) >= count:
                    break
        if not found and timeout:
            time.sleep(min(timeout, 0.002))
        return found

    def _read(self, tp: TopicPartition, room: int) -> list[Message]:
        part, at = self.kafka.parts.get(tp), self.at[tp]
        if part is None:  # fetched no more, without a word
            return []
        epoch = self.kafka.epochs.get(tp.topic, 0)
        self.epochs[tp.topic] = max(epoch, self.epochs.get(tp.topic, 0))
        if tp in self.kafka.leaderless or epoch < self.epochs[tp.topic]:
            return []
        end = self.ends[tp] = part.end(committed=self._committed)
        if tp in self.kafka.unreadable and at < end:
            return [Message(tp, at, error=KafkaError(-198))]
        if not part.first <= at <= part.high:
            if self.options["auto.offset.reset"] == "error":
                del self.at[tp]  # librdkafka fetches it no more
                return [Message(tp, at, error=KafkaError(-140))]
            at = end if self.options["auto.offset.reset"] == "latest" else part.first
        found: list[Message] = []
        for message in part.messages:
            if len(found) >= room:
                break
            if at <= message.offset() < end:
                at = message.offset() + 1
                if not (self._committed and message.offset() in part.aborted):
                    found.append(message)
        if len(found) < room:
            at = max(at, end)
            if tp not in self.ended or at > self.at[tp]:
                found.append(Message(tp, at, error=KafkaError(-191)))
                self.ended.add(tp)
        if found and found[0].error() is None:
            self._note("read", tp)
        self.at[tp] = at
        return found
