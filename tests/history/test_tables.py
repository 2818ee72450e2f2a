"""Tables, manifests and their one writer, without Spark and Kafka."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError, LostLease, Refused, SchemaTooNew
from fleet.history.compaction import MANY, compacted
from fleet.history.job import commit
from fleet.history.job_memory import JobMemory, Kept, LastCommit
from fleet.history.lag_rows import lag_rows
from fleet.history.polled import compared
from fleet.history.polling import Poller
from fleet.history.tables import Tables
from fleet.history.tables.table_columns import LAG, MEMBERSHIPS, REBALANCES, TABLES
from fleet.history.tables.table_folder import TableFolder, data_name
from fleet.history.tables.table_manifests import SCHEMA, latest, name_of, numbers
from fleet.history.tables.table_rows import membership_row, rebalance_row
from fleet.history.tables.writing import ATTEMPT_SECONDS, KEPT_SECONDS, MEMORY, Writer
from fleet.lag.snapshot import Logs
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, TopicPartition
from fleet.model.rebalances import Cause, Confidence, Known, MembershipSpan, Rebalance, standing
from tests.support.rebalances import rebalance as plain
from tests.support.snapshots import snapshot_of
from tests.support.waiting import until

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


@pytest.fixture
def writer(tmp_path, clock):
    with Writer(TableFolder(tmp_path), cluster="main", clock=clock, retention=10 * DAY) as made:
        yield made


def add(writer, *rebalances, memory=None):
    """One batch of rebalances."""
    folder = writer.attempt()
    rows = [rebalance_row(each) for each in rebalances]
    files = writer.write(folder, "rebalances", REBALANCES, rows, "ended_at")
    commit(
        writer, memory or JobMemory(), folder, "batch", files, positions={0: writer.manifest.number}
    )


def test_values_come_back_as_they_went(writer, tmp_path):
    """Every field, by group, time and cause."""
    made = [rebalance(1), rebalance(2, NOW + 60), rebalance(3, NOW + 90, cause=Cause.LEAVE)]
    add(writer, *made)
    folder = writer.attempt()
    rows = [membership_row(membership())]
    files = writer.write(folder, "memberships", MEMBERSHIPS, rows, "changed_at")
    commit(writer, JobMemory(), folder, "batch", files)
    tables = Tables(tmp_path)
    assert tables.rebalances() == made
    assert tables.rebalances(group="g", since=NOW + 60, until=NOW + 90) == made[1:2]
    assert tables.rebalances(cause=Cause.LEAVE) == made[2:]
    assert tables.rebalances(group="h") == []
    assert tables.memberships(group="g") == [membership()]
    assert tables.rows()["rebalances"] == 3


def test_members_that_stand_at_a_time(writer, tmp_path):
    """As of rows in memory: of who left before that time nothing is read out."""
    folder, made = writer.attempt(), []
    told = "joined a 0, joined b 1, left b 2, joined b 2, owns a 3, left b 4, joined c 5, left a 6"
    for place, each in enumerate(told.split(", ")):
        event, name, at = each.split()
        row = replace(membership(NOW + int(at)), event=event, member=name, log_offset=place)
        made.append(row)
    rows = [membership_row(each) for each in made]
    files = writer.write(folder, "memberships", MEMBERSHIPS, rows, "changed_at")
    commit(writer, JobMemory(), folder, "batch", files)
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
    assert (tables.rebalances(), tables.lag(group="g"), tables.manifest()) == ([], [], None)
    assert tables.files("rebalances") == []


def test_what_no_manifest_names_is_not_there(writer, tmp_path):
    """Files of an attempt that never became visible are nobody's."""
    add(writer, rebalance(1))
    folder = writer.attempt()
    writer.write(folder, "rebalances", REBALANCES, [rebalance_row(rebalance(2))], "ended_at")
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1]


def test_second_writer_is_refused_in_words(writer, tmp_path, clock):
    """Locally by the kernel's lock, with the process that holds it."""
    with pytest.raises(Refused, match="another `fleet history run` or `tail` writes"):
        Writer(TableFolder(tmp_path), cluster="main", clock=clock, retention=DAY)
    writer.close()
    with Writer(TableFolder(tmp_path), cluster="main", clock=clock, retention=DAY) as other:
        assert other.manifest.number == 0


def test_a_number_is_taken_once(writer):
    """A writer that another one overtook makes nothing visible."""
    add(writer, rebalance(1))
    writer.place.put(name_of(2), writer.manifest.as_bytes())
    with pytest.raises(LostLease, match="nothing of this batch became visible"):
        add(writer, rebalance(2))


def test_another_clusters_tables_are_refused(writer, tmp_path, clock):
    """One path, one cluster."""
    add(writer, rebalance(1))
    writer.close()
    with pytest.raises(FleetError, match="holds the history of cluster main, not of other"):
        Writer(TableFolder(tmp_path), cluster="other", clock=clock, retention=DAY)


def test_newer_manifests_are_refused(writer, tmp_path):
    """State carries its schema."""
    add(writer, rebalance(1))
    data = writer.manifest.as_bytes().replace(
        b'"schema":%d' % SCHEMA, b'"schema":%d' % (SCHEMA + 1)
    )
    writer.place.put(name_of(1), data)
    with pytest.raises(SchemaTooNew, match="newer fleet"):
        Tables(tmp_path).rebalances()


def test_compaction_keeps_every_row_and_clears_away_later(writer, tmp_path, clock):
    """Readers of the old files have ten minutes; then they go, and dead attempts after an hour."""
    memory = JobMemory()
    for number in range(1, MANY + 3):
        memory.keep("g", Kept(3, number, 1000, "{}"))
        add(writer, rebalance(number), memory=memory)
    writer.write_table(
        data_name("rebalances", writer.attempt(), "2026-09-21"),
        pa.Table.from_pylist([rebalance_row(rebalance(99))], schema=REBALANCES),
        table="rebalances",
        day="2026-09-21",
    )
    before = Tables(tmp_path).rebalances()
    assert compacted(writer, memory) == 2 * (MANY + 2)
    assert len(writer.manifest.of("rebalances")) == 1
    assert Tables(tmp_path).rebalances() == before
    assert writer.clear_away() == 0
    clock.sleep(KEPT_SECONDS + 1)
    add(writer, rebalance(50))
    clock.sleep(KEPT_SECONDS + 1)
    assert writer.clear_away() > 0
    assert Tables(tmp_path).rebalances() == [*before, rebalance(50)]
    assert len(numbers(writer.place)) <= 3
    clock.sleep(ATTEMPT_SECONDS + 1)
    add(writer, rebalance(51))
    writer.clear_away()
    left = {f.name for folder in (*TABLES, MEMORY) for f in writer.place.files(folder)}
    assert left == {f.name for f in writer.manifest.files}


def test_what_a_killed_writer_left_of_a_manifest_goes(writer, tmp_path, clock):
    """After the time in which anybody may still write it."""
    add(writer, rebalance(1))
    for name, age in [(".000000000002.json.abcdefgh", 3601), (".000000000003.json.hgfedcba", 60)]:
        left = tmp_path / "manifests" / name
        left.write_text("{")
        os.utime(left, (clock.now() - age, clock.now() - age))
    assert writer.clear_away() == 1
    assert {each.name for each in (tmp_path / "manifests").iterdir()} == {
        "000000000001.json",
        ".000000000003.json.hgfedcba",
    }


def test_days_past_retention_go(writer, tmp_path, clock):
    """With the next manifest."""
    add(writer, rebalance(1, NOW - 11 * DAY), rebalance(2, NOW - 9 * DAY), rebalance(3))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [2, 3]
    clock.sleep(2 * DAY)
    assert compacted(writer, JobMemory()) == 0
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
    for _ in range(2):
        back = JobMemory.read(writer.place, writer.manifest)
        assert back.commits == {("g", "t", 0): newer}
        assert back.groups == {"g": Kept(3, 70, 1000, "{}")}
        assert not list(back.changed())
        compacted(writer, back, thoroughly=True)


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


def test_lag_reads_back(writer, tmp_path):
    """As points of one group."""
    memory = JobMemory()
    memory.commit(("g", "t", 0), LastCommit(10, int(NOW * 1000), 0, None, 0, 1))
    logs = Logs(at=NOW, starts={T0: 0}, ends={T0: 15})
    folder = writer.attempt()
    rows = list(lag_rows(memory, logs, cluster="main"))
    commit(writer, memory, folder, "look", writer.write(folder, "lag", LAG, rows, "sampled_at"))
    (point,) = Tables(tmp_path).lag(group="g", since=NOW - 1)
    assert (point.tp, point.committed, point.log_end, point.records) == (T0, 10, 15, 5)
    assert (point.case, point.known, point.seconds) == (LagCase.OK, Known.COMMITS, None)


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
    assert compared(memory, looked({"a:1": [0, 1]}, NOW)) == []
    assert compared(memory, looked({"a:1": [0, 1]}, NOW + 1)) == []
    assert compared(memory, looked({"b:1": [1]}, NOW + 2, GroupState.PREPARING)) == []
    joined = compared(memory, looked({"a:1": [0], "b:1": [1]}, NOW + 3))
    assert [type(each) for each in joined] == [MembershipSpan, MembershipSpan, Rebalance]
    made = joined[-1]
    assert isinstance(made, Rebalance)
    assert (made.cause, made.joined, made.moved) == (Cause.JOIN, ("b",), (TopicPartition("t", 1),))
    assert (made.number, made.end_known, made.start_known) == (-1, Known.POLLED, Known.NOT)
    replaced = compared(memory, looked({"a:2": [0], "b:1": [1]}, NOW + 4))
    assert [getattr(each, "event", None) for each in replaced] == ["replaced"]
    left = compared(memory, looked({"b:1": [0, 1]}, NOW + 5))
    assert isinstance(left[-1], Rebalance)
    assert (left[-1].cause, left[-1].confidence) == (Cause.DEPARTURE, Confidence.AMBIGUOUS)


def test_groups_that_came_and_went_are_forgotten_by_polling_too(tmp_path, clock):
    """After the retention; one that is still there is not, however long nothing changes."""
    seen = {"stays": 0}
    with Writer(TableFolder(tmp_path), cluster="main", clock=clock, retention=DAY) as writer:

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
        assert set(JobMemory.read(writer.place, writer.manifest).groups) >= names
        del seen["stays"]
        poller.catch_up()
        clock.sleep(DAY)
        poller.catch_up()
        assert set(poller._memory.groups) == {"console-3"}


def _alone(name):
    """A group with one member that owns a partition."""
    (group,) = looked({"a:1": [0]}, NOW).groups.values()
    return replace(group, group=name)


class Store(TableFolder):
    """A folder as if it were an object store: no locks, no hard links."""

    def __init__(self, path):
        super().__init__(path)
        self.local = None

    def put(self, name, data):
        """Whole or not at all, as stores do it."""
        new = Path(self.full(f"{name}.new"))
        new.parent.mkdir(exist_ok=True)
        new.write_bytes(data)
        new.replace(self.full(name))


def test_object_stores_have_a_lease(tmp_path, clock):
    """Renewed by commits, free after its time; who was overtaken makes nothing visible."""
    place = Store(tmp_path)
    with Writer(place, cluster="main", clock=clock, retention=10 * DAY) as one:
        add(one, rebalance(1))
        with pytest.raises(Refused, match="lease"):
            Writer(Store(tmp_path), cluster="main", clock=clock, retention=DAY)
        clock.sleep(301)
        with Writer(Store(tmp_path), cluster="main", clock=clock, retention=10 * DAY) as other:
            with pytest.raises(LostLease):
                add(one, rebalance(2))
            add(other, rebalance(3))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 3]
    assert latest(place) is not None


def test_a_lease_is_kept_where_nothing_is_written(tmp_path, clock):
    """A quiet hour, or one long batch: nobody is let in, and what comes then is written."""
    place = Store(tmp_path)

    def renewed():
        lease = json.loads(place.read("writer.json"))
        return lease["at"] == clock.now()

    with Writer(place, cluster="main", clock=clock, retention=10 * DAY, beat=0.01) as one:
        add(one, rebalance(1))
        for _ in range(4):
            clock.sleep(100)
            until(renewed, "its renewal", every=0.01)
        with pytest.raises(Refused, match="lease"):
            Writer(Store(tmp_path), cluster="main", clock=clock, retention=DAY)
        add(one, rebalance(2))
    assert place.read("writer.json") is None, "free at once"
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 2]


def test_a_lease_that_was_lost_is_not_taken_back(tmp_path, clock):
    """Whoever stood still for longer finds another: it renews no more, and commits nothing."""
    place = Store(tmp_path)
    with Writer(place, cluster="main", clock=clock, retention=10 * DAY, beat=0.01) as one:
        lease = json.dumps({"writer": "another", "at": clock.now()}).encode()
        place.put("writer.json", lease)
        until(lambda: one._lease.lost, "it to be noticed", every=0.01)
        place.delete(["writer.json"])
        with pytest.raises(LostLease, match="took the lease while this one was silent"):
            add(one, rebalance(1))
    assert latest(place) is None


def test_a_cause_that_only_a_newer_release_knows_hides_no_other(tmp_path, clock):
    """A reader of the release before shows it as unknown."""
    with Writer(TableFolder(tmp_path), cluster="main", clock=clock, retention=10 * DAY) as writer:
        rows = [rebalance_row(rebalance(number)) for number in (1, 2)]
        rows[1] |= {"cause": "moonlight", "also": ["moonlight"], "confidence": "hardly"}
        files = writer.write(writer.attempt(), "rebalances", REBALANCES, rows, "ended_at")
        writer.commit(replace(writer.manifest, files=tuple(files)))
    told = [(r.number, r.cause, r.confidence) for r in Tables(tmp_path).rebalances()]
    assert told[1] == (2, Cause.UNKNOWN, Confidence.AMBIGUOUS)
    assert told[0][:2] == (1, Cause.JOIN)
