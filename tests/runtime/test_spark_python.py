"""Which Python Spark starts, and which PySpark that imports."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleet.system import spark_python
from fleet.system.spark_python import CHOSEN

ASK = "import os, sys; print(sys.executable, os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"


def test_only_sparks_archives_leave_the_path():
    """The arguments and everything else of the path go on as they are."""
    path = [
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/spark-core_2.13-4.3.0.jar",
        "/mine/pyspark-extras",
        "/*/jobs of mine",
        "/*",
        "/usr/lib/python311.zip",
    ]
    chosen = spark_python.variables()
    done = subprocess.run(
        [chosen[CHOSEN], "-c", ASK, "pyspark.worker", "a b"],
        env={**os.environ, **chosen, "PYTHONPATH": ":".join(path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = [sys.executable, ":".join(path[2:]), "pyspark.worker", "a b"]
    assert done.stdout.strip().split("|") == told


def test_who_chose_another_python_has_it(monkeypatch: pytest.MonkeyPatch):
    """Of a JVM of one's own; a server always runs this one where its executors are here."""
    monkeypatch.setenv(CHOSEN, "/another/python3")
    spark_python.choose()
    assert os.environ[CHOSEN] == "/another/python3"
    monkeypatch.setenv(CHOSEN, sys.executable)
    monkeypatch.delenv("FLEET_SPARK_PYTHON", raising=False)
    spark_python.choose()
    assert {**os.environ, **spark_python.variables()} == os.environ


def test_a_script_that_nobody_may_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Slower, and not refused by the system at each batch."""
    (tmp_path / "script").touch(mode=0o644)
    monkeypatch.setattr(spark_python, "_SCRIPT", tmp_path / "script")
    assert spark_python.variables() == {CHOSEN: sys.executable}


@pytest.mark.spark
def test_functions_and_data_sources_of_a_server_run_in_the_installed_pyspark(spark: Any):
    """Each in a process that Spark starts in its own way."""

    def ask(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__, py4j.__file__]})

    told = spark.range(1, numPartitions=1).mapInArrow(ask, "place string").toArrow()
    places = told.column("place").to_pylist()
    spark.dataSource.register(_source())
    frame = spark.read.format("places").load()
    places += [*frame.schema.names, *frame.toArrow().column(0).to_pylist()]
    assert len(places) == 4
    assert not [each for each in places if ".zip" in each]
    assert all(Path(each).name == "__init__.py" for each in places)


def _source() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Places(DataSource):
        """Its one column is named by where it is made, its one row says where it is planned."""

        @classmethod
        def name(cls) -> str:
            return "places"

        def schema(self) -> str:
            import pyspark

            return f"`{pyspark.__file__}` string"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            import pyspark

            return [InputPartition(pyspark.__file__)]

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            yield (partition.value,)

    return Places
