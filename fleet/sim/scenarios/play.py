"""A scenario played against the coordinator's model: one seed, one trace.

Problem: a price is only worth something if its story can be played again. Choice: one queue of
what comes next, by time and then by the order in which it was set; all chance is drawn from one
`random.Random`; messages of one process keep their order. Cost: one coordinator that never fails,
and no message is lost.

`play` ends when nothing is planned any more and each partition has one owner, or after a day.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator
from fleet.sim.coordinator.classic_state import ClassicState
from fleet.sim.coordinator.requests import Client
from fleet.sim.coordinator.surroundings import CoordinatorConfig
from fleet.sim.scenarios.group_story import Happening, Scenario
from fleet.sim.scenarios.simulated_client import GROUP, ClientState, SimulatedClient

HORIZON: Final = 86_400_000
"""Milliseconds after which a group that does not settle is left alone."""


class Played(NamedTuple):
    """What a story cost, from its first event on (without events: from the start)."""

    rebalances: int
    """Generations completed."""
    moved: int
    """Times that a partition got another owner than before."""
    pauses: tuple[int, ...]
    """Milliseconds without an owner, per partition, all its pauses together, ascending."""
    longest: int
    """Milliseconds: the longest single pause."""
    settled: int | None
    """Milliseconds until the last partition had its owner; None: a day was not enough."""
    owners: tuple[int | None, ...]
    """By partition: the member in the end."""
    trace: tuple[str, ...]


def play(scenario: Scenario, rng: random.Random) -> Played:
    """Play it to its end."""
    return _World(scenario, rng).play()


class _World:
    def __init__(self, scenario: Scenario, rng: random.Random) -> None:
        self.scenario, self.rng = scenario, rng
        self.now = 0
        config = CoordinatorConfig(initial_rebalance_delay=scenario.initial_delay)
        self.coordinator = ClassicCoordinator(self._uuids(), config=config)
        self.clients: dict[int, SimulatedClient] = {}
        self.trace: list[str] = []
        self.owner: list[int | None] = [None] * scenario.partitions
        self._last: list[int | None] = [None] * scenario.partitions
        self._since = [0] * scenario.partitions
        self._paused = [0] * scenario.partitions
        self._longest = self._moved = 0
        self._began = min((each.at for each in scenario.happenings), default=0)
        self._before: int | None = None
        self._changed = self._began
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._tickets = count(), count()
        self._asked: dict[int, tuple[SimulatedClient, int]] = {}
        self._latest: dict[tuple[int, bool], int] = {}
        self._planned = 0

    def _uuids(self) -> Iterator[str]:
        while True:
            yield f"{self.rng.getrandbits(128):032x}"

    # What members have around them.

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """See Place."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def send(self, client: SimulatedClient, request: Any) -> None:
        """See Place."""
        life = client.life

        def arrives() -> None:
            ticket = next(self._tickets)
            self._asked[ticket] = (client, life)
            step = self.coordinator.request(ticket, request, Client("rdkafka"))
            self._answered(step.answers)

        self._travels(client, arrives, up=True)

    def _answered(self, answers: dict[int, Any]) -> None:
        for ticket, answer in answers.items():
            client, life = self._asked.pop(ticket)

            def arrives(
                client: SimulatedClient = client, life: int = life, answer: Any = answer
            ) -> None:
                if client.life == life and client.state is not ClientState.DOWN:
                    client.receive(answer)

            self._travels(client, arrives, up=False)

    def _travels(self, client: SimulatedClient, arrives: Callable[[], None], *, up: bool) -> None:
        delay = self.rng.randint(self.scenario.shortest_delay, self.scenario.longest_delay)
        at = max(self.now + delay, self._latest.get((client.number, up), 0))
        self._latest[client.number, up] = at
        self.after(at - self.now, arrives)

    def tell(self, who: int, what: str) -> None:
        """See Place."""
        self.trace.append(f"{self.now / 1000:.3f} s: member {who} {what}")

    def own(self, who: int, partitions: tuple[int, ...]) -> None:
        """See Place."""
        for each in partitions:
            if self.owner[each] is None:
                self._pause_over(each)
            if self._last[each] not in {None, who} and self.now >= self._began:
                self._moved += 1
            self.owner[each] = self._last[each] = who
            self._changed = max(self.now, self._began)

    def disown(self, who: int) -> None:
        """See Place."""
        for each, owner in enumerate(self.owner):
            if owner == who:
                self.owner[each], self._since[each] = None, self.now

    def _pause_over(self, partition: int) -> None:
        pause = self.now - max(self._since[partition], self._began)
        if pause > 0:
            self._paused[partition] += pause
            self._longest = max(self._longest, pause)

    # What happens.

    def play(self) -> Played:
        """To the end."""
        for number in range(self.scenario.members):
            delay = self.rng.randint(0, self.scenario.start_within)
            self._plan(delay, self._client(number).start)
        for each in self.scenario.happenings:
            self._plan(each.at, partial(self._happens, each))
        while not (self._planned == 0 and self._is_settled) and self._step():
            pass
        settled = self._is_settled
        if not settled:
            for partition, owner in enumerate(self.owner):
                if owner is None:
                    self._pause_over(partition)
        return Played(
            self._generation - (self._before or 0),
            self._moved,
            tuple(sorted(self._paused)),
            self._longest,
            self._changed - self._began if settled else None,
            tuple(self.owner),
            tuple(self.trace),
        )

    @property
    def _generation(self) -> int:
        group = self.coordinator.groups.get(GROUP)
        return 0 if group is None else group.generation

    @property
    def _is_settled(self) -> bool:
        """Nothing is under way; whoever lives has its share, and nobody is in the group besides."""
        group = self.coordinator.groups.get(GROUP)
        alive = [each for each in self.clients.values() if each.state is not ClientState.DOWN]
        return (
            group is not None
            and group.state is (ClassicState.STABLE if alive else ClassicState.EMPTY)
            and all(each.state is ClientState.STEADY for each in alive)
            and all(each.busy_until <= self.now for each in alive)
            and set(group.members) == {each.member_id for each in alive}
            and (None not in self.owner or not alive)
        )

    def _step(self) -> bool:
        """The next moment; False where a day is over."""
        timer = self.coordinator.around.timers.next_deadline
        ours = self._queue[0][0] if self._queue else HORIZON + 1
        at = ours if timer is None else min(ours, timer)
        if at > HORIZON:
            return False
        if self._before is None and at >= self._began and self._began:
            self._before = self._generation
        self.now = at
        self._answered(self.coordinator.advance(at - self.coordinator.now).answers)
        if self._queue and self._queue[0][0] == at:
            heapq.heappop(self._queue)[2]()
        return True

    def _client(self, number: int) -> SimulatedClient:
        return self.clients.setdefault(number, SimulatedClient(number, self.scenario, self))

    def _plan(self, delay: int, action: Callable[[], None]) -> None:
        """Like `after`, for what has to be over before the story ends."""
        self._planned += 1

        def does() -> None:
            self._planned -= 1
            action()

        self.after(delay, does)

    def _happens(self, each: Happening) -> None:
        client = self._client(each.member)
        match each.do:
            case "start":
                client.start()
            case "leave":
                client.close()
            case "crash":
                client.crash()
            case "slow":
                client.slow(each.lasts)
            case "restart":
                client.close()
                self._plan(each.lasts, client.start)
            case "roll":
                running = [c.number for c in self.clients.values() if c.state != ClientState.DOWN]
                self._roll(each, sorted(running))

    def _roll(self, each: Happening, left: list[int]) -> None:
        if not left:
            return
        client = self._client(left[0])
        client.close()

        def started() -> None:
            client.start()
            self._plan(100, back)

        def back() -> None:
            if client.state is ClientState.STEADY:
                self._plan(each.wait if left[1:] else 0, lambda: self._roll(each, left[1:]))
            else:
                self._plan(100, back)

        self._plan(each.lasts, started)
