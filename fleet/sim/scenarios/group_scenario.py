"""Defines a scenario: members, their timeouts, the network, and the events.

Times are milliseconds from the start of the first member.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

GROUP: Final = "simulated"
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


# A library of well-known scenarios, each with and without the improvements of Kafka and Fleet.
#
# A scenario with the same events has one name for each variant: dynamic members and range (a
# consumer's default), static members (KIP-345), cooperative-sticky (KIP-429), KIP-848, and Fleet
# with the worker's own settings. KIP-62 is older than librdkafka's group members. So Java's
# consumers of 0.10.0 and 0.10.1 play its scenarios, with the defaults of each and a coordinator
# without an initial delay.


SETTLED: Final = 60_000
"""Time of the first event in ms: long after the start."""
FLEET_HEARTBEAT: Final = 500
"""worker.heartbeat_interval"""
FLEET_RESUBSCRIBE: Final = 130
HANDOVER: Final = 50
"""From a draining worker's close to its standby's join, see docs/contributing/benchmark-log.md"""
FLEET_SESSION: Final = 180_000
"""worker.session_timeout"""
BATCH: Final = 45_000
"""Length of a batch in ms: longer than the sessions of 0.10.0 and 0.10.1."""
JAVA_SESSIONS: Final = {"java-0.10.0": 30_000, "java-0.10.1": 10_000}
"""Default session.timeout.ms of each client."""


class Preset(NamedTuple):
    """A scenario of the library and its description."""

    says: str
    played: Callable[[int], Scenario]
    """Makes the scenario for a number of members."""


def _group(members: int, *events: ScenarioEvent, static: bool = False) -> Scenario:
    return Scenario(members, static, 2 * members, events=events)


def _start(members: int) -> Scenario:
    return _group(members)


def _deploy(members: int) -> Scenario:
    return _group(members, ScenarioEvent(SETTLED, "roll"))


def _crashes(members: int) -> Scenario:
    return _group(
        members,
        *(
            each
            for n in range(5)
            for each in (
                ScenarioEvent(SETTLED + n * 90_000, "crash"),
                ScenarioEvent(SETTLED + n * 90_000 + 10_000, "start"),
            )
        ),
    )


def _slow(members: int) -> Scenario:
    return _group(members, ScenarioEvent(SETTLED, "slow", lasts=420_000))


def _batches(members: int) -> Scenario:
    """Ten batches, with 5 s between them to join in."""
    return _group(
        members, *(ScenarioEvent(SETTLED + n * 50_000, "slow", lasts=BATCH) for n in range(10))
    )


def _join_in_batch(members: int) -> Scenario:
    slow = ScenarioEvent(SETTLED, "slow", lasts=BATCH)
    return _group(members, slow, ScenarioEvent(SETTLED + 5_000, "start", members))


def _failover(members: int) -> Scenario:
    return _group(members, ScenarioEvent(SETTLED, "failover"))


def _more(members: int) -> int:
    return max(1, members // 4)


def _up(members: int) -> Scenario:
    """Members join as their processes start: 2 s apart."""
    joins = (
        ScenarioEvent(SETTLED + 2_000 * n, "start", members + n) for n in range(_more(members))
    )
    return _partitioned(members, *joins)


def _down(members: int) -> Scenario:
    more = _more(members)
    leaves = (ScenarioEvent(SETTLED + 2_000 * n, "leave", members + n) for n in range(more))
    return _partitioned(members, *leaves)._replace(members=members + more)


def _targets(members: int) -> Scenario:
    opened = ScenarioEvent(SETTLED, "start", members, together=_more(members))
    return _partitioned(members, opened)


def _batch(members: int) -> Scenario:
    more = _more(members)
    left = ScenarioEvent(SETTLED, "batched-leave", members, lasts=0, together=more)
    return _partitioned(members, left)._replace(members=members + more)


def _partitioned(members: int, *events: ScenarioEvent) -> Scenario:
    return Scenario(members, False, 2 * (members + _more(members)), events=events)


def _static(scenario: Callable[[int], Scenario]) -> Callable[[int], Scenario]:
    return lambda members: scenario(members)._replace(static=True)


def _by(protocol: str, scenario: Callable[[int], Scenario]) -> Callable[[int], Scenario]:
    return lambda members: scenario(members).by(protocol)


def _java(client: str, scenario: Callable[[int], Scenario]) -> Callable[[int], Scenario]:
    """Java's members with their defaults, before group.initial.rebalance.delay.ms existed."""
    session = JAVA_SESSIONS[client]
    return lambda members: scenario(members)._replace(
        client=client, session_timeout=session, initial_delay=0, drifts_at=SETTLED // 2
    )


def _kip_62(name: str, says: str, scenario: Callable[[int], Scenario]) -> dict[str, Preset]:
    return {
        f"{name}-before-kip-62": Preset(
            f"{says}, heartbeats by poll", _java("java-0.10.0", scenario)
        ),
        f"{name}-after-kip-62": Preset(
            "the same with heartbeats in the background", _java("java-0.10.1", scenario)
        ),
    }


def _fleet(
    scenario: Callable[[int], Scenario], protocol: str = "range"
) -> Callable[[int], Scenario]:
    """Static workers with the worker's own settings."""

    def played(members: int) -> Scenario:
        made = scenario(members).by(protocol)._replace(static=True)
        if protocol == "consumer":
            return made._replace(resubscribe=FLEET_RESUBSCRIBE)
        return made._replace(heartbeat_interval=FLEET_HEARTBEAT, session_timeout=FLEET_SESSION)

    return played


def _handovers(members: int) -> Scenario:
    return _group(members, ScenarioEvent(SETTLED, "roll", lasts=HANDOVER, wait=1_000))


PRESETS: Final = {
    "start": Preset("all members start within one second", _start),
    "deploy": Preset("dynamic members are restarted one by one: 5 s away, 10 s between", _deploy),
    "deploy-static": Preset("the same with static members (KIP-345)", _static(_deploy)),
    "deploy-cooperative": Preset(
        "the same with cooperative-sticky (KIP-429)", _by("cooperative-sticky", _deploy)
    ),
    "deploy-consumer": Preset("the same with KIP-848", _by("consumer", _deploy)),
    "deploy-consumer-static": Preset(
        "the same with KIP-848 and static members", _static(_by("consumer", _deploy))
    ),
    "deploy-fleet": Preset("Fleet's roll: standbys take over, one by one", _fleet(_handovers)),
    "scale-up": Preset("a quarter more members, one every 2 s", _up),
    "scale-up-cooperative": Preset("the same with KIP-429", _by("cooperative-sticky", _up)),
    "scale-up-consumer": Preset("the same with KIP-848", _by("consumer", _up)),
    "scale-up-fleet": Preset("Fleet's slot targets: they all join at once", _fleet(_targets)),
    "scale-up-fleet-consumer": Preset(
        "Fleet's slot targets with KIP-848: members are re-subscribed", _fleet(_targets, "consumer")
    ),
    "scale-down": Preset("a fifth of the members leaves, one every 2 s", _down),
    "scale-down-cooperative": Preset("the same with KIP-429", _by("cooperative-sticky", _down)),
    "scale-down-consumer": Preset("the same with KIP-848", _by("consumer", _down)),
    "scale-down-fleet": Preset("Fleet's batched leave: one request names all", _fleet(_batch)),
    "scale-down-fleet-consumer": Preset(
        "Fleet's batched leave with KIP-848", _fleet(_batch, "consumer")
    ),
    "crash-loop": Preset("one member crashes five times and comes back 10 s later", _crashes),
    "crash-loop-static": Preset("the same with static members (KIP-345)", _static(_crashes)),
    "failover": Preset("another broker becomes the coordinator, after 5 s without one", _failover),
    "failover-consumer": Preset("the same with KIP-848", _by("consumer", _failover)),
    "slow-consumer": Preset("one member does not poll for 7 minutes", _slow),
    "slow-consumer-consumer": Preset("the same with KIP-848", _by("consumer", _slow)),
    **_kip_62("slow-consumer", "one member does not poll for 7 minutes", _slow),
    **_kip_62("slow-batches", "one member does ten batches of 45 s", _batches),
    **_kip_62("join-in-batch", "one more starts while a member is at a batch", _join_in_batch),
    **_kip_62("crash-loop", "one member crashes five times, back 10 s later", _crashes),
}
LIBRARY: Final = {name: scenario.says for name, scenario in PRESETS.items()}


def library(name: str, members: int) -> Scenario:
    """A scenario of LIBRARY, with two partitions per member. Raises KeyError."""
    return PRESETS[name].played(members)
