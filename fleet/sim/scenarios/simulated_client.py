"""A consumer's process as librdkafka is one: when it starts, polls, wakes and ends.

Problem: what a rebalance costs is decided as much by when members heartbeat, revoke and poll as
by the coordinator. Choice: one object per process, with librdkafka's main loop in it: it wakes
every second from its start and twice a second from its last assignment, and only then sees that a
heartbeat is due; a heartbeat is due one interval after the last one, whatever happened since.
So members notice a rebalance apart from each other. Cost: what else
wakes the loop (answers of fetches and commits) is left out; a poll takes no time but for `slow`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import FleetError
from fleet.sim.coordinator.requests import ErrorCode, MemberIdentity
from fleet.sim.scenarios.group_scenario import Scenario

if TYPE_CHECKING:
    from fleet.sim.scenarios.play import ScenarioRun

GROUP: Final = "simulated"
TICK_MS: Final = (1_000, 500)
"""librdkafka's timers: of its connections, from the start on; of max.poll.interval.ms, from each
assignment on."""
LATE_US: Final = 600
"""Microseconds by which each tick comes later than its timer says, since the loop sleeps whole
milliseconds and the next tick is set when this one is served. Measured: 0.5 to 0.7 ms."""


class ClientState(StrEnum):
    """What a member's process is at.

    DOWN: no process. CONNECTING: it looks for its coordinator. JOINING: JoinGroup or SyncGroup is
    out, or the first heartbeat of KIP-848. STEADY: it is a member and heartbeats. REVOKING: it has
    to give up partitions, and the application has yet to poll. OUT: it has left after
    max.poll.interval.ms and joins at the next poll.

    DOWN starts as CONNECTING and joins when it has a coordinator. JOINING becomes STEADY by an
    assignment, and joins again where it is refused. STEADY becomes REVOKING, or JOINING where the
    application polls; it is OUT where it does not poll at all. REVOKING and OUT go on at the next
    poll. Any may end as DOWN.
    """

    DOWN = "down"
    CONNECTING = "connecting"
    JOINING = "joining"
    STEADY = "steady"
    REVOKING = "revoking"
    OUT = "out"


MOVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The coordinator is looked up anew; the member works on."""
LOOK_UP_EVERY_MS: Final = 500
"""While there is none: librdkafka's pace."""
CLIENT_MOVES: Final[Mapping[ClientState, frozenset[ClientState]]] = {
    ClientState.DOWN: frozenset({ClientState.CONNECTING}),
    ClientState.CONNECTING: frozenset({ClientState.DOWN, ClientState.JOINING}),
    ClientState.JOINING: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.STEADY: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.REVOKING: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.OUT: frozenset({ClientState.DOWN, ClientState.JOINING}),
}
"""State → where it may lead; JOINING to JOINING where a join is refused."""


class SimulatedClient(ABC):
    """See the module; `number` stays over restarts, `life` counts them."""

    member_id: str = ""
    busy_until: int = 0
    """The application polls again then; before that it polls all the time."""
    duplicates: int = 0
    """Batches done in vain, in all its lives: when they ended they were another's to do."""
    _duplicate_until: int = 0
    """When the last of them ended: each counts once."""

    def __init__(self, number: int, scenario: Scenario, place: "ScenarioRun") -> None:
        self.number, self.scenario, self.place = number, scenario, place
        self.state = ClientState.DOWN
        self.life = 0
        self.owned: tuple[int, ...] = ()
        self._ticks: list[int] = [0, 0]
        """When each of TICK_MS began."""

    @property
    def client_id(self) -> str:
        """Its client.id, by which a coordinator names dynamic members."""
        return f"member-{self.number:05d}"

    @property
    def instance(self) -> str | None:
        """Its group.instance.id; sorts by number."""
        return self.client_id if self.scenario.static else None

    @property
    def identity(self) -> MemberIdentity:
        """As an administrator names it, to take it out."""
        if self.instance is not None:
            return MemberIdentity(group_instance_id=self.instance)
        return MemberIdentity(self.member_id)

    @property
    def is_settled(self) -> bool:
        """A member that has what it was given, and nothing to do."""
        return self.state is ClientState.STEADY and self.busy_until <= self.place.now

    # What is done to it.

    def start(self) -> None:
        """A new process; nothing where one runs."""
        if self.state is ClientState.DOWN:
            self.life += 1
            self.busy_until = 0
            self._ticks = [self.place.now, self.place.now]
            self.place.tell(self.number, "starts")
            self.forget()
            self.become(ClientState.CONNECTING)
            self.later(self.place.connecting(), self.join)

    def close(self) -> None:
        """A proper end: what a member says then, it says."""
        if self.state is not ClientState.DOWN:
            self.leave()
            self.end("closes")

    def crash(self) -> None:
        """The process is gone without a word."""
        if self.state is not ClientState.DOWN:
            self.end("crashes")

    def slow(self, lasts: int) -> None:
        """The application does not poll for so long."""
        if self.state is ClientState.DOWN:
            return
        self.place.tell(self.number, f"does not poll for {lasts} ms")
        until = self.place.now + lasts
        if until <= self.busy_until:
            return  # it is at a longer batch
        self.busy_until = until
        self.later(lasts, self._batch_ends)
        looked = self.until_poll_is_overdue()
        if looked is not None and lasts > looked:
            self.later(looked, self._poll_is_overdue)

    def _batch_ends(self) -> None:
        if self.place.now == self.busy_until:
            self.poll()

    def _poll_is_overdue(self) -> None:
        if self.state is not ClientState.OUT:
            self.poll_interval_over()

    def until_poll_is_overdue(self) -> int | None:
        """Milliseconds until max.poll.interval.ms is seen to be over; None: nobody looks."""
        over = self.place.now + self.scenario.max_poll_interval
        return _tick_at(self._ticks[1], TICK_MS[1], over) - self.place.now

    def lose_batch(self) -> None:
        """What the application is at, or was until now, has to be done again."""
        if self._duplicate_until != self.busy_until:
            self._duplicate_until = self.busy_until
            self.duplicates += 1

    # What each protocol does in its own way.

    @abstractmethod
    def forget(self) -> None:
        """A new process knows nothing."""

    @abstractmethod
    def join(self) -> None:
        """Ask to be a member."""

    @abstractmethod
    def leave(self) -> None:
        """Say that it goes, as far as a member of its kind does."""

    @abstractmethod
    def poll(self) -> None:
        """The application polls again."""

    @abstractmethod
    def poll_interval_over(self) -> None:
        """max.poll.interval.ms is over, and it did not poll."""

    @abstractmethod
    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""

    @abstractmethod
    def resubscribe(self) -> None:
        """Subscribe to the same again."""

    @abstractmethod
    def drift(self, by: int) -> None:
        """Its timers come earlier by so many ms, its next heartbeat later where it would be past.

        Less than a heartbeat interval.
        """

    # What they share.

    def become(self, state: ClientState) -> None:
        """Change the state. Raises FleetError for a move that CLIENT_MOVES does not have."""
        if state not in CLIENT_MOVES[self.state]:
            allowed = ", ".join(sorted(CLIENT_MOVES[self.state]))
            raise FleetError(
                f"member {self.number} is {self.state} and cannot become {state} (allowed: "
                f"{allowed}); this is a bug of the model"
            )
        self.state = state

    def end(self, how: str) -> None:
        """The process is gone."""
        self.place.tell(self.number, how)
        self.become(ClientState.DOWN)
        self.give_up(self.owned)

    def take(self, partitions: Iterable[int]) -> None:
        """The application is told to process these, too."""
        new = tuple(p for p in partitions if p not in self.owned)
        self._ticks[1] = self.place.now
        self.owned = tuple(sorted((*self.owned, *new)))
        self.place.own(self.number, new)

    def give_up(self, partitions: Iterable[int]) -> None:
        """The application is told that these are gone."""
        gone = frozenset(partitions)
        self.owned = tuple(p for p in self.owned if p not in gone)
        if gone:
            self.place.disown(self.number, gone)
            if self.place.now < self.busy_until and self.state is not ClientState.DOWN:
                self.lose_batch()

    @property
    def polls(self) -> bool:
        """Whether the application hears what it is told."""
        return self.place.now >= self.busy_until

    def later(self, delay: int, action: Callable[[], None]) -> None:
        """Later on in this life."""
        life = self.life

        def acted() -> None:
            if self.life == life and self.state is not ClientState.DOWN:
                action()

        self.place.after(delay, acted)

    def shift_ticks(self, by: int) -> None:
        """Those of its main loop, earlier by so many ms."""
        self._ticks = [began - by for began in self._ticks]

    def until_awake(self, at: int) -> int:
        """Milliseconds from now to the first wake of the main loop at that time or after."""
        found = (_tick_at(began, tick, at) for began, tick in self._wakes())
        return max(0, min(found) - self.place.now)

    def _wakes(self) -> Iterable[tuple[int, int]]:
        return zip(self._ticks, TICK_MS, strict=True)


def _tick_at(began: int, tick: int, at: int) -> int:
    """The first tick of a timer at that time or after."""
    period = tick * 1000 + LATE_US
    return began + -(-max(0, at - began) * 1000 // period) * period // 1000
