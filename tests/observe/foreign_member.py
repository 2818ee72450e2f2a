"""A member of a classic group that is no consumer, or one that hands out what is no assignment."""

import time

from kafka.protocol.consumer import (
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest

from fleet.kafka_source.connections import Connections

_LOADING = {14, 15, 16}
_ID_FIRST = 79


class ForeignMember:
    """Alone in its group, for a minute: it sends no heartbeats."""

    def __init__(
        self, bootstrap: str, group: str, *, protocol_type: str, assignment: bytes = b""
    ) -> None:
        self._net = Connections({"bootstrap.servers": bootstrap}, client_id="foreign")
        self._group = group
        self.member_id = ""
        self._find()
        joined = self._join(protocol_type)
        if joined.error_code == _ID_FIRST:
            self.member_id = joined.member_id
            joined = self._join(protocol_type)
        assert joined.error_code == 0
        self.member_id = joined.member_id
        given = SyncGroupRequest.SyncGroupRequestAssignment
        synced = self._ask(
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type=protocol_type,
                protocol_name="any",
                assignments=[given(member_id=self.member_id, assignment=assignment)],
            )
        )
        assert synced.error_code == 0

    def _find(self) -> None:
        """Wait for the coordinator; a cluster's first group makes it."""
        end = time.monotonic() + 120
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group], min_version=4)
        while True:
            (found,) = self._net.ask_any(request, 10).coordinators
            if found.error_code == 0:
                self._broker = found.node_id
                return
            assert found.error_code in _LOADING
            assert time.monotonic() < end
            time.sleep(0.1)

    def _join(self, protocol_type: str):
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="any", metadata=b"")
        end = time.monotonic() + 120
        while True:
            joined = self._ask(
                JoinGroupRequest(
                    group_id=self._group,
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=60_000,
                    member_id=self.member_id,
                    protocol_type=protocol_type,
                    protocols=[protocol],
                )
            )
            if joined.error_code not in _LOADING or time.monotonic() > end:
                return joined
            time.sleep(0.1)

    def _ask(self, request):
        return self._net.ask({self._broker: request}, 60)[self._broker]

    def close(self) -> None:
        """Leave."""
        member = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        self._ask(LeaveGroupRequest(group_id=self._group, members=[member], min_version=3))
        self._net.close()
