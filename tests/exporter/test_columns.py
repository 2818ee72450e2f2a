"""Rows that are judged, and sums that are shown: in columns as one by one."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleet.decide.lag_status import LagStatus
from fleet.exporter import RefreshResult, families
from fleet.lag import lag_columns
from fleet.lag.lag_columns import NONE, Commits
from fleet.lag.snapshot import CASES, GroupFacts, Lag, Snapshot
from fleet.log.readers.positions import Positions, key_to
from fleet.manager.lag_assessment import lag_statuses, worst_lag_status
from fleet.model import GroupState, LagCase, TopicPartition


def snapshot(rows, *, state=GroupState.STABLE, now=1_000_000.0) -> Snapshot:
    """One group; rows are (lag, case, waited, since commit, since moved, fell by, gained)."""
    count = len(rows)
    lag, case, waited, commit, moved, fell, gained = zip(*rows, strict=True)

    def ms(ago):
        return np.array([int((now - each) * 1000) for each in ago])

    committed = np.full(count, 1000)
    commits = Commits(
        groups=("g",),
        topics=("t",),
        group=np.zeros(count, dtype=np.int32),
        topic=np.zeros(count, dtype=np.int32),
        partition=np.arange(count, dtype=np.int32),
        committed=committed,
        at=ms(commit),
        moved=ms(moved),
        peak=np.array([1000 + each if each else NONE for each in fell]),
        fell=ms([10.0 if each else 0.0 for each in fell]),
        gap=np.full(count, 5000.0),
        row=np.arange(count, dtype=np.int32),
    )
    seconds = np.array([math.nan if each is None else each for each in waited])
    return Snapshot(
        cluster="c",
        at=now,
        took=0.1,
        from_log=True,
        facts={"g": GroupFacts(state=state, type="classic", members=1, generation=4)},
        topics={"t": count},
        commits=commits,
        lag=Lag(
            start=committed,
            end=committed + 1000,
            case=np.array([CASES.index(each) for each in case], dtype=np.int8),
            records=np.array(
                [NONE if c is not LagCase.OK else n for n, c in zip(lag, case, strict=True)]
            ),
            seconds=seconds,
            waited=seconds,
        ),
        gained=np.array(gained, dtype=np.float64),
        over=np.full(count, 300.0),
    )


ages = st.one_of(*map(st.just, (1.0, 59.0, 61.0, 599.0, 601.0, 90_000.0)), st.floats(0, 2000))
settled = st.one_of(st.none(), st.floats(0, 2000))
row = st.tuples(
    st.integers(0, 5),
    st.sampled_from([LagCase.OK, LagCase.OK, LagCase.OK, *LagCase]),
    st.one_of(st.none(), ages),
    ages,
    ages,
    st.integers(0, 3),
    st.floats(-100, 300),
)


@given(
    st.lists(row, min_size=1, max_size=15), st.sampled_from(list(GroupState)), settled, st.data()
)
def test_sentences_change_no_verdict(rows, state, ago, data):
    """The exporter judges without them; each row that is not OK has one."""
    seen = snapshot(rows, state=state)
    at = None if ago is None else seen.at - ago
    unknown = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    commits = replace(seen.commits, gap=np.where(unknown, NONE, seen.commits.gap))
    for name in ("at", "moved", "fell"):
        commits = replace(commits, **{name: np.where(unknown, NONE, getattr(commits, name))})
    seen = replace(seen, commits=commits, facts={"g": replace(seen.facts["g"], changed_at=at)})
    whole = lag_statuses(seen)["g"]
    assert whole.partitions == len(rows)
    assert worst_lag_status(seen) == {"g": whole.status}
    assert whole.sentence
    assert all(each.sentence for each in whole.worse)


def test_groups_that_committed_nothing_or_are_not_there():
    """The first is not scored, the second is not told of."""
    seen = snapshot([(3, LagCase.OK, 2.0, 1, 1, 0, 0.0)])
    silent = GroupFacts(state=GroupState.EMPTY, type="classic", members=0)
    gone = replace(silent, exists=False)
    seen = replace(seen, facts={**seen.facts, "silent": silent, "gone": gone})
    found = worst_lag_status(seen)
    assert found == {"g": LagStatus.OK, "silent": LagStatus.UNSCORED}
    assert found == {group: each.status for group, each in lag_statuses(seen).items()}


def test_a_group_that_was_gone_and_is_back():
    """Its name stands at one place of the columns, where its rows are."""
    kept, tp = Positions(), TopicPartition("t", 0)
    for group in ("g", "h"):
        kept.put(key_to(group, tp), group, tp, 5, 1_000)
    for group in ("h", "g"):
        assert kept.commit(key_to(group, tp), None, 2_000)
    kept.put(key_to("h", tp), "h", tp, 7, 3_000)
    for group in ("g", "i", "h"):  # whatever place each is given
        commits = kept.copy()
        assert len(set(commits.groups)) == len(commits.groups)
        assert {commits.groups[place] for place in commits.group.tolist()} == kept.groups()
        facts = dict.fromkeys(
            kept.groups(), GroupFacts(state=GroupState.EMPTY, type="classic", members=0)
        )
        seen = replace(snapshot([(2, LagCase.OK, 1.0, 1, 1, 0, 0.0)] * len(commits)), facts=facts)
        seen = replace(seen, commits=commits)
        assert set(worst_lag_status(seen).values()) == {LagStatus.OK}
        assert worst_lag_status(seen) == {name: v.status for name, v in lag_statuses(seen).items()}
        for name in facts:
            (only,) = seen.groups[name].partitions
            assert only.committed == kept.of_group(name)[tp][0]
        assert commits.places_in(commits).tolist() == list(range(len(commits)))
        kept.put(key_to(group, tp), group, tp, 11, 5_000)


def told(seen: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Samples of a family: values of its labels but cluster and owner → value."""
    picture = RefreshResult(seen=seen, owners={"g": "team"}, partitions=True)
    (found,) = [family for family in families(picture) if family.name == name]
    return {(labels[1], *labels[3:]): value for _, labels, value in found.samples}


def test_a_look_sums_by_topic_and_leaves_out_what_is_unknown():
    """One topic with a known and an unknown lag; the oldest known age."""
    ok, beyond = LagCase.OK, LagCase.BEYOND_END
    seen = snapshot(
        [(3, ok, 2.0, 1, 1, 0, 0.0), (4, ok, None, 1, 1, 0, 0.0), (0, beyond, None, 1, 1, 0, 0.0)]
    )
    assert told(seen, "fleet_group_lag_records") == {("g", "t"): 7}
    assert told(seen, "fleet_group_lag_seconds") == {("g", "t"): 2.0}
    assert told(seen, "fleet_group_partitions") == {
        ("g", "ok"): 2,
        ("g", "committed beyond log end"): 1,
    }
    assert told(seen, "fleet_group_lag_status") == {("g", "OK", "OK"): 1}
    assert told(seen, "fleet_group_generation") == {("g",): 4}
    assert list(told(seen, "fleet_partition_lag_records").values()) == [3, 4]


def test_an_idle_partition_does_not_make_a_group_fresh():
    """91 records that wait for nobody knows how long are not 0.0 s old."""

    def seconds(*rows):
        seen = snapshot([(lag, LagCase.OK, waited, 1, 1, 0, 0.0) for lag, waited in rows])
        age = told(seen, "fleet_group_lag_seconds").get(("g", "t"))
        assert age == seen.groups["g"].lag_seconds
        return age

    assert seconds((0, 0.0), (91, None)) is None
    assert seconds((0, 0.0), (91, 12.0)) == 12.0
    assert seconds((0, 0.0), (0, 0.0)) == 0.0


def test_the_age_of_what_never_moved_is_the_time_since_we_look():
    """Else nobody is called for a group that stood still before the exporter began."""
    seen = snapshot([(91, LagCase.OK, None, 700, 700, 0, 0.0), (0, LagCase.OK, 0.0, 1, 1, 0, 0.0)])
    seen = replace(seen, lag=replace(seen.lag, waited=np.array([650.0, 0.0])))
    assert told(seen, "fleet_group_lag_seconds") == {("g", "t"): 650.0}
    assert told(seen, "fleet_group_lag_status") == {("g", "STOP", "ERR"): 1}
    assert list(told(seen, "fleet_partition_lag_seconds").values()) == [650.0, 0.0]


def test_sums_of_many_rows_are_those_of_one_by_one(monkeypatch):
    """In portions, the last of which is not full; groups and topics go on from one to the next."""
    monkeypatch.setattr(lag_columns, "_PORTION", 7)
    draw, count = np.random.default_rng(5), 60
    records = draw.integers(-1, 4, count)
    rows = [(0, LagCase.OK, 0.0, 1, 1, 0, 0.0)] * count
    seen = snapshot(rows)
    group, topic = draw.integers(0, 4, (2, count)).astype(np.int32)
    commits = replace(seen.commits, groups=tuple("abcd"), topics=tuple("wxyz"))
    waited = np.where(records > 0, draw.integers(50, 90, count).astype(float), np.nan)
    seen = replace(
        seen,
        facts=dict.fromkeys("abcd", seen.facts["g"]),
        commits=replace(commits, group=group, topic=topic, at=commits.at - 200_000),
        lag=replace(
            seen.lag,
            records=records,
            seconds=np.where(records == 0, 0.0, waited),
            waited=np.where(records == 0, 0.0, waited),
            case=np.where(records == NONE, CASES.index(LagCase.UNKNOWN), 0).astype(np.int8),
        ),
    )
    names = ("fleet_group_lag_records", "fleet_group_partitions", "fleet_group_lag_status")
    together = {name: told(seen, name) for name in names}
    monkeypatch.setattr(lag_columns, "_PORTION", 1000)
    for group in "abcd":
        alone = seen.only(lambda each, group=group: each == group)
        for name in names:
            mine = {key: value for key, value in together[name].items() if key[0] == group}
            assert mine == told(alone, name)
        rows = commits.groups.index(group) == seen.commits.group
        cases = [n for key, n in together["fleet_group_partitions"].items() if key[0] == group]
        assert sum(cases) == rows.sum()
        for place, topic in enumerate(commits.topics):
            of = records[rows & (place == seen.commits.topic)]
            lag = together["fleet_group_lag_records"].get((group, topic))
            assert lag == (of[of >= 0].sum() if (of >= 0).any() else None)
    assert {verdict for _, verdict, _ in together["fleet_group_lag_status"]} >= {"STOP"}


def test_rows_of_positions_follow_their_commits():
    """Forward, back, back to where it was, gone; and the place of a group is used again."""
    kept, tp = Positions(), TopicPartition("t", 1)
    key = key_to("g", tp)
    for ms, committed in ((1000, 5), (2000, 9), (4000, 3), (5000, 7)):
        kept.put(key, "g", tp, committed, ms)
    seen = kept.copy()
    assert (seen.committed[0], seen.at[0], seen.moved[0]) == (7, 5000, 5000)
    assert (seen.peak[0], seen.fell[0]) == (9, 4000)
    kept.put(key, "g", tp, 9, 6000)
    seen = kept.copy()
    assert (seen.peak[0], seen.fell[0]) == (NONE, NONE)
    assert kept.of_group("g") == {tp: (9, 6000)}
    assert kept.commit(key, None, 7000)
    assert kept.groups() == frozenset()
    assert len(kept.copy()) == 0
    kept.put(key_to("h", tp), "h", tp, 1, 8000)
    seen = kept.copy()
    assert (seen.groups, len(seen)) == (("h",), 1)
    assert (seen.moved[0], seen.peak[0], seen.gap[0]) == (8000, NONE, NONE)
    for number in range(3000):
        group, other = f"g{number % 7}", TopicPartition("u", number)
        kept.put(key_to(group, other), group, other, number, 9000)
    assert len(kept.copy()) == 3001
