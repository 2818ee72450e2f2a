"""What each protocol and each way of Fleet's costs a simulated group."""

import random
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.sim.scenarios.group_scenario import PROTOCOLS, Scenario, ScenarioEvent, library
from fleet.sim.scenarios.play import ScenarioOutcome, play
from fleet.sim.scenarios.simulated_client import CLIENT_MOVES, ClassicClient, ClientState

AT = 60_000


def played(protocol: str, *events: ScenarioEvent, seed: int = 1, **fields: Any) -> ScenarioOutcome:
    """Four members, eight partitions."""
    scenario = Scenario(members=4, partitions=8, events=events).by(protocol)
    return play(scenario._replace(**fields), random.Random(seed))


def told(name: str, members: int = 8) -> ScenarioOutcome:
    """A story of the library."""
    return play(library(name, members), random.Random(1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_every_partition_finds_an_owner(
    protocol: str, static: bool, seed: int
) -> None:
    """Random joins, leaves, crashes, restarts and stuck applications."""
    rng = random.Random(f"{protocol} {static} {seed}")
    doings = ("start", "leave", "crash", "restart", "slow", "batched-leave")
    story = tuple(
        ScenarioEvent(
            AT + rng.randrange(300_000),
            rng.choice(doings),
            rng.randrange(1, 6),
            rng.choice((100, 20_000, 90_000)),
            together=rng.randint(1, 2),
        )
        for _ in range(12)
    )
    found = played(protocol, *story, seed=seed, static=static, max_poll_interval=60_000)
    assert found.settled is not None
    assert found == played(protocol, *story, seed=seed, static=static, max_poll_interval=60_000)


@pytest.mark.parametrize(
    ("protocol", "cost"), [("range", 1), ("roundrobin", 1), ("sticky", 1), ("consumer", 1)]
)
def test_one_more_costs_one_and_two_where_it_is_cooperative(protocol: str, cost: int) -> None:
    """The second round is for what the first took away."""
    join = ScenarioEvent(AT, "start", 4)
    assert played(protocol, join).rebalances == cost
    cooperative = played("cooperative-sticky", join)
    assert cooperative.rebalances == 2
    assert cooperative.moved == 1, "one of eight: 2, 2, 2, 1 and 1"
    assert cooperative.longest > 0
    assert played("cooperative-sticky", ScenarioEvent(AT, "leave", 3)).rebalances == 1


def test_a_cooperative_member_keeps_what_is_not_taken_from_it() -> None:
    """Only the moved partition pauses; with an eager assignor all do."""
    join = ScenarioEvent(AT, "start", 4)
    assert sum(pause > 0 for pause in played("cooperative-sticky", join).pauses) == 1
    assert all(pause > 0 for pause in played("range", join).pauses)


def test_a_heartbeat_waits_for_the_main_loop() -> None:
    """An interval that is no multiple of half a second is sent later."""
    gone = ScenarioEvent(AT, "leave", 3)
    assert played("range", gone, heartbeat_interval=1_200).settled in range(1_600)


def test_a_cooperative_member_without_partitions_is_missed_at_its_session() -> None:
    """Librdkafka sends no LeaveGroup for it."""
    story = (
        ScenarioEvent(AT, "start", 4),
        ScenarioEvent(2 * AT, "leave", 4),
        ScenarioEvent(3 * AT, "leave", 3),
    )
    for protocol, least in (("cooperative-sticky", 40.0), ("range", 0.0)):
        trace = played(protocol, *story, partitions=4).trace
        left = next(line for line in trace if "member 4 closes" in line)
        times = [float(line.split()[0]) for line in trace if "generation" in line]
        after = min(at for at in times if at > float(left.split()[0]))
        assert after - 2 * AT / 1000 >= least, protocol


def test_targets_and_batched_leave_are_one_rebalance() -> None:
    """However many join or leave; one by one they cost more."""
    assert told("scale-up-fleet", 16).rebalances == 1
    assert told("scale-down-fleet", 16).rebalances == 1
    assert told("scale-up", 16).rebalances > 1
    assert told("scale-down", 16).rebalances > 1
    assert told("scale-up-fleet-consumer", 16).rebalances <= 2
    assert told("scale-down-fleet-consumer", 16).rebalances == 1


def test_a_handover_is_no_rebalance() -> None:
    """Static members, back at once; also with KIP-848 after a clean close."""
    found = told("deploy-fleet")
    assert (found.rebalances, found.moved) == (0, 0)
    assert found.longest < 100
    assert told("deploy-consumer-static").rebalances == 0


def test_a_static_epoch_member_that_crashed_is_refused_until_its_session_ends() -> None:
    """The newcomer ends by 111; so ours does not come back in time."""
    story = (ScenarioEvent(AT, "crash", 2), ScenarioEvent(AT + 1_000, "start", 2))
    found = played("consumer", *story, static=True)
    assert any("is refused (error 111)" in line for line in found.trace)
    assert set(found.owners) == {0, 1, 3}


def test_a_stuck_epoch_member_is_missed_at_its_session() -> None:
    """max.poll.interval.ms makes it silent; a classic one leaves at once."""
    stuck = ScenarioEvent(AT, "slow", 2, lasts=120_000)
    for protocol, least in (("consumer", 44_000), ("range", 0)):
        trace = played(protocol, stuck, max_poll_interval=10_000, session_timeout=45_000).trace
        taken = [line for line in trace if "4 partitions" in line or "3 partitions" in line]
        assert float(taken[0].split()[0]) * 1000 >= AT + 10_000 + least - 5_100, protocol


def test_resubscribed_members_do_not_wait_for_their_heartbeats() -> None:
    """Fleet's way with KIP-848."""
    join = ScenarioEvent(AT, "start", 4)
    plain, resubscribed = played("consumer", join), played("consumer", join, resubscribe=260)
    assert resubscribed.settled < 1_000 < plain.settled < 5_100, (
        "an owner tells at once what it gave up"
    )


def test_an_illegal_move_is_told() -> None:
    """By name, with what is allowed."""
    client = ClassicClient(3, Scenario(), None)  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="member 3 is down and cannot become steady"):
        client.become(ClientState.STEADY)
    assert CLIENT_MOVES.keys() == {*ClientState}


class _Clock:
    now = 0


def test_the_main_loop_wakes_by_two_timers() -> None:
    """A second from the start, half a second from the last assignment, each a bit late."""
    clock: Any = _Clock()
    client = ClassicClient(0, Scenario(), clock)
    client._ticks[:] = [300, 10_100]  # by a start, by an assignment
    clock.now = 11_000
    assert client.until_awake(11_000) == 101
    assert client.until_awake(11_102) == 306
    assert client.until_awake(11_307) == 601
