"""The coordinator moves under whole groups: at rest, in every phase of a round, again and again."""

import random
from typing import Final

import pytest

from fleet.sim.coordinator.requests import ErrorCode, HeartbeatRequest, HeartbeatResponse
from fleet.sim.scenarios.coordinator_sides import not_coordinator
from fleet.sim.scenarios.group_scenario import PROTOCOLS, Scenario, ScenarioEvent, library
from fleet.sim.scenarios.play import ScenarioOutcome, play

AT: Final = 60_000


def played(protocol: str, *events: ScenarioEvent, seed: int = 1, **how) -> ScenarioOutcome:
    """Four members of eight partitions."""
    scenario = Scenario(4, partitions=8, events=events).by(protocol)
    return play(scenario._replace(**how), random.Random(seed))


@pytest.mark.parametrize("name", ["failover", "failover-consumer"])
@pytest.mark.parametrize("members", [1, 5, 30])
def test_a_move_costs_nothing(name: str, members: int) -> None:
    """R3, R21, R26, R31, R55: nobody stops; members look for the next coordinator and go on."""
    found = play(library(name, members), random.Random(1))
    assert found.settled is not None
    assert (found.rebalances, found.moved, found.longest) == (0, 0, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("static", [False, True])
def test_a_move_in_every_phase_of_a_round(protocol: str, static: bool) -> None:
    """R50-R54: from the moment a fifth member comes until after the round, in steps."""
    for after in (0, 5, 20, 60, 100, 150, 180, 500, 1_000, 2_000, 5_000):
        join = ScenarioEvent(AT, "start", 4)
        move = ScenarioEvent(AT + after, "failover", lasts=700)
        found = played(protocol, join, move, static=static)
        assert found.settled is not None, after
        assert sorted(set(found.owners)) == [0, 1, 2, 3, 4], after
        assert found == played(protocol, join, move, static=static)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_death_that_nobody_told_the_next_coordinator(protocol: str) -> None:
    """R24, R50: it is missed a whole session after the move, and its partitions go to others."""
    crash, move = ScenarioEvent(AT, "crash", 0), ScenarioEvent(AT + 30_000, "failover")
    found = played(protocol, crash, move)
    assert set(found.owners) == {1, 2, 3}
    assert 80_000 <= found.longest <= 95_000, "35 s, and a session of 45 s"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(3))
def test_moves_among_whatever_comes_and_goes(protocol: str, seed: int) -> None:
    """Joins, leaves, crashes and restarts, and a coordinator that does not stay."""
    rng = random.Random(f"moves {protocol} {seed}")
    doings = ("start", "leave", "crash", "restart", "failover", "failover", "batched-leave")
    story = tuple(
        ScenarioEvent(
            AT + rng.randrange(120_000),
            rng.choice(doings),
            rng.randrange(1, 6),
            rng.choice((100, 2_000, 20_000)),
        )
        for _ in range(14)
    )
    found = played(protocol, *story, seed=seed, static=seed % 2 == 1)
    assert found.settled is not None
    assert None not in found.owners


def test_the_answer_of_a_former_coordinator() -> None:
    """R55: of the request's own kind."""
    answer = not_coordinator(HeartbeatRequest("g", 1, "m"))
    assert answer == HeartbeatResponse(error_code=int(ErrorCode.NOT_COORDINATOR))


def test_a_move_within_a_round_stops_nobody_else() -> None:
    """Who is told that the coordinator has gone keeps what it owns, and asks again in a second."""
    for after in range(0, 3_300, 100):
        join = ScenarioEvent(AT, "start", 4)
        found = played(
            "cooperative-sticky",
            join,
            ScenarioEvent(AT + after, "failover", lasts=5_000),
            static=True,
        )
        assert sum(pause > 0 for pause in found.pauses) <= found.moved, after


def test_a_member_that_was_late_before_its_first_answer_joins_all_the_same() -> None:
    """KIP-848: it never was a member, so that nobody answers its leave."""
    found = played(
        "consumer",
        ScenarioEvent(AT, "failover", lasts=400_000),
        ScenarioEvent(AT + 1_000, "start", 4),
        ScenarioEvent(AT + 2_000, "slow", 4, lasts=350_000),
        shortest_delay=50,
        longest_delay=50,
    )
    assert found.settled is not None
    assert 4 in found.owners


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_that_was_empty_for_long_counts_on(protocol: str) -> None:
    """Its offsets keep it: both rebalances of its members' return count, none is taken away."""
    empty = ScenarioEvent(AT, "leave", 0, together=4)
    soon = played(protocol, empty, ScenarioEvent(300_000, "start", 0, together=4))
    late = played(protocol, empty, ScenarioEvent(1_800_000, "start", 0, together=4))
    assert late.settled is not None
    assert soon.rebalances == late.rebalances > 0
