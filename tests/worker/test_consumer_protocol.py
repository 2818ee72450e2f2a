"""KIP-848's side of the protocol seam; who may be evicted is in test_failover.py [10, 17]."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.model import Member
from fleet.worker.member.member_state import End, MemberState
from fleet.worker.member.pipeline import CommitResult, Committer
from fleet.worker.member.protocols import (
    RETRIED,
    VOID,
    Fenced,
    MemberProtocol,
    Unreleased,
    end_of,
    fatal_of,
)
from fleet.worker.slot.leave_completion import ExternalOwner, Failover, FormerOwner
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.seen_groups import member_seen


def protocol(**worker):
    """The protocol of a worker declared so."""
    declared = group_spec(worker={"protocol": "consumer", **worker}).worker
    assert declared is not None
    return MemberProtocol(declared)


def test_options_are_what_librdkafka_takes():
    """It refuses session, heartbeat and strategy under group.protocol=consumer; we name none."""
    options = protocol(max_poll_interval="2m").options("g-3")
    assert options == {
        "group.protocol": "consumer",
        "group.instance.id": "g-3",
        "max.poll.interval.ms": 120_000,
    }
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **options, "log_level": 0})
    assert "group.instance.id" not in protocol(membership="dynamic").options(None)


@pytest.mark.parametrize(
    ("code", "text", "how"),
    [
        (82, "fenced", End.FENCED),
        (111, "still there", End.UNRELEASED),
        (-150, "Broker: The instance ID is still used by another member in the group", None),
        (112, "no such assignor", End.FATAL),
        (69, "no such group", End.FATAL),
    ],
)
def test_codes_end_a_membership(code, text, how):
    """111 is answered by freeing the id, 82 by [15], the rest ends the worker [10]."""
    error = fatal_of(KafkaError(code, text))
    assert error is not None
    assert end_of(error) is (how or End.UNRELEASED)
    assert isinstance(error, Fenced) == (code == 82)
    assert isinstance(error, Unreleased) == (code in {111, -150})


def test_commits_of_a_stale_epoch_are_retried_and_of_a_fenced_one_void():
    """113 passes with the next heartbeat, 110 and 25 mean that the membership is over [2]."""
    assert 113 in RETRIED
    assert {110, 25} <= VOID
    assert not RETRIED & VOID


def answered_with(code: int) -> Committer:
    """Its commits are all refused with this code."""

    def commit(**_: Any) -> None:
        raise KafkaException(KafkaError(code))

    context = worker_context(clock=ManualClock())
    return Committer(context, SimpleNamespace(commit=commit), MemberState())


@pytest.mark.parametrize("code", [-195, -169, -181])
def test_a_commit_on_a_connection_that_failed_is_made_again(code):
    """Unreachable, a login whose token has just ended, a TLS handshake cut short."""
    entries = [KafkaPartition("orders", 0, 7)]
    assert answered_with(code).write(entries) == (CommitResult.RETRY, frozenset())


def test_metadata_that_is_too_large_is_named_with_its_setting():
    """One partition's, however many are committed together."""
    entries = [KafkaPartition("orders", each, 7, metadata="m" * each) for each in (90, 110, 100)]
    told = r"metadata of orders-110 has 110 bytes, .* offset\.metadata\.max\.bytes: raise that"
    with pytest.raises(FleetError, match=told):
        answered_with(12).write(entries)


# --- who is evicted for a newcomer under KIP-848, and who never is ----------------------------


OURS = FormerOwner(instance_id="g-0", member_ids=("old", "m1"), workers=frozenset({"w", "dead"}))


class Coordinator:
    """Has one member, or none; says no where it is told to."""

    def __init__(self, member: str | None = "m1", client: str = "dead") -> None:
        self.member = member
        self.client = client
        self.left: list[tuple[str | None, str]] = []
        self.refusal: str | None = None
        self.away = False

    def leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        """One leave names who it means by both ids."""
        if self.away:
            raise FleetError("nobody answers")
        assert group == "g"
        self.left += members
        (named,) = members
        if self.refusal is not None or self.member not in {None, named[1]}:
            return self.refusal or "g-0 now belongs to another process (82)"
        self.member = None
        return None

    def owner_of(self, instance_id: str) -> Member | None:
        """Who has the instance id now."""
        if self.away:
            raise FleetError("nobody answers")
        if self.member is None:
            return None
        return member_seen(self.member, instance_id=instance_id, client_id=self.client)

    def free(self, former: FormerOwner = OURS) -> str | None:
        """A new owner frees the instance id."""
        context = worker_context(settings_of(group_spec("g")))
        failover = Failover(context, leave=self.leave, owner_of=self.owner_of)
        return failover.free(former)


UNWRITTEN = FormerOwner(instance_id="g-0", member_ids=(), workers=OURS.workers)


@pytest.mark.parametrize(
    ("coordinator", "former", "left"),
    [
        pytest.param(Coordinator("m1"), OURS, ["m1"], id="the last that was written"),
        # It died before it could write its new id: its name is in the id's report.
        pytest.param(Coordinator("m2", "dead"), OURS, ["m1", "m2"], id="a later one of the dead"),
        pytest.param(Coordinator("old", "elsewhere"), OURS, ["m1", "old"], id="an earlier one"),
        pytest.param(Coordinator("m5", "w"), UNWRITTEN, ["m5"], id="none was written"),
        pytest.param(Coordinator(None), UNWRITTEN, [], id="nobody has it"),
    ],
)
def test_who_leaves_for_a_newcomer(coordinator: Coordinator, former: FormerOwner, left: list[str]):
    """The member that the slot names; else whom the coordinator names, if it is one of ours."""
    assert coordinator.free(former) is None
    assert coordinator.left == [("g-0", member) for member in left]


def test_a_foreign_process_is_never_evicted():
    """Neither its id nor its name is one of ours."""
    coordinator = Coordinator("m9", "somebody")
    with pytest.raises(ExternalOwner, match=r"the process somebody at /10\.0\.0\.1"):
        coordinator.free()
    assert coordinator.member == "m9"
    assert coordinator.left == [("g-0", "m1")]


def test_a_refusal_is_told():
    """The join would be refused as well: the worker says why. The same is not asked twice."""
    coordinator = Coordinator()
    coordinator.refusal = "not authorised"
    assert coordinator.free() == "not authorised"
    assert coordinator.left == [("g-0", "m1")]
    gone = Coordinator(None)
    gone.refusal = "no"
    assert gone.free() is None, "nobody has it, whatever the leave was answered with"


def test_a_silent_coordinator_is_told():
    """Not freed."""
    coordinator = Coordinator()
    coordinator.away = True
    assert coordinator.free() == "nobody answers"
