"""The function that Spark's tasks run: its code comes along."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark import cloudpickle

from fleet.kafka_source.source import by_value
from fleet.sinks.data_files import _SENT, FileWriter, ObjectStore
from tests.sinks.cases import range_of, records


def test_executors_need_no_fleet(tmp_path: Path):
    """Only pyarrow."""
    writer = FileWriter(str(tmp_path / "table"), ObjectStore(), ("topic",))
    with by_value(_SENT):
        made = cloudpickle.dumps((writer, records(range_of(0, 3)).to_batches()))
    (tmp_path / "made").write_bytes(made)
    program = (
        "import pickle, sys; sys.modules['fleet'] = None\n"
        "write, batches = pickle.load(open('made', 'rb'))\n"
        "print([row['rows'] for told in write(iter(batches)) for row in told.to_pylist()])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "[3]", run.stderr
    assert pq.read_table(tmp_path / "table")["offset"].to_pylist() == [0, 1, 2]
