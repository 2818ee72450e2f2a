"""Who is evicted for a newcomer under KIP-848, and who never is [16, 17]."""

from collections.abc import Sequence

import pytest

from fleet.errors import FleetError
from fleet.model import Member
from fleet.worker.slot.takeover import ForeignHolder, Former, Takeover
from tests.support.batch_parts import events_of
from tests.support.seen_groups import member_seen

OURS = Former(instance_id="g-0", member_ids=("old", "m1"), workers=frozenset({"w", "dead"}))


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

    def holder_of(self, instance_id: str) -> Member | None:
        """Who has the instance id now."""
        if self.away:
            raise FleetError("nobody answers")
        if self.member is None:
            return None
        return member_seen(self.member, instance_id=instance_id, client_id=self.client)

    def free(self, former: Former = OURS) -> str | None:
        """A taker frees the instance id."""
        leave, holder_of = self.leave, self.holder_of
        return Takeover(group="g", leave=leave, holder_of=holder_of, events=events_of()).free(
            former
        )


def test_the_last_member_that_was_written():
    """Nearly always the one: one request."""
    coordinator = Coordinator()
    assert coordinator.free() is None
    assert coordinator.left == [("g-0", "m1")]


def test_a_later_member_of_a_dead_worker():
    """It died before it could write its new id: the coordinator names it, the lease proves it."""
    coordinator = Coordinator("m2", "dead")
    assert coordinator.free() is None
    assert coordinator.left == [("g-0", "m1"), ("g-0", "m2")]


def test_an_earlier_member_that_we_know():
    """By its id, whatever it calls itself."""
    coordinator = Coordinator("old", "elsewhere")
    assert coordinator.free() is None
    assert coordinator.left[-1] == ("g-0", "old")


def test_a_foreign_process_is_never_evicted():
    """Neither its id nor its name is one of ours."""
    coordinator = Coordinator("m9", "somebody")
    with pytest.raises(ForeignHolder, match=r"the process somebody at /10\.0\.0\.1"):
        coordinator.free()
    assert coordinator.member == "m9"
    assert coordinator.left == [("g-0", "m1")]


def test_nobody_has_it():
    """Whatever the leave was answered with."""
    coordinator = Coordinator(None)
    coordinator.refusal = "no"
    assert coordinator.free() is None
    nothing_written = Former(instance_id="g-0", member_ids=(), workers=OURS.workers)
    assert Coordinator(None).free(nothing_written) is None


def test_without_a_known_member_the_coordinator_is_asked():
    """A slot may never have been written by its holder."""
    coordinator = Coordinator("m5", "w")
    assert coordinator.free(Former(instance_id="g-0", member_ids=(), workers=OURS.workers)) is None
    assert coordinator.left == [("g-0", "m5")]


def test_a_refusal_is_told():
    """The join would be refused as well: the worker says why. The same is not asked twice."""
    coordinator = Coordinator()
    coordinator.refusal = "not authorised"
    assert coordinator.free() == "not authorised"
    assert coordinator.left == [("g-0", "m1")]


def test_a_silent_coordinator_is_told():
    """Not freed."""
    coordinator = Coordinator()
    coordinator.away = True
    assert coordinator.free() == "nobody answers"
