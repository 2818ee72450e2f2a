"""Reads the state of all consumer groups of a cluster in a handful of requests.

Problem: tools that ask per group or per partition take 10 s and more for 1,000 groups. Many cannot
tell an unknown group from one without offsets. Librdkafka's admin client may abort the process if a
coordinator does not answer (librdkafka #4605, #5040). Choice: batched requests through
kafka-python: metadata, ListGroups to every broker, then state, members and offsets of all groups
from their coordinators, then starts and ends of all logs from their leaders. One deadline covers
them. A failed part becomes a sentence in `Snapshot.problems`; only a cluster that does not answer
is an error. Cost: offsets are read some milliseconds before the log ends, so the lag of a busy
partition is slightly too high, never too low.

OffsetFetch returns nothing for an unknown group and for one without offsets (KIP-88, KIP-1043).
ListGroups and the describe distinguish them.
"""

import re
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kafka_source.connections import Connections, NoAnswer, NoAnswerKind
from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import NONE, Commits, Longs, Rows
from fleet.lag.snapshot import NO_SHARE, GroupFacts, Logs, Snapshot, measure_lag
from fleet.model import INTERNAL_TOPICS, GroupState, Member, TopicPartition
from fleet.observe.poll_answers import (
    DescribedGroup,
    ListedGroup,
    Offsets,
    Poll,
    PollAnswers,
    is_dead,
    no_group,
)
from fleet.observe.topic_questions import RecordTimes, Resource, TopicQuestions, Topics
from fleet.observe.waiting_records import WaitingRecords

if TYPE_CHECKING:
    from fleet.observe.group_questions import GroupQuestions


# Errors of a connection as sentences that name the setting to correct. Pure.


_TLS: Final = (
    (
        re.compile("certificate required|bad certificate|handshake failure", re.IGNORECASE),
        (
            "did not accept a client certificate ({why}); check cluster.security.tls.cert_file "
            "and key_file, and the authority that signed them"
        ),
    ),
    (
        re.compile("unknown ca|certificate unknown|certificate expired", re.IGNORECASE),
        "does not trust this client's certificate ({why}); check cluster.security.tls.cert_file",
    ),
    (
        re.compile("mismatch", re.IGNORECASE),
        (
            "has a certificate for another name ({why}); use the name of the certificate in "
            "cluster.bootstrap_servers"
        ),
    ),
)


def unreachable(error: NoAnswer, *, place: str, login: str, timeout: float) -> Unreachable:
    """Builds the error of a failed connection to `place` (cluster and address) as `login`."""
    why = _short(error)
    if error.kind is NoAnswerKind.LOGIN:
        return Unreachable(f"{place} refuses the login of {login} ({why}); {_login(why)}")
    if error.kind is NoAnswerKind.TOKEN:
        return Unreachable(f"login to {place} failed: {error}")
    if error.kind is NoAnswerKind.LISTENER:
        return Unreachable(f"{place} cannot be reached: {error}")
    if error.kind is NoAnswerKind.TLS:
        for pattern, sentence in _TLS:
            if pattern.search(why):
                return Unreachable(f"{place} {sentence.format(why=why)}")
        return Unreachable(
            f"TLS to {place} failed ({why}); check cluster.security: tls.ca_file must hold the "
            "authority of the brokers' certificates, and protocol must be the listener's"
        )
    return Unreachable(
        f"{place} did not answer within {timeout:g} s ({error}); check that a broker listens "
        "there, and check cluster.security"
    )


def _login(why: str) -> str:
    if "invalid_token" in why:
        return (
            "the brokers rejected the token: check its issuer, audience and scope, and compare "
            "the clocks"
        )
    if "SaslMechanism" in why:
        return "the listener uses another mechanism: check cluster.security.sasl.mechanism"
    if "SaslState" in why:
        return "the listener takes no login: set cluster.security.protocol to PLAINTEXT or SSL"
    return "check cluster.security.sasl: mechanism, username and password"


def _short(error: NoAnswer) -> str:
    """Returns the reason without class names and code lines."""
    text = re.sub(r"SaslAuthenticationFailedError: |KafkaError: ", "", str(error))
    return re.sub(r"SSL\w*Error: |\[SSL[^]]*\] | \(_ssl\.c:\d+\)", "", text).strip()


class Observer:
    """Reads one cluster. `timeout` limits one refresh, in seconds.

    `config` is librdkafka's, with bootstrap.servers and security. Safe for several threads, which
    read one after the other.
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
        self._login = str(config.get("sasl.username", "")) or "this client"
        self._clock = clock
        self._ends = ends or EndHistory()
        self._timeout = timeout
        self._net = Connections(config, client_id="fleet")
        self._about_topics = TopicQuestions(self._net)
        self._times = RecordTimes(self._about_topics)
        self._waiting = WaitingRecords(config, self._net)
        self._about_groups: GroupQuestions | None = None
        self._lock = threading.RLock()

    def snapshot(self, groups: Collection[str] | None = None) -> Snapshot:
        """Takes a snapshot of all groups, or of the named ones (none for an empty collection).

        Named groups that do not exist have `exists` False. Raises Unreachable if the cluster does
        not answer.
        """
        with self._lock:
            poll = self._new_poll()
            topics = self._topics(poll)
            listed = self._list_groups(poll)
            wanted = sorted(listed if groups is None else set(groups))
            # A complete listing has every group; if a broker was silent, ask by name.
            asked = [group for group in wanted if group in listed or poll.partial]
            descriptions, committed = self._groups.describe_with_offsets(asked, poll)
            seen = PollAnswers(listed=listed, descriptions=descriptions, committed=committed)
            known = frozenset(g for g in asked if not is_dead(descriptions.get(g)))
            return self._measure(
                poll,
                {g: seen.facts(g) if g in known else no_group() for g in wanted},
                Commits.of(row for group in sorted(known) for row in seen.rows(group)),
                topics,
                members={group: seen.members(group) for group in known},
                untold=known - committed.keys(),
                counted=seen.counted(),
            )

    def _measure(
        self,
        poll: Poll,
        facts: Mapping[str, GroupFacts],
        commits: Commits,
        topics: Topics,
        *,
        members: Mapping[str, tuple[Member, ...]] | None = None,
        untold: Collection[str] = (),
        counted: Mapping[str, Offsets],
    ) -> Snapshot:
        """Compares the groups' commits with the current ends of the logs.

        `untold`: groups whose offsets are unreadable; `counted`: the lag of share groups.
        """
        tps, which = commits.partitions()
        logs = self._logs(tps, topics, poll)
        lag = measure_lag(
            commits.committed,
            tps=tps,
            which=which,
            logs=logs,
            unreadable=commits.of_groups(untold),
            counted=_counted(commits, counted),
            left=_left(commits, facts),
        )
        self._times.bound(lag, tps, which, commits.at, logs, topics=topics, poll=poll)
        unknown = np.broadcast_to(np.nan, len(commits))
        return Snapshot(
            cluster=self._cluster,
            at=logs.at,
            took=self._clock.monotonic() - poll.began,
            facts=facts,
            topics={t: n for t, n in topics.partitions.items() if t not in INTERNAL_TOPICS},
            commits=commits,
            lag=lag,
            gained=unknown,
            over=unknown,
            members=members or {},
            problems=(*poll.problems, *filter(None, (self._ends.problem,))),
            partial=poll.partial,
        )

    def read_on(self, seen: Snapshot, rows: Longs) -> Snapshot:
        """Adds to a snapshot what waits in rows that seem to stand still, if it can be read."""
        with self._lock:
            return self._waiting.read_on(seen, rows) if len(rows) else seen

    def close(self) -> None:
        """Closes the connections; the next refresh opens new ones."""
        with self._lock:
            self._net.close()

    def state(self, group: str) -> GroupState:
        """Reads the group's state by one describe: cheap enough to poll.

        Returns Dead if it does not exist, Unknown if its coordinator does not answer.
        """
        with self._lock:
            poll = self._new_poll()
            try:
                self._net.connect(poll.left())
            except NoAnswer:
                return GroupState.UNKNOWN
            described = self._groups.describe([group], poll).get(group)
            return GroupState.UNKNOWN if described is None else described.state

    def progress(self, group: str) -> tuple[DescribedGroup, Offsets]:
        """Reads one group's members and commits, of its coordinator alone. Raises Unreachable."""
        with self._lock:
            poll = self._new_poll()
            try:
                self._net.connect(poll.left())
            except NoAnswer as error:
                raise self._unreachable(error) from error
            described, committed = self._groups.describe_with_offsets([group], poll)
            if group not in described:
                why = "; ".join(poll.problems) or "no answer"
                raise Unreachable(f"the coordinator of {group} does not describe it: {why}")
            return described[group], committed.get(group, {})

    def ends(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Reads the ends of these logs, and no other topic. Raises Unreachable."""
        with self._lock:
            poll = self._new_poll()
            try:
                topics = self._about_topics.topics(poll, {tp.topic for tp in tps})
                return self._about_topics.offsets(tps, topics, poll)[1]
            except NoAnswer as error:
                raise self._unreachable(error) from error

    def partitions(self) -> dict[str, int]:
        """Reads topic name → number of partitions."""
        with self._lock:
            return dict(self._topics(self._new_poll()).partitions)

    def allowed_operations(
        self, groups: Collection[str], topics: Collection[str]
    ) -> dict[Resource, frozenset[str]]:
        """Asks the cluster what this login may do with each group and topic (KIP-430).

        A broker hides what a login may not describe, so that it seems not to exist; a query by
        name distinguishes the two. The set is empty if not even Describe is allowed. Unknown
        resources are left out. Nothing is tried.
        """
        with self._lock:
            poll = self._new_poll()
            try:
                self._net.connect(poll.left())
                found = self._about_topics.allowed_operations(topics, poll) if topics else {}
            except NoAnswer:
                return {}
            of_groups = self._groups.allowed_operations(sorted(groups), poll) if groups else {}
            return found | {("group", group): names for group, names in of_groups.items()}

    def logs(self, tps: Collection[TopicPartition]) -> Logs:
        """Reads the current starts and ends of these logs, with earlier ends."""
        with self._lock:
            poll = self._new_poll()
            return self._logs(tps, self._topics(poll), poll)

    def _logs(self, tps: Collection[TopicPartition], topics: Topics, poll: Poll) -> Logs:
        """Reads starts and ends of the logs, and which topics are deleted. Raises Unreachable."""
        there = [tp for tp in tps if tp.partition < topics.partitions.get(tp.topic, 0)]
        try:
            starts, ends = self._about_topics.offsets(there, topics, poll)
        except NoAnswer as error:
            raise self._unreachable(error) from error
        found = Logs(
            starts=starts,
            ends=ends,
            deleted=self._about_topics.deleted_topics(
                {tp.topic for tp in tps} - topics.partitions.keys(), poll
            ),
            partitions=topics.partitions,
            at=self._clock.now(),
            before=self._ends,
        )
        self._ends.add(found.at, found.ends)
        return found

    def topic_ids(self) -> dict[str, str]:
        """Reads topic name by topic id (32 hex digits, as in `fleet.log.records`)."""
        with self._lock:
            return dict(self._topics(self._new_poll()).names)

    # --- the requests -----------------------------------------------------------------------

    def _new_poll(self) -> Poll:
        return Poll(self._clock, self._timeout)

    @property
    def _groups(self) -> "GroupQuestions":
        if self._about_groups is None:
            from fleet.observe.group_questions import GroupQuestions  # noqa: PLC0415 - 0.2 s

            self._about_groups = GroupQuestions(self._net)
        return self._about_groups

    def _topics(self, poll: Poll) -> Topics:
        try:
            return self._about_topics.topics(poll)
        except NoAnswer as error:
            raise self._unreachable(error) from error

    def _list_groups(self, poll: Poll) -> dict[str, ListedGroup]:
        found, failed = self._groups.list_groups(poll)
        if failed and not found:
            raise self._unreachable(failed[0])
        poll.partial = bool(failed)
        for failure in failed:
            poll.problems.append(f"a broker did not list its groups: {failure}")
        return found

    def _unreachable(self, error: NoAnswer) -> Unreachable:
        return unreachable(
            error,
            place=f"cluster {self._cluster} at {self._address}",
            login=self._login,
            timeout=self._timeout,
        )


def _left(commits: Commits, facts: Mapping[str, GroupFacts]) -> Rows:
    """Marks rows of topics to which a settled group no longer subscribes."""
    different, which = np.unique(commits.of_topics(), return_inverse=True)
    gone = [
        facts[commits.groups[pair >> 32]].has_left(commits.topics[pair & 0xFFFFFFFF])
        for pair in different.tolist()
    ]
    found: Rows = np.array(gone, dtype=np.bool_)[which]
    return found


def _counted(commits: Commits, lags: Mapping[str, Offsets]) -> Longs | None:
    """Returns the lag of share groups by row, as coordinators count it; None without any."""
    if not lags:
        return None
    found = np.full(len(commits), NO_SHARE, dtype=np.int64)
    for row in np.flatnonzero(commits.of_groups(lags)).tolist():
        tp = TopicPartition(commits.topics[commits.topic[row]], int(commits.partition[row]))
        found[row] = lags[commits.groups[commits.group[row]]].get(tp, NONE)
    return found
