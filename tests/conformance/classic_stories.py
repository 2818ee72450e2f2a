"""Random stories of classic groups, steered to where rules are many.

Problem: requests at random are refused one after the other, and no group ever gets far. Choice:
most acts are what a member would do next in the state that the group is in (join again while it
is preparing, sync while it is completing), with limits, timeouts and settings small enough to be
met; the others are what goes wrong: a process that starts anew, a stale generation, another's id,
time that runs out, a write that fails or waits, a failover. Cost: how often what happens is in
`_WEIGHTS`, by hand; `coverage` tells what came of it.
"""

import random
from collections import Counter
from collections.abc import Iterator

from fleet.sim.coordinator.classic_group import ClassicState, CoordinatorConfig
from tests.conformance.classic_acts import GROUP, PROTOCOLS, Act, Member, Player, Story, Turn, act

_FAILURES = ("NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER", "MESSAGE_TOO_LARGE")
_DAY = 24 * 3_600_000

# State → act → how often; "next" is what a well-behaved member does there.
_WEIGHTS: dict[ClassicState | None, dict[str, int]] = {
    None: {"join": 20, "commit": 1, "heartbeat": 1, "sync": 1, "leave": 1, "advance": 2},
    ClassicState.EMPTY: {
        "join": 20,
        "commit": 2,
        "heartbeat": 1,
        "sync": 1,
        "leave": 1,
        "advance": 4,
        "failover": 2,
    },
    ClassicState.PREPARING_REBALANCE: {
        "next": 30,
        "join": 10,
        "commit": 2,
        "heartbeat": 5,
        "sync": 1,
        "leave": 3,
        "advance": 12,
        "failover": 1,
    },
    ClassicState.COMPLETING_REBALANCE: {
        "next": 30,
        "join": 6,
        "commit": 2,
        "heartbeat": 3,
        "leave": 3,
        "advance": 4,
        "failover": 1,
    },
    ClassicState.STABLE: {
        "next": 10,
        "join": 14,
        "commit": 4,
        "heartbeat": 4,
        "sync": 4,
        "leave": 6,
        "advance": 8,
        "failover": 2,
    },
    ClassicState.DEAD: {"join": 1},
}


def stories(seed: int, count: int) -> Iterator[tuple[Story, list[Turn]]]:
    """So many of them, with the model's turns; a seed makes the same ones each time."""
    for number in range(count):
        yield _story(seed * 1_000_003 + number)


def _story(seed: int) -> tuple[Story, list[Turn]]:
    numbers = random.Random(seed)
    config = _config(numbers)
    clients = numbers.choice((2, 3, 4, 6, 12, 16))
    player = Player(seed, config)
    writer = _Writer(numbers, player, clients)
    count = numbers.randrange(10, 50) + len(writer.crowd)
    turns = [player.play(writer.act()) for _ in range(count)]
    return Story(seed, tuple(turn.act for turn in turns), config), turns


def _config(numbers: random.Random) -> CoordinatorConfig:
    return CoordinatorConfig(
        initial_rebalance_delay=numbers.choice((0, 0, 500, 3_000)),
        max_size=numbers.choice((2**31 - 1, 2**31 - 1, 1, 2, 3)),
    )


class _Writer:
    """Chooses the next act."""

    def __init__(self, numbers: random.Random, player: Player, clients: int) -> None:
        self.numbers = numbers
        self.player = player
        self.members = player.members[:clients]
        self.plain = numbers.random() < 0.3
        """All say the same of themselves."""
        self.static = numbers.random() < 0.5
        self.topic = numbers.choice(("t", "t", "z"))
        self.held = 0
        self.crowd = list(self.members) if numbers.random() < 0.2 else []
        """Who joins at once at the beginning."""
        if not self.static:
            for member in self.members:
                member.instance = member.instance if numbers.random() < 0.3 else None

    def act(self) -> Act:
        """By what the group is at."""
        if self.crowd:
            newcomer = self.crowd.pop().number
            return act("join", newcomer, identity="new", version=3, **self._timeouts())
        group = self.player.group
        weights = _WEIGHTS[None if group is None else group.state]
        if self.held and self.numbers.random() < 0.4:
            self.held -= 1
            return act("appended", append=self._failure(0.3))
        kind = self.numbers.choices(list(weights), list(weights.values()))[0]
        member = self.numbers.choice(self.members)
        return getattr(self, f"_{kind}")(member)

    def _failure(self, share: float) -> str:
        return self.numbers.choice(_FAILURES) if self.numbers.random() < share else ""

    def _write(self) -> dict[str, object]:
        if self.numbers.random() < 0.06:
            self.held += 1
            return {"hold": True}
        failure = self._failure(0.05)
        return {"append": failure} if failure else {}

    def _next(self, member: Member) -> Act:
        """The missing member does what is missing."""
        group = self.player.group
        if group.state is ClassicState.PREPARING_REBALANCE:
            away = [m for m in self.members if self._away(m)]
            return self._rejoin(self.numbers.choice(away)) if away else self._advance(member)
        if group.state is ClassicState.COMPLETING_REBALANCE:
            leader = [m for m in self.members if m.member_id == group.leader]
            others = [m for m in self.members if m.member_id in group.pending_sync]
            choice = leader if leader and self.numbers.random() < 0.5 else others or leader
            return self._sync(self.numbers.choice(choice or self.members), right=True)
        return act("heartbeat", member.number)

    def _away(self, member: Member) -> bool:
        group = self.player.group
        if member.member_id in group.pending_join:
            return True
        known = group.members.get(member.member_id)
        return known is not None and known.awaits_join is None

    def _rejoin(self, member: Member) -> Act:
        return act("join", member.number, protocols=member.protocols, **self._timeouts())

    def _timeouts(self) -> dict[str, int]:
        return {
            "session": self.numbers.choice((6_000, 10_000, 10_000, 30_000)),
            "rebalance": self.numbers.choice((2_000, 5_000, 30_000, 60_000)),
        }

    def _join(self, member: Member) -> Act:
        how: dict[str, object] = dict(self._timeouts())
        how["identity"] = self._who(("own", 60), ("new", 30), ("plain", 3), ("wrong", 2))
        how["protocols"] = member.protocols
        if not self.plain and self.numbers.random() < 0.3:
            how["protocols"] = self.numbers.choices(range(len(PROTOCOLS)), (6, 4, 6, 6, 3, 1, 1))[0]
        if self.numbers.random() < 0.02:
            how["type"] = "connect"
        how["version"] = self.numbers.choices((9, 4, 3), (5, 2, 3))[0]
        return act("join", member.number, **how, **self._write())

    def _who(self, *choices: tuple[str, int]) -> str:
        words, often = zip(*choices, strict=True)
        found = self.numbers.choices((*words, "another"), (*often, 3))[0]
        return str(self.numbers.choice(self.members).number) if found == "another" else found

    def _sync(self, member: Member, *, right: bool = False) -> Act:
        how: dict[str, object] = {}
        if not right:
            how["identity"] = self._who(("own", 50), ("plain", 3), ("wrong", 2))
            how["generation"] = self.numbers.choices((0, -1, 1), (12, 1, 1))[0]
            if self.numbers.random() < 0.1:
                how["protocol"] = self.numbers.choice((None, "range", "other"))
            if self.numbers.random() < 0.05:
                how["type"] = self.numbers.choice((None, "connect"))
        if self.numbers.random() < 0.1:
            how["skip"] = 1
        return act("sync", member.number, **how, **self._write())

    def _heartbeat(self, member: Member) -> Act:
        identity = self._who(("own", 50), ("plain", 3), ("wrong", 2))
        generation = self.numbers.choices((0, -1), (9, 1))[0]
        return act("heartbeat", member.number, identity=identity, generation=generation)

    def _leave(self, member: Member) -> Act:
        count = self.numbers.choices((1, 2, 3), (6, 2, 1))[0]
        leaving = [
            (
                self.numbers.choice(self.members).number,
                self._who(("own", 50), ("new", 15), ("plain", 8), ("wrong", 3), ("nobody", 1)),
            )
            for _ in range(count)
        ]
        return act("leave", member.number, members=tuple(leaving), **self._write())

    def _commit(self, member: Member) -> Act:
        how: dict[str, object] = {
            "identity": self._who(("own", 50), ("plain", 3), ("nobody", 8)),
            "generation": self.numbers.choices((0, -1, 1), (9, 1, 1))[0],
            "topic": self.topic,
        }
        if how["identity"] == "nobody" and self.numbers.random() < 0.8:
            how["generation"] = -1 - member.generation
        if self.numbers.random() < 0.05:
            how["metadata"] = self.numbers.choice((4_096, 4_097))
        return act("commit", member.number, **how)

    def _advance(self, _: Member) -> Act:
        failure = self._failure(0.05)
        how: dict[str, object] = {"append": failure} if failure else {}
        if self.numbers.random() < 0.6:
            return act("advance", next=True, ms=self.numbers.choice((0, 0, -1, 1, 2_000)), **how)
        return act("advance", ms=self.numbers.choice((1, 100, 1_000, 5_000, 12_000, 70_000)), **how)

    def _failover(self, _: Member) -> Act:
        self.held = 0
        return act("failover", kept=self.numbers.random() < 0.5)


def coverage(turns: list[Turn]) -> Counter[tuple[str, str]]:
    """(state before, what happened) → how often: acts with the code of their answer, and timers."""
    found: Counter[tuple[str, str]] = Counter()
    before = "none"
    for number, turn in enumerate(turns):
        answer = turn.step.answers.get(number)
        code = "parked" if answer is None else str(getattr(answer, "error_code", 0))
        asked = turn.act.kind in {"join", "sync", "heartbeat", "leave", "commit"}
        found[before, f"{turn.act.kind} {code}" if asked else turn.act.kind] += 1
        for key, _ in turn.step.fired:
            found[before, f"timer {key.partition('-')[0]}"] += 1
        group = turn.picture.get(GROUP)
        before = "none" if group is None else group["state"]
    return found
