"""The function that Spark's tasks run: its code comes along."""

from pathlib import Path

import pyarrow.parquet as pq
from pyspark import cloudpickle

from fleet.kafka_source.source import by_value
from fleet.sinks.data_files import _SENT, FileWriter, ObjectStore
from tests.sinks.cases import range_of, records
from tests.support.fresh_interpreter import ran_without_fleet


def test_executors_need_no_fleet(tmp_path: Path):
    """Only pyarrow."""
    writer = FileWriter(str(tmp_path / "table"), ObjectStore(), ("topic",))
    with by_value(_SENT):
        made = cloudpickle.dumps((writer, records(range_of(0, 3)).to_batches()))
    code = (
        "write, batches = made\n"
        "print([row['rows'] for told in write(iter(batches)) for row in told.to_pylist()])"
    )
    assert ran_without_fleet(made, code) == "[3]"
    assert pq.read_table(tmp_path / "table")["offset"].to_pylist() == [0, 1, 2]
