"""Where an assigned partition begins: its committed offset, its plan, and whether it still exists.

Problem: `auto.offset.reset` skips unread data without an error if retention deleted what was
committed [7]. Choice: a reset is an error. At every assignment one OffsetFetch and one ListOffsets
answer for all partitions together. A committed offset below the log start is a named loss. A
position that is not the committed one is `is_chosen`, and committed before it is read from [42]. A
partition without a reachable leader begins later, and delays no other one (`leader_watch`). A topic
with another id was recreated, unless the address leads to another cluster by now, whose offsets
were copied. A group whose commits the coordinator deleted is not new: `latest` means its last known
position, else the log's start [53]. The store keeps the topics of a group for longer than Kafka.
Cost: two or three round trips (a few milliseconds) per assignment; five seconds if a leader is
unreachable.
"""

import contextlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in __all__

from fleet.clock import Clock
from fleet.config.topic_patterns import is_pattern, matches
from fleet.errors import FleetError, Unreachable
from fleet.kafka_source.failures import ABSENT
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import TOPIC, OffsetCommit, Record, Tombstone
from fleet.model import TopicPartition
from fleet.worker.batch.ranges import listed_offset
from fleet.worker.events import Events, WorkerContext
from fleet.worker.member.commit_metadata import (
    PlannedRange,
    decode_cluster,
    decode_parts,
    decode_plan,
    decode_topic,
    parse_group_metadata,
)

_TIMEOUT: Final = 5.0
_MOST_SECONDS: Final = 30.0
"""Of one reading of the coordinator's log; the group's other members do not wait for it."""


def _as_described(topic_id: str) -> str:
    """Returns 32 hex digits in the form of a topic's description."""
    return urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one partition begins.

    committed is None if nothing was ever committed. lost is (first, next after) of offsets that
    were deleted unread; position is already behind them. gone: the topic does not exist now, or has
    no leader (then `silent` has why), so nothing is read. anew: the topic was deleted and recreated
    under its name; former: the deleted one's offset, which is void. cluster: Kafka's id of it.
    parts: how many partitions the topic had when the group began it at its end. expired: the offset
    of a commit that Kafka deleted; resumes: whether the group goes on from it.
    """

    tp: TopicPartition
    topic_id: str
    position: int
    committed: int | None = None
    planned: PlannedRange | None = None
    """What its predecessor planned or began there; repeated exactly [4]."""
    lost: tuple[int, int] | None = None
    gone: bool = False
    silent: str | None = None
    anew: bool = False
    former: int | None = None
    cluster: str | None = None
    parts: int | None = None
    expired: int | None = None
    resumes: bool = False

    @property
    def is_chosen(self) -> bool:
        """Whether no member committed this position, so that it is committed first [42]."""
        return not self.gone and self.committed != self.position

    @property
    def replay_to(self) -> int | None:
        """Returns where its first batch ends; None: anywhere."""
        return None if self.planned is None else self.planned.reach

    def moved(self, position: int, planned: PlannedRange | None = None) -> "Start":
        """Returns the start once `position` is committed."""
        return Start(
            tp=self.tp,
            topic_id=self.topic_id,
            position=position,
            committed=position,
            planned=planned,
            cluster=self.cluster,
            parts=self.parts,
        )

    @property
    def known_id(self) -> str | None:
        """Returns the topic's id; None if the name stands in for it."""
        return None if self.topic_id == self.tp.topic else self.topic_id


def absent(tp: TopicPartition, *, silent: str | None = None) -> Start:
    """Returns the start of an assigned partition that is missing or leaderless (`silent`)."""
    return Start(tp=tp, topic_id=tp.topic, position=0, gone=True, silent=silent)


# Kafka accepts a late commit for a partition that another member owns by now [2]. So every
# assignment makes a record with a token of its own, and a commit names only partitions with a valid
# token. A chosen position waits, with its partition paused, until its commit is stored. Otherwise
# the next owner would choose again, and skip the records that came in between [42].


@dataclass(slots=True, kw_only=True)
class Partition:
    """One partition from its assignment, or a rewind, to the next one or its loss."""

    start: Start
    """Where its reading begins now: every commit moves it."""
    token: int
    """Never given again."""
    member: str | None
    """The member's id when it began."""
    reads: bool
    """Whether it is read once its position is committed."""
    pieces: dict[tuple[int, int], PlannedRange] = field(default_factory=dict)
    """By (start, end): its closed ranges that were begun before, or are run in pieces."""


class Partitions:
    """The partitions of one membership; pure."""

    def __init__(self) -> None:
        self.all: dict[TopicPartition, Partition] = {}
        self._chosen: set[TopicPartition] = set()
        """Partitions whose position no member has committed."""
        self._last = 0

    def gain(self, start: Start, *, member: str | None, reads: bool) -> None:
        """Adds a record with a new token: what was begun with the former one is void."""
        self._last += 1
        (self._chosen.add if start.is_chosen else self._chosen.discard)(start.tp)
        self.all[start.tp] = Partition(start=start, token=self._last, member=member, reads=reads)

    def lose(self, tps: Iterable[TopicPartition]) -> None:
        """Removes revoked or lost partitions."""
        for tp in tps:
            self.all.pop(tp, None)
            self._chosen.discard(tp)

    def start_of(self, tp: TopicPartition) -> Start | None:
        """Returns where an owned partition's reading begins now."""
        return self.all[tp].start if tp in self.all else None

    def tokens(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the tokens of owned partitions."""
        return {tp: self.all[tp].token for tp in tps}

    def owned_since(self, tokens: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Returns those that were owned without a break since these tokens were given."""
        owned = self.all
        return {tp for tp, token in tokens.items() if tp in owned and owned[tp].token == token}

    def commitable(
        self,
        tokens: Mapping[TopicPartition, int],
        *,
        member_then: str | None,
        member_now: str | None,
    ) -> set[TopicPartition]:
        """Returns what of a batch may be committed: nothing if the member id has changed [2].

        The generation may have grown: in a cooperative rebalance kept partitions stay owned.
        """
        if member_then is not None and member_now != member_then:
            return set()
        return self.owned_since(tokens)

    def waiting(self, stopped: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Returns partitions with a chosen position to commit.

        One that is `stopped` with a loss keeps its old commit, which names the loss to the next
        owner too, until an operator lifts the stop [7].
        """
        lost = (tp for tp in self._chosen if tp in stopped and self.all[tp].start.lost is not None)
        return frozenset(self._chosen.difference(lost))

    def due(
        self, waiting: Collection[TopicPartition], member_now: str | None
    ) -> dict[TopicPartition, int]:
        """Returns which of the waiting positions may be committed [2]."""
        found = ((tp, self.all[tp]) for tp in sorted(waiting))
        return {tp: p.start.position for tp, p in found if p.member in {None, member_now}}

    def settle(self, tps: Iterable[TopicPartition]) -> None:
        """Marks their positions as committed."""
        self._chosen.difference_update(tps)


# Kafka's consumers identify topics by name. *Seen* (4.3.1, librdkafka 2.16.1): if a topic is
# deleted and recreated between two metadata refreshes, no rebalance comes. A commit that was on its
# way is accepted for the new topic. If the new topic is longer, the member reads on at its old
# position and skips what is before. So ids are requested at every refresh, and after an error that
# may mean it. A recreated topic may have fewer partitions, and cooperative-sticky goes on assigning
# the former ones.


_SOON: Final = 1.0
Ask = Callable[[Collection[str]], Mapping[str, Any]]
"""Starts one DescribeTopics; topic → future of its description."""


def id_of(description: Any) -> str:
    """Returns a topic's id as Java writes it: librdkafka's is not URL-safe, and ids become file
    names.
    """
    return str(description.topic_id).replace("+", "-").replace("/", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """What brokers return of a topic: its id, and the numbers of its partitions."""

    id: str
    partitions: frozenset[int]


class TopicWatch:
    """Polls one membership's topics, on the consumer thread."""

    def __init__(self, ask: Ask, *, every: float, clock: Clock) -> None:
        self._ask = ask
        self._every = every
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._due = self._asked_at + every
        self._asked: Mapping[str, Any] = {}

    def soon(self) -> None:
        """Makes the next poll ask, at most once a second, because a topic may be deleted."""
        self._due = min(self._due, self._asked_at + _SOON)

    def poll(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """Returns the topics that were answered since the last poll; asks again in time."""
        arrived = {topic: each for topic, each in self._asked.items() if each.done()}
        if arrived:
            self._asked = {t: each for t, each in self._asked.items() if t not in arrived}
        now = self._clock.monotonic()
        if not self._asked and topics and now >= self._due:
            self._asked_at, self._due = now, now + self._every
            self._asked = self._ask(sorted(topics))
        found = {}
        for topic, each in arrived.items():
            error = each.exception()
            if error is None:
                told = each.result()
                numbers = frozenset(part.id for part in told.partitions)
                found[topic] = TopicDescription(id=id_of(told), partitions=numbers)
            elif not isinstance(error, KafkaException):
                raise error
        return found


def warm_connections(consumer: Any, topics: Sequence[str], events: Events) -> str | None:
    """Opens the connections that a join needs: brokers, metadata, the coordinator [19].

    Returns the cluster's id; None if the brokers do not report it. Raises KafkaException if one of
    them does not answer within 5 s. A missing topic is only logged.
    """
    known: list[str] = []
    cluster: str | None = None
    for topic in topics:
        if is_pattern(topic):
            there = consumer.list_topics(timeout=_TIMEOUT)
            cluster = there.cluster_id or cluster
            matching = [name for name in there.topics if matches(topic, name)]
            known += matching[:1]
            if not matching:
                events.log_rarely(f"no topic matches {topic} yet; waiting for one")
            continue
        there = consumer.list_topics(topic, timeout=_TIMEOUT)
        cluster = there.cluster_id or cluster
        told = there.topics[topic]
        if told.error is None:
            known.append(topic)
        else:
            events.log_rarely(f"topic {topic}: {told.error.str()}; waiting for it")
    if known:  # an OffsetFetch finds the coordinator
        consumer.committed([KafkaPartition(known[0], 0)], _TIMEOUT)
    return cluster


_PAUSE: Final = 0.25
_ABSENT_AFTER: Final = 5.0
"""Seconds after which a topic without metadata is taken for deleted, and a leader for away."""
_UNKNOWN: Final = frozenset({3, -188, -190})
"""Unknown topic or partition, by the broker and by librdkafka."""
_NO_IDS: Final = frozenset({35, -165})
"""Unsupported version or feature: brokers from before topic ids."""
_REFUSED: Final = frozenset({29, 31})
"""Not authorised to read: no leader's being away."""
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_Offsets = dict[TopicPartition, int]
_Errors = dict[TopicPartition, Any]
"""KafkaErrors by partition."""


class Assigner:
    """Asks the coordinator and the leaders; used on the consumer thread, also in callbacks."""

    def __init__(
        self,
        context: WorkerContext,
        admin: Any,
        *,
        begun: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """begun: asks the store for topics that the group has committed offsets of."""
        self._context = context
        self._admin = admin
        self._begun = begun
        self._say = context.events.log
        self._latest = context.worker.start_from == "latest"
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if context.worker.isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._grace = context.session_timeout
        self._clock = context.clock
        self._ids: dict[str, str] = {}
        self.cluster: str | None = None
        """Kafka's id of the cluster, learnt before the join, and again where a topic has another
        id; None where it is not known."""

    def starts(self, consumer: Any, tps: Sequence[TopicPartition]) -> tuple[Start, ...]:
        """Returns each partition's start; Unreachable if brokers did not answer for `grace` s."""
        if not tps:
            return ()
        asked = [KafkaPartition(tp.topic, tp.partition) for tp in tps]
        committed = self._insist(lambda: _raise_errors(consumer.committed(asked, _TIMEOUT)), ())
        first, untold = self._there(tps, _EARLIEST)
        known = {TopicPartition(each.topic, each.partition): each for each in committed}
        new = [tp for tp in tps if known[tp].offset < 0 and tp in first]
        before = dict(self._ids)
        self._learn_ids({tp.topic for tp in first})
        again = {topic for topic, known_id in before.items() if known_id != self._ids.get(topic)}
        void = {tp.topic for tp in first if self._is_void(tp.topic, known[tp])}
        if (again or void) and self._has_moved(consumer, min(again | void)):
            again = set()
        parts: Mapping[str, int | None] = {}
        latest: Mapping[TopicPartition, int] = {}
        deleted: Mapping[TopicPartition, Any] = {}
        if self._latest and (new := [tp for tp in new if tp.topic not in again]):
            begun = (
                self._ask_committed_topics()
            )  # before Kafka is asked: another member may commit meanwhile
            parts, untouched = self._parts(consumer, new)
            at_end = [tp for tp in new if tp.partition < (parts[tp.topic] or 0)]
            latest, unended = self._there(at_end, _LATEST) if at_end else ({}, {})
            untold = {**untold, **unended}
            lost = dict.fromkeys(tp for tp in latest if tp.topic in begun & untouched)
            deleted = lost | self._last_commits(consumer, latest.keys())
        return tuple(
            self._start(
                tp,
                known[tp],
                first=first[tp],
                latest=latest.get(tp),
                deleted=[deleted[tp]] if tp in deleted else [],
                parts=parts.get(tp.topic),
                anew=tp.topic in again,
            )
            if tp not in untold
            else _absent(tp, untold[tp])
            for tp in tps
        )

        # `__consumer_offsets` keeps a deleted commit until it is compacted, and the tombstone for a

    # day more. It is read for a group that begins at an end [53]. Only committed records count: an
    # open transaction makes the position an earlier one, never a later one.

    def _last_commits(
        self, consumer: Any, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaPartition | None]:
        """Returns each partition's last deleted commit; None: there was one of unknown offset."""
        known = parse_group_metadata(consumer.consumer_group_metadata()) if tps else None
        found: dict[TopicPartition, KafkaPartition | None] = {}
        for record in self._read_log(known[2]) if known is not None else ():
            if isinstance(record, Tombstone):
                if record.tp is not None and record.tp in tps:
                    found.setdefault(record.tp, None)
            elif isinstance(record, OffsetCommit) and record.tp in tps:
                tp, topic_id = record.tp, record.topic_id
                here = topic_id is None or _as_described(topic_id) == self._ids.get(tp.topic)
                text = record.metadata.partition("\0")[0]  # confluent-kafka writes C strings
                commit = KafkaPartition(tp.topic, tp.partition, record.committed, metadata=text)
                found[tp] = commit if here else None
        return found

    def _read_log(self, group: str) -> Sequence[Record]:
        try:
            error = self._admin.list_topics(TOPIC, timeout=_TIMEOUT).topics[TOPIC].error
            if error is not None and error.code() == ABSENT:  # no group ever committed here
                return ()
            if error is not None:
                raise KafkaException(error)
            login, clock = self._context.client, self._clock
            with GroupLog(login, clock=clock, isolation="read_committed") as log:
                log.end_within(_MOST_SECONDS)
                return log.last_commits(group)
        except (FleetError, KafkaException) as error:
            self._say(
                f"it is not known whether group {group} committed before; a partition without a "
                f"commit begins at its end (worker.start_from: latest): {error}"
            )
            return ()

    def _ask_committed_topics(self) -> frozenset[str]:
        """Returns the topics with committed offsets of the group; waits for a silent store."""
        deadline = self._clock.monotonic() + self._grace
        while True:
            try:
                return frozenset(self._begun())
            except Unreachable as error:
                if self._clock.monotonic() >= deadline:
                    raise
                self._say(
                    f"waiting for the store to read which topics the group committed: {error}"
                )
                self._clock.sleep(1.0)

    def _parts(
        self, consumer: Any, new: Sequence[TopicPartition]
    ) -> tuple[dict[str, int | None], set[str]]:
        """Returns how many partitions each topic had when the group began it at its end, and topics
        without any commit.

        Only partitions from that number on were added since, and begin at their start. Others
        without a commit are begun just now, by several members at once; a neighbour's commit alone
        does not make a partition new. None if no commit says it (the group began at the topic's
        start, or another program committed). Then a partition without a commit may be new or idle.
        It begins at its start: an idle one's history is read, but no new record is skipped.
        """
        untouched: set[str] = set()

        def ask() -> dict[str, int | None]:
            found: dict[str, int | None] = {}
            for topic in sorted({tp.topic for tp in new}):
                there = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions
                count = max([*there, *(tp.partition for tp in new if tp.topic == topic)]) + 1
                asked = [KafkaPartition(topic, number) for number in range(count)]
                told = _raise_errors(consumer.committed(asked, _TIMEOUT))
                read = [each.metadata for each in told if each.offset >= 0]
                known = [decode_parts(text) for text in read if self._is_ours(topic, text)]
                (untouched.discard if read else untouched.add)(topic)
                counts = [number for number in known if number is not None]
                found[topic] = min(counts, default=None) if read else count
            return found

        return self._insist(ask, new), untouched

    def _is_void(self, topic: str, stored: Any) -> bool:
        """Whether the commit belongs to another topic of this name in this very cluster."""
        told_here = self.cluster is not None and self.cluster == decode_cluster(stored.metadata)
        return stored.offset >= 0 and told_here and not self._is_ours(topic, stored.metadata)

    def _has_moved(self, consumer: Any, topic: str) -> bool:
        """Whether brokers report another cluster id now.

        A name, a restore or a failover led clients there, and offsets were copied. Its topics have
        other ids.
        """
        there = self._insist(lambda: consumer.list_topics(topic, timeout=_TIMEOUT), ())
        before, self.cluster = self.cluster, there.cluster_id or self.cluster
        return before is not None and before != self.cluster

    def _is_ours(self, topic: str, metadata: str | None) -> bool:
        """Whether metadata belongs to this very topic; missing fields count as equal."""
        told, cluster = decode_topic(metadata), decode_cluster(metadata)
        return told in {None, self._ids.get(topic, told)} and (
            cluster is None or self.cluster in {None, cluster}
        )

    def anew(self, consumer: Any, tp: TopicPartition, former: Start | None) -> Start:
        """Returns the beginning of a recreated topic, whatever is committed under its name.

        In another cluster, returns what is committed there.
        """
        if self._has_moved(consumer, tp.topic):
            self._ids.pop(tp.topic, None)
            return self.starts(consumer, [tp])[0]
        first, untold = self._there([tp], _EARLIEST)
        if tp in untold:
            return _absent(tp, untold[tp])
        self._ids.pop(tp.topic, None)
        self._learn_ids({tp.topic})
        return Start(
            tp=tp,
            topic_id=self._ids.get(tp.topic, tp.topic),
            position=first[tp],
            anew=True,
            former=former.position if former is not None else None,
            cluster=self.cluster,
        )

    def ask_ids(self, topics: Collection[str]) -> Mapping[str, Any]:
        """Requests topics' descriptions; futures by topic."""
        futures: Mapping[str, Any] = self._admin.describe_topics(
            TopicCollection(sorted(topics)), request_timeout=_TIMEOUT
        )
        return futures

    def ask_first(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, Any]:
        """Finds the leaders and requests log starts; futures by partition."""
        return self._futures(tps, _EARLIEST)

    def ask_ends(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, Any]:
        """Finds the leaders and requests the partitions' ends; futures by partition."""
        return self._futures(tps, _LATEST)

    def _futures(self, tps: Collection[TopicPartition], spec: Any) -> Mapping[TopicPartition, Any]:
        self._learn_leaders(tps, timeout=_SOON)
        return {TopicPartition(e.topic, e.partition): f for e, f in self._ask(tps, spec).items()}

    def end(self, tp: TopicPartition) -> int:
        """Returns the partition's end at this isolation level."""
        return self._one(tp, _LATEST)

    def first(self, tp: TopicPartition) -> int:
        """Returns the partition's log start."""
        return self._one(tp, _EARLIEST)

    def past_end(self, start: Start) -> Start:
        """Returns a beginning at the log's start if the committed offset is beyond its end."""
        first = self.first(start.tp)
        lost = (start.position, first)
        return replace(start, position=first, planned=None, lost=lost)

    def _start(
        self,
        tp: TopicPartition,
        stored: Any,
        *,
        first: int,
        latest: int | None,
        parts: int | None,
        anew: bool,
        deleted: Sequence[Any] = (),
    ) -> Start:
        """anew: the topic has another id than the known one. deleted: `_last_commits`."""
        start = Start(
            tp=tp,
            topic_id=self._ids.get(tp.topic, tp.topic),
            position=first,
            cluster=self.cluster,
        )
        if stored.offset < 0:
            if anew:
                return replace(start, anew=True)
            if deleted and latest is not None:
                return self._resumed(start, deleted[0], latest)
            return replace(start, position=first if latest is None else latest, parts=parts)
        ours = self._is_ours(tp.topic, stored.metadata)
        if self._is_void(tp.topic, stored):
            return replace(start, anew=True, former=stored.offset)
        lost = (stored.offset, first) if stored.offset < first else None
        return replace(
            start,
            position=max(stored.offset, first),
            committed=stored.offset,
            # An end that was planned in another cluster may be anywhere here.
            planned=decode_plan(stored.metadata, stored.offset) if ours and not lost else None,
            parts=decode_parts(stored.metadata) if ours else None,
            lost=lost,
        )

    def _resumed(self, start: Start, last: Any, latest: int) -> Start:
        """Returns where a group goes on whose commit the coordinator deleted; `start` is at the
        first.
        """
        first = start.position
        if last is None:
            return replace(start, expired=latest)
        found = self._start(start.tp, last, first=first, latest=None, parts=None, anew=False)
        if found.position > latest:
            return replace(start, lost=(found.position, first), expired=latest)
        resumes = found.position == found.committed
        return replace(found, committed=None, expired=latest, resumes=resumes)

    def _there(self, tps: Sequence[TopicPartition], spec: Any) -> tuple[_Offsets, _Errors]:
        """Returns offsets by partition, and errors of the others.

        A new leader, or one not elected yet, is waited for and asked at least twice. A missing
        topic is waited for too, but not a partition that its topic does not have. The error of what
        does not exist is None.
        """
        absent_after = self._clock.monotonic() + _ABSENT_AFTER
        found: _Offsets = {}
        missing: _Errors = {}
        errors = self._insist(partial(self._offsets, tps, spec, found), tps)
        again = False
        while errors and not (again and self._clock.monotonic() >= absent_after):
            self._clock.sleep(_PAUSE)
            there = self._learn_leaders(errors)
            left, again = list(errors), True
            errors = self._insist(partial(self._offsets, left, spec, found), left)
            over = self._clock.monotonic() >= absent_after
            for tp in list(errors):
                known = there.get(tp.topic)
                if known is not None and tp.partition not in known and (known or over):
                    missing[tp] = None
                    del errors[tp]
        return found, errors | missing

    def _offsets(self, tps: Sequence[TopicPartition], spec: Any, found: _Offsets) -> _Errors:
        """Stores offsets and returns errors of the others.

        Raises KafkaException if waiting for a leader is useless.
        """
        errors: _Errors = {}
        for each, future in self._ask(tps, spec).items():
            tp = TopicPartition(each.topic, each.partition)
            try:
                found[tp] = listed_offset(future)
            except KafkaException as error:
                if error.args[0].fatal() or error.args[0].code() in _REFUSED:
                    raise
                errors[tp] = error.args[0]
        return errors

    def _one(self, tp: TopicPartition, spec: Any) -> int:
        """Returns one partition's offset, requested until `grace`."""
        found: _Offsets = {}

        def ask() -> int:
            errors = self._offsets([tp], spec, found)
            if errors:
                raise KafkaException(errors[tp])
            return found[tp]

        return int(self._insist(ask, [tp]))

    def _ask(self, tps: Collection[TopicPartition], spec: Any) -> dict[Any, Any]:
        asked = {KafkaPartition(tp.topic, tp.partition): spec for tp in tps}
        futures: dict[Any, Any] = self._admin.list_offsets(
            asked, isolation_level=self._isolation, request_timeout=_TIMEOUT
        )
        return futures

    def _learn_leaders(
        self, tps: Collection[TopicPartition], timeout: float = _TIMEOUT
    ) -> Mapping[str, Collection[int]]:
        """Finds the partitions of each topic and their leaders; none for a missing topic.

        ListOffsets uses cached leaders and epochs, which librdkafka never refreshes for it. After a
        broker's restart it would get 74 for ever.
        """
        there: dict[str, Collection[int]] = {}
        for topic in sorted({tp.topic for tp in tps}):
            with contextlib.suppress(KafkaException):  # the next try shows it
                told = self._admin.list_topics(topic, timeout=timeout).topics[topic]
                if told.error is None or told.error.code() in _UNKNOWN:
                    there[topic] = () if told.error else told.partitions
        return there

    def _learn_ids(self, topics: set[str]) -> None:
        """Reads Kafka's topic ids, again each time: a recreated topic has another.

        An unknown id is required: sinks store offsets by it, and would write the batch in hand once
        more under the name. The name replaces it only if brokers have no ids. A known id stays
        without an answer: the topic's watch asks again.
        """
        absent_after = self._clock.monotonic() + _ABSENT_AFTER

        def ask() -> None:
            over = _NO_IDS
            if self._clock.monotonic() >= absent_after:
                over |= _UNKNOWN  # deleted since its offsets were told
            for topic, future in self.ask_ids(topics).items():
                try:
                    self._ids[topic] = id_of(future.result())
                except KafkaException as error:
                    if topic not in self._ids and error.args[0].code() not in over:
                        raise

        if topics:
            self._insist(ask, ())

    def _insist(self, ask: Callable[[], Any], tps: Sequence[TopicPartition]) -> Any:
        """Asks until `grace`; between tries finds the leaders of the partitions again."""
        deadline = self._clock.monotonic() + self._grace
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                if self._clock.monotonic() >= deadline:
                    raise Unreachable(
                        f"the brokers did not return where the assigned partitions begin within "
                        f"{self._grace:g} s ({error.args[0].str()})"
                    ) from error
                self._clock.sleep(_PAUSE)
                self._learn_leaders(tps)


def _absent(tp: TopicPartition, error: Any) -> Start:
    missing = error is None or error.code() in _UNKNOWN
    return absent(tp, silent=None if missing else error.str())


def _raise_errors(partitions: list[Any]) -> list[Any]:
    for each in partitions:
        if each.error is not None:
            raise KafkaException(each.error)
    return partitions
