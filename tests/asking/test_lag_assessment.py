"""Verdicts of `fleet status`: what a single look and the past at hand come to."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.clock import ManualClock
from fleet.decide.lag_status import LagStatus
from fleet.history.tables import TablePlace, Tables, Writer
from fleet.lag.lag_columns import NONE, Commits
from fleet.log.readers.positions import Positions, key_to
from fleet.manager.lag_assessment import (
    find_groups_in_doubt,
    lag_statuses,
    with_past,
    with_settled,
    with_tables,
)
from fleet.model import TopicPartition
from tests.asking.worlds import START, rebalance
from tests.support.seen_groups import group_seen, partition_seen
from tests.support.snapshots import snapshot_of

NOW = START + 10_000
TP = TopicPartition("orders", 0)


def look(*, lag=100, waited=300.0, committed=50, group="orders"):
    """One group with one partition."""
    end = committed + lag
    part = partition_seen(0, lag, committed=committed, log_end=end, lag_seconds=waited)
    return snapshot_of(group_seen(group, partitions=[part]), at=NOW)


def past(at, moved=None, *, committed=50, until=NOW, gap=None, peak=None, fell=None):
    """Last committed `at` seconds before now, as a reader tells it."""
    known = Commits.of([("external_members", TP, 7), ("orders", TP, committed)])

    def both(value):
        return np.array([NONE, NONE if value is None else round(value * 1000)], dtype=np.int64)

    known.at[:], known.gap[:] = both(NOW - at), both(gap)
    columns = {"moved": both(NOW - (at if moved is None else moved)), "fell": both(fell)}
    peaks = np.array([NONE, NONE if peak is None else peak], dtype=np.int64)
    return {"past": replace(known, peak=peaks, **columns), "until": until}


def lag_status(seen, known=None, *, last=None):
    if known is not None:
        seen = with_past(seen, known["past"], reaches=None, until=known["until"])
    (found,) = lag_statuses(with_settled(seen, last or {})).values()
    return found


@pytest.mark.parametrize(
    ("seen", "known", "expected"),
    [
        pytest.param(look(), None, LagStatus.OK, id="nothing-known"),
        pytest.param(look(), past(200), LagStatus.STOP, id="no-commit"),
        pytest.param(look(), past(2, 200), LagStatus.STALL, id="commits-and-stands"),
        pytest.param(look(), past(200, gap=120.0), LagStatus.OK, id="its-rhythm"),
        pytest.param(look(), past(200, committed=40), LagStatus.OK, id="committed-since-then"),
        pytest.param(
            look(), past(260, until=NOW - 100), LagStatus.STOP, id="stopped-as-far-as-is-told"
        ),
        pytest.param(
            look(), past(130, until=NOW - 100), LagStatus.OK, id="silence-is-not-guessed"
        ),
        pytest.param(
            look(waited=5.0), past(2, peak=90, fell=NOW - 20), LagStatus.REWIND, id="rewound"
        ),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_a_look_and_its_past(seen, known, expected):
    """Each column of the past counts; the rules are in tests/decide/test_lag_status.py."""
    assert lag_status(seen, known).status is expected


def test_a_rebalance_a_moment_ago_excuses():
    """Silence counts from its end."""
    last = {"orders": rebalance(3, 10_000 - 20)}
    assert lag_status(look(), past(200), last=last).status is LagStatus.OK


def test_an_age_that_is_not_known_is_at_least_that_of_the_first_look_behind_it():
    """A record that was there at the first look ever has waited since then."""
    seen = look(waited=None)
    assert find_groups_in_doubt(seen, ()) == frozenset()
    seen = replace(seen, lag=replace(seen.lag, waited=np.array([400.0])))
    assert find_groups_in_doubt(seen, ()) == {"orders"}
    assert lag_status(seen, past(200)).status is LagStatus.STOP


def test_a_group_is_in_doubt_where_something_waits_for_long_or_where_it_was_named():
    """The rest is not looked up."""
    assert find_groups_in_doubt(look(), ()) == {"orders"}
    assert find_groups_in_doubt(look(waited=5.0), ()) == frozenset()
    assert find_groups_in_doubt(look(waited=5.0), ("orders", "external_members")) == {"orders"}


def test_the_log_tells_when_and_how_a_partition_was_committed():
    """One that its reader has not met was committed before it began."""
    positions = Positions()
    for committed, at in ((40, NOW - 90), (60, NOW - 80), (50, NOW - 70)):
        positions.put(key_to("orders", TP), "orders", TP, committed, int(at * 1000))

    def told(seen, *, reaches, groups=None):
        (found,) = zip(
            *(
                getattr(
                    with_past(
                        seen, positions.copy(), reaches=reaches, until=NOW, groups=groups
                    ).commits,
                    name,
                ).tolist()
                for name in ("at", "moved", "peak", "fell")
            ),
            strict=True,
        )
        return found

    read = told(look(), reaches=NOW - 500)
    assert read == ((NOW - 70) * 1000, (NOW - 80) * 1000, 60, (NOW - 70) * 1000)
    began = (NOW - 500) * 1000
    assert told(look(group="b"), reaches=NOW - 500) == (began, began, NONE, NONE)
    assert told(look(group="b"), reaches=None) == (NONE, NONE, NONE, NONE)
    assert told(look(), reaches=NOW - 500, groups=frozenset({"b"})) == (NONE,) * 4


def commit_row(at, committed, offset):
    return {
        "cluster": "main", "group_id": "orders", "topic": "orders", "topic_partition": 0,
        "committed": committed, "timestamp": int(at * 1000), "commits": 1, "log_partition": 3,
        "log_offset": offset, "first_timestamp": int(at * 1000), "at": at,
    }  # fmt: skip


def lag_row(at, seconds, committed_at):
    return {
        "cluster": "main", "sampled_at": at, "group_id": "orders", "topic": "orders",
        "topic_partition": 0,
        "committed": 50, "committed_at": committed_at, "seconds": seconds, "lag_case": "ok",
        "known": "commits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("commits", "looks", "expected"),
    [
        pytest.param([(200, 40), (190, 50)], [], LagStatus.STOP, id="stopped"),
        pytest.param([(n, 50) for n in range(900, 0, -10)], [], LagStatus.STALL, id="stalled"),
        pytest.param([(30, 40), (10, 50)], [(200, 150.0, 210)], LagStatus.WARN, id="behind"),
        pytest.param([], [(100, 90.0, 90_000)], LagStatus.STOP, id="before-the-window"),
    ],
)
def test_the_tables_tell_it_too(tmp_path, commits, looks, expected):
    """Of groups that somebody asks for, from their last minutes; up to when they tell."""
    writer = Writer(
        TablePlace(tmp_path), cluster="main", clock=ManualClock(at=NOW), retention=10 * 86_400
    )
    rows = [commit_row(NOW - ago, to, n) for n, (ago, to) in enumerate(commits)]
    files = writer.write("commits", rows)
    rows = [lag_row(NOW - ago, seconds, NOW - since) for ago, seconds, since in looks]
    files += writer.write("lag", rows)
    writer.commit("batch", files=files)
    tables = Tables(tmp_path)
    judged = lag_status(with_tables(look(), tables, frozenset({"orders"}), until=NOW))
    assert judged.status is expected, judged
    if not commits:
        assert "no commit for 90000 s" in judged.sentence
    assert lag_status(with_tables(look(), tables, frozenset(), until=NOW)).status is LagStatus.OK
