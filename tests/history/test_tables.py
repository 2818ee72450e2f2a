"""Tables, their state and their one writer, without Spark and Kafka."""

import time
from dataclasses import replace
from functools import partial

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError, LostLease, SchemaTooNew
from fleet.history import tables
from fleet.history.lag_rows import lag_rows
from fleet.history.memory import JobMemory, Kept, LastCommit
from fleet.history.polled import Poller, compare_snapshots
from fleet.history.retention import MANY, clear_old_days, tidy
from fleet.history.tables import TABLES, TablePlace, Tables, Writer, row_of
from fleet.lag.snapshot import Logs
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, TopicPartition
from fleet.model.rebalances import (
    Cause,
    Confidence,
    MembershipSpan,
    Rebalance,
    TimeSource,
    standing,
)
from tests.support.rebalances import rebalance as plain
from tests.support.snapshots import snapshot_of

DAY = 86_400.0
NOW = 1_790_000_000.0
T0 = TopicPartition("t", 0)


def rebalance(number, at=NOW, *, group="g", cause=Cause.JOIN):
    moved = (T0, TopicPartition("t", 1))
    also = (Cause.LEAVE,)
    return plain(
        number, at, group=group, cause=cause, also=also, joined="a", moved=moved, members=2
    )


def membership(at=NOW):
    return MembershipSpan(
        cluster="main",
        group="g",
        at=at,
        number=1,
        event="owns",
        member="a",
        member_id="a-1",
        instance_id="a",
        client_id="c",
        host="/h",
        owned=(T0,),
        log_partition=3,
        log_offset=7,
    )


@pytest.fixture
def clock():
    return ManualClock(at=NOW)


def opened(path, clock, *, cluster="main", retention=10 * DAY):
    return Writer(TablePlace(path), cluster=cluster, clock=clock, retention=retention)


@pytest.fixture
def writer(tmp_path, clock):
    return opened(tmp_path, clock)


def add(writer, *rebalances, memory=None):
    """One batch of rebalances."""
    files = writer.write("rebalances", map(row_of, rebalances))
    writer.commit("batch", memory, files=files, positions={0: writer.state.number})


def test_values_come_back_as_they_went(writer, tmp_path):
    """Every field, by group, time and cause."""
    made = [rebalance(1), rebalance(2, NOW + 60), rebalance(3, NOW + 90, cause=Cause.LEAVE)]
    add(writer, *made)
    writer.commit("batch", files=writer.write("memberships", [row_of(membership())]))
    tables = Tables(tmp_path)
    assert tables.rebalances() == made
    assert tables.rebalances(group="g", since=NOW + 60, until=NOW + 90) == made[1:2]
    assert tables.rebalances(cause=Cause.LEAVE) == made[2:]
    assert tables.rebalances(group="h") == []
    assert tables.memberships(group="g") == [membership()]
    assert tables.rows()["rebalances"] == 3


def test_members_that_stand_at_a_time(writer, tmp_path):
    """As of rows in memory: of who left before that time nothing is read out."""
    made = []
    told = "joined a 0, joined b 1, left b 2, joined b 2, owns a 3, left b 4, joined c 5, left a 6"
    for place, each in enumerate(told.split(", ")):
        event, name, at = each.split()
        row = replace(membership(NOW + int(at)), event=event, member=name, log_offset=place)
        made.append(row)
    writer.commit("batch", files=writer.write("memberships", map(row_of, made)))
    tables = Tables(tmp_path)
    for at in range(8):
        until = NOW + at
        stand = standing(tables.memberships(group="g", until=until))
        assert tables.standing(group="g", at=until) == stand
    assert tables.standing(group="g", at=NOW + 4) == [made[0], made[3], made[4]]
    assert Tables(tmp_path / "none").standing(group="g", at=NOW) == []


def test_no_history_is_empty(tmp_path):
    """Reading before the first batch is no error."""
    tables = Tables(tmp_path / "none")
    assert (tables.rebalances(), tables.rows()["lag"], tables.state()) == ([], 0, None)
    assert tables.files(None, "rebalances") == []


def test_what_no_state_names_is_not_there(writer, tmp_path, clock):
    """A file in no table, and a table that is ahead of the state: a start takes it back."""
    add(writer, rebalance(1))
    files = writer.write("rebalances", [row_of(rebalance(2))])
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1]
    writer.change("rebalances", partial(writer._transact, files, ()))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1]
    for number in (3, 4):  # twice: what was taken back stays so
        again = opened(tmp_path, clock)
        assert len(again.files("rebalances")) == number - 2
        add(again, rebalance(number))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 3, 4]


def test_a_second_job_loses_by_name(writer, tmp_path, clock):
    """The one that commits later; the other goes on, and each row is there once."""
    add(writer, rebalance(1))
    other = opened(tmp_path, clock)
    add(writer, rebalance(2))
    said = rf"`fleet history sync` writes .*\({writer.state.writer}\), so this one"
    with pytest.raises(LostLease, match=said):
        add(other, rebalance(2))
    add(writer, rebalance(3))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 2, 3]


def test_what_the_loser_has_committed_is_taken_back(writer, tmp_path, clock):
    """It had committed a table, and not yet the state; whatever the table is."""
    add(writer, rebalance(1))
    other = opened(tmp_path, clock)
    late = other.write("rebalances", [row_of(rebalance(2))])
    other.change("rebalances", partial(other._transact, late, ()))
    add(writer, rebalance(2), memory=JobMemory())
    with pytest.raises(LostLease, match="one at a time"):
        other.commit("batch")
    assert len(writer.files("rebalances")) == 2
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 2]


def test_what_other_programs_write_is_taken_back(writer, tmp_path, clock):
    """At once when the writer goes on, else at the next start; compaction by them, too."""
    from deltalake import DeltaTable

    for number in range(3):
        add(writer, rebalance(number))
    DeltaTable(str(tmp_path / "rebalances")).delete("number = 1")
    tidy(writer, thoroughly=True)
    DeltaTable(str(tmp_path / "rebalances")).delete("number = 2")
    opened(tmp_path, clock)
    assert DeltaTable(str(tmp_path / "rebalances")).count() == 3
    assert [r.number for r in Tables(tmp_path).rebalances()] == [0, 1, 2]


def test_a_log_that_was_cut_is_no_history(writer, tmp_path, clock):
    """Nor are tables without a state: nothing of them is touched."""
    add(writer, rebalance(1))
    add(writer, rebalance(2))
    (tmp_path / "rebalances" / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(FleetError, match="rebalances is at version 1, but the state names 2"):
        opened(tmp_path, clock)
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    with pytest.raises(FleetError, match="tables that this version did not write"):
        opened(tmp_path, clock)


def test_another_clusters_tables_are_refused(writer, tmp_path, clock):
    """One path, one cluster."""
    add(writer, rebalance(1))
    with pytest.raises(FleetError, match="holds the history of cluster main, not of other"):
        opened(tmp_path, clock, cluster="other")


def test_a_newer_state_is_refused(writer, tmp_path):
    """State carries its schema; keys that are not known are passed over."""
    add(writer, rebalance(1))
    writer.commit("batch", schema=writer.state.schema + 1)
    with pytest.raises(SchemaTooNew, match="newer version of fleet"):
        Tables(tmp_path).rebalances()


def test_compaction_keeps_every_row_and_files_go_later(tmp_path):
    """Readers of the old files have an hour; files that are in no table go as late."""
    now, memory = time.time(), JobMemory()  # files have the times of the machine
    writer = opened(tmp_path, ManualClock(at=now))
    for number in range(1, MANY + 3):
        memory.keep("g", Kept(3, number, 1000, "{}"))
        add(writer, rebalance(number, now), memory=memory)
    lone = writer.write("rebalances", [row_of(rebalance(99, now))])
    before = Tables(tmp_path).rebalances()
    assert tidy(writer) == MANY + 2
    assert len(writer.files("rebalances")) == 1
    assert Tables(tmp_path).rebalances() == before
    assert clear_old_days(writer) == 0
    assert clear_old_days(writer, hours=0) >= MANY + 2 + len(lone)
    add(writer, rebalance(50, now))
    assert Tables(tmp_path).rebalances() == [*before, rebalance(50, now)]
    for table in ("state", *TABLES):
        there = {
            str(f.relative_to(tmp_path / table)) for f in tmp_path.glob(f"{table}/*/*.parquet")
        }
        old = 2 if table == "state" else 0  # states before, for who reads them
        assert len(there) == len(writer.files(table)) + old, table
    assert opened(tmp_path, writer.clock).state == writer.state


def test_a_tail_deletes_files_once_an_hour(writer, clock, monkeypatch):
    """At its start, and every hour; a store that was away is asked again."""
    looked_at = []
    monkeypatch.setattr(
        "fleet.history.retention.clear_old_days", lambda writer: looked_at.append(clock.monotonic())
    )
    began = clock.monotonic()
    for wait in (0, 10, 3000, 589, 2, 10, 3600):
        clock.sleep(wait)
        tidy(writer)
    assert [at - began for at in looked_at] == [0, 3601, 7211]


def test_logs_do_not_grow_for_ever(tmp_path, clock, monkeypatch):
    """They are cut at checkpoints, by the writer alone: another program's leaves them."""
    from deltalake import DeltaTable

    monkeypatch.setitem(tables._SETTINGS, "delta.checkpointInterval", "5")
    monkeypatch.setitem(tables._SETTINGS, "delta.logRetentionDuration", "interval 0 seconds")
    writer = opened(tmp_path, clock)
    for number in range(11):
        add(writer, rebalance(number))
    DeltaTable(str(tmp_path / "rebalances")).optimize.compact()
    logs = [tmp_path / name / "_delta_log" for name in ("state", "rebalances")]
    assert all((log / f"{0:020d}.json").exists() for log in logs)
    writer = opened(tmp_path, clock)
    clear_old_days(writer)
    assert not any((log / f"{0:020d}.json").exists() for log in logs)
    assert len(Tables(tmp_path).rebalances()) == 11
    assert opened(tmp_path, clock).state == writer.state


def test_a_start_beside_a_batch_takes_back_nothing(writer, tmp_path, clock, monkeypatch):
    """It read the state before the other job committed, and the tables after."""
    add(writer, rebalance(1))
    made = Writer._made

    def slow(self, table):
        if table == "rebalances":
            add(writer, rebalance(2))
        return made(self, table)

    monkeypatch.setattr(Writer, "_made", slow)
    with pytest.raises(LostLease):
        opened(tmp_path, clock)
    add(writer, rebalance(3))
    assert len(writer.files("rebalances")) == 3
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 2, 3]


def test_days_past_retention_go(writer, tmp_path, clock):
    """With the next commit, or with what is due."""
    add(writer, rebalance(1, NOW - 11 * DAY), rebalance(2, NOW - 9 * DAY), rebalance(3))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [2, 3]
    clock.sleep(2 * DAY)
    assert tidy(writer) == 0
    assert [r.number for r in Tables(tmp_path).rebalances()] == [3]


def test_memory_comes_back(writer):
    """Changes are rows; the latest of a key counts; what was deleted stays deleted."""
    memory = JobMemory()
    first = LastCommit(5, 1000, 0, "id", 3, 70, gap=900, early=True)
    memory.commit(("g", "t", 0), first)
    memory.commit(("g", "t", 1), first)
    memory.keep("g", Kept(3, 70, 1000, "{}"))
    memory.keep("h", Kept(3, 71, 1000, "{}"))
    add(writer, memory=memory)
    memory.forget(("g", "t", 1))
    memory.keep("h", None)
    newer = first._replace(offset=80)
    memory.commit(("g", "t", 0), newer)
    add(writer, memory=memory)
    for _ in range(20):
        back = JobMemory.read(writer)
        assert back.commits == {("g", "t", 0): newer}
        assert back.groups == {"g": Kept(3, 70, 1000, "{}")}
        assert not any(back.changed(kind).num_rows for kind in back.kinds)
        back.commit(("g", "t", 0), newer)
        add(writer, memory=back)
    assert len(writer.files("state")) < 20


def lag_of(memory, at, end, **keys):
    logs = Logs(at=at, starts={T0: 0}, ends={} if end is None else {T0: end}, **keys)
    return [(r["lag_case"], r["records"]) for r in lag_rows(memory, logs, cluster="main")]


def test_lag_has_a_row_where_something_changed_or_waits():
    """And once an hour in any case."""
    memory = JobMemory()
    memory.commit(("g", "t", 0), LastCommit(10, 1000, 0, None, 0, 1))
    assert lag_of(memory, NOW, 10) == [("ok", 0)]
    assert lag_of(memory, NOW + 10, 10) == []
    assert lag_of(memory, NOW + 20, 12) == [("ok", 2)]
    assert lag_of(memory, NOW + 30, 12) == [("ok", 2)]
    memory.commit(("g", "t", 0), LastCommit(12, 2000, 0, None, 0, 2))
    assert lag_of(memory, NOW + 40, 12) == [("ok", 0)]
    assert lag_of(memory, NOW + 50, 12) == []
    assert lag_of(memory, NOW + 40 + 3600, 12) == [("ok", 0)]
    back = NOW - DAY
    assert lag_of(memory, back, 12) == [("ok", 0)], "the clock was set back: hours begin anew"
    assert lag_of(memory, back + 10, 12) == []
    assert lag_of(memory, back + 3600, 12) == [("ok", 0)]
    assert lag_of(memory, NOW + 5000, None) == [("unknown", None)]
    gone = frozenset({"t"})
    assert lag_of(memory, NOW + 5010, None, deleted=gone) == []
    memory.told.clear()
    assert lag_of(memory, NOW + 5020, None, deleted=gone) == [(LagCase.TOPIC_DELETED.value, None)]


def looked(members, at, state=GroupState.STABLE):
    """A look at one group: member id → partitions; ids are `instance:incarnation`."""
    made = tuple(
        Member(
            member_id=member,
            instance_id=member.partition(":")[0],
            client_id="c",
            host="/h",
            partitions=frozenset(TopicPartition("t", p) for p in owned),
        )
        for member, owned in members.items()
    )
    group = GroupSnapshot(
        group="g",
        exists=True,
        state=state,
        type="classic",
        assignor="range",
        members=made,
        partitions=(),
    )
    return snapshot_of(group, at=at)


def test_polling_tells_what_two_looks_differ_in():
    """Marked so, without generation and start; a static member that is back is no rebalance."""
    memory = JobMemory()
    assert compare_snapshots(memory, looked({"a:1": [0, 1]}, NOW)) == []
    assert compare_snapshots(memory, looked({"a:1": [0, 1]}, NOW + 1)) == []
    assert compare_snapshots(memory, looked({"b:1": [1]}, NOW + 2, GroupState.PREPARING)) == []
    joined = compare_snapshots(memory, looked({"a:1": [0], "b:1": [1]}, NOW + 3))
    assert [type(each) for each in joined] == [MembershipSpan, MembershipSpan, Rebalance]
    made = joined[-1]
    assert isinstance(made, Rebalance)
    assert (made.cause, made.joined, made.moved) == (Cause.JOIN, ("b",), (TopicPartition("t", 1),))
    assert (made.number, made.end_source, made.start_source) == (
        -1,
        TimeSource.POLLED,
        TimeSource.NOT,
    )
    replaced = compare_snapshots(memory, looked({"a:2": [0], "b:1": [1]}, NOW + 4))
    assert [getattr(each, "event", None) for each in replaced] == ["replaced"]
    left = compare_snapshots(memory, looked({"b:1": [0, 1]}, NOW + 5))
    assert isinstance(left[-1], Rebalance)
    assert (left[-1].cause, left[-1].confidence) == (Cause.REMOVAL, Confidence.AMBIGUOUS)


def test_groups_that_came_and_went_are_forgotten_by_polling_too(tmp_path, clock):
    """After the retention; one that is still there is not, however long nothing changes."""
    seen = {"stays": 0}
    writer = opened(tmp_path, clock, retention=DAY)

    def look():
        groups = [_alone(f"{name}-{number}") for name, number in seen.items()]
        return snapshot_of(*groups, at=clock.now())

    poller = Poller(writer, look=look, wanted=lambda _: True)
    for number in range(4):
        seen["console"] = number
        poller.catch_up()
        clock.sleep(DAY * 2 / 3)
    names = {"stays-0", "console-2", "console-3"}
    assert set(poller._memory.groups) == names
    assert set(JobMemory.read(writer).groups) >= names
    del seen["stays"]
    poller.catch_up()
    clock.sleep(DAY)
    poller.catch_up()
    assert set(poller._memory.groups) == {"console-3"}


def _alone(name):
    """A group with one member that owns a partition."""
    (group,) = looked({"a:1": [0]}, NOW).groups.values()
    return replace(group, group=name)


def test_a_cause_that_only_a_newer_release_knows_hides_no_other(tmp_path, clock):
    """A reader of the release before shows it as unknown."""
    rows = [row_of(rebalance(number)) for number in (1, 2)]
    rows[1] |= {"cause": "moonlight", "also": ["moonlight"], "confidence": "hardly"}
    writer = opened(tmp_path, clock)
    writer.commit("batch", files=writer.write("rebalances", rows))
    told = [(r.number, r.cause, r.confidence) for r in Tables(tmp_path).rebalances()]
    assert told[1] == (2, Cause.UNKNOWN, Confidence.AMBIGUOUS)
    assert told[0][:2] == (1, Cause.JOIN)
