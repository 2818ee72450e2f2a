"""A member of a classic group that is no consumer, or one that hands out what is no assignment."""

import time

from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from fleet.kafka_source.connections import Connections

_LOADING = {14, 15, 16}
_UNKNOWN_MEMBER = 25
_REBALANCES = 27
_AGAIN = {*_LOADING, _UNKNOWN_MEMBER, _REBALANCES}
"""A coordinator that was loaded anew knows no member that has not joined yet."""
_ID_FIRST = 79


class ForeignMember:
    """Alone in its group, for a minute: it sends no heartbeats."""

    def __init__(
        self, bootstrap: str, group: str, *, protocol_type: str, assignment: bytes = b""
    ) -> None:
        self._net = Connections({"bootstrap.servers": bootstrap}, client_id="external")
        self._group = group
        self.member_id = ""
        end = time.monotonic() + 120
        while (code := self._is_refused(protocol_type, assignment)) != 0:
            assert code in _AGAIN, f"error {code}"
            assert time.monotonic() < end, f"error {code} for two minutes"
            if code == _UNKNOWN_MEMBER:
                self.member_id = ""
            time.sleep(0.1)

    def _is_refused(self, protocol_type: str, assignment: bytes) -> int:
        """Find, join and sync once; the error's code, 0 for none."""
        self._find()
        joined = self._join(protocol_type)
        if joined.error_code == _ID_FIRST:
            self.member_id = joined.member_id
            joined = self._join(protocol_type)
        if joined.error_code != 0:
            return int(joined.error_code)
        self.member_id = joined.member_id
        given = SyncGroupRequest.SyncGroupRequestAssignment
        synced = self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type=protocol_type,
                protocol_name="any",
                assignments=[given(member_id=self.member_id, assignment=assignment)],
            )
        )
        return int(synced.error_code)

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
        return self._ask(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id=self.member_id,
                protocol_type=protocol_type,
                protocols=[protocol],
            )
        )

    def _ask(self, request):
        return self._net.ask({self._broker: request}, 60)[self._broker]

    def close(self) -> None:
        """Leave."""
        member = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        self._ask(LeaveGroupRequest(group_id=self._group, members=[member], min_version=3))
        self._net.close()
