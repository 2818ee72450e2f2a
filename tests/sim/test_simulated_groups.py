"""Whole groups on simulated time: what stories cost, and that one seed tells one story."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest

from fleet import cli
from fleet.commands.simulate import _played, load_scenario
from fleet.errors import ConfigError
from fleet.log.records import GroupMetadata, decode
from fleet.sim.scenarios.group_scenario import LIBRARY, PROTOCOLS, Scenario, ScenarioEvent, library
from fleet.sim.scenarios.play import ScenarioOutcome, play, play_records
from fleet.text import duration
from tests.docs.pages import blocks
from tests.support.json_contract import documented, shape
from tests.support.needs import repository

PAGE = "docs/how-to/simulate.md"
MODEL = "docs/contributing/simulation-model.md"


def played(scenario: Scenario, seed: int = 1) -> ScenarioOutcome:
    """One story."""
    return play(scenario, random.Random(seed))


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("members", [1, 2, 7])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_story_settles_with_an_owner_for_each_partition(
    name: str, members: int, seed: int
) -> None:
    """And a seed tells it again, word for word; shares differ by one at most."""
    scenario = library(name, members)
    once = played(scenario, seed)
    assert once == played(scenario, seed)
    assert once.settled is not None
    shares = Counter(once.owners)
    assert None not in shares
    assert max(shares.values()) - min(shares.values()) <= 1


def test_another_seed_is_another_story() -> None:
    """Delays are drawn."""
    assert played(library("deploy", 3), 1).trace != played(library("deploy", 3), 2).trace


@pytest.mark.parametrize("members", [3, 10])
def test_a_dynamic_restart_costs_two_rebalances_and_a_static_one_none(members: int) -> None:
    """Each member leaves and joins; a static one is back within its session."""
    assert played(library("deploy", members)).rebalances == 2 * members
    static = played(library("deploy-static", members))
    assert (static.rebalances, static.moved) == (0, 0)
    assert 5_000 <= static.longest <= 5_050, "as long as its process is away"


def test_a_static_member_that_stays_away_is_missed_at_its_session_timeout() -> None:
    """Then the others get its partitions; it joins as a new one when it is back."""
    away = ScenarioEvent(60_000, "restart", lasts=60_000)
    found = played(Scenario(3, static=True, partitions=6, events=(away,)))
    assert found.rebalances == 2
    assert 42_000 <= found.longest <= 49_000


def test_a_start_at_once_is_one_rebalance() -> None:
    """All come within the initial delay."""
    assert played(library("start", 30)).rebalances == 1


def test_a_crash_pauses_for_about_the_session_timeout() -> None:
    """Less what has passed since its last heartbeat, and a heartbeat until the others know."""
    crash = (ScenarioEvent(61_000, "crash"),)
    found = played(Scenario(4, partitions=8, session_timeout=10_000, events=crash))
    assert found.rebalances == 1
    assert 7_000 <= found.longest <= 13_100
    assert set(found.owners) == {1, 2, 3}


def test_a_slow_consumer_leaves_and_comes_back() -> None:
    """After max.poll.interval.ms, and at its next poll."""
    found = played(library("slow-consumer", 4))
    assert found.rebalances == 2
    assert any("exceeds max.poll.interval.ms" in line for line in found.trace)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("do", ["leave", "batched-leave"])
@pytest.mark.parametrize("back", [300_000, 1_800_000])
def test_a_group_that_is_empty_for_long_is_still_there(protocol: str, do: str, back: int) -> None:
    """One that has committed stays for a week: its generations go on."""
    gone = ScenarioEvent(60_000, do, together=2)
    found = played(
        Scenario(2, partitions=4, events=(gone, ScenarioEvent(back, "start", together=2))).by(
            protocol
        )
    )
    assert found.settled is not None
    assert found.owners.count(0) == found.owners.count(1) == 2
    assert found.rebalances >= 2, "the one that empties it, and the one when they are back"
    late = played(
        Scenario(2, partitions=4, events=(gone, ScenarioEvent(back, "leave"))).by(protocol)
    )
    assert (late.settled is not None, late.owners) == (True, (None,) * 4)


def _one_by_one(gap: int, static: bool, **fields: int) -> Scenario:
    """Five more, so many ms apart."""
    story = tuple(ScenarioEvent(60_000 + gap * n, "start", 10 + n) for n in range(5))
    scenario = Scenario(10, static=static, partitions=40, events=story)
    return scenario._replace(**fields)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    "scenario",
    [
        lambda static: Scenario(10, static=static, initial_delay=0),
        lambda static: _one_by_one(100, static),
        lambda static: _one_by_one(2_000, static),
        lambda static: _one_by_one(2_000, static, shortest_delay=50, longest_delay=200),
        lambda static: _one_by_one(500, static)._replace(
            events=(
                ScenarioEvent(60_000, "leave", together=10),
                ScenarioEvent(70_000, "start", together=10),
                ScenarioEvent(74_200, "failover", lasts=100),
            )
        ),
    ],
    ids=["start", "close", "apart", "slow-network", "emptied-and-moved"],
)
def test_rebalances_are_those_that_were_completed(
    scenario: Callable[[bool], Scenario], static: bool
) -> None:
    """Each is a generation in the coordinator's log; rounds that were cut off are not."""
    story = scenario(static)
    began = min((each.at for each in story.events), default=0)
    for seed in range(1, 4):
        known = {0}  # a new group's first record
        new = 0
        for at, key, value in play_records(story, random.Random(seed)):
            found = decode(key, value, offset=0, timestamp=at)
            if isinstance(found, GroupMetadata) and found.generation not in known:
                known.add(found.generation)
                new += at >= began
        assert played(story, seed).rebalances == new, seed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_that_never_was_is_settled(protocol: str) -> None:
    """Its members end before they have asked for anything."""
    story = (ScenarioEvent(0, "start"), ScenarioEvent(1, "crash"))
    found = played(Scenario(1, start_within=0, connects_in=500, events=story).by(protocol))
    assert (found.rebalances, found.settled) == (0, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("members: 0", "members: 0 is out of range (allowed: 1 to 1000)"),
        ("member: 3", "member: unknown key; nearest: members"),
        ("events: [{at: 1m, do: rol}]", "events[0].do: 'rol' is not allowed; nearest: roll"),
        ("heartbeat_interval: 50s", "must be shorter than session_timeout (45 s)"),
        ("max_poll_interval: 10s", "must not be shorter than session_timeout (45 s)"),
        ("network: {shortest: 1s}", "longer than longest (0.005 s)"),
        ("- 3", "is no mapping with the keys members, static"),
        ("", "is empty"),
    ],
)
def test_an_impossible_scenario_is_told(tmp_path, text: str, words: str) -> None:
    """With file, key, value and what is allowed."""
    path = tmp_path / "story.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_every_key_of_a_file_is_played(tmp_path) -> None:
    """In milliseconds; a member of Java's time has its session."""
    path = tmp_path / "story.yaml"
    path.write_text(
        "{members: 4, partitions: 7, client: java-0.10.0, protocol: roundrobin, drifts_at: 30s, "
        "heartbeat_interval: 2s, max_poll_interval: 40s, initial_delay: 1s, resubscribe: 0.2s, "
        "assignment_interval: 2s, start_within: 5s, connects_in: 4s, "
        "network: {shortest: 2ms, longest: 9ms}, "
        "events: [{at: 1m, do: slow, member: 2, lasts: 3s, wait: 4s, together: 2}]}"
    )
    assert _played(load_scenario(path)) == Scenario(
        members=4,
        partitions=7,
        session_timeout=30_000,
        heartbeat_interval=2_000,
        max_poll_interval=40_000,
        initial_delay=1_000,
        start_within=5_000,
        shortest_delay=2,
        longest_delay=9,
        events=(ScenarioEvent(60_000, "slow", 2, 3_000, 4_000, 2),),
        protocol="roundrobin",
        assignment_interval=2_000,
        resubscribe=200,
        connects_in=4_000,
        drifts_at=30_000,
        client="java-0.10.0",
    )


def test_the_page_prints_what_the_command_prints(capsys) -> None:
    """Each command of docs/how-to/simulate.md with its answer."""
    (block,) = [b for b in blocks() if b.page == PAGE and b.language == "console"]
    printed = ""
    for line in block.commands.splitlines():
        assert cli.run(line.split()[1:]) == 0
        printed += f"$ {line}\n" + capsys.readouterr().out
    assert [line.rstrip() for line in printed.splitlines()] == block.text.splitlines()


def test_the_page_prices_kip_62(capsys) -> None:
    """Each row of the table of docs/contributing/simulation-model.md, from five seeds."""
    page = (repository() / MODEL).read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| `.+-kip-62` \| \d", line)]
    assert len(rows) == sum(name.endswith("-kip-62") for name in LIBRARY)
    for row in rows:
        name = row.split("`")[1]
        assert cli.run(["simulate", name, "--seeds", "5", "-o", "json"]) == 0
        of = {k: v["p50"] for k, v in json.loads(capsys.readouterr().out)["figures"].items()}
        pauses = (of["downtime_p50_seconds"], of["downtime_longest_seconds"])
        cells = [of["rebalances"], of["moved"], of["duplicates"], *map(duration, pauses)]
        assert row == f"| `{name}` | {' | '.join(map(str, cells))} |"


def test_the_story_of_the_page_is_played(tmp_path, capsys) -> None:
    """As a file, over seeds, with other members."""
    (block,) = [b for b in blocks() if b.page == PAGE and b.language == "yaml"]
    path = tmp_path / "story.yaml"
    path.write_text(block.text)
    assert cli.run(["simulate", str(path), "--seeds", "3", "-o", "json", "--members", "4"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["members"] == 4
    assert answer["figures"]["rebalances"] == {"p50": 11, "p95": 11}


def test_json_has_the_documented_shape(capsys) -> None:
    """docs/reference/json.md has every key."""
    assert cli.run(["simulate", "start", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert shape(answer) == shape(documented("fleet simulate -o json"))


def test_an_unknown_scenario_is_wrong_usage(capsys) -> None:
    """The names are listed."""
    assert cli.run(["simulate", "nope"]) == 2
    assert "allowed: start, deploy, deploy-static" in capsys.readouterr().err
