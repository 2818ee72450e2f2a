"""All groups of a cluster, live: one reader of the whole `__consumer_offsets`.

Problem: asking the coordinators about 1,000 groups takes a second and says nothing of
rebalances; the log that they write says all of it, but a group's state is spread over it.
Choice: one Consumer, assigned by hand to every partition of the topic, on a thread of its own;
it never subscribes and never commits. It reads from the log's start (or from a time on) and
goes on. Commits go into columns by their key's bytes (fleet.observe.positions); membership,
a thousandth of the records, is decoded one by one into who is there now (fleet.observe.live)
and into rebalances with causes (fleet.history.causes). Reads are committed ones, so that
offsets equal what the coordinator answers. Whether it is current is known, not assumed: once a
second, and whenever somebody waits, the ends of all partitions are asked for in one request,
and `age` counts from the last such moment that the reading has reached.

Cost: the first reading takes as long as the log is (some 200,000 commits a second); an open
transaction of offset commits holds back its partition, membership too, until it ends.
Bounds: rebalances are kept for `keep` seconds and at most `most` a group; groups are forgotten
with their last record.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from fleet.clock import Clock
from fleet.closing import Closing
from fleet.history.records import OffsetCommit, Record, Undecoded, decode
from fleet.model import TopicPartition as Partition
from fleet.observe.group_log import DENIED, TOPIC, Unreadable
from fleet.observe.live import LiveGroup, Membership
from fleet.observe.positions import Commits, Positions, key_of
from fleet.observe.totals import Totals
from fleet.rebalances import Cause, Rebalance
from fleet.rebalances import Membership as MembershipRow

_CONFIG: Final[Mapping[str, Any]] = {
    "group.id": "fleet-reads-only",  # never joined, never committed with
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",  # a position that compaction or retention took away
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 50,  # the question for the ends waits behind a parked fetch
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
    "log_level": 0,  # what matters is told by `problem`
}
_BATCH: Final = 10_000
_POLL: Final = 0.02
_BEAT: Final = 1.0
_AGAIN: Final = 5.0
"""Seconds before a topic that is absent or denied is tried again."""
_PRUNE_EVERY: Final = 60.0
_ASKING: Final = 2.0
KEEP: Final = 86_400.0
MOST: Final = 1_000


class Replays(Protocol):
    """What turns a group's records into rebalances (fleet.history.causes.Replay)."""

    def feed(self, partition: int, record: Record) -> list[Rebalance | MembershipRow]:
        """Take one record in order of the log; what it completed."""
        ...

    def name_topics(self, names: Mapping[str, str]) -> None:
        """Topic id → name."""
        ...


def everything(_: str) -> bool:
    """Every group."""
    return True


class Tail(Closing):
    """A live view of all groups. Methods are safe for several threads.

    `config` is librdkafka's, with bootstrap.servers and security; `groups` chooses by group id;
    `since` is the wall time to read from (None: the log's start), `replay` makes what a group's
    records are fed to. Nothing is raised by the reading itself: see `problem` and `age`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        cluster: str,
        clock: Clock,
        groups: Callable[[str], bool] = everything,
        since: float | None = None,
        keep: float = KEEP,
        most: int = MOST,
        replay: Callable[[str, str], Replays] | None = None,
    ) -> None:
        self._config = {**config, **_CONFIG, "error_cb": lambda _: None}
        self._address = str(config.get("bootstrap.servers", "?"))
        self._cluster = cluster
        self._clock = clock
        self._chosen = groups
        self._since = since
        self._keep, self._most = keep, most
        self._replay = replay
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        # Under the lock from here.
        self._positions = Positions()
        self._live: dict[str, Membership] = {}
        self._replays: dict[str, Replays] = {}
        self._rebalances: dict[str, deque[Rebalance]] = {}
        self._memberships: dict[str, deque[MembershipRow]] = {}
        self._totals: dict[str, Totals] = {}
        self._names: dict[str, str] = {}
        self._errors: dict[tuple[int, int], int] = {}
        self._records = 0
        self._next: dict[int, int] = {}
        self._goal: tuple[float, int, dict[int, int]] | None = None
        """When it was asked for, for which waiter, and the ends to reach."""
        self._current_at: float | None = None
        self._asked = 0
        self._answered = 0
        self._problem: str | None = None
        self._denied = False
        self._refused = False
        """The same of this try: `denied` ends only when something was read."""
        self._absent = False
        self._counting_from = 0.0

    def start(self) -> "Tail":
        """Begin to read, on a thread of its own; returns at once."""
        if self._thread is None:
            self._counting_from = self._clock.now()
            self._thread = threading.Thread(target=self._run, name="offsets-tail", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop reading; the view stays as it was."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        with self._news:
            self._news.notify_all()

    def catch_up(self, timeout: float) -> bool:
        """Wait until all that was written before this call is read; False: not in `timeout` s.

        Raises Unreadable where the topic may not be read.
        """
        with self._news:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            done = self._news.wait_for(
                lambda: self._answered >= mine or self._denied or self._ending.is_set(), timeout
            )
            if self._denied:
                raise Unreadable(self._problem or f"{TOPIC} may not be read")
            return done and self._answered >= mine

    # --- the view ---------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why nothing is read just now, in a sentence; None where all is well."""
        with self._lock:
            return self._problem

    @property
    def denied(self) -> bool:
        """The topic may not be read with this login, or is hidden from it."""
        with self._lock:
            return self._denied

    @property
    def absent(self) -> bool:
        """The topic is not there: no group has ever been, or it is hidden."""
        with self._lock:
            return self._absent

    @property
    def records(self) -> int:
        """Records read so far."""
        with self._lock:
            return self._records

    def age(self) -> float | None:
        """Seconds since the view last held all that was written; None before the first time."""
        with self._lock:
            at = self._current_at
        return None if at is None else max(0.0, self._clock.monotonic() - at)

    def groups(self) -> frozenset[str]:
        """Groups of which a member, an epoch or a commit is known."""
        with self._lock:
            living = {name for name, group in self._live.items() if not group.empty}
            return self._positions.groups() | living

    def group(self, name: str) -> LiveGroup | None:
        """Who is in a group now; None where no membership record told of it."""
        with self._lock:
            found = self._live.get(name)
            return None if found is None or found.empty else found.now(self._names)

    def summaries(self) -> dict[str, tuple[str, int | None, int]]:
        """Type, generation and number of members of every group with membership records."""
        with self._lock:
            return {n: group.summary for n, group in self._live.items() if not group.empty}

    def commits(self) -> Commits:
        """The last commit of every partition of every group, as columns."""
        with self._lock:
            return self._positions.copy()

    def committed(self, group: str) -> dict[Partition, tuple[int, float]]:
        """Committed offset and its wall time per partition of one group."""
        with self._lock:
            found = self._positions.of_group(group)
        return {tp: (offset, ms / 1000) for tp, (offset, ms) in found.items()}

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances kept, oldest first; `since` and `until` are wall times of their ends."""
        with self._lock:
            kept = [r for r in _of(self._rebalances, group) if cause is None or r.cause is cause]
        return _between(kept, since, until, lambda r: r.ended_at)

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipRow]:
        """Who joined, left, was replaced or got other partitions, oldest first."""
        with self._lock:
            kept = list(_of(self._memberships, group))
        return _between(kept, since, until, lambda m: m.at)

    def totals(self) -> dict[str, Totals]:
        """Rebalances of each group since `start`, counted; groups without any are left out."""
        with self._lock:
            return {group: totals.copy() for group, totals in self._totals.items()}

    def decode_errors(self) -> dict[tuple[int, int], int]:
        """Records that could not be read, by record type and value version (-1: neither)."""
        with self._lock:
            return dict(self._errors)

    def unnamed_topics(self) -> frozenset[str]:
        """Topic ids in assignments that no commit has named: see `name_topics`."""
        with self._lock:
            ids = {each for group in self._live.values() for each in group.topic_ids()}
            return frozenset(ids - self._names.keys())

    def name_topics(self, names: Mapping[str, str]) -> None:
        """Tell the names of topic ids (32 hex digits)."""
        with self._lock:
            new = {i: n for i, n in names.items() if self._names.get(i) != n}
            self._names.update(new)
            for replay in self._replays.values() if new else ():
                replay.name_topics(new)

    # --- the thread: every Consumer call is here ----------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with _consumer(self._config) as consumer:
                    if self._assign(consumer):
                        self._follow(consumer)
            except KafkaException as error:
                self._failed(error.args[0])
            self._ending.wait(_AGAIN)

    def _assign(self, consumer: Consumer) -> bool:
        """Assign all partitions; False where there is no topic to read."""
        found = consumer.list_topics(TOPIC, timeout=_ASKING).topics.get(TOPIC)
        if found is None or found.error is not None:
            code = None if found is None else found.error.code()
            if code is not None and code in DENIED:
                self._failed(found.error)
            else:
                self._is_absent()
            return False
        with self._lock:
            fresh = not self._next
            where = [
                TopicPartition(TOPIC, number, self._next.get(number, OFFSET_BEGINNING))
                for number in sorted(found.partitions)
            ]
            self._absent = self._refused = False
        if fresh and self._since is not None:
            where = self._from(consumer, self._since, where)
        consumer.assign(where)
        return True

    def _from(
        self, consumer: Consumer, since: float, where: list[TopicPartition]
    ) -> list[TopicPartition]:
        asked = [TopicPartition(TOPIC, tp.partition, int(since * 1000)) for tp in where]
        found = consumer.offsets_for_times(asked, timeout=_ASKING)
        ends = self._ends(consumer, [tp.partition for tp in where])
        return [
            TopicPartition(TOPIC, tp.partition, tp.offset if tp.offset >= 0 else ends[tp.partition])
            for tp in found
        ]

    def _follow(self, consumer: Consumer) -> None:
        numbers = sorted(tp.partition for tp in consumer.assignment())
        beat = pruned = self._clock.monotonic()
        beat -= _BEAT
        while not self._ending.is_set():
            messages = consumer.consume(num_messages=_BATCH, timeout=_POLL)
            if messages:
                self._take(messages)
            now = self._clock.monotonic()
            if self._wake.is_set() or (self._goal is None and now - beat >= _BEAT):
                self._wake.clear()
                beat = now
                self._look(consumer, numbers)
            self._arrive()
            if now - pruned >= _PRUNE_EVERY:
                pruned = now
                self._prune()
            if self._refused:
                return

    def _look(self, consumer: Consumer, numbers: Sequence[int]) -> None:
        """Where the log ends now: what the reading has to reach to be current."""
        asked, at = self._asked, self._clock.monotonic()
        try:
            ends = self._ends(consumer, numbers)
        except KafkaException as error:
            self._failed(error.args[0])
            return
        with self._lock:
            self._problem = None
            self._goal = (at, asked, ends)

    def _ends(self, consumer: Consumer, numbers: Sequence[int]) -> dict[int, int]:
        """The ends of all partitions, in one request to each leader."""
        latest = [TopicPartition(TOPIC, number, _LATEST) for number in numbers]
        found = consumer.offsets_for_times(latest, timeout=_ASKING)
        for tp in found:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return {tp.partition: tp.offset for tp in found}

    def _arrive(self) -> None:
        with self._news:
            if self._goal is None:
                return
            at, asked, ends = self._goal
            if all(end <= self._next.get(number, 0) for number, end in ends.items()):
                self._current_at, self._goal = at, None
                self._answered, self._denied = asked, False
                self._news.notify_all()

    def _take(self, messages: Sequence[Message]) -> None:
        positions = self._positions
        with self._lock:
            for message in messages:
                error = message.error()
                number, offset = message.partition() or 0, message.offset() or 0
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        self._next[number] = offset
                    else:
                        self._note(error)
                    continue
                key, value = message.key(), message.value()
                self._next[number] = offset + 1
                self._records += 1
                if key is not None and len(key) > 2 and key[0] == 0 and key[1] <= 1:
                    ms = message.timestamp()[1]
                    if positions.commit(key_of(key), value, ms):
                        continue
                self._event(number, offset, message.timestamp()[1], key, value)

    def _event(
        self, number: int, offset: int, ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Whatever is no repeated commit: decoded in full."""
        record = decode(key, value, offset=offset, timestamp=ms)
        if isinstance(record, Undecoded):
            version = -1 if value is None or len(value) < 2 else int.from_bytes(value[:2], "big")
            kind = (record.type, version)
            self._errors[kind] = self._errors.get(kind, 0) + 1
            return
        group = str(getattr(record, "group", ""))
        if not self._chosen(group):
            return
        if isinstance(record, OffsetCommit):
            assert key is not None
            self._positions.first(key_of(key), record)
            if record.topic_id is not None and record.topic_id not in self._names:
                self._names[record.topic_id] = record.tp.topic
                if group in self._replays:
                    self._replays[group].name_topics({record.topic_id: record.tp.topic})
            return
        if record.type > 1:
            self._membership(number, group, record)

    def _membership(self, number: int, group: str, record: Record) -> None:
        live = self._live.get(group)
        if live is None:
            live = self._live[group] = Membership(group)
        live.feed(record)
        if self._replay is None:
            return
        replay = self._replays.get(group)
        if replay is None:
            replay = self._replays[group] = self._replay(self._cluster, group)
            replay.name_topics(self._names)
        for made in replay.feed(number, record):
            if isinstance(made, Rebalance):
                self._keep_one(self._rebalances, group, made)
                if made.ended_at >= self._counting_from:
                    self._totals.setdefault(group, Totals()).add(made)
            else:
                self._keep_one(self._memberships, group, made)

    def _keep_one(self, kept: "dict[str, deque[Any]]", group: str, made: Any) -> None:
        kept.setdefault(group, deque(maxlen=self._most)).append(made)

    def _prune(self) -> None:
        """Forget what is older than `keep`, and groups that are gone for that long."""
        oldest = self._clock.now() - self._keep
        with self._lock:
            _drop_before(self._rebalances, oldest, lambda r: r.ended_at)
            _drop_before(self._memberships, oldest, lambda m: m.at)
            for group in [n for n, live in self._live.items() if live.empty]:
                if (self._live[group].changed_ms or 0) / 1000 < oldest:
                    del self._live[group]
                    self._replays.pop(group, None)
                    self._totals.pop(group, None)

    # --- failures -----------------------------------------------------------------------------

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # librdkafka looks for a coordinator, which is not needed here
        self._problem = self._sentence(error)
        if error.code() in DENIED:
            self._refused = self._denied = True
            self._news.notify_all()

    def _failed(self, error: KafkaError) -> None:
        with self._news:
            self._note(error)

    def _is_absent(self) -> None:
        """No such topic: nobody ever committed, so that an empty view is current."""
        with self._news:
            self._absent, self._problem = True, None
            self._current_at = self._clock.monotonic()
            self._answered = self._asked
            self._news.notify_all()

    def _sentence(self, error: KafkaError) -> str:
        if error.code() in DENIED:
            return (
                f"{TOPIC} at {self._address} may not be read ({error.str()}); grant Read and "
                "Describe on that topic for members, generations and rebalances"
            )
        return f"{TOPIC} at {self._address} is not being read: {error.str()}"


_LATEST: Final = -1
"""ListOffsets: the end of the log."""


@contextlib.contextmanager
def _consumer(config: Mapping[str, Any]) -> Iterator[Consumer]:
    consumer = Consumer(dict(config))
    try:
        yield consumer
    finally:
        consumer.close()


def _of(kept: "Mapping[str, deque[Any]]", group: str | None) -> list[Any]:
    if group is not None:
        return list(kept.get(group, ()))
    return [each for group_s in kept.values() for each in group_s]


def _between(
    kept: list[Any], since: float | None, until: float | None, at: Callable[[Any], float]
) -> list[Any]:
    found = [
        each
        for each in kept
        if (since is None or at(each) >= since) and (until is None or at(each) < until)
    ]
    return sorted(found, key=at)


def _drop_before(kept: "dict[str, deque[Any]]", oldest: float, at: Callable[[Any], float]) -> None:
    for group in list(kept):
        while kept[group] and at(kept[group][0]) < oldest:
            kept[group].popleft()
        if not kept[group]:
            del kept[group]
