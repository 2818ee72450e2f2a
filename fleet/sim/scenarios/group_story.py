"""What is to be played: members, their timeouts, the network, and what happens when.

Times are milliseconds from the start of the first member.
"""

from typing import Final, NamedTuple


class Happening(NamedTuple):
    """One event: `do` to `member` (its number from 0), for so long."""

    at: int
    do: str
    """start, leave, crash, restart, slow or roll (restart of all members, one by one)."""
    member: int = 0
    lasts: int = 5_000
    """restart, roll: how long a process is away; slow: how long its application does not poll."""
    wait: int = 10_000
    """roll: from a member's new assignment to the stop of the next one."""


class Scenario(NamedTuple):
    """A group and its story."""

    members: int = 10
    static: bool = False
    partitions: int = 20
    session_timeout: int = 45_000
    heartbeat_interval: int = 3_000
    max_poll_interval: int = 300_000
    """Also the rebalance timeout, as librdkafka has it."""
    initial_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    start_within: int = 1_000
    """The first members start at random moments of so long."""
    shortest_delay: int = 1
    longest_delay: int = 5
    """Of a message, one way, evenly distributed."""
    happenings: tuple[Happening, ...] = ()


SETTLED: Final = 60_000
"""When the library's stories begin: long after the start."""


def library(name: str, members: int) -> Scenario:
    """A scenario of LIBRARY with two partitions per member. Raises KeyError."""
    happenings, static = {
        "start": ((), False),
        "deploy": ((Happening(SETTLED, "roll"),), False),
        "deploy-static": ((Happening(SETTLED, "roll"),), True),
        "crash-loop": (
            tuple(
                each
                for n in range(5)
                for each in (
                    Happening(SETTLED + n * 90_000, "crash"),
                    Happening(SETTLED + n * 90_000 + 10_000, "start"),
                )
            ),
            False,
        ),
        "slow-consumer": ((Happening(SETTLED, "slow", lasts=420_000),), False),
    }[name]
    return Scenario(members, static, 2 * members, happenings=happenings)


LIBRARY: Final = {
    "start": "all members start at once",
    "deploy": "dynamic members are restarted one by one",
    "deploy-static": "the same with static members",
    "crash-loop": "one member crashes five times and comes back 10 s later",
    "slow-consumer": "one member does not poll for 7 minutes",
}
