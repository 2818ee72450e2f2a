"""What `benchmarks worker` makes of its batches, and one small real run."""

import io
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from benchmarks.figures import spread
from benchmarks.structured import collect_log, spark_folder
from benchmarks.worker import (
    THEIRS,
    VARIANTS,
    WorkerOptions,
    WorkerResult,
    age_of,
    batches,
    rate_of,
    worker,
)
from fleet.errors import FleetError
from fleet.system.processes import find
from tests.benchmarks.test_commands import bench


def line(done, *, records=100, took=0.1, age=0.3):
    """A batch of the job's journal."""
    return {"records": records, "began": done - took, "done": done, "oldest": done - age}


def result(*, ours=300.0, theirs=150.0, tuned=200.0, age=0.15, late=0.4, their_age=2.0, **options):
    """Both sides' figures; `late` is our p95."""
    names = {"fleet": ours, **dict.fromkeys(VARIANTS, tuned), THEIRS: theirs}
    ages = {"fleet": spread([age, late]), **dict.fromkeys(VARIANTS, spread([their_age]))}
    cpu = dict.fromkeys(names, 5.0)
    return WorkerResult(options=WorkerOptions(**options), rate=names, cpu=cpu, age=ages)


@pytest.mark.parametrize(
    ("figures", "goals"),
    [
        ({}, []),
        ({"ours": 299.0}, ["records/s, times Structured Streaming's"]),
        ({"tuned": 240.0}, []),
        ({"tuned": 241.0}, ["records/s, times the best tuned one's"]),
        ({"age": 0.151}, ["age p50, seconds"]),
        ({"late": 0.41}, ["age p95, seconds"]),
        ({"their_age": 0.4}, ["age p50, part of Structured Streaming's"]),
        ({"ours": 1.0, "their_age": 0.1, "alone": True}, []),
        ({"ours": 220.0, "age": 9.0, "late": 9.0, "executors": 2}, []),
        ({"ours": 219.0, "executors": 2}, ["records/s, times the best tuned one's"]),
    ],
)
def test_goals(figures, goals):
    """Twice its records, 1.25 times the tuned one's, 0.15 s, 0.4 s at p95, and a third of its age;
    alone only what can be known; with executors 1.1 times the tuned one's records.
    """
    assert result(**figures).missed() == goals


def test_what_was_not_measured_is_missed():
    """A run that found nothing of the other side has not shown the ratio."""
    found = WorkerResult(
        options=WorkerOptions(), rate={"fleet": 300.0}, age={"fleet": spread([0.1])}
    )
    assert len(found.missed()) == 3
    assert not found.met


def test_age_is_counted_once_the_stream_has_settled():
    """The first twenty seconds are left out, unless there is nothing else."""
    early, late = line(100.0, age=5.0), line(121.0, age=0.2)
    assert age_of([early, late]).p50 == pytest.approx(0.2)
    assert age_of([early]).p50 == pytest.approx(5.0)
    with pytest.raises(FleetError, match="no batch"):
        age_of([])


def test_rate_is_of_whole_batches():
    """From the first one's call to the last one's end; less than the backlog is no rate."""
    lines = [line(1.0, took=1.0, records=500), line(3.0, records=500)]
    assert rate_of(lines, 900) == pytest.approx(1000 / 3)
    with pytest.raises(FleetError, match="read 1000 of 1001"):
        rate_of(lines, 1001)


def test_a_line_in_the_making_is_left_for_later(tmp_path):
    """The job writes while the benchmark reads."""
    journal = tmp_path / "batches"
    assert batches(journal) == []
    journal.write_text(json.dumps(line(1.0)) + '\n{"records": 1', encoding="utf-8")
    assert [each["records"] for each in batches(journal)] == [100]


def test_a_program_that_is_killed_while_it_tells_is_told_by_its_end(tmp_path):
    """Not by the line that was cut."""
    log = tmp_path / "structured.log"
    log.write_text("Killed\n", encoding="utf-8")
    told = io.StringIO(json.dumps(line(1.0)) + '\n{"records": 1')
    lines = collect_log(SimpleNamespace(stdout=told, wait=lambda _: -9, returncode=-9), log)
    assert next(lines) == line(1.0)
    with pytest.raises(FleetError, match="Structured Streaming ended with -9: Killed"):
        next(lines)


def test_executors_alone_have_nothing_to_show():
    """Their only goal is beside Structured Streaming."""
    told = CliRunner().invoke(worker, ["--alone", "--executors", "2"])
    assert told.exit_code == 2
    assert "--executors N compares with Structured Streaming: omit --alone" in told.output


def test_the_folder_of_the_other_spark(tmp_path):
    """Of an environment that its user has half deleted, too."""
    python = tmp_path / "bin" / "python"
    with pytest.raises(FleetError, match=f"no PySpark in {tmp_path}: delete that folder"):
        spark_folder(python)
    found = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark"
    found.mkdir(parents=True)
    assert spark_folder(python) == found


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_worker_for_real(tmp_path):
    """A small backlog and ten seconds of the stream, without the other side."""
    code, told = bench(tmp_path, "worker", "--alone", "--backlog", "200000", "--seconds", "10")
    assert not (tmp_path / "bench").exists(), "the home is gone"
    (found,) = told["results"]
    assert code == (0 if found["met"] else 1)
    assert found["rate"]["fleet"] > 0
    assert len(found["goals"]) == 2, "its own ages"
    assert found["cpu"]["fleet"] > 0
    assert 0 < found["age"]["fleet"]["p50"] < 30


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_executors_for_real(tmp_path):
    """Each side on a cluster of its own, which is gone afterwards."""
    options = ("--executors", "2", "--backlog", "200000", "--seconds", "10")
    code, told = bench(tmp_path, "worker", *options)
    assert not (tmp_path / "bench").exists(), "the home is gone"
    (found,) = told["results"]
    assert code == (0 if found["met"] else 1)
    assert set(found["rate"]) == {"fleet", *VARIANTS}
    assert len(found["goals"]) == 1, "beside the best tuned one"
    assert not find("org.apache.spark.deploy.master.Master"), "no master is left"
