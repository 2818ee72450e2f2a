"""Rebalances and members out of hand-made records: what a broker shows too seldom to wait for."""

import json
from typing import Any

from fleet.log.records import (
    AssignmentEpoch,
    ClassicMember,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Record,
    Tombstone,
)
from fleet.log.replay.causes import Replay
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, Confidence, MembershipSpan, Rebalance, TimeSource

START = 1_800_000_000.0


class Story:
    """A group's records, one after the other, and what the replay makes of them."""

    def __init__(self) -> None:
        self.replay = Replay("main", "g")
        self.rows: list[Rebalance | MembershipSpan] = []
        self.offset = 0
        self.at = START

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.at += seconds

    def _feed(self, kind: type[Record], **values: Any) -> None:
        place = {"offset": self.offset, "timestamp_ms": int(self.at * 1000), "group": "g"}
        self.rows += self.replay.feed(3, kind(**place, **values))
        self.offset += 1

    def generation(
        self, number: int, *members: tuple[Any, ...], protocol: str = "range", stable: float = 0.0
    ) -> None:
        """Members are (member id, instance id, partitions of t)."""
        found = [
            ClassicMember(
                member_id=member_id,
                instance_id=instance_id,
                client_id="c",
                client_host="/10.0.0.1",
                rebalance_timeout_ms=300_000,
                session_timeout_ms=45_000,
                subscription=b"",
                assignment=b"",
                topics=("t",),
                assigned={"t": partitions},
            )
            for member_id, instance_id, partitions in members
        ]
        self._feed(
            GroupMetadata,
            type=2,
            protocol_type="consumer",
            generation=number,
            protocol=protocol if members else None,
            leader=None,
            state_timestamp_ms=int((self.at - stable) * 1000),
            members=tuple(found),
        )

    def joins(self, member_id: str, instance_id: str | None = None) -> None:
        """A KIP-848 member's record."""
        self._feed(
            ConsumerGroupMember,
            type=5,
            member_id=member_id,
            instance_id=instance_id,
            rack_id=None,
            client_id="c",
            client_host="/10.0.0.1",
            topics=("t",),
            regex=None,
            rebalance_timeout_ms=300_000,
            server_assignor=None,
        )

    def epoch(self, number: int, *, assigned: bool = True) -> None:
        """A group epoch, and the assignment for it."""
        self._feed(ConsumerGroupEpoch, type=3, epoch=number, metadata_hash=1)
        if assigned:
            self._feed(AssignmentEpoch, type=6, epoch=number)

    def owns(self, member_id: str, epoch: int, *partitions: int, state: int = 0) -> None:
        """A KIP-848 member's assignment."""
        self._feed(
            CurrentAssignment,
            type=8,
            member_id=member_id,
            epoch=epoch,
            previous_epoch=0,
            state=state,
            assigned={"id-of-t": partitions},
            revoking={},
        )

    def deleted(self, kind: int, *key: str) -> None:
        """A tombstone."""
        self._feed(Tombstone, type=kind, key=key)

    def commits(self, *partitions: int, times: int = 1, every: float = 1.0) -> None:
        """All of these partitions, again and again."""
        for _ in range(times):
            for number in partitions:
                self._feed(
                    OffsetCommit,
                    type=1,
                    tp=TopicPartition("t", number),
                    committed=self.offset,
                    leader_epoch=0,
                    metadata="",
                    commit_timestamp_ms=0,
                    topic_id="id-of-t",
                )
            self.later(every)

    @property
    def rebalances(self) -> list[Rebalance]:
        """What came so far."""
        return [row for row in self.rows if isinstance(row, Rebalance)]

    @property
    def members(self) -> list[tuple[str, str]]:
        """Event and member of every row of the membership."""
        return [(row.event, row.member) for row in self.rows if isinstance(row, MembershipSpan)]


A, B = ("a-1", None, (0, 1)), ("b-1", None, (2, 3))


def test_a_group_in_the_middle_of_its_life_says_that_its_past_is_not_known() -> None:
    story = Story()
    story.generation(17, A, B)
    (row,) = story.rebalances
    assert (row.cause, row.confidence, row.before) == (Cause.UNKNOWN, Confidence.AMBIGUOUS, None)
    assert (row.joined, row.aborted, row.members) == ((), 0, 2)
    assert story.members == [("owns", "a-1"), ("owns", "b-1")]


def test_a_first_record_that_was_rewritten_is_no_rebalance() -> None:
    story = Story()
    story.generation(17, ("a-2", "i1", (0, 1)), stable=7200)
    assert story.rebalances == []
    story.generation(18, ("a-2", "i1", (0, 1)))
    assert [row.before for row in story.rebalances] == [17]


def test_rounds_that_never_completed_are_counted_beside() -> None:
    story = Story()
    story.generation(0)
    story.later(3)
    story.generation(2, A, B)
    (row,) = story.rebalances
    assert (row.cause, row.aborted, row.joined) == (Cause.CREATED, 1, ("a-1", "b-1"))
    assert (row.start_source, row.seconds) == (TimeSource.RECORD, 3.0)


def test_a_member_that_was_idle_may_have_left_or_expired() -> None:
    story = Story()
    story.generation(1, A, B)
    story.later(3600)
    story.generation(2, ("a-1", None, (0, 1, 2, 3)))
    row = story.rebalances[-1]
    assert (row.cause, row.confidence) == (Cause.REMOVAL, Confidence.AMBIGUOUS)
    assert (row.left, row.moved) == (("b-1",), (TopicPartition("t", 2), TopicPartition("t", 3)))


def test_a_member_that_fell_silent_for_its_session_expired() -> None:
    story = Story()
    story.generation(1, A, B)
    story.commits(0, 1, 2, 3, times=20)
    story.commits(0, 1, times=46)
    story.generation(2, ("a-1", None, (0, 1, 2, 3)))
    row = story.rebalances[-1]
    assert (row.cause, row.confidence) == (Cause.EXPIRY, Confidence.LIKELY)


def test_a_commit_shortly_before_excludes_expiry() -> None:
    story = Story()
    story.generation(1, A, B)
    story.later(3600)
    story.commits(2)
    story.generation(2, ("a-1", None, (0, 1, 2, 3)))
    # It may have been dropped for not rejoining: the generation before is an hour old.
    assert story.rebalances[-1].cause is Cause.LEAVE
    assert story.rebalances[-1].confidence is Confidence.LIKELY


def test_a_group_made_anew_without_a_trace_of_its_deletion() -> None:
    story = Story()
    story.generation(9, A)
    story.generation(1, B)
    row = story.rebalances[-1]
    assert (row.cause, row.incarnation, row.before, row.joined) == (
        Cause.RECREATED,
        1,
        None,
        ("b-1",),
    )


def test_a_coordinator_that_moved_explains_a_round_without_a_change() -> None:
    story = Story()
    story.generation(1, A)
    story.later(100)
    story.replay.coordinator_moved(story.at)
    story.later(5)
    story.generation(2, A)
    assert story.rebalances[-1].cause is Cause.COORDINATOR_MOVE
    story.later(100)
    story.generation(3, A)
    assert story.rebalances[-1].cause is Cause.LEADER_REJOIN


def test_one_assignment_for_several_epochs_tells_the_first_event_and_the_others() -> None:
    story = Story()
    story.joins("a")
    story.epoch(2)
    story.owns("a", 2, 0, 1)
    story.later(60)
    story.deleted(5, "a")
    story.joins("b")  # another id without an instance: not the same member
    story.epoch(3, assigned=False)
    story.joins("c")
    story.epoch(4)
    assert [row.number for row in story.rebalances] == [2]
    (pending,) = story.replay.pending()
    assert (pending.number, pending.end_source) == (4, TimeSource.NOT)
    story.later(2)
    story.owns("b", 4, 0)
    story.owns("c", 4, 1, state=2)
    story.later(3)
    story.owns("c", 4, 1)
    row = story.rebalances[-1]
    assert (row.number, row.cause, row.also) == (4, Cause.REMOVAL, (Cause.JOIN,))
    assert (row.joined, row.left, row.seconds) == (("b", "c"), ("a",), 5.0)
    assert row.moved == (TopicPartition("id-of-t", 0), TopicPartition("id-of-t", 1))


def test_an_assignment_whose_members_the_log_no_longer_has_has_no_known_end() -> None:
    story = Story()
    story.epoch(17)
    (row,) = story.rebalances
    assert (row.cause, row.end_source, row.members) == (Cause.UNKNOWN, TimeSource.NOT, 0)


def test_names_may_come_late_and_in_parts() -> None:
    story = Story()
    story.joins("a")
    story.epoch(2)
    story.owns("a", 2, 0, 1)
    assert {tp.topic for tp in story.replay.members()[0].owned} == {"id-of-t"}
    story.replay.name_topics({"id-of-u": "u"})
    story.replay.name_topics({"id-of-t": "t"})
    assert {tp.topic for tp in story.replay.members()[0].owned} == {"t"}
    story.joins("b")
    story.epoch(3)
    story.owns("a", 3, 0)
    story.owns("b", 3, 1)
    assert story.rebalances[-1].moved == (TopicPartition("t", 1),)


def test_a_static_member_that_comes_back_under_kip_848_is_replaced() -> None:
    story = Story()
    story.joins("a-1", "i1")
    story.epoch(2)
    story.owns("a-1", 2, 0)
    story.owns("a-1", -2, 0)
    for kind in (8, 7, 5):
        story.deleted(kind, "a-1")
    story.joins("a-2", "i1")
    story.owns("a-2", 2, 0)
    assert story.members == [("joined", "i1"), ("owns", "i1"), ("replaced", "i1")]
    assert len(story.rebalances) == 1


def test_a_group_that_never_settles_keeps_few_open_rebalances() -> None:
    story = Story()
    story.joins("stuck")
    for number in range(2, 200):
        story.joins(f"m{number}")
        story.epoch(number)
        story.owns(f"m{number}", number)
        story.deleted(5, f"m{number}")
    assert len(story.replay.pending()) == 32
    assert len(story.rebalances) == 198 - 32
    assert {row.end_source for row in story.rebalances} == {TimeSource.NOT}


def test_the_state_does_not_grow_with_members_that_come_and_go() -> None:
    story = Story()

    def churn(rounds: range) -> int:
        for number in rounds:
            story.generation(number, (f"m-{number:06}", None, (0, 1)), B)
            story.commits(0, 1, 2, every=0.1)
        return len(json.dumps(story.replay.as_json()))

    assert churn(range(1000, 1300)) <= churn(range(1300, 1320)) + 20


def test_a_member_whose_own_record_compaction_put_behind_is_no_newcomer() -> None:
    """Its assignment comes first; state that a release without this kept is read too."""
    story = Story()
    story.epoch(4)
    story.owns("m1", 4, 0, 1)
    kept = json.loads(json.dumps(story.replay.as_json()))
    story.joins("m1", "i1")  # its address changed after its assignment
    assert [(row.event, row.owned) for row in story.rows if isinstance(row, MembershipSpan)] == [
        ("owns", (TopicPartition("id-of-t", 0), TopicPartition("id-of-t", 1)))
    ]
    story.joins("m2")
    story.epoch(5)
    story.owns("m1", 5, 0)
    story.owns("m2", 5, 1)
    (found,) = [r for r in story.rows if isinstance(r, Rebalance) and r.number == 5]
    assert (found.cause, found.joined) == (Cause.JOIN, ("m2",))
    assert found.moved == (TopicPartition("id-of-t", 1),)
    assert [m.owned for m in Replay.from_json(kept)._state.early.values()]


def test_what_a_newer_release_keeps_is_read_as_far_as_it_is_known() -> None:
    """Its keys are left out, its causes are unknown ones: who goes back loses no history."""
    story = Story()
    story.joins("m1", "i1")
    story.epoch(4)
    story.owns("m1", 4, 0, 1)
    story.commits(0, 1, 2, every=0.1)
    story.joins("m2")
    story.epoch(5)
    now = story.replay.as_json()
    kept = json.loads(json.dumps(now))
    assert kept["epochs"]["open"], "one is not over"
    for value in (kept["group"], *kept["group"]["members"], kept["epochs"]):
        value["colour"] = "green"
    for each in kept["epochs"]["open"]:
        each |= {"colour": "green", "cause": "moonlight", "end_source": "by the stars"}
    kept["classic"].append("green")
    kept["epochs"]["steps"] = [["moonlight", "likely", ["join"], "green"]]
    for commits in kept["group"]["commits"].values():
        for each in commits.values():
            each.append("green")
    read = Replay.from_json(kept)
    (pending,) = read.pending()
    assert (pending.number, pending.cause, pending.end_source) == (5, Cause.UNKNOWN, TimeSource.NOT)
    again = read.as_json()
    assert again["group"] == now["group"]
    assert again["classic"] == now["classic"]


def test_a_member_that_left_and_came_back_before_the_assignment_is_named() -> None:
    """KIP-848: a slow client leaves and joins again under its own id; both stand in the row."""
    story = Story()
    for name in ("a", "b"):
        story.joins(name)
    story.epoch(1)
    story.owns("a", 1, 0)
    story.owns("b", 1, 1)
    story.deleted(8, "a")
    story.deleted(7, "a")
    story.deleted(5, "a")
    story.epoch(2, assigned=False)
    story.joins("a")
    for number, named in ((3, ("a",)), (4, ())):
        story.epoch(number)
        for place, name in enumerate(("a", "b")):
            story.owns(name, number, place)
        last = story.rebalances[-1]
        assert (last.number, last.joined, last.left, last.replaced) == (number, named, named, ())
