"""A heartbeat of a KIP-848 member, from its fields to the answer and the records.

Problem: with KIP-848 everything happens at heartbeats: joins, changed subscriptions, noticed
topics, new targets, and each member's next step. Choice: one after the other, as Kafka's: the
member as it tells of itself, its expression, the group epoch, the target, the member's step.
Cost: who asks first pays for all.
"""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from fleet.sim.assignors import (
    Applicant,
    Applicants,
    AssignmentFailed,
    Target,
    Targets,
    assign_ranges,
    assign_uniformly,
)
from fleet.sim.coordinator.consumer_group import (
    AWAY,
    ConsumerMember,
    ConsumerMemberState,
    EpochGroup,
    MemberAction,
    Owned,
    Resolved,
    counted,
    is_homogeneous,
    moved,
    recount,
)
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    PARTITION_METADATA,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    MemberValue,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.consumer_shard import ConsumerShard, Records, replaced, static_member
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
    RequestRefused,
    TopicPartitions,
)
from fleet.sim.coordinator.topic_image import TopicImage, group_hash
from fleet.sim.hashing import HashOrder, emptied

# What a member may own after a heartbeat: one step from what it has towards its target.
#
# Problem: a partition must have one owner at any time, and members hear of a new target only with
# their heartbeats. Choice: Kafka's (KIP-848): first a member gives up what is not in its target
# and says so, then it takes the target's epoch with what is free of it, then the rest as others
# let it go. Cost: two heartbeat intervals in the worst case for a partition that moves.


Reported = Sequence[tuple[bytes, Sequence[int]]]
"""Partitions by topic id that a member says it owns."""
_NONE: Mapping[int, int] = {}


@dataclass(slots=True)
class Reconciliation:
    """All that a step needs besides the member.

    `names` are the topics that the member subscribes to, its regular expression resolved.
    `reported` is None where the heartbeat did not say what the member owns. `epoch_of` tells at
    which epoch a partition is owned by anyone, -1 if it is free.
    """

    epoch: int
    target: Target
    names: Collection[str]
    subscription_changed: bool
    reported: Reported | None
    image: TopicImage
    epoch_of: Callable[[bytes, int], int]

    def next_of(self, member: ConsumerMember) -> ConsumerMember:
        """The member after this step; the same object where nothing changes.

        Raises RequestRefused (FENCED_MEMBER_EPOCH) for a member in a state that nobody knows,
        unless it says that it owns nothing.
        """
        state = member.state
        if state is ConsumerMemberState.STABLE and member.epoch == self.epoch:
            return self._pruned(member) if self.subscription_changed else member
        if state is ConsumerMemberState.UNREVOKED and self._still_has(member.revoking):
            return self._pruned(member) if self.subscription_changed else member
        if state is ConsumerMemberState.UNKNOWN:
            if self.reported is None or self.reported:
                raise RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH)
            return self._towards_target(member, self.epoch)
        return self._towards_target(member, member.epoch)

    def _still_has(self, given_up: Owned) -> bool:
        """Whether the member owns any of that, or did not say."""
        if self.reported is None:
            return True
        return any(
            partition in given_up.get(topic, _NONE)
            for topic, partitions in self.reported
            for partition in partitions
        )

    def _subscribed(self, topic: bytes) -> bool:
        return self.image.has_among(topic, self.names)

    def _pruned(self, member: ConsumerMember) -> ConsumerMember:
        """Topics that it no longer subscribes to go at once; all else waits for a new target."""
        if not self.names and not member.revoking:
            return self._lighter(member, HashOrder(), member.assigned)
        gone = [topic for topic in member.assigned if not self._subscribed(topic)]
        if not gone:
            return member
        keep = emptied(HashOrder.copied(member.assigned), gone)
        give_up = HashOrder.copied(member.revoking)
        for topic in gone:
            more = member.assigned[topic]
            if topic in give_up:
                merged = HashOrder.copied(give_up[topic])
                merged.put_all(more)
                more = merged
            give_up.put_first(topic, more)
        return self._lighter(member, keep, give_up)

    def _lighter(self, member: ConsumerMember, keep: Owned, give_up: Owned) -> ConsumerMember:
        state = member.state
        if give_up and self._still_has(give_up):
            state = ConsumerMemberState.UNREVOKED
        else:
            give_up = member.revoking
        state = moved(member.state, MemberAction.PRUNE, state)
        return member.reached(member.epoch, state=state, assigned=keep, revoking=give_up)

    def _towards_target(self, member: ConsumerMember, epoch: int) -> ConsumerMember:
        keep: Owned = HashOrder()
        give_up: Owned = HashOrder()
        take: HashOrder[bytes, list[int]] = HashOrder()
        waits = False
        topics = HashOrder.collected(self.target, None)
        for topic in member.assigned:
            topics[topic] = None
        for topic in topics:
            wanted = self.target.get(topic, _NONE) if self._subscribed(topic) else _NONE
            has = member.assigned.get(topic)
            kept: HashOrder[int, int] = HashOrder()
            if has:
                kept = HashOrder.copied(has)
                kept.keep(wanted)
                if kept:
                    keep[topic] = kept
                if len(kept) < len(has):
                    give_up[topic] = emptied(HashOrder.copied(has), kept)
            if len(kept) == len(wanted):
                continue
            missing = emptied(HashOrder.collected(wanted, None), kept)
            mine = member.revoking.get(topic, _NONE)
            free = [each for each in missing if self.epoch_of(topic, each) == -1 or each in mine]
            waits = waits or len(free) < len(missing)
            if free:
                take[topic] = free
        return self._stepped(member, epoch, keep, give_up, take, waits=waits)

    def _stepped(
        self,
        member: ConsumerMember,
        epoch: int,
        keep: Owned,
        give_up: Owned,
        take: HashOrder[bytes, list[int]],
        *,
        waits: bool,
    ) -> ConsumerMember:
        if give_up and self._still_has(give_up):
            state = moved(member.state, MemberAction.REVOKE, ConsumerMemberState.UNREVOKED)
            return member.reached(epoch, state=state, assigned=keep, revoking=give_up)
        for topic, partitions in take.items():
            mine = keep.found(topic, HashOrder())
            mine.put_each(dict.fromkeys(partitions, self.epoch))
        action = MemberAction.WAIT if waits else MemberAction.SETTLE
        new = ConsumerMemberState.UNRELEASED if waits else ConsumerMemberState.STABLE
        state = moved(member.state, action, new)
        return member.reached(self.epoch, state=state, assigned=keep, revoking=HashOrder())


# Topic ids: 16 bytes inside the model, 22 characters of base64 in messages, as Kafka has them.


_KNOWN_IDS: Final = 1 << 16


@lru_cache(maxsize=_KNOWN_IDS)
def topic_id_bytes(text: str) -> bytes:
    """The id that Kafka prints so. Raises ValueError for anything else."""
    return base64.urlsafe_b64decode(text + "==")


@lru_cache(maxsize=_KNOWN_IDS)
def topic_id_text(topic: bytes) -> str:
    """The id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic).decode().rstrip("=")


def owned_by_id(owned: Iterable[TopicPartitions]) -> Reported:
    """What a member says it owns."""
    return [(topic_id_bytes(each.topic_id), each.partitions) for each in owned]


def topic_partitions(owned: Owned) -> tuple[TopicPartitions, ...]:
    """What a member is told to own."""
    return tuple(
        TopicPartitions(topic_id_text(topic), tuple(partitions))
        for topic, partitions in owned.items()
    )


# What must hold of a ConsumerGroupHeartbeat before its group is looked at.


JOINING: Final = 0
_NOTHING: Final[Mapping[int, int]] = {}


def check(asked: ConsumerGroupHeartbeatRequest, assignors: tuple[str, ...]) -> None:
    """Raises RequestRefused (INVALID_REQUEST, UNSUPPORTED_ASSIGNOR) where fields do not fit."""
    # One by one, since most of what a simulation asks are heartbeats.
    if (
        not asked.member_id.strip()
        or not asked.group_id.strip()
        or (asked.instance_id is not None and not asked.instance_id.strip())
        or (asked.rack_id is not None and not asked.rack_id.strip())
    ):
        raise RequestRefused(ErrorCode.INVALID_REQUEST)
    if asked.member_epoch == JOINING:
        unnamed = asked.subscribed_topic_names is None and asked.subscribed_topic_regex is None
        if asked.rebalance_timeout_ms == -1 or asked.topic_partitions != () or unnamed:
            raise RequestRefused(ErrorCode.INVALID_REQUEST)  # it owns nothing yet, and says so
    elif asked.member_epoch < AWAY or (asked.member_epoch == AWAY and asked.instance_id is None):
        raise RequestRefused(ErrorCode.INVALID_REQUEST)
    if asked.server_assignor is not None and asked.server_assignor not in assignors:
        raise RequestRefused(ErrorCode.UNSUPPORTED_ASSIGNOR)


def check_epoch(member: ConsumerMember, told: int, owned: Reported | None) -> None:
    """Raises RequestRefused (FENCED_MEMBER_EPOCH) for an epoch that the member cannot have.

    Its previous epoch is taken where the answer to its last heartbeat may have been lost: if it
    owns nothing but what it was given.
    """
    if told in (JOINING, member.epoch):
        return
    lost_an_answer = told < member.epoch and told == member.previous_epoch
    if not lost_an_answer or owned is None or not _is_within(owned, member):
        raise RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH)


def _is_within(owned: Reported, member: ConsumerMember) -> bool:
    for topic, partitions in owned:
        given = member.assigned.get(topic)
        if given is None or any(each not in given for each in partitions):
            return False
    return True


# The target of a KIP-848 group: when it may be computed anew, by which assignor, from whom.
#
# Problem: a start of many members would compute a target for each of them. Choice: Kafka's of 4.3
# (KIP-1263): a new target is computed at a heartbeat of any member, and not before an interval has
# gone by since the last one. Cost: a lone join may wait for the interval.


ASSIGNORS: Final[Mapping[str, Callable[[Applicants], Targets]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}


def may_compute(group: EpochGroup, interval_ms: int, now: int) -> bool:
    """Whether the interval since the last target has gone by; the first one waits for nothing."""
    never = group.computed_ms == 0
    return never or interval_ms == 0 or now >= group.computed_ms + interval_ms


def assignor_of(group: EpochGroup, old: ConsumerMember, new: ConsumerMember, default: str) -> str:
    """The assignor that most members ask for; at a tie, the first as Java walks them."""
    counts = HashOrder.copied(group.assignors)
    recount(counts, old.assignor, new.assignor)
    wanted = counts.items()
    return max(wanted, key=lambda each: each[1])[0] if wanted else default


def computed(
    group: EpochGroup,
    new: ConsumerMember,
    *,
    epoch: int,
    assignor: str,
    image: TopicImage,
    now: int,
    homogeneous: bool,
) -> tuple[Target, list[ConsumerRecord]]:
    """(the new target of that member, the records of all that change).

    `new` is the member as its heartbeat makes it; it may replace a static member of another id.
    Raises RequestRefused (UNKNOWN_SERVER_ERROR) where the assignor fails.
    """
    applicants = _applicants(group, new, image)
    given = Applicants(
        tuple(applicants.values()),
        image.partitions,
        group.target_owners,
        homogeneous,
    )
    try:
        targets = ASSIGNORS[assignor](given)
    except AssignmentFailed as error:
        raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR) from error
    records: list[ConsumerRecord] = []
    for member in applicants:
        target = targets.get(member, HashOrder())
        if member not in group.targets or target != group.targets[member]:
            value = TargetValue.of(target)
            records.append(ConsumerRecord(TARGET, group.id, member, value))
    records.append(ConsumerRecord(TARGET_EPOCH, group.id, None, TargetEpochValue(epoch, now)))
    return targets.get(new.id, HashOrder()), records


def _applicants(
    group: EpochGroup, new: ConsumerMember, image: TopicImage
) -> HashOrder[str, Applicant]:
    """All members as they will be, in the order of a Java map of them."""

    def applicant(member: ConsumerMember, target: Target) -> Applicant:
        names = group.names_of(member)
        return Applicant(member.id, member.instance, image.ids_of(names), len(names), target)

    found: HashOrder[str, Applicant] = HashOrder()
    for member in group.members.values():
        found[member.id] = applicant(member, group.targets.get(member.id, HashOrder()))
    inherited = group.statics.get(new.instance) if new.instance is not None else None
    target = group.targets.get(inherited or new.id, HashOrder())
    updates: HashOrder[str, ConsumerMember | None] = HashOrder()
    updates[new.id] = new
    if inherited is not None and inherited != new.id:
        updates[inherited] = None
    for member_id, update in updates.items():
        if update is None:
            found.pop(member_id, None)
        else:
            found[member_id] = applicant(update, target)
    return found


# Regular expressions that the coordinator resolves for its members (RE2/J, whole names).
#
# Problem: brokers match with RE2/J, whose syntax is not Python's. Choice: Python's `re` for what
# both know, and a refusal of what RE2 leaves out: looking around, back references, atomic and
# possessive parts, conditions, comments. Cost: not modelled is the syntax that only RE2 has
# (`\pN`, `\C`, `\Q..\E`, `[[:alpha:]]`, `(?U)`): it is refused here and taken there.


_ONLY_PYTHONS: Final = re.compile(
    r"(?:^|[^\\])(?:\\\\)*"
    r"(?:\(\?(?:[=!>#(]|<[=!]|P=)|\\[1-9]|[*+?}]\+)"
)
_ONLY_RE2S: Final = re.compile(r"(?:^|[^\\])(?:\\\\)*(?:\\[pPCQEz]|\[\[:|\(\?[imsU-]*U)")
_KNOWN: Final = 4096


@lru_cache(maxsize=_KNOWN)
def compiled(regex: str) -> re.Pattern[str]:
    """Compiles a regular expression of a subscription.

    Raises RequestRefused (INVALID_REGULAR_EXPRESSION) where RE2 has none like it.
    """
    if _ONLY_PYTHONS.search(regex) or _ONLY_RE2S.search(regex):
        raise RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION)
    try:
        return re.compile(regex)
    except re.error as error:
        raise RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION) from error


def matching(regex: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the expression matches as a whole, sorted."""
    pattern = compiled(regex)
    return tuple(sorted(name for name in names if pattern.fullmatch(name)))


# When a group's regular expressions are resolved, and what follows from it.
#
# Problem: matching every topic's name with every member's expression takes long, so it must not
# hold up heartbeats. Choice: Kafka's: a heartbeat that finds a new expression, new topics, or an
# old answer (`regex_refresh_ms`) asks for all expressions of the group to be resolved, at most
# every ten seconds; the answer comes later and raises the group epoch if it is another. Cost: a
# topic that is made is seen with a delay.


_AT_MOST_EVERY_MS: Final = 10_000
_NEVER: Final = -(1 << 63)


class RegexChange(Enum):
    """What a heartbeat changed of its member's expression.

    NONE: nothing. TOLD: another one, of which nobody knows the topics yet. KNOWN: another one
    whose topics are known, or none any more: the group's topics are others at once.
    """

    NONE = "none"
    TOLD = "told"
    KNOWN = "known"


def regex_change(
    group: EpochGroup, old: ConsumerMember, new: ConsumerMember
) -> tuple[RegexChange, list[ConsumerRecord]]:
    """(what changed, the tombstone of an expression that nobody uses any more).

    Raises RequestRefused (INVALID_REGULAR_EXPRESSION) for a new one that cannot be read.
    """
    if old.regex == new.regex:
        return RegexChange.NONE, []
    records: list[ConsumerRecord] = []
    if old.subscribed_regex and group.regexes.get(old.subscribed_regex) == 1:
        records.append(ConsumerRecord(REGEX, group.id, old.subscribed_regex, None))
    known = False
    if not new.subscribed_regex:
        known = old.subscribed_regex is not None
    elif new.subscribed_regex not in group.regexes:
        compiled(new.subscribed_regex)
    else:
        known = new.subscribed_regex in group.resolved
    return RegexChange.KNOWN if known else RegexChange.TOLD, records


def to_resolve(
    group: EpochGroup,
    old: ConsumerMember,
    new: ConsumerMember,
    now: int,
    *,
    newest_topics: int,
    refresh_ms: int,
) -> tuple[str, ...]:
    """The expressions to resolve now; none where it is not time.

    `newest_topics` is the version of the metadata at which a topic was last made.
    """
    asks = new.subscribed_regex
    is_new = asks is not None and old.regex != new.regex and asks not in group.regexes
    if not is_new and not group.regexes:
        return ()
    first = next(iter(group.resolved.values()), None)
    last_ms = _NEVER if first is None else first.at_ms
    if now <= last_ms + _AT_MOST_EVERY_MS:
        return ()
    counts = HashOrder.copied(group.regexes)
    recount(counts, old.subscribed_regex, new.subscribed_regex)
    due = (
        is_new
        or len(counts) != len(group.resolved)
        or (0 if first is None else first.version) < newest_topics
        or now > last_ms + refresh_ms
    )
    return tuple(counts) if due else ()


def resolved(regexes: tuple[str, ...], image: TopicImage, now: int) -> Mapping[str, RegexValue]:
    """The topics of each expression, in the order in which Java walks the answer."""
    found: Mapping[str, None] = _sized(regexes)
    return {
        regex: RegexValue(matching(regex, image.by_name), image.version, now)
        for regex in _sized(tuple(found))
    }


def _sized(keys: tuple[str, ...]) -> HashOrder[str, None]:
    table: HashOrder[str, None] = HashOrder(len(keys))
    for key in keys:
        table[key] = None
    return table


def taken_up(
    group: EpochGroup, answers: Mapping[str, RegexValue], image: TopicImage
) -> tuple[int | None, list[ConsumerRecord]]:
    """(the new group epoch if it rises, the records) for what came of resolving."""
    topics = dict(group.topics)
    records: list[ConsumerRecord] = []
    rises = False
    for regex, value in answers.items():
        if regex not in group.regexes:
            continue
        old = group.resolved.get(regex, Resolved(HashOrder(), -1, -1))
        if set(old.topics) != set(value.topics):
            rises = True
            counted(topics, old.topics, by_regex=-1)
            counted(topics, value.topics, by_regex=1)
        records.append(ConsumerRecord(REGEX, group.id, regex, value))
    hashed = group_hash(topics, image)
    if not rises and hashed == group.metadata_hash:
        return None, records
    value_of_epoch = EpochValue(group.epoch + 1, hashed)
    records.append(ConsumerRecord(EPOCH, group.id, None, value_of_epoch))
    return group.epoch + 1, records


NEXT_TOPIC_CHECK_MS: Final = 2_147_483_647
"""How long a look at the topics holds without a change of them (24.8 days)."""
_TELLS: Final = slice(4, 9)
"""Where a heartbeat says what a member is: rack, rebalance timeout, topics, regex, assignor."""
_NOTHING_TOLD: Final = ConsumerGroupHeartbeatRequest("", "", 0)[_TELLS]


def heartbeat(
    shard: ConsumerShard, asked: ConsumerGroupHeartbeatRequest, client: Client
) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
    """(the answer, what it writes). Raises RequestRefused."""
    group = shard.groups.by_id.get(asked.group_id)
    if group is None and asked.member_epoch == JOINING:
        group = EpochGroup(asked.group_id)
    group = group or shard.groups.group(asked.group_id)
    most = shard.settings.max_size
    if len(group.members) >= most and asked.member_id not in group.members:
        raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    return _Heartbeat(shard, group, asked).answered(client)


@dataclass(slots=True)
class _Heartbeat:
    shard: ConsumerShard
    group: EpochGroup
    asked: ConsumerGroupHeartbeatRequest

    def answered(self, client: Client) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
        records: Records = []
        old = self._member(records)
        told = self._as_told(old, client)
        new = told if told is old and self._is_settled(old) else self._step(old, told, records)
        self.shard.expect_heartbeat(self.group.id, self.asked.member_id)
        return self._answer(old, new), records

    def _is_settled(self, member: ConsumerMember) -> bool:
        """Nothing is to do for one that tells nothing new: most heartbeats."""
        group = self.group
        return (
            group.target_epoch >= group.epoch
            and member.is_reconciled_to(group.target_epoch)
            and not group.regexes
            and not group.must_check_topics(self.shard.now)
        )

    def _step(self, old: ConsumerMember, told: ConsumerMember, records: Records) -> ConsumerMember:
        """The member after its next step."""
        renamed, regex = False, RegexChange.NONE
        if told is not old:
            if told != old:
                records.append(ConsumerRecord(MEMBER, self.group.id, told.id, MemberValue.of(told)))
            renamed = told.topics != old.topics
            regex, more = regex_change(self.group, old, told)
            records += more
        if told is not old or self.group.regexes:
            self._ask_to_resolve(old, told)
        bumps = renamed or regex is RegexChange.KNOWN
        epoch, homogeneous = self.group.epoch, self.group.homogeneous
        if bumps or self.group.must_check_topics(self.shard.now):
            epoch, homogeneous = self._look_at_topics(old, told, records, bumps=bumps)
        target_epoch, target = self._target(epoch, old, told, records, homogeneous=homogeneous)
        changed = renamed or regex is not RegexChange.NONE
        return self._reconciled(told, target_epoch, target, records, changed=changed)

    # The member.

    def _member(self, records: Records) -> ConsumerMember:
        """The member as it is known, a new one, or the heir of a static one."""
        asked, group = self.asked, self.group
        joins = asked.member_epoch == JOINING
        if asked.instance_id is None:
            known = group.members.get(asked.member_id)
            if known is None:
                if not joins:
                    known = self.shard.groups.member(group, asked.member_id)
                else:
                    known = ConsumerMember(id=asked.member_id)
            self._check_epoch(known)
            return known
        if not joins:
            known = static_member(group, asked.instance_id, asked.member_id)
            self._check_epoch(known)
            return known
        last = group.static_member(asked.instance_id)
        if last is None:
            return group.members.get(asked.member_id) or ConsumerMember(id=asked.member_id)
        if last.epoch != AWAY:
            raise RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID)
        heir = last.having(id=asked.member_id, epoch=0, previous_epoch=0)
        records += replaced(group, last, heir)
        return heir

    def _check_epoch(self, member: ConsumerMember) -> None:
        owned = self.asked.topic_partitions
        check_epoch(member, self.asked.member_epoch, None if owned is None else owned_by_id(owned))

    def _as_told(self, old: ConsumerMember, client: Client) -> ConsumerMember:
        asked = self.asked
        topics, host = old.topics, f"/{client.host}"
        if (
            asked[_TELLS] == _NOTHING_TOLD
            and asked.instance_id in {None, old.instance}
            and client.client_id == old.client
            and host == old.host
        ):
            return old  # most heartbeats
        if asked.subscribed_topic_names is not None:
            names = asked.subscribed_topic_names
            topics = HashOrder.collected(names, None, len(names))
        regex = asked.subscribed_topic_regex
        timeout = asked.rebalance_timeout_ms
        return old.having(
            instance=old.instance if asked.instance_id is None else asked.instance_id,
            rack=old.rack if asked.rack_id is None else asked.rack_id,
            rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
            assignor=old.assignor if asked.server_assignor is None else asked.server_assignor,
            topics=topics,
            regex=old.regex if regex is None else regex,
            client=client.client_id,
            host=host,
        )

    # The group.

    def _ask_to_resolve(self, old: ConsumerMember, told: ConsumerMember) -> None:
        if self.group.id in self.shard.to_resolve:
            return
        regexes = to_resolve(
            self.group,
            old,
            told,
            self.shard.now,
            newest_topics=self.shard.newest_topics,
            refresh_ms=self.shard.settings.regex_refresh_ms,
        )
        if regexes:
            self.shard.to_resolve[self.group.id] = regexes

    def _look_at_topics(
        self, old: ConsumerMember, told: ConsumerMember, records: Records, *, bumps: bool
    ) -> tuple[int, bool]:
        """(the group epoch, whether all subscribe to the same) with the member as it tells."""
        group, shard = self.group, self.shard
        topics = group.topics_with(old, told)
        hashed = group_hash(topics, shard.image)
        is_new = told.id not in group.members and told.instance not in group.statics
        homogeneous = is_homogeneous(
            group.regexes_with(old, told), topics, len(group.members) + is_new
        )
        epoch = group.epoch
        if bumps or hashed != group.metadata_hash:
            epoch += 1
            records.append(ConsumerRecord(EPOCH, group.id, None, EpochValue(epoch, hashed)))
        group.note_topic_check(shard.now + NEXT_TOPIC_CHECK_MS, epoch)
        if group.has_old_metadata:
            records.append(ConsumerRecord(PARTITION_METADATA, group.id, None, None))
        return epoch, homogeneous

    def _target(
        self,
        epoch: int,
        old: ConsumerMember,
        told: ConsumerMember,
        records: Records,
        *,
        homogeneous: bool,
    ) -> tuple[int, Target]:
        group, shard = self.group, self.shard
        if group.target_epoch >= epoch:
            return group.target_epoch, group.target_of(told)
        interval = shard.settings_of(group.id).assignment_interval_ms
        if not may_compute(group, interval, shard.now):
            return group.target_epoch, group.target_of(told)
        target, more = computed(
            group,
            told,
            epoch=epoch,
            assignor=assignor_of(group, old, told, shard.settings.assignors[0]),
            image=shard.image,
            now=shard.now,
            homogeneous=homogeneous,
        )
        records += more
        return epoch, target

    # The answer.

    def _reconciled(
        self, told: ConsumerMember, epoch: int, target: Target, records: Records, *, changed: bool
    ) -> ConsumerMember:
        if not changed and told.is_reconciled_to(epoch):
            return told
        group, owned = self.group, self.asked.topic_partitions
        new = Reconciliation(
            epoch=epoch,
            target=target,
            names=group.names_of(told),
            subscription_changed=changed,
            reported=None if owned is None else owned_by_id(owned),
            image=self.shard.image,
            epoch_of=group.epoch_of,
        ).next_of(told)
        if new != told:
            value = CurrentValue.of(new)
            records.append(ConsumerRecord(CURRENT, group.id, new.id, value))
            if new.state is ConsumerMemberState.UNREVOKED:
                self.shard.expect_revocation(group.id, new)
            else:
                self.shard.expect_no_revocation(group.id, new.id)
        return new

    def _answer(self, old: ConsumerMember, new: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
        asked = self.asked
        names, regex = asked.subscribed_topic_names, asked.subscribed_topic_regex
        told_all = (
            asked.rebalance_timeout_ms != -1
            and (names is not None or regex is not None)
            and asked.topic_partitions is not None
        )
        assignment = None
        given = new is not old and new.assigned != old.assigned
        if asked.member_epoch == JOINING or told_all or given:
            assignment = ConsumerGroupAssignment(topic_partitions(new.assigned))
        interval = self.shard.settings_of(self.group.id).heartbeat_ms
        return ConsumerGroupHeartbeatResponse(0, new.id, new.epoch, interval, assignment)
