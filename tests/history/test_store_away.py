"""A store that is away for a second, or a full disk: told as that, waited out by a tail."""

import errno
import os
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.fs
import pytest

from fleet.clock import ManualClock
from fleet.commands.parts.history import _wait_out
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.history.batch_tables import BatchFiles
from fleet.history.job_memory import JobMemory, Kept
from fleet.history.polling import Poller
from fleet.history.rollup_tasks import Task
from fleet.history.tables import Tables
from fleet.history.tables.table_columns import TABLES, decoded
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.writing import Writer
from fleet.kafka_source.failures import told_by
from tests.history.test_tables import DAY, NOW, add, looked, rebalance
from tests.support.away_store import AWAY, AwayStore


@pytest.fixture
def place(tmp_path):
    """An object store, which answers until it is told otherwise."""
    return AwayStore(tmp_path)


@pytest.fixture
def writer(place):
    """Of the store."""
    clock = ManualClock(at=NOW)
    with Writer(place, cluster="main", clock=clock, retention=10 * DAY) as made:
        yield made
        place.handler.fails.clear()


@pytest.mark.parametrize("call", ["open_output_stream", "create_dir", "get_file_info"])
def test_a_tail_waits_for_a_store_that_is_away(writer, place, call):
    """Data files, manifest and lease alike; the next look is recorded as if nothing had been."""
    looks = iter([looked({"a:1": [0]}, NOW), looked({"b:1": [0]}, NOW + 1)])
    poller = Poller(writer, look=lambda: next(looks), wanted=lambda _: True)
    poller.catch_up()
    place.handler.fails[call] = OSError(AWAY)
    with pytest.raises(Unreachable, match=r"file://.*NETWORK_CONNECTION") as raised:
        poller.catch_up()
    said: list[str] = []
    _wait_out(raised.value, said.append)
    assert said[0].endswith("; tries again")
    place.handler.fails.clear()
    seen = iter([looked({"b:1": [0]}, NOW + 2)])
    again = Poller(writer, look=lambda: next(seen), wanted=lambda _: True)
    assert again.catch_up().rows["rebalances"] == 1


def test_readers_are_told_that_a_store_is_away(writer, place):
    """Of the tables, the memory of a job, the files of a batch."""
    memory = JobMemory()
    memory.keep("g", Kept(3, 70, 1000, "{}"))
    add(writer, rebalance(1), memory=memory)
    tables, manifest = Tables(place.full("")), writer.manifest
    tables.place = place
    for asked, calls in [
        (tables.manifest, ("open_input_stream", "get_file_info")),
        (lambda: tables.read("rebalances"), ("open_input_file",)),
        (lambda: JobMemory.read(place, manifest), ("open_input_file",)),
        (lambda: BatchFiles(place, manifest.files).table("rebalances"), ("open_input_file",)),
    ]:
        for call in calls:
            place.handler.fails = {call: OSError(AWAY)}
            with pytest.raises(Unreachable, match="NETWORK_CONNECTION"):
                asked()


def test_a_damaged_file_is_told_with_its_place(writer, place):
    """It is no store that is away: nothing passes by itself."""
    add(writer, rebalance(1))
    (file,) = writer.manifest.of("rebalances")
    with place.fs.open_output_stream(place.full(file.name)) as out:
        out.write(b"no parquet")
    tables = Tables(place.full(""))
    with pytest.raises(FleetError, match=f"tables of {tables.place} cannot be read") as raised:
        tables.read("rebalances")
    assert not isinstance(raised.value, Unreachable)


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    """In the midst of a manifest: nothing of it is visible, and the next one is written."""
    place = TableFolder(tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(_: int) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(Unreachable, match=r"000001\.json cannot be written \(No space left"):
            place.put_new("manifests/000000000001.json", b"x" * 100_000)
    assert not list((tmp_path / "manifests").iterdir()), "nor does a part of it stay"
    assert place.put_new("manifests/000000000001.json", b"x")


def test_a_file_system_without_hard_links_is_refused(tmp_path, monkeypatch):
    """It will never have them: no tail waits."""

    def none(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    with pytest.raises(FleetError, match="has no hard links") as raised:
        TableFolder(tmp_path).put_new("manifests/000000000001.json", b"x")
    assert not isinstance(raised.value, Unreachable)


def test_a_store_that_cannot_be_looked_up_is_no_wrong_option(monkeypatch):
    """Of an address in S3 the bucket's region is asked for: that may fail for a second."""

    def away(_: str) -> None:
        raise OSError("When resolving region for bucket 'lake': AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(pa.fs, "FileSystem", SimpleNamespace(from_uri=away))
    with pytest.raises(Unreachable, match=r"s3a://lake/history .*resolving region"):
        TableFolder("s3://lake/history")


def test_a_scheme_that_nobody_knows_is_one():
    """With what there is."""
    with pytest.raises(ConfigError, match=r"ftp://lake.*use a local folder, s3://"):
        TableFolder("ftp://lake/history")


def test_a_task_tells_that_the_place_took_nothing(tmp_path):
    """The driver knows it from a fault of the code, and so a tail waits."""
    (tmp_path / "commits").write_text("where the folder is to be")
    task = Task([], options={}, digest={}, place=str(tmp_path), attempt="1-a", cluster="main")
    schema = TABLES["commits"]
    columns = {
        decoded(name): pa.nulls(1, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    }
    columns |= {"kind": pa.array(["commits"]), "day": pa.array(["2026-01-01"])}
    rows = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(RuntimeError) as raised:
        list(task._write([rows]))
    told = told_by(raised.value)
    assert told is not None
    assert str(tmp_path) in told[1]
