"""A member of a KIP-848 group as librdkafka is one.

It makes its own id, joins by a heartbeat of epoch 0 and heartbeats at the interval that the
coordinator tells it. An assignment that comes with an answer is reconciled: what is no longer in
it is given up, what is new is taken up and its offsets are asked for; then a heartbeat goes out at
once that names all of it. One assignment at a time: a newer one waits for that answer. Who is
fenced gives up everything and joins again under the same id. At its end a dynamic member says that
it leaves (-1), a static one that it will be back (-2).

Where max.poll.interval.ms is over, heartbeats stop, and it leaves only when the application polls
again: a stuck member is missed at its session timeout.
"""

from typing import Any

from fleet.sim.coordinator.consumer_group import AWAY, LEFT
from fleet.sim.coordinator.requests import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
    TopicPartitions,
)
from fleet.sim.scenarios.coordinator_sides import TOPIC, TOPIC_ID
from fleet.sim.scenarios.simulated_client import (
    GROUP,
    LOOK_UP_EVERY_MS,
    MOVED,
    ClientState,
    SimulatedClient,
)


class EpochClient(SimulatedClient):
    """Simulates librdkafka's member of a KIP-848 group."""

    epoch: int = 0
    _interval: int = 0
    """Milliseconds; 0 before the coordinator has told it."""
    _target: tuple[int, ...] | None = None
    """What it is on its way to."""
    _acked: tuple[int, ...] = ()
    """What it last told the coordinator that it owns."""
    _next: tuple[int, ...] | None = None
    """What it has to become after that."""
    _must_tell: bool = False
    _is_telling: bool = False
    _in_flight: bool = False
    _beat: int = 0
    _beaten_at: int = 0
    _leaving: bool = False

    @property
    def is_settled(self) -> bool:
        """Nothing is under way, and the coordinator knows what it owns.

        One that has never had a partition still sends all about itself with each heartbeat.
        """
        waits = self.state is ClientState.JOINING and self.epoch > 0
        done = self._target is None and self._next is None
        return done and (waits or super().is_settled)

    def forget(self) -> None:
        """A new process knows nothing."""
        self.member_id = self.place.new_member_id()
        self._interval = 0
        self._in_flight = False
        self._reset()

    def _reset(self) -> None:
        self.epoch = 0
        self._target = self._next = None
        self._acked = ()
        self._must_tell = self._is_telling = self._leaving = False

    # The application.

    def poll(self) -> None:
        """What waited for it goes on."""
        if self.state is ClientState.REVOKING:
            self.become(ClientState.STEADY)
            self._reconcile()
        elif self.state is ClientState.OUT:
            if self.place.now - self._beaten_at >= self.scenario.session_timeout:
                self.lose_batch()  # its commit is refused
            self.give_up(self.owned)
            if self.epoch == 0 and not self._in_flight:
                self._left()  # it never was a member: nothing is sent, so that nobody answers
                return
            self._leaving = True
            self.leave()

    def poll_interval_over(self) -> None:
        """Stops heartbeats after max.poll.interval.ms."""
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self.become(ClientState.OUT)

    def resubscribe(self) -> None:
        """Subscribe again: a heartbeat goes out at once, if none is under way."""
        waits = self.state is ClientState.JOINING and self.epoch > 0
        if (waits or self.state is ClientState.STEADY) and not self._in_flight:
            self._heartbeat(topics=True)

    def drift(self, by: int) -> None:
        """Its heartbeats begin anew; nothing where it has none."""
        self.shift_ticks(by)
        if self._interval:
            due = self._beaten_at + self._interval - self.place.now
            self._beat += 1
            self._heartbeat_in((due - by) % self._interval)

    def leave(self) -> None:
        """A static member will be back, also where it does not know it (librdkafka PR #4994)."""
        if self.epoch > 0:
            going = LEFT if self.instance is None else AWAY
            self.place.send(
                self,
                ConsumerGroupHeartbeatRequest(GROUP, self.member_id, going, self.instance),
            )

    # Heartbeats.

    def join(self) -> None:
        """The first heartbeat, with all about it."""
        self.become(ClientState.JOINING)
        self._heartbeat()

    def _heartbeat(self, *, topics: bool = False) -> None:
        joins = self.state is ClientState.JOINING
        owned = self._target if self._must_tell else self._acked if joins else None
        self._is_telling = self._must_tell
        self._in_flight = True
        self._beaten_at = self.place.now
        self.place.send(
            self,
            ConsumerGroupHeartbeatRequest(
                GROUP,
                self.member_id,
                self.epoch,
                self.instance,
                rebalance_timeout_ms=self.scenario.max_poll_interval if joins else -1,
                subscribed_topic_names=(TOPIC,) if joins or topics else None,
                topic_partitions=None if owned is None else _told(owned),
            ),
        )
        self._beat += 1
        if self._interval:
            self._heartbeat_in(self._interval)

    def _heartbeat_in(self, delay: int) -> None:
        beat = self._beat

        def due() -> None:
            if beat == self._beat and self.state is not ClientState.OUT:
                self._heartbeat()

        self.later(delay, due)

    # Answers.

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""
        if not isinstance(answer, ConsumerGroupHeartbeatResponse):
            return
        if self._leaving:
            self._left()
            return
        self._in_flight = False
        if answer.error_code:
            self._refused(answer.error_code)
        elif self.state is not ClientState.OUT:
            self._answered(answer)

    def _left(self) -> None:
        """The answer to its leave, after which it joins anew."""
        self._reset()
        self._in_flight = False
        self.join()

    def _refused(self, code: int) -> None:
        if code in MOVED:
            if self.state is not ClientState.OUT:
                self._heartbeat_in(LOOK_UP_EVERY_MS)
        elif code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
            if self.state is ClientState.OUT:
                return
            self.place.tell(self.number, "is fenced and joins again")
            self.give_up(self.owned)
            self._reset()
            self.join()
        else:
            self.end(f"is refused (error {code})")

    def _answered(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        if not self._interval:
            self._interval = answer.heartbeat_interval_ms
            self._heartbeat_in(self._interval)
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            wanted = tuple(sorted(p for each in given for p in each.partitions))
            self._next = wanted if wanted != self._last else None
        if self._must_tell and self._is_telling and self._target is not None:
            self._acked, self._target = self._target, None
            self._must_tell = False
        elif self._must_tell:
            self._heartbeat()  # the answer was that to an older heartbeat
        if self._target is None and self._next is not None:
            self._target, self._next = self._next, None
            self._reconcile()

    @property
    def _last(self) -> tuple[int, ...]:
        return self._acked if self._target is None else self._target

    def _reconcile(self) -> None:
        """Give up, take up, tell."""
        target = self._target
        if target is None:
            return
        if not self.polls:
            self.become(ClientState.REVOKING)
            return
        self.give_up(set(self.owned) - set(target))
        new = set(target) - set(self.owned)
        self.place.tell(self.number, f"epoch {self.epoch}: {len(target)} partitions")
        self.take(target)
        if self.state is ClientState.JOINING:
            self.become(ClientState.STEADY)
        # Offsets of new partitions are asked for before the coordinator is told.
        self.later(self.place.trip() if new else 0, lambda: self._tell(target))

    def _tell(self, target: tuple[int, ...]) -> None:
        if self._target == target and self.state is ClientState.STEADY:
            self._must_tell = True
            if not self._in_flight:
                self._heartbeat()


def _told(partitions: tuple[int, ...]) -> tuple[TopicPartitions, ...]:
    return (TopicPartitions(TOPIC_ID, partitions),) if partitions else ()
