"""Random schedules of what happens to a group of workers: pure, the same for the same seed."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SESSION: Final = 10.0
LEASE: Final = 3.0


class Kind(StrEnum):
    """What may happen to a group."""

    JOIN = "join"
    """Another slot is opened; a standby takes it."""
    LEAVE = "leave"
    """A slot drains and leaves; the workers complete it."""
    DRAIN = "drain"
    """SIGTERM to an owner."""
    KILL = "kill"
    """kill -9 of an owner."""
    STOP = "stop"
    """SIGSTOP of an owner, SIGCONT `seconds` later."""
    BOUNCE = "bounce"
    """kill -9 of the broker, started again `seconds` later."""


WEIGHTS: Final = {
    Kind.JOIN: 3,
    Kind.LEAVE: 3,
    Kind.DRAIN: 4,
    Kind.KILL: 4,
    Kind.STOP: 4,
    Kind.BOUNCE: 1,
}
STOPS: Final = (0.5, 2.0, LEASE + 1.5, SESSION + 3.0)
"""Seconds: within a heartbeat, within the lease, beyond it, beyond the session."""


@dataclass(frozen=True, slots=True)
class Act:
    """`which` counts through the owners (or free slots) there are at that moment."""

    at: float
    kind: Kind
    which: int
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.at:.1f} s: {self.kind} #{self.which}{lasting}"


def schedule(seed: int) -> tuple[Act, ...]:
    """4 to 7 acts, 0.1 to 3 s apart."""
    dice = random.Random(seed)
    at, acts = 0.0, []
    for _ in range(dice.randint(4, 7)):
        at += dice.uniform(0.1, 3.0)
        (kind,) = dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        seconds = 0.0
        if kind is Kind.STOP:
            seconds = dice.choice(STOPS)
        elif kind is Kind.BOUNCE:
            seconds = dice.choice((0.0, 1.0))
        acts.append(Act(round(at, 2), kind, dice.randrange(6), seconds))
    return tuple(acts)
