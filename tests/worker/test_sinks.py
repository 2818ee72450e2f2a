"""Every sink holds each record's row once, however its batch is cut and whoever is killed."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.errors import FleetError
from fleet.sinks import write_delta
from tests.sinks.cases import SINKS, Case, batch, made_topics, range_of, sums
from tests.support.needs import repository
from tests.support.sampling import LONG
from tests.support.waiting import until
from tests.worker.conftest import Group


@pytest.fixture(params=["delta", "parquet"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """A sink at a place of its own."""
    return SINKS[request.param]({"path": str(tmp_path / "table")})


def counted(records: Any) -> Any:
    """As the Arrow function of that name."""
    return records.groupBy((records.n % 2).cast("long").alias("odd")).agg({"*": "count"}).toDF(
        "odd", "records"
    )  # fmt: skip


@pytest.mark.spark
def test_written_by_tasks(case: Case, spark: Any):
    """What is there is left out, wherever a batch was cut."""
    for start, end, new in [(0, 100, 1), (50, 100, 0), (50, 150, 1)]:
        rows, context = batch(range_of(start, end))
        assert case.write(spark.createDataFrame(rows), context) == new
    assert case.offsets() == list(range(150))


@pytest.mark.spark
def test_rows_of_several_records_made_by_tasks(case: Case, spark: Any):
    """Overlaps are left out before rows are made; rows that are made already are refused."""
    for start, end in [(0, 10), (0, 10), (5, 20)]:
        rows, context = batch(range_of(start, end))
        case.write(spark.createDataFrame(rows), context, transform=counted)
    assert sums(case.rows()) == {0: 10, 1: 10}
    with pytest.raises(FleetError, match="has already written offsets"):
        case.write(counted(spark.createDataFrame(rows)), batch(range_of(5, 30))[1])


@pytest.mark.spark
def test_a_delta_table_with_partitions(tmp_path: Path, spark: Any):
    """Made by the first write; values with signs and no value; columns that do not fit."""
    from deltalake import DeltaTable

    rows, context = batch(range_of(0, 4))
    names = ["a b", "50%/x=y", None, "ü"]
    frame = spark.createDataFrame(rows.append_column("who", [names]))
    assert write_delta(frame, str(tmp_path / "t"), context, partition_by=["who"]) == 1
    found = DeltaTable(str(tmp_path / "t"))
    assert found.metadata().partition_columns == ["who"]
    read = found.to_pyarrow_table().to_pydict()
    assert sorted(zip(read["offset"], read["who"], strict=True)) == list(enumerate(names))
    later = batch(range_of(4, 5))[1]
    with pytest.raises(FleetError, match="column who cannot be stored as string: rows have int64"):
        write_delta(frame.withColumn("who", frame.n), str(tmp_path / "t"), later)


@pytest.fixture
def new_york(spark: Any) -> Iterator[None]:
    """The session shows times as they are there."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.spark
@pytest.mark.parametrize("sink", ["delta", "iceberg", "parquet"])
def test_moments_stay_where_a_session_has_another_time_zone(
    sink: str, tmp_path: Path, spark: Any, new_york: None
):
    """In the hour that clocks there show twice, written by tasks and by the worker."""
    first = datetime(2024, 11, 3, 5, 59, 59, 123456, UTC)
    expected = [first + timedelta(hours=each) for each in range(4)]
    for by_worker in ((False, True), (True, False)):  # the first makes the table
        case = SINKS[sink]({"path": str(tmp_path / str(by_worker[0]))})
        for start, here in zip((0, 2), by_worker, strict=True):
            rows, context = batch(range_of(start, start + 2))
            micros = [int(expected[start + n].timestamp()) * 1_000_000 + 123456 for n in range(2)]
            frame = spark.createDataFrame(rows.append_column("micros", [micros])).selectExpr(
                "topic", "partition", "offset", "timestamp_micros(micros) AS at"
            )
            case.write(frame.toArrow() if here else frame, context)
        found = sorted(case.rows(), key=lambda row: row["offset"])
        assert [row["at"].astimezone(UTC) for row in found] == expected


# --- kill -9 of real workers in mid-batch -----------------------------------------------------


STRUCK = 10 if LONG else 1
"""Kills per sink; in the long form those that came before its write was done."""
RECORDS = 40
USUAL = 0.1
"""Seconds of a sink's write that nobody has seen yet."""
JOB = """
import json, os, time

from tests.sinks.cases import SINKS

CASES = {sink: SINKS[sink](place) for sink, place in json.loads(os.environ["PLACES"]).items()}


def note(sink, what):
    line = json.dumps({"pid": os.getpid(), "sink": sink, "what": what, "at": time.monotonic()})
    handle = os.open(os.environ["MOMENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)


def process(df, context):
    rows = df.select("topic", "partition", "offset")
    if sum(each.end for each in context.ranges) % 2:
        rows = rows.toArrow()
    for sink, case in CASES.items():
        if not context.warm:
            note(sink, "began")
        case.write(rows, context)
        if not context.warm:
            note(sink, "ended")
"""


class Moments:
    """When workers began and ended their writes, as the job tells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[dict[str, Any]]:
        """In order; the last line may be in the writing."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def of(self, sink: str, pid: int) -> list[dict[str, Any]]:
        """One worker's writes to a sink."""
        return [each for each in self.all() if each["sink"] == sink and each["pid"] == pid]

    def lasts(self, sink: str) -> float:
        """Seconds of the latest write that anybody ended."""
        began: dict[int, float] = {}
        seconds = USUAL
        for each in self.all():
            if each["sink"] == sink and each["what"] == "began":
                began[each["pid"]] = each["at"]
            elif each["sink"] == sink:
                seconds = each["at"] - began[each["pid"]]
        return seconds


@pytest.mark.broker
@pytest.mark.spark
def test_killed_in_each_sinks_write(group: Group, tmp_path: Path):
    """Rows by (partition, offset) = what was produced, in each sink."""
    places = {sink: {"path": str(tmp_path / sink)} for sink in SINKS}
    places["kafka"] = dict(made_topics(group.bootstrap, f"{group.name}-written"))
    moments = Moments(tmp_path / "moments")
    how: dict[str, Any] = {
        "entrypoint": "killed_job:process",
        "python_path": [str(group.folder), str(repository())],
        "env": {"PLACES": json.dumps(places), "MOMENTS": str(moments.path)},
    }
    (group.folder / "killed_job.py").write_text(JOB)
    group.standbys("w0", **how)
    group.open(0)
    dice = random.Random(f"{STRUCK} of each")
    kills: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    counted = struck if LONG else kills
    while min(counted[each] for each in SINKS) < STRUCK:
        assert kills.total() < 4 * STRUCK * len(SINKS), "kills miss the writes"
        group.start(f"w{kills.total() + 1}", **how)  # warms while the last one's lease runs out
        owner = taken(group)
        group.until(lambda: ready(group), "a standby")
        if kills.total() % 3:  # or the repetition is killed, too: more often, and it is poison
            drained(group)
        group.produce(RECORDS)
        sink = min(SINKS, key=lambda each: counted[each])
        kills[sink] += 1
        struck[sink] += killed_in_write(group, moments, sink, owner, dice.random())
    group.produce(RECORDS)
    drained(group)
    told = {sink: f"{kills[sink]} kills, {struck[sink]} within its write" for sink in SINKS}
    print(json.dumps(told))
    for sink, place in places.items():
        case = SINKS[sink](place)
        for partition, count in group.produced.items():
            assert case.offsets(partition) == list(range(count)), (sink, partition, told)


def drained(group: Group) -> None:
    """Wait until all is committed, as Kafka has it: a killed worker may not have told of it."""
    asked = [KafkaPartition(group.topic, each) for each in group.produced]
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.name})
    group.until(
        lambda: all(
            each.offset == group.produced[each.partition] for each in reader.committed(asked, 20)
        ),
        "all records to be committed",
    )
    reader.close()


def taken(group: Group) -> str:
    """Who holds the slot, as soon as that is somebody who lives."""
    group.until(lambda: alive(group, group.slot(0).owner), "the slot to be taken")
    return str(group.slot(0).owner)


def ready(group: Group) -> bool:
    """Whether somebody could take the slot."""
    reports = group.store.reports(group.name)
    return any(each.phase == "standby" and alive(group, each.worker) for each in reports)


def alive(group: Group, worker: str | None) -> bool:
    return worker is not None and group.processes[worker].poll() is None


def killed_in_write(group: Group, moments: Moments, sink: str, owner: str, share: float) -> bool:
    """Kill the owner when that share of its write is over; whether the write was not done."""
    process = group.processes[owner]
    seen = len(moments.of(sink, process.pid))
    delay = share * moments.lasts(sink)
    began = until(
        lambda: [e for e in moments.of(sink, process.pid)[seen:] if e["what"] == "began"],
        f"a write to {sink}", progress=group.moving, every=0.002, picture=group.logs,
    )  # fmt: skip
    time.sleep(delay)
    process.kill()
    process.wait(120)
    told = [each for each in moments.of(sink, process.pid)[seen:] if each["at"] > began[0]["at"]]
    return not told
