"""What a member may own after a heartbeat: one step from what it has towards its target.

Problem: a partition must have one owner at any time, and members hear of a new target only with
their heartbeats. Choice: Kafka's (KIP-848): first a member gives up what is not in its target
and says so, then it takes the target's epoch with what is free of it, then the rest as others
let it go. Cost: two heartbeat intervals in the worst case for a partition that moves.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from fleet.sim.assignors.applicants import Target
from fleet.sim.coordinator.consumer_member import (
    ConsumerMember,
    ConsumerMemberState,
    MemberAction,
    Owned,
    moved,
)
from fleet.sim.coordinator.request_refusals import fenced_state
from fleet.sim.coordinator.topic_image import TopicImage
from fleet.sim.hashing.hash_order import HashOrder, emptied

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
                raise fenced_state(member.id)
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
