"""Verdicts of `fleet status`: what a single look and the past at hand come to."""

import pytest

from fleet.clock import ManualClock
from fleet.commands.keeping_up import (
    Trace,
    in_doubt,
    keeping_up,
    traces_from_log,
    traces_from_tables,
    waited_at_least,
)
from fleet.decide.verdicts import LagVerdict
from fleet.history.job import commit
from fleet.history.places import Place
from fleet.history.standing import Memory
from fleet.history.table_columns import COMMITS, LAG
from fleet.history.tables import Tables
from fleet.history.writing import Writer
from fleet.log.readers.positions import Positions, key_to
from fleet.model import (
    GroupSnapshot,
    GroupState,
    LagCase,
    PartitionState,
    Snapshot,
    TopicPartition,
)
from fleet.observe.samples import EndOffsetSamples
from tests.asking.worlds import START, rebalance

NOW = START + 10_000
TP = TopicPartition("orders", 0)


def look(
    *, lag=100, waited=300.0, committed=50, state=GroupState.STABLE, case=LagCase.OK, group="orders"
):
    """One group with one partition."""
    part = PartitionState(
        tp=TP, committed=committed, log_start=0,
        log_end=None if committed is None or lag is None else committed + lag,
        lag=lag, lag_seconds=waited, case=case, owner=None,
    )  # fmt: skip
    seen = GroupSnapshot(
        group=group, exists=True, state=state, type="classic", assignor=None, members=(),
        partitions=(part,),
    )  # fmt: skip
    return Snapshot(cluster="main", at=NOW, took=0.0, groups={group: seen}, topics={"orders": 1})


def trace(at, moved=None, *, committed=50, until=NOW, **more):
    """Last committed `at` seconds before now."""
    since = at if moved is None else moved
    return {("orders", TP): Trace(until, committed, NOW - at, NOW - since, **more)}


def verdict(seen, traces, *, last=None, waited=None):
    (found,) = keeping_up(seen, traces, last=last or {}, waited=waited or {}).values()
    return found


@pytest.mark.parametrize(
    ("seen", "traces", "told"),
    [
        pytest.param(look(lag=1), {}, LagVerdict.OK, id="nothing-waits"),
        pytest.param(look(waited=5.0), trace(300), LagVerdict.OK, id="has-not-waited"),
        pytest.param(look(), trace(200), LagVerdict.STOP, id="no-commit"),
        pytest.param(look(), trace(2, 200), LagVerdict.STALL, id="commits-and-stands"),
        pytest.param(look(), trace(2), LagVerdict.OK, id="moves"),
        pytest.param(look(), trace(200, gap=120.0), LagVerdict.OK, id="its-rhythm"),
        pytest.param(look(), trace(200, committed=40), LagVerdict.OK, id="committed-since-then"),
        pytest.param(
            look(), trace(260, until=NOW - 100), LagVerdict.STOP, id="stopped-as-far-as-is-told"
        ),
        pytest.param(
            look(), trace(130, until=NOW - 100), LagVerdict.OK, id="silence-is-not-guessed"
        ),
        pytest.param(
            look(waited=5.0), trace(2, peak=90, fell=NOW - 20), LagVerdict.REWIND, id="rewound"
        ),
        pytest.param(
            look(), trace(2, waited_before=(NOW - 200, 150.0)), LagVerdict.WARN, id="falls-behind"
        ),
        pytest.param(
            look(), trace(2, waited_before=(NOW - 200, 299.0)), LagVerdict.OK, id="holds-its-own"
        ),
        pytest.param(look(), {}, LagVerdict.OK, id="nothing-known"),
        pytest.param(
            look(case=LagCase.BELOW_START), {}, LagVerdict.LOSS, id="records-taken"
        ),
        pytest.param(
            look(case=LagCase.NEVER_COMMITTED, lag=None, committed=None, waited=None),
            {}, LagVerdict.UNSCORED, id="never-committed",
        ),
        pytest.param(
            look(state=GroupState.EMPTY), trace(90_000), LagVerdict.ABANDONED, id="abandoned"
        ),
        pytest.param(look(state=GroupState.PREPARING), trace(200), LagVerdict.OK, id="rebalances"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_a_look_and_its_past(seen, traces, told):
    """By the same rules as the exporter's."""
    assert verdict(seen, traces).verdict is told


def test_a_rebalance_a_moment_ago_excuses():
    """Silence counts from its end."""
    last = {"orders": rebalance(3, 10_000 - 20)}
    assert verdict(look(), trace(200), last=last).verdict is LagVerdict.OK


def test_an_age_that_is_not_known_is_at_least_that_of_the_first_look_behind_it():
    """A record that was there at the first look ever has waited since then."""
    samples = EndOffsetSamples(None)
    samples.record("main", NOW - 400, {TP: 120})
    samples.record("main", NOW, {TP: 150})
    seen = look(waited=None)
    waited = waited_at_least(seen, samples)
    assert waited == {("orders", TP): 400.0}
    assert verdict(seen, trace(200), waited=waited).verdict is LagVerdict.STOP
    assert verdict(seen, trace(200)).verdict is LagVerdict.OK


def test_a_group_is_in_doubt_where_something_waits_for_long_or_where_it_was_named():
    """The rest is not looked up."""
    assert in_doubt(look(), ()) == {"orders"}
    assert in_doubt(look(waited=5.0), ()) == frozenset()
    assert in_doubt(look(waited=5.0), ("orders", "strangers")) == {"orders"}


def test_the_log_tells_when_and_how_a_partition_was_committed():
    """One that its reader has not met was committed before it began."""
    positions = Positions()
    for committed, at in ((40, NOW - 90), (60, NOW - 80), (50, NOW - 70)):
        positions.put(key_to("orders", TP), "orders", TP, committed, int(at * 1000))
    read = traces_from_log(positions.copy(), look(), reaches=NOW - 500, until=NOW)
    found = read["orders", TP]
    assert (found.committed, found.at, found.peak) == (50, NOW - 70, 60)
    assert (found.moved, found.fell) == (NOW - 80, NOW - 70)
    other = traces_from_log(positions.copy(), look(group="b"), reaches=NOW - 500, until=NOW)
    assert other["b", TP].at == NOW - 500
    assert not traces_from_log(positions.copy(), look(group="b"), reaches=None, until=NOW)


def commit_row(at, committed, offset):
    return {
        "cluster": "main", "group": "orders", "topic": "orders", "topic_partition": 0,
        "committed": committed, "timestamp": int(at * 1000), "commits": 1, "partition": 3,
        "offset": offset, "first_timestamp": int(at * 1000), "at": at,
    }  # fmt: skip


def lag_row(at, seconds, committed_at):
    return {
        "cluster": "main", "at": at, "group": "orders", "topic": "orders", "topic_partition": 0,
        "committed": 50, "committed_at": committed_at, "seconds": seconds, "case": "ok",
        "known": "commits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("commits", "looks", "told"),
    [
        pytest.param([(200, 40), (190, 50)], [], LagVerdict.STOP, id="stopped"),
        pytest.param([(n, 50) for n in range(900, 0, -10)], [], LagVerdict.STALL, id="stalled"),
        pytest.param([(30, 40), (10, 50)], [(200, 150.0, 210)], LagVerdict.WARN, id="behind"),
        pytest.param([], [(100, 90.0, 90_000)], LagVerdict.STOP, id="before-the-window"),
    ],
)
def test_the_tables_tell_it_too(tmp_path, commits, looks, told):
    """Of groups that somebody asks for, from their last minutes; up to when they tell."""
    with Writer(
        Place(tmp_path), cluster="main", clock=ManualClock(at=NOW), retention=10 * 86_400
    ) as writer:
        folder = writer.attempt()
        rows = [commit_row(NOW - ago, to, n) for n, (ago, to) in enumerate(commits)]
        files = writer.write(folder, "commits", COMMITS, rows, "at")
        rows = [lag_row(NOW - ago, seconds, NOW - since) for ago, seconds, since in looks]
        files += writer.write(folder, "lag", LAG, rows, "at")
        commit(writer, Memory(), folder, "batch", files)
    found = traces_from_tables(Tables(tmp_path), look(), frozenset({"orders"}), until=NOW)
    judged = verdict(look(), found)
    assert judged.verdict is told, judged
    if not commits:
        assert "no commit for 90000 s" in judged.sentence
    assert not traces_from_tables(Tables(tmp_path), look(), frozenset(), until=NOW)
