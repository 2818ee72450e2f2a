"""The coordinator of KIP-848 consumer groups as a model of Kafka 4.3.1's, exact to the byte.

Problem: what a plan costs follows from what the coordinator does at every heartbeat; an estimate
of it is wrong where it matters, in the middle of another change. Choice: the coordinator's own
machine without its I/O: requests, topics and time go in, answers and records come out, in the
very bytes and order that Kafka writes (tests/conformance plays both side by side). Cost: Python
is slower than Kafka's code, and Kafka 4.3.1 is one version.

Not modelled: groups that are both classic and KIP-848 (conversion either way), share and streams
groups, offsets (an empty group is one without any), access rules, appends that fail, ids that the
broker makes (version 0 of the request), racks, members that subscribe to different topics or by
expressions, and assignors other than `uniform`. Where several members leave by one request, Java
walks them in an order that differs from run to run; here it is theirs.
"""

from collections.abc import Iterable, Iterator, Sequence

from fleet.sim.coordinator import consumer_shard
from fleet.sim.coordinator.consumer_group import AWAY, LEFT, ConsumerMemberState
from fleet.sim.coordinator.consumer_heartbeat import check, heartbeat
from fleet.sim.coordinator.consumer_records import ConsumerRecord
from fleet.sim.coordinator.consumer_shard import (
    BROKER_DEFAULTS,
    ConsumerGroupSettings,
    ConsumerShard,
)
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    RequestRefused,
)
from fleet.sim.coordinator.topic_image import TopicFacts, TopicImage

_ANYONE = Client()


class ConsumerCoordinator:
    """One partition's coordinator, with its log. All times in ms.

    Each method writes at the time to which the coordinator was brought last (`advance`).
    """

    def __init__(
        self, settings: ConsumerGroupSettings = BROKER_DEFAULTS, *, start_ms: int = 0
    ) -> None:
        self.shard = ConsumerShard(settings=settings, now=start_ms)
        self.log: list[ConsumerRecord] = []
        self.shard.expect_cleanup()

    @property
    def now(self) -> int:
        """Returns the model's time in milliseconds."""
        return self.shard.now

    def heartbeat(
        self, asked: ConsumerGroupHeartbeatRequest, client: Client = _ANYONE
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat, a join or a leave of a member."""
        try:
            check(asked)
            if asked.member_epoch in (LEFT, AWAY):
                answer, records = consumer_shard.leave(self.shard, asked)
            else:
                answer, records = heartbeat(self.shard, asked, client)
        except RequestRefused as refused:
            return ConsumerGroupHeartbeatResponse(error_code=int(refused.code))
        self._write(records)
        return answer

    def leave_group(self, asked: LeaveGroupRequest) -> LeaveGroupResponse:
        """Members are taken out by an administrator."""
        try:
            answer, records = consumer_shard.leave_many(self.shard, asked)
        except RequestRefused as refused:
            code = int(refused.code)
            refusals = [MemberResponse(*leaver, code) for leaver in asked.members]
            return LeaveGroupResponse(members=tuple(refusals))
        self._write(records)
        return answer

    def advance(self, until: int) -> Iterator[str]:
        """Time goes on: each timer goes off at its own moment; yields their keys, after it."""
        while (due := self.shard.timers.take(until)) is not None:
            self.shard.now = max(self.shard.now, due.deadline)
            if due.action is None:
                self._write(consumer_shard.cleaned_up(self.shard))
            else:
                self._write(consumer_shard.expired(self.shard, due.action))
            yield due.key
        self.shard.now = max(self.shard.now, until)

    def set_topics(self, topics: Iterable[TopicFacts]) -> None:
        """The cluster's topics are now these; groups that know a changed one look again."""
        shard, old = self.shard, self.shard.image
        new = shard.image = TopicImage(old.version + 1, topics)
        names = {old.by_id[each].name for each in old.by_id.keys() - new.by_id.keys()}
        names |= {topic.name for topic in new.by_id.values() if topic != old.by_id.get(topic.id)}
        for group in shard.groups.by_id.values():
            if not names.isdisjoint(group.topics):
                group.note_topic_check(0, 0)

    def fail_over(self, log: Sequence[ConsumerRecord] | None = None) -> None:
        """Another broker takes over and knows the log only; `log`: what was left of it.

        Sessions begin anew. Raises BrokenLog for records that contradict each other.
        """
        before, self.log = self.shard, list(self.log if log is None else log)
        self.shard = shard = ConsumerShard(
            settings=before.settings,
            now=before.now,
            image=before.image,
        )
        shard.groups.take_up(self.log)
        for group in shard.groups.by_id.values():
            for member in group.members.values():
                shard.expect_heartbeat(group.id, member.id)
                if member.state is ConsumerMemberState.UNREVOKED:
                    shard.expect_revocation(group.id, member)
        shard.expect_cleanup()

    def _write(self, records: list[ConsumerRecord]) -> None:
        if not records:
            return
        self.shard.groups.take_up(records)
        self.log += records
