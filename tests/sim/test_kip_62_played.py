"""Members as Java's were before KIP-62 and with it: what a long batch costs a group."""

import random
from typing import Any

import pytest

from fleet.commands.simulate import ScenarioSpec, load_scenario
from fleet.errors import ConfigError
from fleet.sim.scenarios.group_scenario import CLIENTS, Scenario, ScenarioEvent, library
from fleet.sim.scenarios.play import ScenarioOutcome, play

AT = 60_000
BEFORE, AFTER = "java-0.10.0", "java-0.10.1"
SESSION = 10_000


def played(client: str, *events: ScenarioEvent, seed: int = 1, **fields: Any) -> ScenarioOutcome:
    """Three members, six partitions, a session of 10 s."""
    scenario = Scenario(3, partitions=6, events=events, client=client, initial_delay=0)
    return play(scenario._replace(**{"session_timeout": SESSION, **fields}), random.Random(seed))


def batch(lasts: int, at: int = AT, member: int = 2) -> ScenarioEvent:
    """The application is at it for so long."""
    return ScenarioEvent(at, "slow", member, lasts)


def when(found: ScenarioOutcome, words: str) -> list[int]:
    """Milliseconds of the lines of the trace that say so."""
    return [round(float(each.split()[0]) * 1000) for each in found.trace if words in each]


def test_a_batch_beyond_the_session_costs_two_rebalances_before_and_none_with_it() -> None:
    """It hears that it is out when it commits; the others have had its partitions for long."""
    found = played(BEFORE, batch(25_000))
    assert (found.rebalances, found.duplicates) == (2, 1)
    assert when(found, "may not commit its batch (error 25)")[0] in range(AT + 25_000, AT + 25_011)
    alone = [each for each in when(found, "3 partitions") if each > AT]
    assert AT + SESSION - 3_000 <= min(alone) <= AT + SESSION + 3_100
    assert found.settled in range(25_000, 29_000), "the others hear of it within a heartbeat"
    found = played(AFTER, batch(25_000))
    assert (found.rebalances, found.duplicates, found.settled) == (0, 0, 0)


@pytest.mark.parametrize("client", [BEFORE, AFTER])
def test_shorter_batches_cost_nothing(client: str) -> None:
    """Commit and heartbeat after each; a hundred in a row, 20 ms apart."""
    batches = [batch(6_500, AT + 6_520 * n) for n in range(100)]
    found = played(client, *batches)
    assert (found.rebalances, found.duplicates) == (0, 0)


def test_without_batches_heartbeats_keep_both_in() -> None:
    """For ten minutes."""
    for client in (BEFORE, AFTER):
        assert played(client, batch(1, 10 * AT)).rebalances == 0


def test_a_round_waits_for_a_session_before_and_for_the_batch_with_it() -> None:
    """The expected cost of KIP-62: all others stand still for as long as the batch takes."""
    story = (batch(25_000), ScenarioEvent(AT + 1_000, "start", 3))
    before, after = played(BEFORE, *story), played(AFTER, *story)
    assert (before.rebalances, before.duplicates) == (2, 1), "it is late, and joins another round"
    assert before.longest in range(4_000, 10_100)
    assert (after.rebalances, after.duplicates) == (1, 0), "it commits, and joins the round"
    assert after.longest in range(20_900, 24_100)
    assert after.settled in range(25_000, 25_100)


@pytest.mark.parametrize(
    ("interval", "left_at"), [(20_000, 20_000), (6_000, SESSION)], ids=["as told", "session"]
)
def test_a_thread_leaves_for_an_application_that_does_not_poll(interval: int, left_at: int) -> None:
    """At max.poll.interval.ms or the session, whichever is longer; it goes on until its commit."""
    found = played(AFTER, batch(40_000), max_poll_interval=interval)
    assert when(found, "exceeds max.poll.interval.ms") == [AT + left_at]
    assert (found.rebalances, found.duplicates) == (2, 1)
    assert found.longest < 3_100, "its partitions were its own until others took them"
    assert not played(AFTER, batch(left_at - 1), max_poll_interval=interval).duplicates


def test_a_dead_member_stops_a_round_for_its_session() -> None:
    """KIP-62's other gain: a session need not be as long as a batch. 30 s, and 10 s since."""
    before, after = (
        play(library(f"crash-loop-{each}-kip-62", 4), random.Random(1))
        for each in ("before", "after")
    )
    assert before.longest in range(26_900, 33_100)
    assert after.longest in range(6_900, 13_100)
    assert before.pauses[0] > 60_000, "who is back makes all others wait for who it was"
    assert after.pauses[0] < 20_000


def test_a_batch_begins_once_a_poll_returns() -> None:
    """Not while the member joins."""
    found = played(BEFORE, ScenarioEvent(AT, "start", 3), batch(20_000, AT + 1, 3))
    began = when(found, "member 3 does not poll")[0]
    assert began >= when(found, "member 3 generation")[0] > AT
    assert found.duplicates == 1


def test_a_commit_looks_for_a_coordinator_that_moved() -> None:
    """It is asked again until somebody coordinates; the batch counts."""
    moved = ScenarioEvent(AT + 4_000, "failover", lasts=3_000)
    for client in (BEFORE, AFTER):
        found = played(client, batch(5_000), moved)
        assert (found.rebalances, found.duplicates) == (0, 0), client


def test_a_member_that_is_refused_by_a_moved_coordinator_joins_later() -> None:
    """A hundred milliseconds later, again and again."""
    story = (ScenarioEvent(AT, "failover", lasts=3_000), ScenarioEvent(AT + 100, "start", 3))
    found = played(BEFORE, *story)
    assert found.rebalances == 1
    assert min(when(found, "member 3 generation")) in range(AT + 3_000, AT + 6_200)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_every_partition_finds_an_owner(client: str, seed: int) -> None:
    """Random joins, leaves, crashes, batches and moves; one seed, one story."""
    rng = random.Random(f"{client} {seed}")
    doings = ("start", "leave", "crash", "restart", "slow", "slow", "failover")
    story = tuple(
        ScenarioEvent(
            AT + rng.randrange(300_000),
            rng.choice(doings),
            rng.randrange(1, 6),
            rng.choice((100, 7_000, 20_000, 90_000)),
            together=rng.randint(1, 2),
        )
        for _ in range(14)
    )
    found = played(client, *story, seed=seed, max_poll_interval=60_000)
    assert found.settled is not None
    assert found == played(client, *story, seed=seed, max_poll_interval=60_000)


def test_two_batches_at_once_are_as_long_as_the_longer_one() -> None:
    """Each of them beyond max.poll.interval.ms: it leaves once, and is back at the end."""
    story = (batch(70_000), batch(80_000, AT + 1_000), batch(1_000, AT + 2_000))
    for client in CLIENTS:
        found = played(client, *story, max_poll_interval=20_000)
        out = when(found, "exceeds max.poll.interval.ms")
        assert len(out) == (0 if client == BEFORE else 1), client
        assert (found.rebalances, found.duplicates) == (2, 1), client
        assert found.settled in range(81_000, 85_000), client


def test_a_stuck_epoch_member_does_its_batch_in_vain_once_its_session_is_over() -> None:
    """It is silent from max.poll.interval.ms on; back before that, it may still commit."""
    fields = {"protocol": "consumer", "max_poll_interval": 20_000, "heartbeat_interval": 5_000}
    assert played("librdkafka", batch(60_000), **fields).duplicates == 1
    assert played("librdkafka", batch(22_000), **fields).duplicates == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("static: true", "has no static members (allowed: static: false)"),
        ("protocol: consumer", "has no protocol consumer (allowed: range, roundrobin)"),
        ("protocol: sticky", "protocol sticky (allowed"),
        ("heartbeat_interval: 12s", "must be shorter than session_timeout (10 s)"),
    ],
)
def test_what_old_members_cannot_do_is_told(tmp_path, text: str, words: str) -> None:
    """By key and value, with what is allowed."""
    path = tmp_path / "story.yaml"
    path.write_text(f"client: {AFTER}\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert words in str(caught.value)


def test_a_file_names_the_client(tmp_path) -> None:
    """With the session timeout of its time; max.poll.interval.ms may be below it."""
    path = tmp_path / "story.yaml"
    for client, session in ((BEFORE, 30), (AFTER, 10), ("librdkafka", 45)):
        path.write_text(f"client: {client}\n")
        assert load_scenario(path).session == session
    path.write_text(f"client: {AFTER}\nsession_timeout: 20s\nmax_poll_interval: 10s\n")
    assert load_scenario(path).session == 20
    allowed = ScenarioSpec.model_json_schema()["properties"]["client"]["enum"]
    assert tuple(allowed) == CLIENTS
