"""A member of a classic group as librdkafka is one, with an eager or a cooperative assignor.

It notices a rebalance by a heartbeat. With an eager assignor it gives up everything before it
joins; with cooperative-sticky (KIP-429) it goes on, gives up what it has lost when the group is
synced, takes up what is new and joins again at once, so that what it gave up finds an owner.
JoinGroup is sent at most once a second, but at once after partitions were given up, after the
coordinator gave it an id, and for that second round. It heartbeats while it waits for the
application, and never while it joins. LeaveGroup is sent by dynamic members only.

Not modelled: that it gives up everything when its coordinator does not answer for a session.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from fleet.sim.assignors.client_side import (
    Assignor,
    HeardMember,
    Shares,
    ranges,
    round_robin,
    withheld,
)
from fleet.sim.assignors.sticky import sticky
from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fleet.sim.scenarios import member_blobs
from fleet.sim.scenarios.simulated_client import GROUP, MOVED, ClientState, SimulatedClient

JOIN_EVERY_MS: Final = 1_000


def _cooperative(members: Sequence[HeardMember], partitions: int) -> Shares:
    return withheld(members, sticky(members, partitions))


ASSIGNORS: Final[dict[str, Assignor]] = {
    "range": ranges,
    "roundrobin": round_robin,
    "sticky": sticky,
    "cooperative-sticky": _cooperative,
}
"""librdkafka has no sticky: Java's members have, and balance by rules of their own."""


class ClassicClient(SimulatedClient):
    """See the module."""

    generation: int = -1
    _last: tuple[int, ...] | None = None
    """The last assignment, which a sticky member tells."""
    _last_generation: int = -1
    _joined_at: int | None = None
    _subscribed_at: int | None = None
    """Of a connected process: its first JoinGroup."""
    _beaten_at: int | None = None
    _beat: int = 0
    """Counts the times that heartbeats began: those of a former time stop."""

    @property
    def join_version(self) -> int:
        """Of JoinGroup: the newest that librdkafka speaks."""
        return 5

    @property
    def rebalance_timeout(self) -> int:
        """Milliseconds that the others wait for it in a round."""
        return self.scenario.max_poll_interval

    @property
    def is_cooperative(self) -> bool:
        """Whether it keeps its partitions while the group rebalances."""
        return self.scenario.protocol == "cooperative-sticky"

    def forget(self) -> None:
        """A new process knows nothing."""
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self._last, self._last_generation = None, -1
        self._joined_at = self._subscribed_at = self._beaten_at = None

    # The application.

    def poll(self) -> None:
        """What waited for it goes on."""
        if self.state in {ClientState.REVOKING, ClientState.OUT}:
            self.give_up(self.owned)
            self.join()

    def nudge(self) -> None:
        """The same subscription is no news to a classic member."""

    def drift(self, by: int) -> None:
        """Its heartbeats begin anew; nothing where it has none."""
        self.shift_ticks(by)
        if self.state is ClientState.STEADY and self._beaten_at is not None:
            self._beaten_at -= by
            if self._beaten_at + self.scenario.heartbeat_interval < self.place.now:
                self._beaten_at += self.scenario.heartbeat_interval
            self._beat += 1
            self._heartbeat_later(self._beat)

    def poll_interval_over(self) -> None:
        """A dynamic member leaves, any forgets its id."""
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self.leave()
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self.give_up(self.owned)
        self.become(ClientState.OUT)

    def close(self) -> None:
        """A cooperative member without partitions sends no LeaveGroup at its end.

        Seen in librdkafka 2.16 with real members: its group waits for the session timeout.
        """
        if self.is_cooperative and not self.owned and self.state is not ClientState.DOWN:
            self.end("closes without a word")
        else:
            super().close()

    def leave(self) -> None:
        """A static member is expected back."""
        if self.instance is None and self.member_id:
            who = MemberIdentity(self.member_id, None)
            self.place.send(self, LeaveGroupRequest(GROUP, (who,)))

    # Joining.

    def join(self) -> None:
        """JoinGroup now."""
        self.become(ClientState.JOINING)
        if self._joined_at is None and self.scenario.connected:
            self._subscribed_at = self.place.now
        self._joined_at = self.place.now
        self.place.send(
            self,
            JoinGroupRequest(
                GROUP,
                self.member_id,
                self.instance,
                (JoinGroupProtocol(self.scenario.protocol, self._told),),
                session_timeout_ms=self.scenario.session_timeout,
                rebalance_timeout_ms=self.rebalance_timeout,
                version=self.join_version,
            ),
        )

    @property
    def _told(self) -> bytes:
        if self.scenario.protocol in {"range", "roundrobin"}:
            return member_blobs.subscription()
        owned = self.owned if self.is_cooperative else self._last or ()
        return member_blobs.subscription(owned, self._last_generation, self._last)

    def _join_in_turn(self) -> None:
        """JoinGroup, a second after the last one at the earliest."""
        self.become(ClientState.JOINING)
        last = self._joined_at if self._joined_at != self._subscribed_at else None
        due = 0 if last is None else last + JOIN_EVERY_MS
        if self.place.now > due:
            self.join()
        else:
            self.later(self.until_awake(due + 1), self._if_still_joining(self.join))

    def _if_still_joining(self, action: Callable[[], None]) -> Callable[[], None]:
        joined_at = self._joined_at

        def acted() -> None:
            if self.state is ClientState.JOINING and self._joined_at == joined_at:
                action()

        return acted

    def _rejoin(self, *, lost: bool) -> None:
        """The group rebalances, or no longer knows this member."""
        if self.is_cooperative and not lost:
            self._join_in_turn()
        elif not self.owned:
            self.join()
        elif self.polls:
            self.give_up(self.owned)
            self.join()
        else:
            self.become(ClientState.REVOKING)

    # Answers.

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""
        match answer:
            case JoinGroupResponse() if self.state is ClientState.JOINING:
                self._joined(answer)
            case SyncGroupResponse() if self.state is ClientState.JOINING:
                self._synced(answer)
            case HeartbeatResponse() if self.state is ClientState.STEADY:
                if answer.error_code and answer.error_code not in MOVED:
                    self._refused(answer.error_code)

    def _refused(self, code: int) -> None:
        """A heartbeat's answer."""
        if not self._forgot(code):
            return
        self._rejoin(lost=code != ErrorCode.REBALANCE_IN_PROGRESS)

    def _forgot(self, code: int) -> bool:
        """What an error makes it forget; False where it is the end."""
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.end("is fenced by another process with its instance id")
            return False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = UNKNOWN_MEMBER
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1
        return True

    def _joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        if answer.error_code:
            self._not_synced(answer.error_code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        if answer.members:  # the leader asks for the topic's partitions before it assigns
            self.later(self.place.trip(), self._if_still_joining(lambda: self._sync(answer)))
        else:
            self._sync(answer)

    def _sync(self, answer: JoinGroupResponse) -> None:
        given: Shares = {}
        if answer.members:
            claims = [member_blobs.claimed(*each) for each in answer.members]
            given = ASSIGNORS[self.scenario.protocol](claims, self.scenario.partitions)
        self.place.send(
            self,
            SyncGroupRequest(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                protocol_name=answer.protocol_name,
                assignments=tuple(
                    SyncGroupAssignment(name, member_blobs.assignment(of))
                    for name, of in given.items()
                ),
            ),
        )

    def _not_synced(self, code: int) -> None:
        if code in MOVED:  # what it owns is its own; it asks again, of whoever coordinates then
            self._join_in_turn()
            return
        if not self._forgot(code):
            return
        if self.is_cooperative and code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin(lost=True)
        else:
            self._join_in_turn()

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self._not_synced(answer.error_code)
            return
        of = member_blobs.assigned(answer.assignment)
        self._last, self._last_generation = of, self.generation
        self.place.tell(self.number, f"generation {self.generation}: {len(of)} partitions")
        revoked = tuple(p for p in self.owned if p not in of)
        self.become(ClientState.STEADY)
        self.give_up(revoked)
        self.take(of)
        self._begin_heartbeats()
        if revoked:
            self.later(self.scenario.rejoins_after, self._join_after(self.generation))

    def _join_after(self, generation: int) -> Callable[[], None]:
        """The second round, for what it gave up."""

        def acted() -> None:
            if self.state is ClientState.STEADY and self.generation == generation:
                self.join()

        return acted

    # Heartbeats.

    def _begin_heartbeats(self) -> None:
        """One is due an interval after the last, were it before the rebalance."""
        self._beat += 1
        self._heartbeat_later(self._beat)

    def _heartbeat_later(self, beat: int) -> None:
        due = self.place.now
        if self._beaten_at is not None:
            due = max(due, self._beaten_at + self.scenario.heartbeat_interval)
        wait = self.until_awake(due) if due > self.place.now else 0
        self.later(wait, lambda: self._heartbeat(beat))

    def _heartbeat(self, beat: int) -> None:
        if beat == self._beat and self.state in {ClientState.STEADY, ClientState.REVOKING}:
            self._beaten_at = self.place.now
            request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)
            self.place.send(self, request)
            self._heartbeat_later(beat)
