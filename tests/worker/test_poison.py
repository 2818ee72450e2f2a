"""Which records of a failed batch are called poison, and what stops a partition."""

import os
import re
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from fleet.kafka_source.columns import SCHEMA
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.sinks import write_delta
from fleet.slots import DAMAGED, StoppedPartition
from fleet.testing import make_batch
from fleet.worker.batch.batches import InlineBatch, Prepared
from fleet.worker.batch.poison_search import DeadLetters, PoisonFound, PoisonRecord, PoisonSearch
from tests.conftest import RunningBroker
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import MemoryKafka
from tests.worker.rig import Drive, Driven
from tests.worker.test_failures import batch as failed_batch

RESTS = (0.5, 1.0)
P = [TopicPartition("t", number) for number in range(2)]


def batch(**offsets: list[int]) -> InlineBatch:
    """Partitions p0, p1, … with these offsets; a range ends behind its last one."""
    ranges, tables = [], {}
    for name, present in offsets.items():
        number = int(name[1:])
        each = BatchRange(
            topic="t", topic_id="T", partition=number, start=present[0], end=present[-1] + 1
        )
        rows = [{"partition": number, "offset": at} for at in present]
        ranges.append(each)
        tables[each.tp] = pa.Table.from_pylist(rows, schema=SCHEMA)
    return InlineBatch(ranges=tuple(ranges), tables=tables)


class Entry:
    """An entrypoint that fails for some records, or for all; `down`: for so many calls first."""

    def __init__(self, *bad: tuple[int, int], broken: bool = False, down: int = 0) -> None:
        self.bad = set(bad)
        self.broken = broken
        self.down = down
        self.calls: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        if self.broken or len(self.calls) <= self.down or self.bad & set(rows):
            return "E"
        self.written += rows
        return None


class Room:
    """So many letters per partition."""

    def __init__(self, most: int) -> None:
        self.most = most

    def room(self, tp: TopicPartition, start: int) -> int:
        """The same for all."""
        return self.most

    def refusal(self, tp: TopicPartition) -> str:
        return f"too many in {tp}"


def examined(
    made: InlineBatch, entry: Entry, *, most: int | None = 10, in_time: bool = True, **how: Any
) -> PoisonFound:
    usual: dict[str, Any] = {
        "attempt": entry,
        "attempts": lambda: len(entry.calls),
        "holds": lambda part: part.holds_records(None),
        "rests": lambda: RESTS,
        "narrowing": None if most is None else Room(most),
        "in_time": lambda: in_time,
        "say": lambda _: None,
    }
    return PoisonSearch(made, "first", **{**usual, **how}).search()


def found(culprits: PoisonFound) -> list[tuple[int, int]]:
    return [(each.tp.partition, each.offset) for each in culprits.letters]


def test_without_a_topic_the_partition_fails():
    """As before: only the partitions that fail alone."""
    result = examined(batch(p0=[0, 1], p1=[0, 1]), Entry((1, 1)), most=None)
    assert result == PoisonFound(failed={P[1]: "E"})


@pytest.mark.parametrize("at", [0, 1, 499, 512, 998, 999])
def test_one_record_of_a_thousand_costs_few_calls(at: int):
    """Halving finds it in at most two calls per halving, and every other record was processed."""
    entry = Entry((0, at))
    result = examined(batch(p0=list(range(1000))), entry)
    assert found(result) == [(0, at)]
    assert not result.failed
    assert len(entry.calls) <= 20 + len(RESTS)
    assert result.letters[0].part.table()["offset"].to_pylist() == [at]


@pytest.mark.parametrize(
    ("made", "bad", "most", "letters"),
    [
        pytest.param(
            batch(p0=list(range(50)), p1=list(range(100)), p2=[0, 1], p3=[5, 6]),
            *([(0, 3), (0, 4), (1, 70), (2, 0)], 10, [(0, 3), (0, 4), (1, 70), (2, 0)]),
            id="several in several partitions",
        ),
        pytest.param(
            batch(p0=[0, 1_000_000]), [(0, 1_000_000)], 10, [(0, 1_000_000)], id="behind a gap"
        ),
        pytest.param(
            batch(p0=[0, 1, 2], p1=[0, 1, 2]),
            *([(0, 1), (1, 0)], 10, [(0, 1), (1, 0)]),
            id="in every partition",
        ),
        pytest.param(
            batch(p0=list(range(30)), p1=[0]), [(0, 0), (0, 9)], 2, [(0, 0), (0, 9)], id="as many"
        ),
        pytest.param(
            batch(p0=list(range(30)), p1=[0]), [(0, 0), (0, 9), (0, 18)], 2, [], id="one too many"
        ),
    ],
)
def test_which_are_put_aside(made: InlineBatch, bad, most: int, letters):
    """Only them, in order, without calls for gaps; one too many stops the partition."""
    entry = Entry(*bad)
    result = examined(made, entry, most=most)
    assert (found(result), result.unhealthy) == (letters, None)
    assert bool(result.failed) is not bool(letters)
    assert all(rows for rows, _ in entry.calls)


@pytest.mark.parametrize(("at", "most"), [(37, 37), (0, 2)])
def test_the_offset_is_named_where_the_witness_is_another_record(at: int, most: int):
    """One partition, no topic: what is before the bad record is written once; else a part after."""
    entry = Entry((0, at))
    result = examined(batch(p0=list(range(100))), entry, most=None)
    assert result == PoisonFound(failed={P[0]: "E"}, reached={P[0]: at})
    assert len(entry.written) <= most
    assert entry.written[:at] == [(0, each) for each in range(at)]


def test_a_part_without_records_is_no_witness():
    """Offsets that are markers: the entrypoint has nothing to fail for."""
    made, entry = batch(p0=[0, 1], p1=[0]), Entry((0, 0), (0, 1))
    holds = lambda part: part.ranges[0].partition == 0  # noqa: E731
    assert examined(made, entry, most=None, holds=holds).unhealthy == "first"


LARGE = "the rows have 3.0 GiB or more, and spark.driver.maxResultSize is 1024.0 MiB"


class Bounded(Entry):
    """Takes so many records at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __call__(self, part: InlineBatch) -> str | None:
        told = super().__call__(part)
        if self.calls[-1][0] <= self.most:
            return told
        del self.written[-self.calls[-1][0] :]
        return LARGE


@pytest.mark.parametrize("letters", [None, 10])
@pytest.mark.parametrize("parts", [{}, {"p1": [0, 1]}, {"p1": list(range(30))}])
def test_what_is_too_large_for_spark_is_run_in_parts(parts, letters: int | None):
    """Fault: the hot partition is stopped, for the small one beside it went well."""
    made, entry = batch(p0=list(range(40)), **parts), Bounded(7)
    assert examined(made, entry, most=letters) == PoisonFound()
    assert len(entry.written) == len(set(entry.written)) == made.records


@pytest.mark.parametrize("letters", [None, 10])
def test_a_record_that_is_too_large_for_spark_is_no_poison(letters: int | None):
    """Its code is right: nothing is stopped or put aside, and the worker says what to set."""

    class Single(Entry):
        def __call__(self, part: InlineBatch) -> str | None:
            return LARGE if super().__call__(part) else None

    result = examined(batch(p0=[0, 1, 2], p1=[0]), Single((0, 1)), most=letters)
    assert result == PoisonFound(unhealthy=LARGE)


@pytest.mark.parametrize("most", [None, 10], ids=["no topic", "dead letters"])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(batch(p0=list(range(1000))), id="one partition"),
        pytest.param(batch(p0=[7]), id="one record"),
        pytest.param(batch(p0=[0, 1], p1=[0, 1]), id="several partitions"),
        pytest.param(batch(p0=[0], p1=[0], p2=[0], p3=[0], p4=[0]), id="a record each"),
    ],
)
def test_a_broken_sink_is_no_poison(made: InlineBatch, most: int | None):
    """Where nothing of the batch goes well nothing is condemned, whatever it holds [43]."""
    entry = Entry(broken=True)
    assert examined(made, entry, most=most) == PoisonFound(unhealthy="first")
    assert len(entry.calls) < 25


@pytest.mark.parametrize("most", [None, 10], ids=["no topic", "dead letters"])
@pytest.mark.parametrize("down", range(1, 14))
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(batch(p0=list(range(100))), id="one partition"),
        pytest.param(batch(p0=[0, 1, 2], p1=[5, 6], p2=[9]), id="several"),
    ],
)
def test_a_sink_that_comes_back_condemns_nothing(made: InlineBatch, down: int, most: int | None):
    """Whenever it does: what failed before it is asked again, and every record is written."""
    entry = Entry(down=down)
    result = examined(made, entry, most=most)
    assert (dict(result.failed), result.letters) == ({}, ())
    if result.unhealthy is None:
        everything = {(r["partition"], r["offset"]) for r in made.table().to_pylist()}
        assert set(entry.written) == everything


def test_a_flood_stops_the_partition():
    """More than there is room for: quarantined with the reason, nothing of it put aside."""
    entry = Entry(*[(0, at) for at in range(0, 100, 3)])
    result = examined(batch(p0=list(range(100)), p1=[0]), entry)
    assert dict(result.failed) == {P[0]: "too many in t-0: E"}
    assert not result.letters


def test_narrowing_ends_in_time():
    """An entrypoint that fails slowly is not asked for ever."""
    entry = Entry((0, 3), (0, 900))
    result = examined(batch(p0=list(range(1000))), entry, in_time=False)
    assert "within one batch_timeout" in result.failed[P[0]]


class Pair(Entry):
    """Fails where two records come together."""

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [r["offset"] for r in part.table().to_pylist() if r["partition"] == 0]
        self.calls.append((len(rows), len(part.ranges)))
        return "E" if len(rows) > 1 else None


class Passing(Entry):
    """One record fails twice alone, and then goes well."""

    alone = 0

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        if rows == [(0, 5)]:
            self.alone += 1
            return "E" if self.alone <= 2 else None
        return "E" if (0, 5) in rows else None


@pytest.mark.parametrize(
    ("made", "entry"),
    [
        pytest.param(batch(p0=[0, 1], p1=[0]), Pair(), id="fails together alone"),
        pytest.param(batch(p0=list(range(10)), p1=[0]), Passing(), id="goes well after a rest"),
    ],
)
def test_what_goes_well_by_itself_is_no_poison(made: InlineBatch, entry: Entry):
    """It is poison where it fails alone, and each time, not most times."""
    result = examined(made, entry)
    assert (found(result), dict(result.failed), result.unhealthy) == ([], {}, None)


# --- marks while two revisions run side by side, as in a roll [9, 22] -------------------------


def mark(
    driven: Driven, tp: TopicPartition, revision: str, *, offset: int = 1, attempts: int = 3
) -> StoppedPartition:
    """A partition that a worker of this revision has stopped."""
    made = StoppedPartition(
        group="g", tp=tp, offset=offset, error="no", attempts=attempts, revision=revision, at=0.0
    )
    driven.store.stop_partition(made)
    return made


def test_a_new_revision_tries_what_it_is_given_and_nothing_else(kafka, drive: Drive):
    """Fault: the old revision's other workers are told to read again what they stopped at."""
    driven = drive()
    mark(driven, P[0], "r0")
    others = mark(driven, P[1], "r0")
    kafka.assign(P[0])
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the partition that is tried again")
    assert driven.store.stopped_partitions("g") == (others,)


def test_what_this_revision_stopped_stays_stopped(kafka, drive: Drive):
    """Whoever is assigned it next, and whatever else with it."""
    driven = drive()
    stopped = mark(driven, P[0], "r1")
    kafka.assign(*P)
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "the other one")
    driven.turns()
    assert driven.member.state.stopped_partitions == {P[0]}
    assert driven.store.stopped_partitions("g") == (stopped,)
    assert {tp for tp, _, _ in driven.rows} == {P[1]}


# --- what the log does not hold is no matter of code ------------------------------------------


@pytest.mark.parametrize("attempts", [0, DAMAGED])
@pytest.mark.parametrize("revision", ["r0", "r1"])
def test_a_stop_of_the_log_outlives_a_revision(kafka, drive: Drive, revision: str, attempts: int):
    """Another tool committed 2 where 1 was the end; what came meanwhile would never be read."""
    kafka.commits[P[0]] = (2, "")
    driven = drive()
    mark(driven, P[0], revision, offset=2, attempts=attempts)
    kafka.assign(*P)
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "the other one")
    driven.turns()
    assert driven.member.state.stopped_partitions == {P[0]}
    assert [(m.tp, m.revision, m.is_log_cause) for m in driven.store.stopped_partitions("g")] == [
        (P[0], "r1", True)
    ]
    assert {tp for tp, _, _ in driven.rows} == {P[1]}


def test_another_commit_ends_a_stop_of_the_log(kafka, drive: Drive):
    """A person has decided where to go on, also under the revision that stopped it."""
    kafka.commits[P[0]] = (1, "")
    driven = drive()
    mark(driven, P[0], "r1", offset=2, attempts=0)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"b", b"c"], "what follows that commit")
    assert driven.store.stopped_partitions("g") == ()


def test_a_commit_past_the_end_is_skipped_by_name(kafka, drive: Drive):
    """`skip` goes on at the log's start, as the stop said, though the log has grown beyond it."""
    kafka.commits[P[0]] = (2, "")
    driven = drive(on_truncated="skip")
    mark(driven, P[0], "r0", offset=2, attempts=0)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"a", b"b", b"c"], "all that is there")
    assert kafka.committed(P[0])[0] == 0, "chosen, and committed before it is read [42]"
    assert [(e["first"], e["after"]) for e in driven.events("lost_records")] == [(2, 0)]


def test_a_damaged_record_batch_is_read_again_under_skip(kafka, drive: Drive):
    """It may be whole by now; Fault: the partition begins at the log's start once more."""
    kafka.commits[P[0]] = (1, "")
    driven = drive(on_truncated="skip")
    mark(driven, P[0], "r0", offset=1, attempts=DAMAGED)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"b", b"c"], "what follows the stop")
    assert driven.store.stopped_partitions("g") == ()


def test_a_commit_past_the_end_stays_stopped_when_the_log_has_grown(kafka, drive: Drive):
    """From its discovery on, through the next owner's assignment."""
    kafka.commits[P[0]] = (5, "")
    driven = drive(P[0])
    driven.until(lambda: driven.member.state.stopped_partitions == {P[0]}, "the quarantine")
    (made,) = driven.store.stopped_partitions("g")
    assert (made.offset, made.is_log_cause) == (5, True)
    kafka.revoke(P[0])
    kafka.produce(P[0], *[b"x"] * 7)
    kafka.assign(P[0])
    driven.turns()
    assert driven.member.state.stopped_partitions == {P[0]}
    assert driven.rows == []


# --- dead letters are acknowledged before the batch may be committed --------------------------


def letters(bootstrap: str, topic: str, seconds: float) -> DeadLetters:
    group = group_spec("g", worker={"dead_letter_topic": topic})
    return DeadLetters(worker_context(settings_of(group, bootstrap=bootstrap)), seconds=seconds)


def letter(offset: int) -> PoisonRecord:
    whole = failed_batch(0)
    (each,) = whole.ranges
    part = whole.part(each.tp, offset, offset + 1)
    return PoisonRecord(tp=each.tp, offset=offset, part=part, error="E", attempts=4)


def test_what_nobody_acknowledges_is_not_passed_over():
    """No broker: why, so that the partition is stopped instead."""
    why = letters("127.0.0.1:1", "dead", 0.2).send([letter(2)], None)
    assert why.startswith("the dead-letter topic dead cannot be written: ")


def test_rows_that_a_sink_refuses_go_there_alone(
    kafka: MemoryKafka, drive: Drive, mock_broker: str, unique: str, tmp_path: Path
):
    """From a table's rule through the worker: the others are in the table once, and committed."""
    topic, place = f"dead-{unique}", str(tmp_path / "table")
    fields = {"topic": "string", "partition": "integer", "offset": "long", "value": "string"}
    made = Schema([Field(name, PrimitiveType(kind)) for name, kind in fields.items()])
    DeltaTable.create(place, made).alter.add_constraint({"known": "value <> 'b'"})
    driven = drive(letters=letters(mock_broker, topic, 20.0))
    of_table = pa.schema(made.to_arrow())
    driven.sink = lambda table, context: write_delta(table.cast(of_table), place, context)
    kafka.assign(*P)
    for tp in P:
        driven.until(lambda tp=tp: kafka.committed(tp)[-1:] == [3], f"all of {tp}")
    reader = Consumer({"bootstrap.servers": mock_broker, "group.id": unique})
    parts = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([KafkaPartition(topic, number, 0) for number in parts])
    found = [reader.poll(20) for _ in P]
    reader.close()
    told = [dict(each.headers()) for each in found]
    assert sorted(each["fleet.partition"] for each in told) == [b"0", b"1"]
    assert {each["fleet.offset"] for each in told} == {b"1"}
    assert {each.value() for each in found} == {b"b"}
    assert all(b"failed validation" in each["fleet.error"] for each in told)
    rows = DeltaTable(place).to_pyarrow_table().to_pylist()
    good = [(number, at, value) for number in range(2) for at, value in ((0, "a"), (2, "c"))]
    assert sorted((r["partition"], r["offset"], r["value"]) for r in rows) == good
    assert (driven.store.stopped_partitions("g"), driven.member.state.dead_letters) == ((), 2)


class Rows:
    """A part of one record, as its source's readers have it."""

    def __init__(self, value: bytes) -> None:
        self._table = make_batch([{"key": b"k", "value": value}], topic="t").table

    def rows(self, _: object) -> pa.Table:
        return self._table


@pytest.mark.broker
@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        (5_000_000, os.urandom(3_000_000), None),
        (5_000_000, os.urandom(999_800), None),
        (None, b"packed" * 800_000, None),
        (60_000, os.urandom(50_000), None),
        (60_000, os.urandom(70_000), r"of 70,\d{3} bytes .*\(max\.message\.bytes is 60,000\)"),
    ],
)
def test_the_topic_decides_what_is_too_large(
    broker: RunningBroker, unique: str, limit: int | None, value: bytes, told: str | None
):
    """A bound of librdkafka was told as the broker's; small records were refused as one batch."""
    topic = f"dead-{unique}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {} if limit is None else {"max.message.bytes": str(limit)}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(120)
    ten = [
        PoisonRecord(
            tp=failed_batch(0).ranges[0].tp, offset=at, part=part, error="E" * 250, attempts=4
        )
        for at, part in enumerate([cast("Prepared", Rows(value))] * 10)
    ]
    why = letters(broker.bootstrap_servers, topic, 60.0).send(ten, None)
    if told is None:
        assert why is None
    else:
        assert why is not None
        assert re.search(rf"topic {topic} cannot be written: a record {told}: raise the", why)
