"""Causes, numbers and times of 40 rebalances against Kafka's own word for them.

Scripted groups run side by side on one real broker: range, cooperative-sticky, static, KIP-848
and one that is migrated. Number and order are judged by DumpLogSegments, cause and time by the
lines of the group coordinator [33], and the script says which cause it brought about.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from fleet.clock import SystemClock
from fleet.kafka_source.broker_settings import SessionQueries
from fleet.log.readers.group_log import GroupLog
from fleet.log.readers.tail import Tail
from fleet.log.records import OffsetCommit
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, Confidence, Rebalance, TimeSource
from fleet.observe.admin import Observer
from fleet.observe.ledger import CoordinatorLedger
from tests.support import kafka_tools, lane_scripts
from tests.support.coordinator_log import Round, rounds
from tests.support.lane import SESSION_S, Lane

CLOSE_S = 0.2
REMOVALS = frozenset({"leave", "batched leave", "expiry"})
UNPLANNED = frozenset({"expiry", "join", "leader rejoin", "partition count"})
"""Of the coordinator's reasons, those that come about without the script: a member that gets no
time is expired and joins again, members started together are late for the same round, and a
client rejoins that has seen the new assignment late; a KIP-848 coordinator that hears of a new
topic late counts its partitions then. Nobody leaves, subscribes, changes an assignor or migrates by
himself."""
SCRIPTS: dict[str, tuple[Callable[[Lane], None], dict[str, int], dict[str, object]]] = {
    "range": (lane_scripts.dynamic_range, {"t": 6, "o": 2}, lane_scripts.COMMITTING),
    "cooperative": (lane_scripts.dynamic_cooperative, {"t": 6}, lane_scripts.COOPERATIVE),
    "static": (lane_scripts.static_range, {"t": 6}, lane_scripts.RANGE),
    "consumer": (lane_scripts.consumer, {"t": 6, "o": 2}, lane_scripts.CONSUMER),
    "migrated": (lane_scripts.migrated, {"t": 4}, lane_scripts.RANGE),
}


@dataclass
class Seen:
    """One lane after its script, and what others say of it."""

    lane: Lane
    shares: dict[str, set[TopicPartition]] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    dump: list[kafka_tools.Record] = field(default_factory=list)
    live: list[Rebalance] = field(default_factory=list)
    """What the live view told, which looks at states too."""
    failed: BaseException | None = None


@pytest.fixture(scope="module")
def seen(broker) -> dict[str, Seen]:
    """All scripts, side by side."""
    mark = threading.get_native_id()
    _warm(broker.bootstrap_servers, f"warm-{mark}")
    found: dict[str, Seen] = {}
    for name, (_, topics, config) in SCRIPTS.items():
        group = f"cause-{name}-{mark}"
        named = {f"{group}-{topic}": count for topic, count in topics.items()}
        found[name] = Seen(Lane(broker.bootstrap_servers, group, named, **config))
    runs = [threading.Thread(target=_run, args=(n, each, broker)) for n, each in found.items()]
    config = {"bootstrap.servers": broker.bootstrap_servers}
    with Tail(config, cluster="main", clock=SystemClock()).start() as tail:
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert tail.catch_up(30)
        for each in found.values():
            each.live = tail.rebalances(group=each.lane.group)
    logs = [node.data.parent / "coordinator.log" for node in broker.broker.status().nodes]
    for each in found.values():
        each.rounds = rounds(logs, each.lane.group)[: len(each.lane.rebalances)]
    dumped = kafka_tools.dump_records(broker.broker, [each.lane.group for each in found.values()])
    for each in found.values():
        last = each.lane.records[-1].offset
        each.dump = [r for r in dumped if r.group == each.lane.group and r.offset <= last]
    return found


def _warm(bootstrap: str, name: str) -> None:
    """A coordinator's first epochs are slow: it loads its classes while somebody waits."""
    lane = Lane(bootstrap, name, {name: 1}, **lane_scripts.CONSUMER)
    try:
        lane.step(lambda: lane.start("a"), "created")
    finally:
        lane.end()


def _run(name: str, seen: Seen, broker) -> None:
    try:
        SCRIPTS[name][0](seen.lane)
        seen.lane.rest()
        _ask(broker.bootstrap_servers, seen)
    except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
        seen.failed = error
    finally:
        seen.lane.end()


def _ask(bootstrap: str, seen: Seen) -> None:
    """The AdminClient's view of the group at rest."""
    admin, group = AdminClient({"bootstrap.servers": bootstrap}), seen.lane.group
    described = admin.describe_consumer_groups([group])[group].result(120)
    for member in described.members:
        assigned = member.assignment.topic_partitions
        seen.shares[member.group_instance_id or member.member_id] = {
            TopicPartition(tp.topic, tp.partition) for tp in assigned
        }
    asked = [ConsumerGroupTopicPartitions(group)]
    for tp in admin.list_consumer_group_offsets(asked)[group].result(120).topic_partitions:
        seen.committed[TopicPartition(tp.topic, tp.partition)] = tp.offset


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_the_script_brought_about_is_told_in_its_order(seen, name) -> None:
    """What else there is, a busy machine brought, and the coordinator's log says how."""
    assert seen[name].failed is None, seen[name].failed
    assert not seen[name].lane.replay.pending()
    told = zip(seen[name].lane.rebalances, seen[name].rounds, strict=True)
    extra = []
    for cause in seen[name].lane.expected:
        for row, judge in told:
            if _is(row, cause):
                break
            extra.append((row, judge))
        else:
            raise AssertionError(f"{cause} is not told\n{_story(seen[name])}")
    for row, judge in (*extra, *told):
        assert judge.causes(), (row, _story(seen[name]))
        assert judge.causes()[0] & UNPLANNED, (row, judge, _story(seen[name]))


def _is(row: Rebalance, cause: str) -> bool:
    return row.cause == cause or (row.cause is Cause.REMOVAL and cause in REMOVALS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_number_and_order_are_those_of_dump_log_segments(seen, name) -> None:
    lane = seen[name].lane
    assert [(r.log_offset, r.number) for r in lane.rebalances] == _numbers(seen[name].dump)


def _numbers(dump: list[kafka_tools.Record]) -> list[tuple[int, int]]:
    """Where each new generation or assignment epoch is; deletion starts anew, conversion not."""
    found: list[tuple[int, int]] = []
    last, deleted_at = 0, None
    for record in dump:
        if record.value is None:
            if record.type in {2, 3}:
                deleted_at = record.timestamp
            continue
        if record.type not in {2, 6}:
            continue
        if deleted_at is not None and deleted_at != record.timestamp:
            last = 0
        deleted_at = None
        number = int(record.value.get("generation", record.value.get("assignmentEpoch", 0)))
        if number != last:
            found.append((record.offset, number))
        last = number
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_coordinators_own_log_agrees_on_the_causes(seen, name) -> None:
    lane, judged = seen[name].lane, seen[name].rounds
    assert [each.number for each in judged] == [each.number for each in lane.rebalances]
    for row, judge in zip(lane.rebalances, judged, strict=True):
        reasons = judge.causes()
        if row.confidence is not Confidence.AMBIGUOUS:
            assert row.cause in reasons[0], (row, judge)
        elif row.cause is Cause.REMOVAL:
            assert REMOVALS & frozenset().union(*reasons), (row, judge)
        else:
            assert {row.cause, *row.also} & frozenset().union(*reasons), (row, judge)


def test_forty_rebalances_of_every_cause_and_few_that_cannot_be_told(seen) -> None:
    pairs = [p for e in seen.values() for p in zip(e.lane.rebalances, e.rounds, strict=True)]
    assert len(pairs) >= 40
    told = {str(row.cause) for row, _ in pairs}
    assert told >= {
        *("created", "join", "leave", "batched leave", "expiry", "subscription change"),
        *("partition count", "assignor change", "leader rejoin", "second cooperative round"),
        *("migration", "group recreated"),
    }


def test_what_is_ambiguous_is_what_the_log_cannot_tell(seen) -> None:
    """Four kinds of docs/concepts/causes.md, each proven by what is there."""
    kinds: Counter[str] = Counter()
    for each in seen.values():
        for row, judge in zip(each.lane.rebalances, each.rounds, strict=True):
            if row.confidence is Confidence.AMBIGUOUS:
                kind = _kind(each, row, judge)
                assert kind is not None, (row, judge)
                kinds[kind] += 1
    assert sum(kinds.values()) <= sum(len(e.rounds) for e in seen.values()) / 10, kinds


def _kind(seen: Seen, row: Rebalance, judge: Round) -> str | None:
    """Which of the things that the log cannot tell an ambiguous rebalance is; None: none."""
    if row.also and len(judge.reasons) > 1:
        return "the order of several changes in one classic round"
    if row.cause is Cause.LEADER_REJOIN and row.assignor == "cooperative-sticky":
        return "a leader's rejoin from a follower's"
    if row.cause is Cause.UNKNOWN and row.aborted:
        return "who came and went in rounds that never completed"
    silences = [_silence(seen, row, who) for who in row.left]
    if row.cause is Cause.REMOVAL and silences and max(silences) >= SESSION_S - CLOSE_S:
        return "leave from expiry after a session of silence"
    return None


def _silence(seen: Seen, row: Rebalance, who: str) -> float:
    """Seconds from a member's last commit to the end of the round without it."""
    owned = [
        each.owned
        for each in seen.lane.memberships
        if each.member == who and each.log_offset < row.log_offset and each.event != "left"
    ]
    mine = set(owned[-1]) if owned else set()
    commits = [
        record.timestamp_ms / 1000
        for record in seen.lane.records
        if isinstance(record, OffsetCommit) and record.tp in mine and record.offset < row.log_offset
    ]
    return row.ended_at - max(commits, default=0.0)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_ledger_tells_the_same_from_any_moment_on(seen, broker, name) -> None:
    """Plans and status read a group's last minutes; an expiry is one there too."""
    lane = seen[name].lane
    rows = [row for row in lane.rebalances if row.protocol == lane.rebalances[-1].protocol]
    since = rows[len(rows) // 2].ended_at - 0.001
    config = {"bootstrap.servers": broker.bootstrap_servers}
    clock = SystemClock()
    with (
        GroupLog(config, clock=clock) as log,
        closing(Observer(cluster="main", config=config, clock=clock)) as observer,
        SessionQueries(config, clock=clock) as sessions,
    ):
        ledger = CoordinatorLedger(log, observer, sessions)
        told = ledger.rebalances(lane.group, cluster="main", since=since)
    assert told is not None
    last = lane.records[-1].offset
    told = [row for row in told if row.log_offset <= last]  # its end came after the lane's
    wanted = lane.rebalances[-len(told) :]
    assert len(told) >= len(rows) - len(rows) // 2
    assert [row.number for row in told] == [row.number for row in wanted]
    for row, known in zip(told, wanted, strict=True):
        # Evidence from before the stretch is missing.
        assert row.cause == known.cause or Cause.REMOVAL in {row.cause, known.cause}, (row, known)


@pytest.mark.parametrize("name", SCRIPTS)
def test_epochs_took_as_long_as_kafka_decodes_them(seen, name) -> None:
    for row in seen[name].lane.rebalances:
        if row.protocol == "consumer":
            began = _epoch_at(seen[name].dump, row)
            assert (row.start_source, row.end_source) == (TimeSource.RECORD, TimeSource.RECORD)
            assert row.seconds is not None
            assert abs(row.seconds - (_settled_at(seen[name].dump, row) - began)) < CLOSE_S, row


def test_times_are_the_coordinators_within_a_fifth_of_a_second(seen) -> None:
    """All but those where the broker itself was so late that its log and its record differ."""
    pairs = [p for e in seen.values() for p in zip(e.lane.rebalances, e.rounds, strict=True)]
    apart = [row.ended_at - judge.ended_at for row, judge in pairs if row.protocol == "classic"]
    apart += [
        row.started_at - judge.started_at
        for row, judge in pairs
        if row.start_source is TimeSource.RECORD and row.started_at is not None
    ]
    late = [each for each in apart if abs(each) >= CLOSE_S]
    assert len(late) <= len(apart) / 10, late
    assert all(abs(each) < 1 for each in late), late


def _epoch_at(dump: list[kafka_tools.Record], row: Rebalance) -> float:
    """When the group epoch of an assignment was written."""
    return next(
        record.timestamp / 1000
        for record in reversed(dump)
        if record.type == 3
        and record.value
        and record.offset < row.log_offset
        and int(record.value["epoch"]) == row.number
    )


def _settled_at(dump: list[kafka_tools.Record], row: Rebalance) -> float:
    """When every member of an assignment was stable at its epoch, as Kafka decodes it."""
    members: set[str] = set()
    waiting: set[str] = set()
    for record in dump:
        name = str(record.key.get("memberId", ""))
        if record.type == 5 and record.offset < row.log_offset:
            (members.discard if record.value is None else members.add)(name)
        if record.offset == row.log_offset:
            waiting = set(members)
        if record.offset <= row.log_offset or record.type != 8:
            continue
        value = record.value
        if value is None or (int(value["memberEpoch"]) >= row.number and int(value["state"]) == 0):
            waiting.discard(name)
        if not waiting:
            return record.timestamp / 1000
    raise AssertionError(f"never settled: {row}")


def test_commits_at_revocation_bound_the_start(seen) -> None:
    each = seen["range"]
    pairs = zip(each.lane.rebalances, each.rounds, strict=True)
    told = [pair for pair in pairs if pair[0].start_source is TimeSource.COMMITS]
    assert told
    for row, judge in told:
        assert row.started_at is not None
        assert judge.started_at - 1 < row.started_at < judge.ended_at, (row, judge)


def test_the_live_view_knows_how_long_rebalances_took(seen) -> None:
    """By looks at the groups' states: in the log alone most classic rounds have no start."""
    pairs = [
        (row, judge)
        for each in seen.values()
        for row, judge in zip(each.live, each.rounds, strict=False)
        if row.protocol == "classic" and row.number == judge.number
    ]
    timed = [(row, judge) for row, judge in pairs if row.is_timed]
    assert len(timed) >= 0.9 * len(pairs) > 20, [row for row, _ in pairs if not row.is_timed]
    for row, judge in timed:
        true = judge.ended_at - judge.started_at
        assert abs(row.seconds - true) <= max(1, true / 4) + CLOSE_S, (row, judge)


def test_a_replaced_static_member_is_a_row_and_no_rebalance(seen) -> None:
    for name in ("static", "consumer"):
        rows = [row for row in seen[name].lane.memberships if row.event == "replaced"]
        assert [row.instance_id for row in rows][:1] == ["i1"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_rest_members_and_commits_are_those_of_the_admin_client(seen, name) -> None:
    each = seen[name]
    members = {member.identity: set(member.owned) for member in each.lane.replay.members()}
    assert members == each.shares
    assert each.lane.replay.commits() == each.committed


def _story(seen: Seen) -> str:
    return "\n".join(
        f"{row.number} {row.cause} ({row.confidence}) {row.also} | {judge.reasons}"
        for row, judge in zip(seen.lane.rebalances, seen.rounds, strict=False)
    )
