"""Every rule of a verdict, and every false alarm that it ends, by the judge over columns."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.decide.lag_status import GroupLagStatus, LagStatus, Level
from fleet.lag.lag_columns import NONE, Commits
from fleet.lag.snapshot import CASES as LAG_CASES
from fleet.lag.snapshot import GroupFacts, Lag, Snapshot
from fleet.manager.lag_assessment import lag_statuses, worst_lag_status
from fleet.model import GroupState, LagCase, TopicPartition

NOW = 1_000_000.0
STABLE = (GroupState.STABLE, 7200.0)
EMPTY = (GroupState.EMPTY, 7200.0)
LATE = {"waited": 300.0, "since_commit": 5.0, "since_moved": 5.0, "gap": 5.0}


def progress(number: int = 0, **facts) -> dict:
    """A partition that moves and has 100 records waiting; facts replace."""
    known = {
        "number": number,
        "case": LagCase.OK,
        "start": 0,
        "lag": 100,
        "waited": 1.0,
        "since_commit": 2.0,
        "since_moved": 2.0,
        "gap": 5.0,
        "fell_by": 0,
        "since_fell": None,
        "gained": None,
        "over": 0.0,
    }
    return {**known, **facts}


def judged(rows: list[dict], around=STABLE, *, others: int = 0) -> GroupLagStatus:
    """A group with these partitions, and others of which nothing waits."""
    rows = [*rows, *(progress(100 + number, lag=0, waited=0.0) for number in range(others))]
    state, settled = around

    def column(name, kind, *, none):
        return np.array([none if row[name] is None else row[name] for row in rows], dtype=kind)

    def ms(name):
        return np.array(
            [NONE if row[name] is None else int((NOW - row[name]) * 1000) for row in rows],
            dtype=np.int64,
        )

    tps = [("g", TopicPartition("orders", row["number"]), 1000) for row in rows]
    fell_by = column("fell_by", np.int64, none=0)
    lag, waited = (
        column(*each, none=none)
        for *each, none in (("lag", np.int64, NONE), ("waited", float, np.nan))
    )
    seen = Snapshot(
        cluster="c", at=NOW, took=0.1, topics={}, members={},
        facts={
            "g": GroupFacts(
                state=state, type="classic", members=0 if state is GroupState.EMPTY else 1,
                changed_at=NOW - settled,
            )
        },
        commits=replace(
            Commits.of(tps), at=ms("since_commit"), moved=ms("since_moved"), fell=ms("since_fell"),
            peak=np.where(fell_by > 0, 1000 + fell_by, NONE),
            gap=column("gap", float, none=NONE / 1000) * 1000,
        ),
        lag=Lag(
            start=column("start", np.int64, none=0), end=1000 + np.maximum(lag, 0),
            case=np.array([LAG_CASES.index(row["case"]) for row in rows], dtype=np.int8),
            records=lag, seconds=waited, waited=waited,
        ),
        gained=column("gained", float, none=np.nan), over=column("over", float, none=0.0),
    )  # fmt: skip
    (found,) = lag_statuses(seen).values()
    assert worst_lag_status(seen) == {"g": found.status}
    return found


CASES = {
    "keeps up": (progress(lag=0), STABLE, "OK"),
    "busy, half a second behind": (progress(waited=0.5), STABLE, "OK"),
    "no commit while records wait": (progress(**{**LATE, "since_commit": 300.0}), STABLE, "STOP"),
    "commits one place for ever": (progress(**{**LATE, "since_moved": 300.0}), STABLE, "STALL"),
    "falls behind": (progress(**LATE, gained=60.0, over=300.0), STABLE, "WARN"),
    "late, but no later than before": (progress(**LATE, gained=3.0, over=300.0), STABLE, "OK"),
    "late, and catching up": (progress(**LATE, gained=-200.0, over=300.0), STABLE, "OK"),
    "went back": (progress(fell_by=500, since_fell=30.0), STABLE, "REWIND"),
    "went back long ago": (progress(fell_by=500, since_fell=3000.0), STABLE, "OK"),
    "went back, and nothing waits": (progress(lag=0, fell_by=5, since_fell=30.0), STABLE, "OK"),
    "below the log start": (progress(case=LagCase.BELOW_START), STABLE, "LOSS"),
    "nobody is there": (progress(**{**LATE, "since_commit": 300.0}), EMPTY, "STOP"),
}
BEYOND = {"case": LagCase.BEYOND_END, "lag": None, "waited": None, "since_commit": 300.0}
CASES |= {
    "committed beyond the end, for long": (progress(**BEYOND), STABLE, "STOP"),
    "beyond the end, and nobody is there": (progress(**BEYOND), EMPTY, "STOP"),
    "beyond the end, a moment ago": (
        progress(**{**BEYOND, "since_commit": 5.0}), STABLE, "UNSCORED",
    ),
    "beyond the end of a log without records": (
        progress(**BEYOND, start=1000), STABLE, "UNSCORED",
    ),
    "beyond the end, in a join phase": (
        progress(**BEYOND), (GroupState.PREPARING, 600.0), "UNSCORED",
    ),
}  # fmt: skip
FALSE_ALARMS = {
    "the first record after a quiet hour": (
        progress(lag=3, waited=2.0, since_commit=3600.0, since_moved=3600.0, gap=1.0),
        STABLE,
    ),
    "commits every ten minutes": (
        progress(waited=500.0, since_commit=500.0, since_moved=500.0, gap=600.0),
        STABLE,
    ),
    "a transaction marker, for a day": (
        progress(lag=1, waited=86_400.0, since_commit=86_400.0, since_moved=86_400.0),
        STABLE,
    ),
    "in a join phase": (
        progress(**{**LATE, "since_commit": 300.0, "since_moved": 300.0}),
        (GroupState.PREPARING, 600.0),
    ),
    "a KIP-848 group that reconciles": (
        progress(**{**LATE, "since_commit": 300.0}),
        (GroupState.REBALANCING, 600.0),
    ),
    "the rebalance has just ended": (
        progress(**{**LATE, "since_commit": 300.0, "since_moved": 300.0}),
        (GroupState.STABLE, 5.0),
    ),
    "the monitor has just begun": (
        progress(lag=40_000_000, waited=None, since_commit=900.0, since_moved=900.0),
        STABLE,
    ),
    "a busy topic whose lag only grew between its commits": (
        progress(lag=5_000, waited=0.6, gained=0.4, over=60.0),
        STABLE,
    ),
    "commits once a minute, seen before and after": (
        progress(waited=70.0, since_commit=50.0, since_moved=50.0, gap=60.0, gained=50.0, over=60),
        STABLE,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_rule_that_fits(case):
    """Each rule, with a sentence."""
    seen, around, expected = CASES[case]
    found = judged([seen], around)
    assert found.status == expected, found.sentence
    assert found.sentence


@pytest.mark.parametrize("case", FALSE_ALARMS)
def test_known_false_alarms_are_none(case):
    """What other monitors page for, and should not."""
    seen, around = FALSE_ALARMS[case]
    found = judged([seen], around)
    assert found.status is LagStatus.OK, found.sentence


@pytest.mark.parametrize(
    "case",
    [
        *(LagCase.NEVER_COMMITTED, LagCase.TOPIC_DELETED, LagCase.LEFT),
        *(LagCase.BEYOND_END, LagCase.UNKNOWN),
    ],
)
def test_without_a_figure_there_is_no_verdict(case):
    """Deleted topics do not go on alarming; the case is named."""
    alone = judged([progress(case=case, lag=None, waited=None)])
    assert (alone.status, alone.level) == (LagStatus.UNSCORED, Level.OK)
    assert alone.sentence == case.value
    with_others = judged([progress(case=case, lag=None, waited=None)], others=3)
    assert with_others.status is LagStatus.OK


@pytest.mark.parametrize(
    ("gap", "grace"), [(None, 60.0), (1.0, 60.0), (60.0, 180.0), (3600.0, 900.0)]
)
def test_grace_follows_the_rhythm_within_bounds(gap, grace):
    """A minute at least, a quarter of an hour at most, three usual gaps between."""
    for waited, expected in ((grace - 1, LagStatus.OK), (grace + 1, LagStatus.STOP)):
        late = progress(waited=waited, since_commit=2000.0, since_moved=2000.0, gap=gap)
        assert judged([late]).status is expected


def test_a_position_beyond_the_end_is_named():
    """Both offsets: what waits is no figure there."""
    found = judged([progress(**BEYOND)], EMPTY)
    sentence = "committed 1,000, which is beyond the log end 1,000, and no commit for 300 s"
    assert found.sentence == (
        f"1 of 1 partitions, the worst orders-0: {sentence} and the group has no members"
    )


def test_a_group_is_as_its_worst_partition():
    """STOP before STALL before WARN; the sentence counts and names."""
    stall = progress(4, **{**LATE, "since_moved": 300.0})
    stops = [progress(n, **{**LATE, "since_commit": 300.0}) for n in (7, 2)]
    found = judged([stall, *stops], others=45)
    assert (found.status, found.level, found.partitions) == (LagStatus.STOP, Level.ERR, 48)
    assert found.sentence.startswith("2 of 48 partitions, the worst orders-2: no commit for 300 s")
    assert [each.tp.partition for each in found.worse] == [2, 7, 4]
    assert found.worse[2].status is LagStatus.STALL


def test_a_group_that_everybody_left_for_a_day_is_abandoned():
    """A ghost pages nobody; one that was left an hour ago does."""
    late = {**LATE, "waited": 200_000.0, "since_moved": 200_000.0}
    gone = [progress(n, **{**late, "since_commit": 100_000.0}) for n in range(3)]
    found = judged(gone, EMPTY)
    assert (found.status, found.level) == (LagStatus.ABANDONED, Level.OK)
    fresh = progress(9, **{**late, "since_commit": 3600.0})
    assert judged([*gone, fresh], EMPTY).status is LagStatus.STOP
    assert judged(gone).status is LagStatus.STOP


def test_a_group_without_commits_is_unscored():
    """Nothing is said of what nobody reads."""
    assert judged([]).sentence == "nothing committed"
    assert judged([]).status is LagStatus.UNSCORED
    assert judged([], others=4).status is LagStatus.OK


@pytest.mark.parametrize(
    ("state", "lag", "sentence"),
    [
        (EMPTY, 500, "no members: 1,000 records wait"),
        (EMPTY, 0, "keeps up"),
        (STABLE, 500, "keeps up"),
    ],
)
def test_nobody_is_said_to_keep_up_where_nobody_is(state, lag: int, sentence: str):
    """Before anything has waited for long enough to complain."""
    found = judged([progress(0, lag=lag), progress(1, lag=lag)], state)
    assert (found.status, found.sentence) == (LagStatus.OK, sentence)
