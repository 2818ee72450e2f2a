"""One look at all consumer groups of a cluster, in a handful of batched requests.

Problem: tools that ask per group or per partition take 10 s and more for 1,000 groups, and
many cannot tell an unknown group from one without offsets. Choice: everything is asked for
all groups at once: ListGroups and metadata, then states and members, then offsets, of many
groups in flight together (librdkafka takes one group per call for offsets, so the calls are
started before any is awaited), then log starts and ends of all partitions in two calls. One
deadline over it all. A part that fails becomes a sentence in `Snapshot.problems`; only a cluster
that does not answer at all is an error. Cost: the offsets of a group are read some milliseconds
before the log ends, so a busy partition's lag is slightly over, never under.

Existence: OffsetFetch answers "nothing" for an unknown group as for one without offsets
(KIP-88, KIP-1043), so ListGroups and the describe's Dead tell them apart. librdkafka lists
groups of protocol type "consumer" only; share, streams and Connect groups are found by the
older listing (see `_other_groups`) and shown with type `unknown`, without members or lag.

librdkafka's AdminClient crashes the process where OffsetFetch is answered with "not
coordinator" (librdkafka #5040, open). So offsets are asked for only of groups whose
coordinator answered the describe right before, and `state` does without them.
"""

import re
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import Commits
from fleet.lag.partition_lag import Logs, measured
from fleet.lag.snapshot import GroupFacts, Snapshot
from fleet.model import GroupState, Member, TopicPartition
from fleet.observe.permissions import Asked, allowed_operations
from fleet.observe.poll import LEAST, Poll, reason
from fleet.observe.seen import PollAnswers, is_dead, unlisted_group

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_OTHERS_KEPT: Final = 60.0
"""Seconds for which the groups of other protocol types are remembered."""
_REFUSED_SOON: Final = 2.0
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LOADING: Final = frozenset(
    {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE}
)
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})


class Observer:
    """Looks at one cluster. `timeout` bounds one look, in seconds.

    `config` is librdkafka's, with bootstrap.servers and security. Safe for several threads.
    """

    def __init__(
        self,
        *,
        cluster: str,
        config: Mapping[str, Any],
        clock: Clock,
        ends: EndHistory | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._cluster = cluster
        self._address = str(config.get("bootstrap.servers", "?"))
        self._clock = clock
        self._ends = ends or EndHistory()
        self._timeout = timeout
        # What matters is raised or told in a sentence; librdkafka's own lines go nowhere. Why no
        # connection comes about only the callback says.
        self._refused: deque[KafkaError] = deque(maxlen=20)
        self._login = str(config.get("sasl.username", ""))
        self._options: dict[str, Any] = {
            **config,
            "log_level": 0,
            "error_cb": self._refused.append,
        }
        self._admin = AdminClient(self._options)
        self._last: Poll | None = None
        self._others: tuple[float, frozenset[str]] | None = None

    def snapshot(self, groups: Collection[str] | None = None) -> Snapshot:
        """All groups, or those named (none for an empty collection), at one moment.

        Named groups that do not exist come with `exists` False; of the others only those named
        are described. Raises Unreachable where the cluster does not answer.
        """
        look = self._look()
        listing = self._admin.list_consumer_groups(request_timeout=look.left())
        partitions = self._topics(look)
        listed = self._listed(listing, look)
        wanted = sorted(listed if groups is None else set(groups))
        others = self._other_groups(frozenset(listed), look, None if groups is None else wanted)
        # A complete listing knows every group; only where a broker was silent, ask by name.
        asked = [group for group in wanted if group in listed or look.partial]
        described = self._describe(asked, look)
        # Never ask for offsets where the coordinator did not just answer: see the docstring.
        answered = [g for g in asked if g in described and not is_dead(described[g])]
        seen = PollAnswers(
            listed=listed, descriptions=described, committed=self._committed(answered, look)
        )
        known = frozenset(g for g in asked if not is_dead(described.get(g)))
        facts = {
            g: seen.facts(g) if g in known else unlisted_group(exists=g in others) for g in wanted
        }
        if groups is None:
            facts |= {g: unlisted_group(exists=True) for g in others - facts.keys()}
        return self._measured(
            look,
            facts,
            Commits.of(row for group in sorted(known) for row in seen.rows(group)),
            partitions,
            members={group: seen.members(group) for group in known},
            untold=known - seen.committed.keys(),
        )

    def _measured(
        self,
        look: Poll,
        facts: Mapping[str, GroupFacts],
        commits: Commits,
        partitions: Mapping[str, int],
        *,
        members: Mapping[str, tuple[Member, ...]] | None = None,
        untold: Collection[str] = (),
    ) -> Snapshot:
        """What the groups committed, beside the ends of the logs now; `untold`: unreadable."""
        tps, which = commits.partitions()
        logs = self._logs(tps, partitions, look)
        lag = measured(
            commits.committed,
            tps=tps,
            which=which,
            logs=logs,
            unreadable=commits.of_groups(untold),
        )
        unknown = np.full(len(commits), np.nan)
        return Snapshot(
            cluster=self._cluster,
            at=logs.at,
            took=self._clock.monotonic() - look.began,
            facts=facts,
            topics={t: n for t, n in partitions.items() if t not in INTERNAL},
            commits=commits,
            lag=lag,
            gained=unknown,
            over=unknown,
            members=members or {},
            problems=tuple(look.problems),
        )

    def close(self) -> None:
        """Let go of the connection; the observer cannot be used any more."""
        del self._admin

    def state(self, group: str) -> GroupState:
        """The group's state alone, by one describe: cheap enough to poll.

        Dead where it does not exist, Unknown where its coordinator does not answer just now.
        """
        described = self._describe([group], self._look()).get(group)
        if described is None:
            return GroupState.UNKNOWN
        return PollAnswers(descriptions={group: described}).state(group)

    def partitions(self) -> dict[str, int]:
        """Topic name → number of partitions."""
        return self._topics(self._look())

    def allowed(
        self, groups: Collection[str], topics: Collection[str]
    ) -> dict[Asked, frozenset[str]]:
        """What this login may do to each (fleet.observe.permissions); unknown is left out."""
        return allowed_operations(
            self._admin, groups=groups, topics=topics, timeout=self._look().left()
        )

    def logs(self, tps: Collection[TopicPartition]) -> Logs:
        """Where the logs of these partitions stand, and stood before."""
        look = self._look()
        return self._logs(tps, self._topics(look), look)

    def _logs(
        self, tps: Collection[TopicPartition], partitions: Mapping[str, int], look: Poll
    ) -> Logs:
        """Starts and ends of all logs, asked for together; topics that are deleted."""
        there = [tp for tp in tps if tp.partition < partitions.get(tp.topic, 0)]
        starts = self._offsets(there, _EARLIEST, look)
        ends = self._offsets(there, _LATEST, look)
        found = Logs(
            starts=starts(),
            ends=ends(),
            deleted=self._gone({tp.topic for tp in tps} - partitions.keys(), look),
            partitions=partitions,
            at=self._clock.now(),
            before=self._ends,
        )
        self._ends.add(found.at, found.ends)
        return found

    def topic_ids(self) -> dict[str, str]:
        """Topic name by topic id, as 32 hex digits like `fleet.log.records`."""
        look = self._look()
        topics = sorted(self._topics(look))
        futures = self._admin.describe_topics(TopicCollection(topics), request_timeout=look.left())
        found = look.gather(futures, "topic(s) cannot be described", id_of)
        return {topic_id: topic for topic, topic_id in found.items()}

    # --- the requests -----------------------------------------------------------------------

    def _look(self) -> Poll:
        """A new look, by a new client where one of the last look's requests was never answered.

        Seen (2.16.1): a client that was idle while its broker was away for 12 s describes no
        group ever after, 10 s each, while a new one is answered at once.
        """
        if self._last is not None and self._last.silent:
            self._admin = AdminClient(self._options)
        self._last = Poll(self._clock, self._timeout)
        return self._last

    def _topics(self, look: Poll) -> dict[str, int]:
        try:
            metadata = self._metadata(look)
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        for name, topic in metadata.topics.items():
            if topic.error is not None:
                look.problems.append(f"topic {name} cannot be read: {topic.error.str()}")
        return {n: len(t.partitions) for n, t in metadata.topics.items() if t.error is None}

    def _metadata(self, look: Poll) -> Any:
        """A refused login is told after 2 s: waiting longer would not mend it."""
        self._admin.poll(0)  # what was refused before this look is no reason now
        self._refused.clear()
        try:
            return self._admin.list_topics(timeout=min(_REFUSED_SOON, look.left()))
        except KafkaException:
            if self._refusal() is not None or look.left() <= LEAST:
                raise
            return self._admin.list_topics(timeout=look.left())

    def _listed(self, listing: "Future[Any]", look: Poll) -> dict[str, Any]:
        result = self._answer(listing, look)
        while any(error.code() in _LOADING for error in result.errors) and look.left() > LEAST:
            self._clock.sleep(LEAST)  # a coordinator that starts or takes over, some 0.1 s
            again = self._admin.list_consumer_groups(request_timeout=look.left())
            result = self._answer(again, look)
        if result.errors and not result.valid:
            raise self._unreachable(result.errors[0])
        look.partial = bool(result.errors)
        for failure in result.errors:
            look.problems.append(f"groups of one broker are not listed: {failure.str()}")
        return {group.group_id: group for group in result.valid}

    def _answer(self, listing: "Future[Any]", look: Poll) -> Any:
        error = look.error_of(listing)
        if error is not None:
            raise self._unreachable(reason(error)) from error
        return listing.result()

    def _other_groups(
        self, listed: frozenset[str], look: Poll, wanted: Collection[str] | None
    ) -> frozenset[str]:
        """Groups that are no consumer groups: share, streams, Connect; all, or of those wanted.

        The old listing describes every group once more, so that of all is kept for a minute,
        and where one group is missing only that one is asked for.
        """
        missing = None if wanted is None else sorted(set(wanted) - listed)
        if missing == []:
            return frozenset()
        now = self._clock.monotonic()
        if self._others is not None and now - self._others[0] < _OTHERS_KEPT:
            return self._others[1] - listed
        one = missing[0] if missing is not None and len(missing) == 1 else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                found = self._admin.list_groups(group=one, timeout=look.left())
        except KafkaException as error:
            look.problems.append(
                f"share, streams and Connect groups are not listed: {reason(error)}"
            )
            return frozenset()
        names = frozenset(str(group.id) for group in found) - listed
        if one is None:
            self._others = (now, names)
        return names

    def _describe(self, groups: list[str], look: Poll) -> dict[str, Any]:
        def ask(portion: list[str]) -> Mapping[str, "Future[Any]"]:
            return self._admin.describe_consumer_groups(portion, request_timeout=look.left())

        return look.gather_all(groups, ask, "group(s) cannot be described", lambda value: value)

    def _committed(self, groups: list[str], look: Poll) -> dict[str, dict[TopicPartition, int]]:
        """All committed offsets of each group (KIP-88)."""

        def ask(portion: list[str]) -> Mapping[str, "Future[Any]"]:
            futures: dict[str, Future[Any]] = {}
            for group in portion:
                futures |= self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=look.left()
                )
            return futures

        return look.gather_all(groups, ask, "group(s) have unreadable offsets", _offsets_of)

    def _gone(self, topics: set[str], look: Poll) -> frozenset[str]:
        """Which of the topics without metadata are deleted, rather than hidden from us.

        Asked by describe, since a plain metadata request may create a missing topic.
        """
        if not topics:
            return frozenset()
        futures = self._admin.describe_topics(
            TopicCollection(sorted(topics)), request_timeout=look.left()
        )
        gone = set()
        for topic, future in futures.items():
            error = look.error_of(future)
            if isinstance(error, KafkaException) and error.args[0].code() in _GONE:
                gone.add(topic)
            elif error is not None:
                look.problems.append(f"topic {topic} cannot be read: {reason(error)}")
        return frozenset(gone)

    def _offsets(
        self, tps: Collection[TopicPartition], spec: OffsetSpec, look: Poll
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Start one call for all partitions; the answer waits for it."""
        if not tps:
            return dict
        asked = {KafkaPartition(tp.topic, tp.partition): spec for tp in tps}
        futures = self._admin.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,  # the end that lag is told by
            request_timeout=look.left(),
        )
        by_tp = {TopicPartition(tp.topic, tp.partition): f for tp, f in futures.items()}
        return lambda: look.gather(
            by_tp, "partition(s) have unreadable offsets", lambda info: int(info.offset)
        )

    def _refusal(self) -> str | None:
        """Why the last connections came to nothing, where that is the login's or the CA's doing."""
        self._admin.poll(0)
        for error in reversed(self._refused):
            if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - librdkafka's own code
                return (
                    f"refuses the login of {self._login or 'this client'} ({_short(error)}); check "
                    "cluster.security.sasl: mechanism, username and where the password comes from"
                )
            if error.code() == KafkaError._SSL:  # noqa: SLF001
                return (
                    f"cannot be reached by TLS ({_short(error)}); check cluster.security.tls: "
                    "ca_file must hold the authority that signed the brokers' certificates"
                )
        return None

    def _unreachable(self, error: object) -> Unreachable:
        refusal = self._refusal()
        if refusal is not None:
            return Unreachable(f"cluster {self._cluster} at {self._address} {refusal}")
        text = error.str() if isinstance(error, KafkaError) else str(error)
        return Unreachable(
            f"cluster {self._cluster} at {self._address} does not answer within "
            f"{self._timeout:g} s ({text}); see whether a broker listens there and the security "
            "settings are right"
        )


def id_of(described: Any) -> str:
    """A topic's id as 32 hex digits; Kafka's UUID comes as two signed halves."""
    topic_id = described.topic_id
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return b"".join(half.to_bytes(8, "big", signed=True) for half in halves).hex()


def _short(error: KafkaError) -> str:
    """Librdkafka's reason without the address before and the time after it."""
    text = re.sub(r"^\w+://\S+: |\s*\(after .*$|error:[0-9A-F]+:", "", str(error.str()))
    return text.split(", verify that")[0].split(": broker certificate")[0]


def _offsets_of(answer: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(tp.topic, tp.partition): tp.offset
        for tp in answer.topic_partitions or ()
        if tp.error is None and tp.offset >= 0
    }
