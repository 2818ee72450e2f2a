"""Every sink: each record once, however its batch is cut and repeated."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.worker.member.assigning import Assigner
from tests.sinks.cases import SINKS, Case, batch, counted, made_topics, range_of, records, sums
from tests.support.batch_parts import context_of, worker_context
from tests.support.memory_kafka import MemoryKafka

KINDS = (*("delta", "parquet", "iceberg"), pytest.param("kafka", marks=pytest.mark.broker))


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Case:
    """A sink of each kind at a place of its own."""
    place = {"path": str(tmp_path / "table")}
    if request.param == "kafka":
        place = made_topics(request.getfixturevalue("broker").bootstrap_servers, f"to-{unique}")
    return SINKS[request.param](place)


def test_halves_of_a_range_that_is_there(case: Case):
    """Narrowed after it was written: no row twice."""
    assert case.write(*batch(range_of(0, 100))) == 1
    for start, end in [(0, 50), (50, 75), (75, 100), (0, 100)]:
        assert case.write(*batch(range_of(start, end))) == 0
    assert case.offsets() == list(range(100))


def test_a_whole_after_its_halves_and_a_record_that_was_left_out(case: Case):
    """A search leaves record 60 behind, later ones are there; then the rest comes as one."""
    for start, end in [(0, 50), (50, 60), (61, 75)]:
        assert case.write(*batch(range_of(start, end))) == 1
    assert case.write(*batch(range_of(60, 61))) == 1, "asked again, after later ones went well"
    assert case.write(*batch(range_of(80, 90))) == 1
    assert case.write(*batch(range_of(0, 100))) == 1
    assert case.offsets() == list(range(100))


def test_cut_anew_over_several_partitions(case: Case):
    """Any cuts of any parts, in any order: what was named is there once, the rest is not."""
    dice = random.Random(7)
    named: dict[int, set[int]] = {0: set(), 1: set()}
    for _ in range(12):
        ranges = []
        for partition in (0, 1):
            start = dice.randrange(60)
            ranges.append(range_of(start, start + 1 + dice.randrange(20), partition))
            named[partition] |= set(range(start, ranges[-1].end))
        case.write(*batch(*ranges))
    for partition, offsets in named.items():
        assert case.offsets(partition) == sorted(offsets)


def test_rows_of_several_records(case: Case):
    """Made by the sink of what is not there; made before, they are refused over a part."""
    rows, context = batch(range_of(0, 10), range_of(0, 10, partition=4))
    assert case.write(rows, context, transform=counted) == 2
    assert case.write(counted(rows), context) == 0, "a repetition of the whole"
    rows, context = batch(range_of(5, 20))
    with pytest.raises(FleetError, match="has already written offsets 0 to 9 of t-3"):
        case.write(counted(rows), context)
    assert case.write(rows, context, transform=counted) == 1
    assert sums(case.rows()) == {0: 15, 1: 15}


def test_rows_that_are_of_no_record_are_refused_over_a_part(case: Case):
    """Of an outer join, say: whether they are there, nobody can tell."""
    assert case.write(*batch(range_of(0, 2))) == 1
    rows, context = batch(range_of(0, 4))
    odd = pa.Table.from_pylist([{"n": 9}], rows.schema)
    with pytest.raises(FleetError, match="a row has topic null, partition null and offset null"):
        case.write(pa.concat_tables([rows, odd]), context)
    assert case.write(rows, context) == 1
    assert case.offsets() == [0, 1, 2, 3]


def test_two_writes_of_one_batch_to_one_place_have_names(case: Case):
    """Without a name the second is the first, repeated."""
    rows, context = batch(range_of(0, 3))
    assert [case.write(rows, context, name=name) for name in ("", "again", "")] == [1, 1, 0]
    assert case.offsets() == [0, 0, 1, 1, 2, 2]


def test_a_successor_whose_first_question_for_the_topic_id_fails(case: Case):
    """Its predecessor wrote and was killed before the commit: the batch is known all the same."""
    kafka = MemoryKafka()
    kafka.make("t", 4)
    written = []
    for failures in (0, 1):
        kafka.silent.extend([KafkaError._TIMED_OUT] * failures)
        assigner = Assigner(worker_context(clock=ManualClock()), kafka.admin({}))
        (start,) = assigner.starts(kafka.consumer({}), [TopicPartition("t", 3)])
        each = replace(range_of(0, 3), topic_id=start.topic_id)
        written.append(case.write(records(each), context_of([each])))
    assert written == [1, 0]
    assert case.offsets() == [0, 1, 2]


def test_a_dummy_batch_and_a_trial_write_nothing(case: Case):
    """One warms, the other commits nothing, so that its records come again."""
    assert case.write(records(), context_of(warm=True)) == 0
    rows, _ = batch(range_of(0, 3))
    assert case.write(rows, context_of([range_of(0, 3)], trial=True)) == 0
    assert case.rows() == []
