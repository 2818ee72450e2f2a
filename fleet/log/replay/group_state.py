"""Keeps the state of one group during its replay: members, owners, commits.

Problem: a cause follows from a record and the state before it, and that state has to survive a
process, in a table or beside an exporter's offsets. Choice: plain mutable values with one JSON form
each. The group's current members and partitions bound their size. Cost: what left the state is
lost.

Members are named by instance id if they have one (KIP-345), else by member id. Times are seconds by
the coordinator's own timestamps.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fleet.lag.gap import is_early, usual_gap
from fleet.log.records import OffsetCommit
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, MembershipSpan
from fleet.model.sessions import SessionLookup, no_session_lookup

# A classic group's log never tells when a round began. Who asks every second which groups are
# unsettled knows two moments of each round: one at which it had not begun, one at which it had, or
# its end. Brokers' clocks and this machine's should agree within 0.2 s.


_KEPT: Final = 900
"""Looks, and runs of a group, that are kept."""
_CLOCKS: Final = 0.2
CLOSE_S: Final = 1.0
"""A start is known that is right within a second ..."""
_PART: Final = 0.25
"""... or within a quarter of the duration."""


class StartBounds(NamedTuple):
    """When a round began, seconds by the wall clock; `earliest` None: nobody looked before."""

    earliest: float | None
    latest: float

    def within(self, latest: float) -> "StartBounds":
        """The same where something else shows that it began no later."""
        latest = min(self.latest, latest)
        return StartBounds(None if self.earliest is None else min(self.earliest, latest), latest)

    def excludes(self, moment: float) -> bool:
        """Whether the group was seen settled after that moment."""
        return self.earliest is not None and moment < self.earliest - _CLOCKS

    def known(self, ended: float) -> float | None:
        """The start, where the bounds are close enough to say one."""
        if self.earliest is None:
            return None
        off = (self.latest - self.earliest) / 2
        return self.earliest + off if off <= max(CLOSE_S, _PART * (ended - self.latest)) else None


@dataclass(slots=True)
class _Run:
    """Looks in a row that found a group unsettled; each look is a question and its answer."""

    before: float | None
    asked: float
    answered: float
    last: float


class RoundStarts:
    """Looks in, bounds out. Not for several threads."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Of all brokers: when asked, when answered."""
        self._open: dict[str, _Run] = {}
        self._runs: dict[str, deque[_Run]] = {}
        self._listed: frozenset[str] = frozenset()

    def listed(self, groups: Collection[str]) -> None:
        """Groups that a look may find at all: of others (no Describe) nothing can be told."""
        self._listed = frozenset(groups)
        oldest = self._looks[0][0] if self._looks else 0.0
        for group in [g for g, runs in self._runs.items() if runs[-1].last < oldest]:
            del self._runs[group]

    def look(
        self, unsettled: Collection[str], *, asked: float, answered: float, whole: bool
    ) -> None:
        """One look; `whole`: every broker answered, so that all other groups were settled."""
        before = self._looks[-1][0] if self._looks else None
        for group in unsettled:
            run = self._open.get(group)
            if run is None:
                run = self._open[group] = _Run(before, asked, answered, asked)
                self._runs.setdefault(group, deque(maxlen=_KEPT)).append(run)
            run.last = asked
        if whole:
            self._looks.append((asked, answered))
            for group in self._open.keys() - set(unsettled):
                del self._open[group]

    def of(self, group: str, *, after: float | None, ended: float) -> StartBounds | None:
        """For a round that ended then, the group's last record before it being of `after`."""
        least = float("-inf") if after is None else after
        for run in reversed(self._runs.get(group, ())):
            if run.asked > ended:
                continue
            if run.last < least + _CLOCKS:
                break
            if run.asked >= least:
                return StartBounds(_later(run.before, after), min(run.answered, ended))
            # It went from one round into the next: the first look after the record between them.
            first = bisect_left(self._looks, least + _CLOCKS, key=lambda look: look[0])
            seen = self._looks[first][1] if first < len(self._looks) else ended
            return StartBounds(after, min(seen, ended))
        if group not in self._listed and group not in self._runs:
            return None
        # No look fell into it: it began after the last one before its end that found no round.
        last = bisect_right(self._looks, ended, key=lambda look: look[1]) - 1
        for run in reversed(self._runs.get(group, ())):
            if last >= 0 and run.asked <= self._looks[last][0] <= run.last:
                last = bisect_left(self._looks, run.asked, key=lambda look: look[0]) - 1
        settled = self._looks[last][0] if last >= 0 else None
        earliest = _later(settled, after)
        return None if earliest is None else StartBounds(earliest, ended)


def _later(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


AWAY: Final = -2
"""KIP-848: the epoch of a static member that said it will be back."""
STABLE, UNREVOKED = 0, 1
"""KIP-848: states of a member; 2 is unreleased."""
_OF_COMMIT: Final = 4
"""What is kept of a commit; what a newer release adds stands behind it."""
_NAMES: Final = 1000
_FEW: Final = 100


@dataclass(slots=True)
class ReplayedMember:
    """One member as its last records leave it."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    topics: tuple[str, ...] = ()
    session_s: float | None = None
    rebalance_s: float | None = None
    assignor: str | None = None
    alive_at: float = 0.0
    """The last time that a record other than a commit proves it was alive."""
    owned: tuple[TopicPartition, ...] = ()
    """What it has, or must still give up."""
    epoch: int = 0
    state: int = STABLE
    state_since: float = 0.0

    @property
    def identity(self) -> str:
        """Instance id, else member id."""
        return self.instance_id or self.member_id


@dataclass(slots=True)
class ReplayedCommit:
    """The commits of one partition: the last one, and their rhythm."""

    offset: int
    at: float
    gap: float | None = None
    """The usual time between commits that advance, once there were two."""
    early: bool = False
    """The last one came too soon for that rhythm: a revocation, a drain."""

    def note(self, offset: int, at: float) -> None:
        """One more; only those that advance have a rhythm."""
        if offset > self.offset:
            gap = max(0.0, at - self.at)
            self.early = is_early(gap, self.gap)
            self.gap = usual_gap(self.gap, gap)
        self.offset, self.at = offset, at


class AskedCommits(dict[TopicPartition, ReplayedCommit]):
    """The commits of a group that somebody else keeps: asked for one by one, never stored."""

    def __init__(self, find: Callable[[TopicPartition], ReplayedCommit | None]) -> None:
        super().__init__()
        self._find = find

    def __contains__(self, tp: object) -> bool:
        return isinstance(tp, TopicPartition) and self._find(tp) is not None

    def __missing__(self, tp: TopicPartition) -> ReplayedCommit:
        found = self._find(tp)
        if found is None:
            raise KeyError(tp)
        return found


@dataclass(slots=True)
class ReplayedGroup:
    """One group. `protocol` is None until a record of its membership was seen."""

    cluster: str
    group: str
    log_partition: int = -1
    protocol: str | None = None
    number: int | None = None
    """Last generation or assignment epoch."""
    incarnation: int = 0
    origin: Cause | None = None
    """What the next rebalance comes from, whatever else changed: CREATED, REBORN, MIGRATION."""
    origin_at: float | None = None
    closed_at: float | None = None
    """When the group's own record was deleted: the group, or only its protocol."""
    coordinator_at: float | None = None
    """When another broker became its coordinator, where somebody saw that."""
    round_start: Callable[..., StartBounds | None] = lambda **_: None
    """Classic: where bounds of a round's start are asked for (RoundStarts.of); not kept."""
    session: SessionLookup = no_session_lookup
    """KIP-848: where the session timeout is asked for; not kept."""
    members: dict[str, ReplayedMember] = field(default_factory=dict)
    gone: dict[str, ReplayedMember] = field(default_factory=dict)
    """KIP-848: deleted, and not yet known whether left or replaced."""
    last_owner: dict[TopicPartition, str] = field(default_factory=dict)
    width: dict[str, int] = field(default_factory=dict)
    """Highest partition count ever assigned, by topic."""
    early: dict[str, ReplayedMember] = field(default_factory=dict)
    """KIP-848: what members own whose own record compaction has put behind, by member id."""
    moved: list[TopicPartition] = field(default_factory=list)
    """What got another owner with the last record; not kept."""
    commits: dict[TopicPartition, ReplayedCommit] = field(default_factory=dict)
    learnt: dict[str, str] = field(default_factory=dict)
    """Topic names by id, from the group's commits."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The same, from a reader that knows the cluster; shared by many groups and not kept."""

    # --- names ------------------------------------------------------------------------------

    def learn(self, topic_id: str, topic: str) -> None:
        """A commit named a topic's id."""
        self.learnt[topic_id] = topic
        if len(self.learnt) > _NAMES:
            del self.learnt[next(iter(self.learnt))]
        self._rename(topic_id, topic)

    def give(self, names: Mapping[str, str]) -> None:
        """Somebody knows topics' ids; a few more come beside what was given before."""
        if self.given and names is not self.given and len(names) <= _FEW:
            self.learnt.update(names)
        else:
            self.given = names
        held = {tp.topic for member in self.members.values() for tp in member.owned}
        for topic in {tp.topic for tp in self.last_owner} | set(self.width) | held:
            if topic in names:
                self._rename(topic, names[topic])

    def _rename(self, topic_id: str, topic: str) -> None:
        """What was kept under an id is found under its name from now on."""
        for tp in [tp for tp in self.last_owner if tp.topic == topic_id]:
            self.last_owner[TopicPartition(topic, tp.partition)] = self.last_owner.pop(tp)
        if topic_id in self.width:
            self.width[topic] = max(self.width.pop(topic_id), self.width.get(topic, 0))
        for member in (*self.members.values(), *self.gone.values(), *self.early.values()):
            member.owned = tuple(
                sorted(
                    TopicPartition(topic, tp.partition) if tp.topic == topic_id else tp
                    for tp in member.owned
                )
            )

    def named(self, partitions: Mapping[str, tuple[int, ...]]) -> tuple[TopicPartition, ...]:
        """Partitions by topic name, or by topic id where its name is not known."""
        return tuple(
            sorted(
                TopicPartition(self.learnt.get(topic) or self.given.get(topic, topic), number)
                for topic, numbers in partitions.items()
                for number in numbers
            )
        )

    # --- commits ----------------------------------------------------------------------------

    def commit(self, record: OffsetCommit) -> None:
        """Notes a commit of a partition."""
        if record.topic_id is not None and record.topic_id not in self.learnt:
            self.learn(record.topic_id, record.tp.topic)
        known = self.commits.get(record.tp)
        at = record.timestamp_ms / 1000
        if known is None:
            self.commits[record.tp] = ReplayedCommit(record.committed, at)
        else:
            known.note(record.committed, at)

    def last_commit(self, partitions: Iterable[TopicPartition]) -> ReplayedCommit | None:
        """The latest commit among these partitions."""
        found = [self.commits[tp] for tp in partitions if tp in self.commits]
        return max(found, key=lambda each: each.at, default=None)

    # --- owners -----------------------------------------------------------------------------

    def owns(self, identity: str, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Note an owner; the partitions that had another one before."""
        moved = []
        for tp in partitions:
            last = self.last_owner.get(tp)
            if last is not None and last != identity:
                moved.append(tp)
            self.last_owner[tp] = identity
        self.moved += moved
        return moved

    def grown(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions of known topics beyond those ever assigned; notes the widths."""
        width: dict[str, int] = {}
        more = []
        for tp in partitions:
            if tp.partition >= self.width.get(tp.topic, tp.partition + 1):
                more.append(tp)
            width[tp.topic] = max(width.get(tp.topic, 0), tp.partition + 1)
        for topic, n in width.items():
            self.width[topic] = max(n, self.width.get(topic, 0))
        return more

    # --- life -------------------------------------------------------------------------------

    def forget(self) -> None:
        """A group of the same name begins anew."""
        self.incarnation += 1
        self.number = None
        self.origin, self.origin_at = Cause.RECREATED, None
        self.members, self.gone, self.early = {}, {}, {}
        self.last_owner, self.width = {}, {}

    def row(
        self, event: str, member: ReplayedMember, *, at: float, number: int, offset: int
    ) -> MembershipSpan:
        """A row of the membership's history."""
        return MembershipSpan(
            cluster=self.cluster,
            group=self.group,
            at=at,
            number=number,
            event=event,
            member=member.identity,
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host,
            owned=member.owned,
            log_partition=self.log_partition,
            log_offset=offset,
        )

    def as_json(self) -> dict[str, Any]:
        """Everything but the names that were given, for JSON."""
        return {
            "cluster": self.cluster,
            "group": self.group,
            "log_partition": self.log_partition,
            "protocol": self.protocol,
            "number": self.number,
            "incarnation": self.incarnation,
            "origin": self.origin,
            "origin_at": self.origin_at,
            "closed_at": self.closed_at,
            "coordinator_at": self.coordinator_at,
            "members": [_member(each) for each in self.members.values()],
            "gone": [_member(each) for each in self.gone.values()],
            "early": [_member(each) for each in self.early.values()],
            "last_owner": by_topic(self.last_owner),
            "width": self.width,
            "commits": by_topic(
                {tp: [c.offset, c.at, c.gap, c.early] for tp, c in self.commits.items()}
            ),
            "learnt": self.learnt,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "ReplayedGroup":
        """Restores the output of `as_json`."""
        members = [_from_member(each) for each in kept["members"]]
        gone = [_from_member(each) for each in kept["gone"]]
        early = [_from_member(each) for each in kept["early"]]
        return cls(
            cluster=kept["cluster"],
            group=kept["group"],
            log_partition=kept["log_partition"],
            protocol=kept["protocol"],
            number=kept["number"],
            incarnation=kept["incarnation"],
            origin=None if kept["origin"] is None else Cause(kept["origin"]),
            origin_at=kept["origin_at"],
            closed_at=kept["closed_at"],
            coordinator_at=kept["coordinator_at"],
            members={each.identity: each for each in members},
            gone={each.identity: each for each in gone},
            early={each.member_id: each for each in early},
            last_owner=from_topic(kept["last_owner"]),
            width=dict(kept["width"]),
            commits={
                tp: ReplayedCommit(*each[:_OF_COMMIT])
                for tp, each in from_topic(kept["commits"]).items()
            },
            learnt=dict(kept["learnt"]),
        )


def kept_under(names: Iterable[str], kept: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept under these names: a newer release may have kept more, an older one less."""
    return {name: kept[name] for name in names if name in kept}


def by_topic(partitions: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Values by partition, for JSON."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for tp, value in partitions.items():
        found[tp.topic][str(tp.partition)] = value
    return dict(found)


def from_topic(kept: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    """Restores the output of `by_topic`."""
    return {
        TopicPartition(topic, int(number)): value
        for topic, numbers in kept.items()
        for number, value in numbers.items()
    }


def _member(member: ReplayedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "topics": list(member.topics),
        "session_s": member.session_s,
        "rebalance_s": member.rebalance_s,
        "assignor": member.assignor,
        "alive_at": member.alive_at,
        "owned": [[tp.topic, tp.partition] for tp in member.owned],
        "epoch": member.epoch,
        "state": member.state,
        "state_since": member.state_since,
    }


def _from_member(kept: Mapping[str, Any]) -> ReplayedMember:
    return ReplayedMember(
        **{
            **kept_under(ReplayedMember.__slots__, kept),
            "topics": tuple(kept["topics"]),
            "owned": tuple(TopicPartition(topic, number) for topic, number in kept["owned"]),
        }
    )
