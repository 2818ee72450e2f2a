"""A store that is away for a second, or a full disk: told as that, waited out by a tail."""

import os
from types import SimpleNamespace

import pyarrow as pa
import pytest

from fleet.clock import ManualClock
from fleet.commands.operate.history import _wait_out
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.history import tables
from fleet.history.digest import Task
from fleet.history.memory import JobMemory, Kept
from fleet.history.polled import Poller
from fleet.history.tables import TablePlace, Tables, row_of
from fleet.kafka_source.failures import failure_in
from fleet.log.record_columns import COLUMNS
from tests.history.test_published import endpoint, lake
from tests.history.test_tables import NOW, add, looked, opened, rebalance

__all__ = ["endpoint", "lake"]


@pytest.fixture
def away(lake, monkeypatch):
    """Takes the store away, and gives it back."""
    there = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    def change(*, gone):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1" if gone else there)

    return change


def test_a_tail_waits_for_a_store_that_is_away(lake, away):
    """Its start, a batch and readers tell it; then the next look is recorded as if nothing was."""
    clock = ManualClock(at=NOW)
    looks = iter([looked({"a:1": [0]}, NOW), looked({"b:1": [0]}, NOW + 2)])

    def poller():
        return Poller(opened(lake, clock), look=lambda: next(looks), wanted=lambda _: True)

    poller().catch_up()
    away(gone=True)
    for asked in (poller, lambda: Tables(lake).state()):
        with pytest.raises(Unreachable, match=f"{lake} cannot be read or written") as raised:
            asked()
    said: list[str] = []
    _wait_out(raised.value, said.append)
    assert said[0].endswith("; retrying")
    away(gone=False)
    assert poller().catch_up().rows["rebalances"] == 1


def test_a_damaged_file_is_told_with_its_place(tmp_path):
    """It is no store that is away: nothing passes by itself."""
    writer, memory = opened(tmp_path, ManualClock(at=NOW)), JobMemory()
    memory.keep("g", Kept(3, 70, 1000, "{}"))
    add(writer, rebalance(1), memory=memory)
    for file in tmp_path.glob("*/*/*.parquet"):
        file.write_bytes(b"no parquet")
    for asked in (
        Tables(tmp_path).rebalances,
        lambda: writer.place.dataset("rebalances", writer.files("rebalances")).to_table(),
        lambda: JobMemory.read(writer),
    ):
        with (
            pytest.raises(FleetError, match=f"tables in {tmp_path} cannot be read") as raised,
            writer.place.answering(),
        ):
            asked()
        assert not isinstance(raised.value, Unreachable)


def test_a_disk_that_takes_nothing_is_waited_for(tmp_path):
    """In the midst of a batch: nothing of it is visible, and the next start writes it."""
    writer = opened(tmp_path, ManualClock(at=NOW))
    add(writer, rebalance(1))
    files = writer.write("rebalances", [row_of(rebalance(2))])
    log = tmp_path / "state" / "_delta_log"
    log.rename(tmp_path / "elsewhere")
    log.write_text("where the folder is to be")
    with pytest.raises(Unreachable, match="cannot be read or written"):
        writer.commit("batch", files=files)
    log.unlink()
    (tmp_path / "elsewhere").rename(log)
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1]
    add(opened(tmp_path, writer.clock), rebalance(2))
    assert [r.number for r in Tables(tmp_path).rebalances()] == [1, 2]


def test_a_store_that_cannot_be_looked_up_is_no_wrong_option(monkeypatch):
    """Of an address in S3 the bucket's region is asked for: that may fail for a second."""

    def away(_: str) -> None:
        raise OSError("When resolving region for bucket 'lake': AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(tables.fs, "FileSystem", SimpleNamespace(from_uri=away))
    with pytest.raises(Unreachable, match=r"s3://lake/history .*resolving region"):
        TablePlace("s3://lake/history")


def test_a_scheme_that_nobody_knows_is_one():
    """With what there is."""
    with pytest.raises(ConfigError, match=r"ftp://lake.*use a local folder, s3://"):
        TablePlace("ftp://lake/history")


def test_a_task_tells_that_the_place_took_nothing(tmp_path):
    """The driver knows it from a fault of the code, and so a tail waits."""
    (tmp_path / "commits").write_text("where the folder is to be")
    task = Task([], options={}, digest={"interval": 0}, place=str(tmp_path), cluster="main")
    rows = pa.RecordBatch.from_pylist([{"type": 1, "timestamp": 0}], schema=COLUMNS)
    with pytest.raises(RuntimeError) as raised:
        list(task.returned([rows]))
    told = failure_in(raised.value)
    assert told is not None
    assert str(tmp_path) in told[1]
