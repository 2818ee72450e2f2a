"""What of a LeaveGroup's answers counts as gone [16]; tests/runtime asks a real broker."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kafka import errors

from fleet.act.kafka import GroupAdmin
from fleet.clock import ManualClock
from fleet.errors import FleetError


class Client:
    """Answers by member id."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str | None]] = []

    def remove_group_members(self, group: str, members: Sequence[Any]) -> Mapping[str, Any]:
        """As kafka-python's admin client."""
        self.asked += [(m.member_id, m.group_instance_id) for m in members]
        return self.answers

    def close(self) -> None:
        """Nothing is open."""


def admin(**answers: Any) -> tuple[GroupAdmin, Client]:
    made = GroupAdmin(bootstrap="b", kafka_python_config={}, clock=ManualClock())
    client = Client(answers)
    made._client = client  # type: ignore[assignment]
    return made, client


def leave(made: GroupAdmin, *members: tuple[str | None, str]) -> str | None:
    """As a step asks."""
    return made.leave_all("g", members, reason="test")


def test_gone_now_or_before():
    """0 and 25; both ids are named."""
    made, client = admin(m0=errors.NoError, m1=errors.UnknownMemberIdError)
    assert leave(made, ("g-0", "m0"), (None, "m1")) is None
    assert client.asked == [("m0", "g-0"), ("m1", None)]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"m0": errors.FencedInstanceIdError}, "g-0 now belongs to another process (82)"),
        ({"m0": errors.GroupAuthorizationFailedError}, "the coordinator answered g-0 with"),
        ({}, "the coordinator answered g-0 with no answer"),
    ],
)
def test_anything_else_is_a_refusal(answers, told):
    """Who is superseded is left alone; who was not answered may be there."""
    made, _ = admin(**answers)
    assert told in str(leave(made, ("g-0", "m0")))


@pytest.mark.parametrize("member", [("g-0", ""), ("", "m0"), (None, "")])
def test_by_instance_id_alone_nobody_leaves(member):
    """It could evict a live successor: nothing is sent."""
    made, client = admin()
    with pytest.raises(FleetError, match="together"):
        made.leave("g", [member], reason="x")
    assert "together" in str(leave(made, member))
    assert client.asked == []
