"""What a member may commit, and what it waits for, on a cluster in memory [2, 6, 7, 51, 52].

The real membership, from its settings on: its client's options, its reading both ways, its batch
thread. Each test names the fault that it is there for.
"""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.model import TopicPartition
from fleet.worker.member.member_state import End, MemberState
from fleet.worker.member.membership import Draining
from fleet.worker.slot.slot_life import Life
from tests.support.memory_kafka import MemoryConsumer, MemoryKafka
from tests.support.waiting import until
from tests.worker.rig import QUICK, Drive, Driven

P = [TopicPartition("t", number) for number in range(2)]
BOTH = pytest.mark.parametrize("reading", ["inline", "ranges"])


def working(drive: Drive, *tps: TopicPartition, **worker) -> Driven:
    """A member whose first batch is in the job's hands until `may_end`."""
    driven = drive(*tps, **worker)
    driven.may_end.clear()
    driven.until(driven.began, "a batch to begin")
    return driven


def before(kafka: MemoryKafka, what: str) -> dict[TopicPartition, int]:
    """What was committed last for each partition before this happened first."""
    found: dict[TopicPartition, int] = {}
    for kind, of in kafka.done:
        if kind == what:
            return found
        if kind == "commit":
            found.update(of)
    raise AssertionError(f"no {what}")


# --- what it waits for ----------------------------------------------------------------------


@BOTH
def test_a_revocation_waits_for_the_batch_in_hand(kafka, drive: Drive, reading: str):
    """Fault: partitions are given up at once, and what is in hand is done again elsewhere."""
    driven = working(drive, *P, reading=reading, assignor="range")
    kafka.revoke(*P)
    driven.until(lambda: not kafka.todo, "the revocation")
    driven.turns()
    assert all(kind != "unassign" for kind, _ in kafka.done)
    driven.may_end.set()
    driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the answer")
    assert before(kafka, "unassign") == {P[0]: 3, P[1]: 3}
    assert len(driven.rows) == 6


@BOTH
def test_a_batch_is_in_hand_until_it_is_committed(kafka, drive: Drive, reading: str):
    """Fault: a manager that waits for a canary's first batch is not told of it, or never else."""
    driven = drive(P[0], reading=reading)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the first batch to be committed")
    driven.turns()
    assert not driven.member.state.in_hand
    driven.may_end.clear()
    kafka.produce(P[0], b"more")
    driven.until(lambda: len(driven.contexts) == 2, "another batch to begin")
    driven.turns()
    assert driven.member.state.in_hand
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P[0])[-1] == 4, "its commit")
    driven.turns()
    assert not driven.member.state.in_hand


@BOTH
@pytest.mark.parametrize("then", [Life.CLOSING, Life.HOLDING, Life.REJOINING])
def test_a_drain_waits_for_the_batch_in_hand(kafka, drive: Drive, reading: str, then: Life):
    """Fault: it closes, or says that it is drained, while Spark still writes."""
    driven = working(drive, P[0], reading=reading)
    driven.member.become(then)
    driven.turns(8)
    assert driven.member.state.phase == "draining"
    assert all(kind not in {"close", "unassign"} for kind, _ in kafka.done)
    driven.may_end.set()
    if then is Life.CLOSING:
        driven.until(lambda: driven.member.ended is not None, "the end")
        assert driven.member.ended.clean
        assert before(kafka, "close") == {P[0]: 3}
    elif then is Life.HOLDING:
        driven.until(lambda: driven.member.state.phase == "drained", "the drain")
        assert kafka.committed(P[0])[-1] == 3
    else:
        driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the leave")
        assert before(kafka, "unassign") == {P[0]: 3}


@BOTH
def test_a_leave_that_is_taken_back_keeps_the_batch_in_hand(kafka, drive: Drive, reading: str):
    """Fault: its records are read again at once, and what it writes is written twice."""
    driven = working(drive, P[0], reading=reading)
    driven.member.become(Life.HOLDING)
    driven.turns(8)
    driven.member.become(Life.SERVING)
    kafka.produce(P[0], b"late")
    driven.turns(8)
    meanwhile = driven.member.state.phase
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P[0])[-1] == 4, "all of it")
    driven.until(lambda: driven.member.state.phase == "active", "it to serve")
    assert [(r.start, r.end) for c in driven.contexts for r in c.ranges] == [(0, 3), (3, 4)]
    assert meanwhile == "joining", "who was that has shown nothing by being asked [22]"


def test_what_is_asked_after_a_leave_was_taken_back_holds(kafka, drive: Drive):
    """Fault: it goes on where it is to close, since its batch was in hand at both times."""
    driven = working(drive, P[0])
    driven.member.become(Life.HOLDING)
    driven.member.become(Life.SERVING)
    driven.drain()
    driven.turns(8)
    assert driven.member.state.phase == "draining"
    driven.may_end.set()
    driven.until(lambda: driven.member.ended is not None, "the end")
    assert before(kafka, "close") == {P[0]: 3}
    assert len(driven.contexts) == 1


def test_a_batch_has_its_time_again_once_a_leave_was_taken_back():
    """Fault: it is cut short for a leave that nobody asks for, or for the one before."""
    draining = Draining(MemberState(), timeout=30.0)
    draining.begin(Life.HOLDING, 0.0)
    assert draining.is_late(30.0)
    draining.take_back()
    assert not draining.is_late(100.0)
    assert draining.begin(Life.CLOSING, 100.0)
    assert not draining.is_late(129.0)
    assert draining.is_late(130.0)


def test_each_batch_has_its_time_and_is_cut_short(kafka, drive: Drive):
    """Fault: after one that was, drain_timeout bounds no drain of this membership any more."""
    driven = working(drive, *P, assignor="cooperative-sticky")
    member, interrupted = driven.member, driven.runner._link.session.interrupted
    member._draining = Draining(member.state, timeout=0.1)
    kafka.revoke(P[0])
    driven.until(lambda: member.state.unclean, "the first cut")
    assert interrupted.wait(120)
    interrupted.clear()
    driven.may_end.set()
    driven.until(lambda: member.state.partitions == {P[1]}, "the revocation")
    kafka.produce(P[1], b"d")
    driven.until(lambda: kafka.committed(P[1])[-1:] == [4], "a batch after it")
    driven.until(lambda: not member.state.unclean, "nothing of the first one to run on")
    driven.may_end.clear()
    begun = len(driven.contexts)
    kafka.produce(P[1], b"e")
    driven.until(lambda: len(driven.contexts) > begun, "another batch")
    driven.drain()
    assert interrupted.wait(120), "the second cut"
    driven.may_end.set()
    driven.until(lambda: member.ended is not None, "the end")
    assert not member.ended.clean


# --- what it may commit ---------------------------------------------------------------------


@BOTH
def test_a_gap_is_not_committed_over_a_batch_in_hand(kafka, drive: Drive, reading: str):
    """Fault: the position behind markers is committed, and a batch that then fails is skipped."""
    driven = working(drive, P[0], reading=reading)
    kafka.mark(P[0], 2)
    driven.turns(20)
    assert kafka.committed(P[0])[-1] == 0
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P[0])[-1] == 5, "the markers, after the batch")
    assert kafka.committed(P[0]).index(3) < kafka.committed(P[0]).index(5)


@BOTH
def test_what_was_lost_is_not_committed(kafka, drive: Drive, reading: str):
    """Fault: every partition of the batch is taken for still ours."""
    driven = working(drive, *P, reading=reading)
    kafka.lose(P[0])
    driven.until(lambda: driven.member.state.partitions == {P[1]}, "the loss")
    kafka.commits[P[0]] = (99, "")  # its new owner
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P[1])[-1] == 3, "what is left")
    driven.turns()
    assert kafka.commits[P[0]] == (99, "")


@BOTH
def test_what_went_and_came_back_is_read_again(kafka, drive: Drive, reading: str):
    """Fault: a batch from before a loss is committed after it: another may have been there [2]."""
    driven = working(drive, P[0], reading=reading)
    kafka.lose(P[0])
    kafka.assign(P[0])
    driven.until(lambda: [k for k, _ in kafka.done].count("assign") == 2, "the partition again")
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the second reading")
    assert len(driven.contexts) == 2, "the first one's end commits nothing"


def test_another_member_id_voids_the_batch(kafka, drive: Drive):
    """Fault: a late commit is stamped with the membership of now, and Kafka accepts it [2]."""
    driven = working(drive, P[0])
    driven.turns()
    kafka.member = "m2"
    driven.may_end.set()
    driven.until(lambda: len(driven.contexts) == 2, "the ranges to be read again")
    driven.until(lambda: kafka.committed(P[0])[-1] == 3, "their commit")
    assert [context.ranges for context in driven.contexts] == [driven.contexts[0].ranges] * 2


def test_a_commit_never_goes_back(kafka, drive: Drive):
    """While batches follow each other, and partitions join them."""
    driven = drive(P[0], batch={**QUICK, "inline": 2})
    for number in range(30):
        kafka.produce(P[0], b"%d" % number)
        if number == 10:
            kafka.assign(P[1])
        driven.turns(1)
    driven.until(
        lambda: [kafka.committed(p)[-1:] for p in P[:2]] == [[33], [3]], "all of both partitions"
    )
    assert kafka.committed(P[0]) == sorted(kafka.committed(P[0]))
    assert len(driven.rows) == len(set(driven.rows)) == 36


# --- what it reads --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("isolation", "values"),
    [
        pytest.param("read_committed", [b"a", b"b", b"c", b"d"], id="committed"),
        pytest.param("read_uncommitted", [b"a", b"b", b"c", b"no", b"d", b"open"], id="all"),
    ],
)
def test_isolation(kafka, drive: Drive, reading: str, isolation: str, values: list[bytes]):
    """Fault: the spec's isolation is not told to the member's client, to leaders or to tasks."""
    kafka.produce(P[0], b"no", aborted=True)
    kafka.mark(P[0])
    kafka.produce(P[0], b"d")
    kafka.mark(P[0])
    stable = kafka.parts[P[0]].high
    kafka.produce(P[0], b"open")
    kafka.parts[P[0]].stable = stable
    driven = drive(P[0], reading=reading, isolation=isolation)
    end = stable if isolation == "read_committed" else stable + 1
    driven.until(lambda: kafka.committed(P[0])[-1:] == [end], "the end of it")
    assert driven.values() == values


@BOTH
@pytest.mark.parametrize("on_truncated", ["stop", "skip"])
def test_a_position_that_is_gone_is_a_named_loss(kafka, drive: Drive, reading: str, on_truncated):
    """Fault: `auto.offset.reset: latest` jumps to the end, over what was never read [7]."""
    driven = drive(P[0], reading=reading, on_truncated=on_truncated)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the first records")
    with kafka.lock:
        kafka.produce(P[0], *[b"%d" % number for number in range(4)])
        kafka.truncate(P[0], 5)
    if on_truncated == "skip":
        driven.until(lambda: kafka.committed(P[0])[-1] == 7, "the rest")
        assert driven.values() == [b"a", b"b", b"c", b"2", b"3"]
    else:
        driven.until(lambda: driven.member.state.stopped_partitions == {P[0]}, "the quarantine")
        assert kafka.commits[P[0]][0] == 3
    assert driven.member.state.lost_records == 2


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("on_truncated", ["stop", "skip"])
def test_a_damaged_record_batch_stops_its_partition_alone(
    kafka, drive: Drive, on_truncated: str, at: int
):
    """Fault: the worker ends, and each of its successors, so that nobody reads any partition."""
    kafka.damaged = {(P[0], at)}
    driven = drive(*P[:2], reading="ranges", on_truncated=on_truncated)
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "the other partition")
    before = [b"a", b"b", b"c"][:at]
    if on_truncated == "skip" and at < 2:  # of the last one nobody knows where it ends
        driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "what is behind it")
        assert driven.values_of(P[0]) == before + [b"a", b"b", b"c"][at + 1 :]
        assert driven.member.state.lost_records == 1
        assert at + 1 in kafka.committed(P[0]), "chosen, and committed before it is read [42]"
        assert not driven.store.stopped_partitions("g")
        return
    driven.until(lambda: driven.member.state.stopped_partitions == {P[0]}, "the stop")
    (mark,) = driven.store.stopped_partitions("g")
    assert (mark.tp, mark.offset, mark.is_log_cause) == (P[0], at, True)
    assert f"batch at offset {at} is damaged: its checksum does not fit" in mark.error
    assert ("skip has no effect" if at == 2 else f"skip would go on at {at + 1}") in mark.error
    assert driven.values_of(P[0]) == before
    assert kafka.commits[P[0]][0] == at
    kafka.produce(P[1], b"d")
    driven.until(lambda: kafka.committed(P[1])[-1:] == [4], "the others go on")
    assert driven.member.ended is None


# --- what trickled in, when partitions change hands [52] --------------------------------------


LONG = {"max_wait": "30s"}
"""Far longer than a batch takes, and than a test."""


def resting(drive: Drive, kafka: MemoryKafka, **worker) -> Driven:
    """A member of both partitions that waits for more records; its first batch is committed."""
    driven = drive(*P, **worker)
    driven.until(lambda: all(kafka.committed(tp)[-1:] == [3] for tp in P), "the first batch")
    driven.until(lambda: not driven.member.state.in_hand, "it to rest")
    return driven


def trickles(driven: Driven, tp: TopicPartition) -> None:
    """One record that the member reads, and keeps for its next batch."""
    driven.kafka.produce(tp, b"late")
    driven.turns(8)
    assert len(driven.contexts) == 1


@pytest.mark.parametrize("then", [Life.CLOSING, Life.HOLDING])
def test_a_drain_processes_what_trickled_in(kafka, drive: Drive, then: Life):
    """Fault: it waits until the rebalance is over and another one's batch is done."""
    driven = resting(drive, kafka, batch=LONG)
    trickles(driven, P[0])
    driven.member.become(then)
    if then is Life.HOLDING:
        driven.until(lambda: driven.member.state.phase == "drained", "the drain")
    else:
        driven.until(lambda: driven.member.ended is not None, "the end")
    assert kafka.committed(P[0])[-1] == 4
    assert driven.values().count(b"late") == 1


def test_one_more_batch_is_all(kafka, drive: Drive):
    """Fault: a member that drains reads on, and never ends under a stream."""
    driven = resting(drive, kafka, batch=LONG)
    trickles(driven, P[0])
    driven.may_end.clear()
    driven.member.become(Life.HOLDING)
    driven.until(lambda: len(driven.contexts) == 2, "the last batch")
    kafka.produce(P[0], b"later")
    driven.turns(8)
    driven.may_end.set()
    driven.until(lambda: driven.member.state.phase == "drained", "the drain")
    driven.turns(8)
    assert b"later" not in driven.values()
    assert kafka.committed(P[0])[-1] == 4


@pytest.mark.parametrize(("assignor", "done"), [("cooperative-sticky", 4), ("range", 3)])
def test_a_revocation_that_waits_anyway_processes_it(kafka, drive: Drive, assignor: str, done: int):
    """Fault: a cooperative member idles for the quarter of a second that it waits."""
    driven = resting(drive, kafka, assignor=assignor, batch=LONG)
    trickles(driven, P[0])
    kafka.revoke(*(P if assignor == "range" else P[:1]))
    driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the answer")
    assert kafka.committed(P[0])[-1] == done
    assert driven.values().count(b"late") == done - 3


def test_who_took_partitions_over_goes_first(kafka, drive: Drive):
    """Fault: members that gave some up begin with what they kept in the same moment, and those
    who share their Spark, and read what has waited longest, take twice as long.
    """
    driven = resting(drive, kafka, assignor="cooperative-sticky", batch={"max_wait": "1500ms"})
    time.sleep(1.2)
    asked = time.monotonic()
    kafka.revoke(P[0])
    driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the answer")
    kafka.produce(P[1], b"kept")
    driven.until(lambda: len(driven.contexts) == 2, "the next batch")
    assert time.monotonic() - asked > 0.25 + 1.5


def test_a_batch_that_waits_for_its_plan_takes_along_what_is_assigned(kafka, drive: Drive):
    """Fault: cut before the rebalance, and refused its plan by it, it is first in the new
    generation, and what was moved waits until it is done.
    """
    driven = drive(P[0])
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the first batch")
    asked = kafka.asked
    kafka.answers.extend([22] * 100_000)
    kafka.produce(P[0], b"late")
    driven.until(lambda: kafka.asked > asked + 2, "a plan that is refused")
    kafka.todo.append(lambda _: kafka.answers.clear())
    kafka.assign(P[1])
    driven.until(lambda: len(driven.contexts) == 2, "the next batch")
    assert [(r.partition, r.start, r.end) for r in driven.contexts[1].ranges] == [
        (0, 3, 4),
        (1, 0, 3),
    ]


# --- what the consumer thread waits for -------------------------------------------------------


P_0 = TopicPartition("t", 0)


def test_no_poll_waits_while_a_batch_runs(kafka: Any, drive: Drive, monkeypatch):
    """Fault: a batch that is done waits until the poll is over that was begun meanwhile."""
    polls: list[tuple[bool, float]] = []
    """(a batch runs, how long the poll may wait) of each."""
    consume = MemoryConsumer.consume

    def noted(consumer: MemoryConsumer, count: int, timeout: float) -> Any:
        polls.append((driven.began() and not driven.rows, timeout))
        return consume(consumer, count, timeout)

    driven = drive(P_0)
    driven.until(lambda: kafka.committed(P_0)[-1:] == [3], "what is there")
    driven.rows.clear()
    driven.contexts.clear()
    driven.may_end.clear()
    monkeypatch.setattr(MemoryConsumer, "consume", noted)
    kafka.produce(P_0, b"one")
    driven.until(driven.began, "a batch")
    driven.turns(1)  # the poll that was begun before the batch was
    polls.clear()
    driven.turns(10)
    while_running = list(polls)
    assert while_running
    assert all(running and timeout == 0 for running, timeout in while_running)
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P_0)[-1] == 4, "its commit")
    polls.clear()
    driven.turns(10)
    assert max(timeout for _, timeout in polls) == pytest.approx(0.02), "idle, it waits for records"


# --- who is to end while its join is under way ends [51] --------------------------------------


PARTS = (TopicPartition("t", 0), TopicPartition("t", 1))
ANSWERED = 5.0
"""Seconds that a question of this test may take."""


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_what_it_is_given_while_it_closes_is_given_back(
    kafka: MemoryKafka, drive: Drive, assignor: str
) -> None:
    """It asks for no offsets, reads nothing, commits nothing, and its end is a clean one."""
    kafka.at_close = PARTS
    joining = drive(assignor=assignor)
    joining.until(lambda: bool(kafka.done), "the join, with nothing yet")
    asked = kafka.asked
    joining.member.become(Life.CLOSING)
    assert joining.member.join(20), "it asks until its grace period is over"
    ended = joining.member.ended
    assert (ended.how, ended.clean) == (End.CLOSED, True)
    assert [what for what, _ in kafka.done[-3:]] == ["assign", "unassign", "close"]
    assert set(kafka.done[-3][1]) == set(PARTS)
    assert kafka.asked == asked
    assert not kafka.commits


def test_who_is_to_end_before_it_subscribed_does_not_join(kafka: MemoryKafka, drive: Drive) -> None:
    """A dynamic member would cost two rebalances, the slot targets being open or not."""
    asked = drive(joins=False)
    asked.member.become(Life.CLOSING)
    asked.member.start()
    assert asked.member.join(20)
    ended = asked.member.ended
    assert (ended.how, ended.clean) == (End.CLOSED, True)
    assert kafka.subscribed == []


@pytest.mark.parametrize("answer", [False, None])
def test_a_slot_of_another_worker_is_not_joined(
    kafka: MemoryKafka, drive: Drive, answer: bool | None
) -> None:
    """Its join would fence the new owner; a silent store is waited for, until it is to end [54]."""
    joining = drive(joins=False)
    joining.confirmed = answer
    joining.member.start()
    if answer is None:
        assert not joining.member.join(1.5), "it waits"
        joining.member.become(Life.CLOSING)
    assert joining.member.join(20)
    assert (joining.member.ended.how, joining.member.ended.clean) == (End.CLOSED, True)
    assert kafka.subscribed == []


@pytest.mark.parametrize("confirmed", [True, None])
def test_who_is_to_end_while_it_leaves_to_join_again_ends(
    kafka: MemoryKafka, drive: Drive, confirmed: bool | None
) -> None:
    """It is no member by then: where the store is silent it does not join at all [54]."""
    joined = drive(*PARTS)
    joined.until(lambda: bool(joined.member.state.partitions), "its partitions")
    joined.confirmed = confirmed
    joined.member.become(Life.REJOINING)
    joined.until(lambda: not joined.member.state.partitions, "its leave")
    joined.member.become(Life.CLOSING)
    assert joined.member.join(20)
    assert joined.member.ended.how is End.CLOSED
    assert len(kafka.subscribed) == (2 if confirmed else 1)


def test_a_member_joins_once_the_store_answers(kafka: MemoryKafka, drive: Drive) -> None:
    """And its probe sees it move meanwhile."""
    joining = drive(joins=False)
    joining.confirmed = None
    joining.member.start()
    assert not joining.member.join(1.5), "it waits"
    assert joining.member.state.is_moving(time.monotonic(), stalled=5.0, grace=5.0)
    assert kafka.subscribed == []
    joining.confirmed = True
    joining.until(lambda: bool(kafka.subscribed), "its join")


@pytest.mark.broker
def test_librdkafka_answers_nothing_about_offsets_while_it_closes(broker, unique) -> None:
    """Why: the assignment of a join that was answered comes inside close()."""
    topic = f"t-{unique}"
    told = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(told)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    named = {**told, "group.id": f"g-{unique}", "group.instance.id": "i", "log_level": 0}

    def joined(consumer: Consumer) -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    first = Consumer(named)
    first.subscribe([topic])
    until(lambda: joined(first), "the first member")
    first.close()  # a static one: its successor's join is answered at once

    found: list[object] = []

    def assigned(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            found.append(consumer.committed(partitions, ANSWERED))
        except KafkaException as error:
            found.append(error)
        consumer.assign(partitions)

    again = Consumer(named)
    again.committed([KafkaPartition(topic, 0)], 60)  # the coordinator is known
    again.subscribe([topic], on_assign=assigned)
    again.poll(0)
    time.sleep(1.0)  # the answer has come, and nobody has polled
    again.close()
    assert found, "no assignment came inside close(): the join was not answered yet"
    assert isinstance(found[0], KafkaException), found
