"""Simulates a scenario against the coordinator's model: one seed gives one trace.

Problem: an expected cost is only useful if its scenario can be repeated. Choice: one queue of
events, by time and then by order of insertion. One `random.Random` makes all random choices, and
messages of one process keep their order. In a `failover` the next coordinator loads the records.
Cost: no message is lost.

`play` stops when no event is left and each partition has one owner, or after a simulated day.
"""

import base64
import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from typing import Any, Final, NamedTuple

from fleet.collector import gc_disabled
from fleet.sim.coordinator.requests import Client, LeaveGroupRequest
from fleet.sim.scenarios.coordinator_sides import (
    ClassicSide,
    EpochSide,
    GroupCoordinator,
    not_coordinator,
)
from fleet.sim.scenarios.group_scenario import GROUP, Scenario, ScenarioEvent
from fleet.sim.scenarios.simulated_client import (
    ClassicClient,
    ClientState,
    EpochClient,
    JavaClient,
    SimulatedClient,
)

# The owner of each partition, and how long it had none.


class PartitionOwners:
    """Tracks the owners of one topic's partitions. Times in ms; counts from `began` on."""

    def __init__(self, partitions: int, began: int) -> None:
        self.owner: list[int | None] = [None] * partitions
        self.unowned = partitions
        """How many of them are None."""
        self.began = began
        self.changed_at = began
        """When a member last started to process a partition."""
        self.moved = 0
        """Times that a partition got another owner than before."""
        self.longest = 0
        self.paused = [0] * partitions
        self._last: list[int | None] = [None] * partitions
        self._since = [0] * partitions

    def own(self, who: int, partitions: Iterable[int], now: int) -> None:
        """A member processes these from now on."""
        for each in partitions:
            if self.owner[each] is None:
                self.unowned -= 1
                self._pause_over(each, now)
            if self._last[each] not in {None, who} and now >= self.began:
                self.moved += 1
            self.owner[each] = self._last[each] = who
            self.changed_at = max(now, self.began)

    def disown(self, who: int, partitions: Iterable[int], now: int) -> None:
        """A member stops processing these; ignored if another member processes them."""
        for each in partitions:
            if self.owner[each] == who:
                self.owner[each], self._since[each] = None, now
                self.unowned += 1

    def end(self, now: int) -> None:
        """Ends the downtime of partitions without an owner."""
        for partition, owner in enumerate(self.owner):
            if owner is None:
                self._pause_over(partition, now)

    def _pause_over(self, partition: int, now: int) -> None:
        pause = now - max(self._since[partition], self.began)
        if pause > 0:
            self.paused[partition] += pause
            self.longest = max(self.longest, pause)


HORIZON: Final = 86_400_000
"""Milliseconds after which a group that does not settle is left alone."""
LOOK_EVERY: Final = 100
"""Milliseconds between two checks of a roll whether a member is back."""


class ScenarioOutcome(NamedTuple):
    """The cost of a scenario from its first event on (without events: from the start)."""

    rebalances: int
    """Generations completed, or target assignments (KIP-848)."""
    moved: int
    """Times that a partition got another owner than before."""
    duplicates: int
    """Batches (`slow`) that were done in vain, since the member had lost them when they ended."""
    pauses: tuple[int, ...]
    """Milliseconds without an owner, per partition, all its pauses together, ascending."""
    longest: int
    """Milliseconds: the longest single pause."""
    settled: int | None
    """Milliseconds until the last partition had its owner; None: a day was not enough."""
    owners: tuple[int | None, ...]
    """By partition: the member in the end."""
    trace: tuple[str, ...]


class WrittenRecord(NamedTuple):
    """A record of the coordinator's log."""

    at: int
    """Milliseconds."""
    key: bytes
    value: bytes | None


def play(scenario: Scenario, rng: random.Random) -> ScenarioOutcome:
    """Play it to its end."""
    with gc_disabled(), _played(scenario, rng) as world:
        return world.play()


def play_records(scenario: Scenario, rng: random.Random) -> tuple[WrittenRecord, ...]:
    """What the coordinator wrote meanwhile: what a reader of `__consumer_offsets` sees."""
    with gc_disabled(), _played(scenario, rng) as world:
        world.play()
        return tuple(world.records())


@contextmanager
def _played(scenario: Scenario, rng: random.Random) -> Iterator["ScenarioRun"]:
    """A world that leaves nothing to the collector, which would walk all of it."""
    world = ScenarioRun(scenario, rng)
    try:
        yield world
    finally:
        world.end()


class ScenarioRun:
    """A scenario while it is played: its coordinator, its members, and time."""

    def __init__(self, scenario: Scenario, rng: random.Random) -> None:
        self.scenario, self.rng = scenario, rng
        self.now = 0
        self.coordinator: GroupCoordinator = (
            EpochSide(scenario)
            if scenario.protocol == "consumer"
            else ClassicSide(scenario, self._uuids())
        )
        self.clients: dict[int, SimulatedClient] = {}
        self.trace: list[str] = []
        self._began = min((each.at for each in scenario.events), default=0)
        self.ownership = PartitionOwners(scenario.partitions, self._began)
        self._before: int | None = None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._tickets = count(), count()
        self._asked: dict[int, tuple[SimulatedClient, int]] = {}
        self._latest: dict[tuple[int, bool], int] = {}
        self._planned = 0
        self._appends: list[tuple[int, int]] = []
        """When the log grew, and to how many records."""
        self._resubscribes = False
        self._unloaded = 0
        """Failovers under way."""
        self._unsettled = 0
        """The place of a client that was not, when somebody looked last."""
        """Who was not, when it was looked for last: all others need no look while it is not."""

    def _uuids(self) -> Iterator[str]:
        while True:
            yield f"{self.rng.getrandbits(128):032x}"

    # What members have around them.

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Have something done later on."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def send(self, client: SimulatedClient, request: Any) -> None:
        """Send to the coordinator; its answer comes to `receive`."""
        life, named = client.life, Client(client.client_id)

        def arrives() -> None:
            ticket = next(self._tickets)
            self._asked[ticket] = (client, life)
            if self._unloaded:
                self._answered({ticket: not_coordinator(request)})
            else:
                self._ask(ticket, request, named)

        self._travels(client, arrives, up=True)

    def _ask(self, ticket: int, request: Any, client: Client) -> None:
        answers = self.coordinator.ask(ticket, request, client)
        self._look_at_log()
        self._answered(answers)

    def _look_at_log(self) -> None:
        written = self.coordinator.written
        if written != (self._appends[-1][1] if self._appends else 0):
            self._appends.append((self.now, written))

    def records(self) -> Iterator[WrittenRecord]:
        """The log so far."""
        done = 0
        for at, until in self._appends:
            for key, value in self.coordinator.records(done, until):
                yield WrittenRecord(at, key, value)
            done = until

    def _answered(self, answers: dict[int, Any]) -> None:
        for ticket, answer in answers.items():
            if ticket not in self._asked:
                continue  # an administrator's
            client, life = self._asked.pop(ticket)

            def arrives(
                client: SimulatedClient = client, life: int = life, answer: Any = answer
            ) -> None:
                if client.life == life and client.state is not ClientState.DOWN:
                    client.receive(answer)

            self._travels(client, arrives, up=False)

    def _delay(self) -> int:
        return self.rng.randint(self.scenario.shortest_delay, self.scenario.longest_delay)

    def _travels(self, client: SimulatedClient, arrives: Callable[[], None], *, up: bool) -> None:
        way = (client.number, up)
        at = self._latest[way] = max(self.now + self._delay(), self._latest.get(way, 0))
        heapq.heappush(self._queue, (at, next(self._order), arrives))

    def connecting(self) -> int:
        """Milliseconds until a new process has its coordinator."""
        more = self.scenario.connects_within
        return self.scenario.connects_in + (self.rng.randint(0, more) if more else 0)

    def trip(self) -> int:
        """Milliseconds to a broker and back, of a request that nobody here answers."""
        return self._delay() + self._delay()

    def new_member_id(self) -> str:
        """As a KIP-848 member makes its own."""
        return base64.urlsafe_b64encode(self.rng.randbytes(16)).decode().rstrip("=")

    def tell(self, who: int, what: str) -> None:
        """Add one line to the trace."""
        self.trace.append(f"{self.now / 1000:.3f} s: member {who} {what}")

    def own(self, who: int, partitions: Iterable[int]) -> None:
        """A member processes these from now on."""
        self.ownership.own(who, partitions, self.now)

    def disown(self, who: int, partitions: Iterable[int]) -> None:
        """It does not process these any more."""
        self.ownership.disown(who, partitions, self.now)

    # What happens.

    def play(self) -> ScenarioOutcome:
        """Runs the scenario to its end."""
        for number in range(self.scenario.members):
            delay = self.rng.randint(0, self.scenario.start_within)
            self._plan(delay, self._client(number).start)
        if self.scenario.drifts_at:
            self._plan(self.scenario.drifts_at, self._drift)
        for each in self.scenario.events:
            self._plan(each.at, partial(self._happens, each))
        while not (self._planned == 0 and self._is_settled) and self._step():
            pass
        settled = self._is_settled
        if not settled:
            self.ownership.end(self.now)
        return ScenarioOutcome(
            self.coordinator.rebalances - (self._before or 0),
            self.ownership.moved,
            sum(each.duplicates for each in self.clients.values()),
            tuple(sorted(self.ownership.paused)),
            self.ownership.longest,
            self.ownership.changed_at - self._began if settled else None,
            tuple(self.ownership.owner),
            tuple(self.trace),
        )

    def end(self) -> None:
        """Nobody in it knows it any more."""
        self.clients.clear()
        self._asked.clear()
        self._queue.clear()

    @property
    def _is_settled(self) -> bool:
        """Nothing is under way; the living members, and no others, have their shares."""
        if self._unloaded or not self.coordinator.is_at_rest:
            return False
        everybody = list(self.clients.values())
        if self.ownership.unowned and any(c.state is not ClientState.DOWN for c in everybody):
            return False
        # From the member that was not settled before: those in front of it mostly are.
        places = chain(range(self._unsettled, len(everybody)), range(self._unsettled))
        for place in places:
            each = everybody[place]
            if each.state is not ClientState.DOWN and not each.is_settled:
                self._unsettled = place
                return False
        alive = {each.member_id for each in everybody if each.state is not ClientState.DOWN}
        return self.coordinator.consists_of(alive)

    def _step(self) -> bool:
        """The next moment; False where a day is over."""
        timer = self.coordinator.next_deadline
        ours = self._queue[0][0] if self._queue else HORIZON + 1
        at = ours if timer is None else min(ours, timer)
        if at > HORIZON:
            return False
        if self._before is None and at >= self._began and self._began:
            self._before = self.coordinator.rebalances
        self.now = at
        if timer is not None and timer <= at:
            answers = self.coordinator.advance(at)
            self._look_at_log()
            self._answered(answers)
        else:
            self.coordinator.wait(at)
        if self._queue and self._queue[0][0] == at:
            heapq.heappop(self._queue)[2]()
        return True

    def _drift(self) -> None:
        for client in self.clients.values():
            client.drift(self.rng.randrange(self.scenario.heartbeat_interval))

    def _client(self, number: int) -> SimulatedClient:
        kind: type[SimulatedClient] = JavaClient
        if self.scenario.protocol == "consumer":
            kind = EpochClient
        elif self.scenario.client == "librdkafka":
            kind = ClassicClient
        return self.clients.setdefault(number, kind(number, self.scenario, self))

    def _plan(self, delay: int, action: Callable[[], None]) -> None:
        """Like `after`, for what has to be over before the story ends."""
        self._planned += 1

        def does() -> None:
            self._planned -= 1
            action()

        self.after(delay, does)

    def _happens(self, each: ScenarioEvent) -> None:
        clients = [self._client(each.member + n) for n in range(each.together)]
        match each.do:
            case "failover":
                self._fail_over(each.lasts)
            case "batched-leave":
                self._leave_together(clients, each.lasts)
            case "roll":
                running = [c.number for c in self.clients.values() if c.state != ClientState.DOWN]
                self._roll(each, sorted(running))
            case _:
                for client in clients:
                    self._does(each, client)
        self._resubscribe()

    def _does(self, each: ScenarioEvent, client: SimulatedClient) -> None:
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

    def _fail_over(self, lasts: int) -> None:
        """Nobody coordinates for so long; then the broker that has loaded the log."""
        self.trace.append(f"{self.now / 1000:.3f} s: the coordinator is away for {lasts} ms")
        self._unloaded += 1
        self._answered(self.coordinator.unload())

        def loaded() -> None:
            self._unloaded -= 1
            if not self._unloaded:
                self.coordinator.load()

        self._plan(lasts, loaded)

    def _leave_together(self, clients: list[SimulatedClient], after: int) -> None:
        """They end, and when the last word of theirs has arrived, one request takes all out."""
        running = [each for each in clients if each.state is not ClientState.DOWN]
        leavers = tuple(each.identity for each in running)
        for each in running:
            if each.instance is None:
                each.crash()  # its own leave would be one of many
            else:
                each.close()
        request = LeaveGroupRequest(GROUP, leavers)

        def arrives() -> None:
            if self._unloaded:
                self._plan(LOOK_EVERY, arrives)
            else:
                self._ask(next(self._tickets), request, Client("fleet"))

        self._plan(self.scenario.longest_delay + after + self._delay(), arrives)

    def _roll(self, each: ScenarioEvent, left: list[int]) -> None:
        if not left:
            return
        client = self._client(left[0])
        client.close()

        def started() -> None:
            client.start()
            self._plan(LOOK_EVERY, back)

        def back() -> None:
            if client.is_settled:
                self._plan(each.wait if left[1:] else 0, lambda: self._roll(each, left[1:]))
            else:
                self._plan(LOOK_EVERY, back)

        self._plan(each.lasts, started)

    def _resubscribe(self) -> None:
        """Members subscribe again until the group is settled."""
        if self.scenario.resubscribe and not self._resubscribes:
            self._resubscribes = True
            self.after(self.scenario.resubscribe, self._resubscribe_again)

    def _resubscribe_again(self) -> None:
        self._resubscribes = not self._is_settled or self._planned > 0
        if self._resubscribes:
            for each in self.clients.values():
                each.resubscribe()
            self.after(self.scenario.resubscribe, self._resubscribe_again)
