"""Stories of groups from seeds, short enough to be played by real members, too.

Times are ms from the start of all; every story has its own start, so that not all members of all
groups start at once. Crashes are at moments that all stories share: those members are in one
process, which is killed then.
"""

import random
from typing import Final, NamedTuple

from fleet.sim.scenarios.group_scenario import Scenario, ScenarioEvent

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer", "roundrobin")
PARTITIONS: Final = (3, 6, 8, 12)
SESSION: Final = 6_000
HEARTBEAT: Final = 1_000
MOST_BETWEEN_POLLS: Final = 6_500
STUCK: Final = 7_500
FIRST: Final = 9_000
SECOND: Final = 19_000
END: Final = 30_000
"""Each event is within 1.5 s after FIRST or SECOND, crashes at CRASHES."""
CRASHES: Final = (10_500, 20_500)
BETWEEN_STARTS: Final = 60
AFTER_CLOSE: Final = 800
"""Members close before a request takes them out."""


class Tale(NamedTuple):
    """A scenario with its name; `events` are the moments of its events."""

    name: str
    scenario: Scenario
    events: tuple[int, ...]

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """From each event to the next, the last one to the end."""
        return tuple(zip(self.events, (*self.events[1:], END), strict=True))


def tale(seed: int) -> Tale:
    """The story of a seed."""
    rng = random.Random(f"tale {seed}")
    protocol = PROTOCOLS[seed % len(PROTOCOLS)]
    static = rng.random() < 0.5
    members = rng.randint(1, 8)
    began = (seed % 30) * 90
    story = [
        ScenarioEvent(began + BETWEEN_STARTS * number, "start", number) for number in range(members)
    ]
    events = []
    alive = list(range(members))
    for place in range(rng.randint(1, 2)):
        at = (FIRST, SECOND)[place] + rng.randrange(1_500)
        # KIP-848: sooner, a static successor may be refused, and others' heartbeats decide.
        shortest = 1_500 if protocol == "consumer" else 0
        story += _event(rng, at, place, alive, static=static, shortest=shortest)
        events.append(story[-1].at if story[-1].do == "crash" else at)
    scenario = Scenario(
        members=0,
        static=static,
        partitions=rng.choice(PARTITIONS),
        session_timeout=SESSION,
        heartbeat_interval=HEARTBEAT,
        max_poll_interval=MOST_BETWEEN_POLLS,
        events=tuple(story),
        protocol=protocol,
    )
    return Tale(f"{seed}-{protocol}-{'static' if static else 'dynamic'}", scenario, tuple(events))


def _event(
    rng: random.Random, at: int, place: int, alive: list[int], *, static: bool, shortest: int
) -> list[ScenarioEvent]:
    """One thing that happens; who is alive after it stays in the list."""
    kinds = ["join", "join", "leave", "crash", "restart"]
    if static:
        kinds += ["batched-leave", "batched-leave", "handover", "restart"]
    if place:
        kinds += ["slow", "slow"]  # the first event has to be over when the second comes
    kind = rng.choice(kinds if len(alive) > 1 else kinds[:2])
    if kind == "join":
        many = rng.randint(1, 4)
        first = max(alive) + 1
        alive += range(first, first + many)
        return [ScenarioEvent(at, "start", first, together=many)]
    if kind == "batched-leave":
        many = rng.randint(1, min(3, len(alive) - 1))
        gone = [alive.pop() for _ in range(many)]
        if gone != list(range(gone[0], gone[0] - many, -1)):  # only neighbours go together
            alive += sorted(gone[1:])
            gone = gone[:1]
        return [
            ScenarioEvent(at, "batched-leave", min(gone), lasts=AFTER_CLOSE, together=len(gone))
        ]
    who = rng.choice(alive)
    if kind in {"restart", "handover"}:
        away = rng.choice((200, 500, 1_500)) if kind == "restart" else 0
        return [ScenarioEvent(at, "restart", who, lasts=max(away, shortest))]
    if kind == "slow":
        return [ScenarioEvent(at, "slow", who, lasts=STUCK)]
    alive.remove(who)
    return [ScenarioEvent(CRASHES[place] if kind == "crash" else at, kind, who)]
