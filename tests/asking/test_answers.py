"""`fleet rebalances` as a table and as JSON, and where it says that it is from."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from fleet.commands.groups.rebalances import answer, print_rebalances, summary
from fleet.manager.past import Recent, ReplayedRows, Source, make_recent
from fleet.model.rebalances import Cause, Confidence, TimeSource
from tests.asking.worlds import START, membership, rebalance
from tests.support.json_contract import documented, shape

UUID = "0f3a9c12-7d1e-4a53-9b1a-2f6f0c9d8e7b"
LOG = Source(kind="log", place="__consumer_offsets", reaches=START, as_of=START + 7200)
ROUNDS = [
    rebalance(11, 0, cause=Cause.CREATED, before=None, joined=("orders-0", "orders-1"), took=3.0),
    rebalance(
        12, 1800, joined=(f"rdkafka-{UUID}",), moved=3, took=2.3, how=TimeSource.COMMITS, aborted=1,
        assignor="cooperative-sticky",
    ),
    rebalance(
        13, 3600, cause=Cause.SECOND_ROUND, also=(Cause.PARTITIONS,), moved=8,
        confidence=Confidence.LIKELY,
    ),
    rebalance(
        4, 5400, group="payments-settlement", protocol="consumer", cause=Cause.REMOVAL,
        confidence=Confidence.AMBIGUOUS, left=tuple(f"pod-{n}" for n in range(9)), moved=12,
    ),
]  # fmt: skip


def printed(rounds, *, width=100, most=50, source=LOG, since=None, now=START + 7200):
    out = io.StringIO()
    print_rebalances(
        Console(file=out, width=width, highlight=False),
        rounds,
        source=source,
        since=since,
        until=now,
        most=most,
        now=now,
    )
    return out.getvalue()


def test_json_has_the_documented_shape():
    """Every key stands in docs/reference/json.md with its kind, and no other."""
    found = answer([ROUNDS[1]], cluster="main", source=LOG, since=None, until=START + 7200)
    assert shape(json.loads(json.dumps(found))) == shape(documented("fleet rebalances -o json"))


def test_what_is_not_known_is_null():
    """Never zero."""
    (found,) = answer([ROUNDS[2]], cluster="main", source=LOG, since=None, until=START + 7200)[
        "rebalances"
    ]
    assert (found["started_at"], found["seconds"], found["start_source"]) == (
        None,
        None,
        "not known",
    )
    assert found["also"] == ["partition count"]
    assert found["confidence"] == "likely"


def test_the_table_fits_100_columns():
    """Several groups, long names, causes with their confidence, durations with their sign."""
    text = printed(ROUNDS)
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    for part in ("11-18 11:06:40", "+rdkafka-0f3a…", "≥ 2.3 s", "(likely)", "+orders-0"):
        assert part in flat
    assert "≥ = at least" in flat
    assert "- = the log does not show its start" in flat


def test_every_group_is_summed_up_in_a_line():
    """Rebalances, rate, causes, moves, the longest, aborted rounds."""
    flat = " ".join(printed(ROUNDS, width=300).split())
    assert (
        "orders: 3 rebalances in 2 h (1.5 an hour): 1 created, 1 join, 1 second cooperative "
        "round; 11 partitions moved; the longest took 3 s; 1 round aborted"
    ) in flat
    assert "payments-settlement: 1 rebalance in 2 h (0.5 an hour): 1 removal" in flat


def test_a_rate_is_never_more_than_what_was_seen_in_an_hour():
    """Two rebalances in a minute are not 120 an hour."""
    found = summary("orders", ROUNDS[:2], since=START, until=START + 60)
    assert found["per_hour"] == 2


def test_the_rate_is_over_the_time_that_was_looked_at():
    """From --since on, or from when the source begins, whichever is later."""
    flat = " ".join(printed(ROUNDS[2:3], since=START + 3600, width=200).split())
    assert "1 rebalance in 60 min (1 an hour)" in flat


def test_the_newest_are_shown_and_the_rest_is_counted():
    """With what shows them."""
    text = printed(ROUNDS, most=1)
    assert "payments-settlement" in text
    assert "created" not in text.partition("the newest")[0]
    assert "the newest 1 of 4: --last 4 shows all" in text


def test_no_rebalances_are_an_answer():
    """With the source."""
    text = printed([], source=Source(kind="log", place="x", reaches=None, as_of=START + 7200))
    assert "no rebalances" in text
    assert "it has no rows yet" in " ".join(text.split())


@pytest.mark.parametrize(
    ("source", "line"),
    [
        pytest.param(
            LOG,
            "from the retained records of __consumer_offsets, read just now; it reaches back to "
            "2026-11-18 11:06:40 UTC",
            id="log",
        ),
        pytest.param(
            Source(kind="tables", place="/h", reaches=START, as_of=START, note="1 record was lost"),
            "from the history tables in /h; it reaches back to 2026-11-18 11:06:40 UTC, and is 2 h "
            "old (1 record was lost)",
            id="old tables",
        ),
    ],
)
def test_the_source_is_one_line(source, line):
    """Which it is, how far back, how old."""
    assert source.sentence(START + 7200) == line


def test_rows_in_memory_answer_as_tables_do():
    """[since, until), group and cause; in order of time."""
    rows = ReplayedRows([ROUNDS[3], membership("joined", "orders-0", 10, 4), *ROUNDS[:3]])
    assert [r.number for r in rows.rebalances()] == [11, 12, 13, 4]
    assert [r.number for r in rows.rebalances(group="orders", since=START + 1800)] == [12, 13]
    assert [r.number for r in rows.rebalances(until=START + 1800)] == [11]
    assert [r.number for r in rows.rebalances(cause=Cause.JOIN)] == [12]
    assert len(rows.memberships(group="orders", until=START + 11)) == 1
    assert rows.memberships(group="payments") == []


def test_the_last_hour_is_counted_and_the_last_cause_known():
    """A group without a rebalance had none; where nothing could be read, nobody knows."""
    found = make_recent(ROUNDS, kind="log", sentence="", now=START + 7200)
    assert found.per_hour("orders") == 1
    assert found.last["orders"].cause is Cause.SECOND_ROUND
    assert found.per_hour("quiet") == 0
    assert Recent(kind="none", sentence="away").per_hour("orders") is None


def test_tables_that_end_before_now_count_no_hour():
    """What came since is not known: no zero."""
    recent = make_recent([], kind="tables", sentence="", now=START)
    assert recent.per_hour("orders") == 0
    assert replace(recent, current=False).per_hour("orders") is None
