"""Defines a scenario: members, their timeouts, the network, and the events.

Times are milliseconds from the start of the first member.
"""

from typing import Final, NamedTuple

PROTOCOLS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer")
"""Assignors of classic groups, and `consumer`, which is KIP-848."""
CLIENTS: Final = ("librdkafka", "java-0.10.0", "java-0.10.1")
"""How members behave; Java's before KIP-62 (as 0.9) and with it, see `java_client`."""


class ScenarioEvent(NamedTuple):
    """One event: what happens to `member` (its number from 0), and for how long."""

    at: int
    do: str
    """start, leave, crash, restart, slow, roll (restart of all members, one by one),
    batched-leave (members stop silently, and one LeaveGroup names them all), or failover
    (another broker becomes the coordinator; `member` does not matter)."""
    member: int = 0
    lasts: int = 5_000
    """restart, roll: how long a process is away; slow: how long its application does not poll;
    batched-leave: from the members' end to the request; failover: how long nobody coordinates."""
    wait: int = 10_000
    """roll: from a member's new assignment to the stop of the next one."""
    together: int = 1
    """So many members, from `member` on, at once."""


class Scenario(NamedTuple):
    """A group and its events."""

    members: int = 10
    static: bool = False
    partitions: int = 20
    session_timeout: int = 45_000
    heartbeat_interval: int = 3_000
    """consumer: what the group is configured with; Kafka's default is 5 s."""
    max_poll_interval: int = 300_000
    """Also the rebalance timeout, but for java-0.10.0, whose session is both."""
    initial_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    start_within: int = 1_000
    """The first members start at random moments of so long."""
    shortest_delay: int = 1
    longest_delay: int = 5
    """Of a message, one way, evenly distributed."""
    events: tuple[ScenarioEvent, ...] = ()
    protocol: str = "range"
    """One of PROTOCOLS."""
    assignment_interval: int = 1_000
    """consumer: group.consumer.assignment.interval.ms"""
    resubscribe: int = 0
    """consumer: while the group is not settled, members subscribe again so often (Fleet's
    workers: 260); 0: never."""
    connects_in: int = 0
    """From a process's start until it has its coordinator,"""
    connects_within: int = 0
    """and up to so long more."""
    drifts_at: int = 0
    """When timers of members stand apart as after hours, heartbeats evenly over their interval;
    0: never. Members that got their partitions in one round heartbeat together for long."""
    client: str = "librdkafka"
    """One of CLIENTS; Java's are dynamic members with range or roundrobin."""
    connected: bool = False
    """Processes have their coordinator before they subscribe, as Fleet's workers do: subscribing
    itself sends the first JoinGroup, which librdkafka does not count when the next one is due."""
    rejoins_after: int = 0
    """cooperative-sticky: from a member's revocation to the join that it brings, at least (Fleet's
    workers: 250)."""

    def by(self, protocol: str) -> "Scenario":
        """Returns the scenario with another protocol and its usual heartbeat interval."""
        interval = {"consumer": 5_000}.get(protocol, 3_000)
        return self._replace(protocol=protocol, heartbeat_interval=interval)
