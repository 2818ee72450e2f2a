"""Which PySpark the Python processes of a Spark server import."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleet.system.spark_daemon import SETTING, without_archives
from fleet.worker.batch.spark_link import own_python


def test_only_sparks_archives_leave_the_path():
    path = [
        "",
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/spark-core_2.13-4.3.0.jar",
        "/mine/pyspark-extras",
        "/mine/jobs.zip",
        "/usr/lib/python311.zip",
    ]
    assert without_archives(path) == [*path[:1], *path[3:]]


DAEMON = """
import importlib.util, runpy, sys
sys.path = [each for each in sys.path if not each.endswith("site-packages")]
sys.path[:0] = sys.argv[1:3]
assert importlib.util.find_spec("pyspark").origin.startswith(sys.argv[1])
runpy.run_module = lambda name, **_: print(name, importlib.util.find_spec("pyspark").origin)
from fleet.system.spark_daemon import main
main()
"""


@pytest.mark.parametrize("installed", [True, False])
def test_an_archive_serves_where_nothing_is_installed_beside_it(tmp_path: Path, installed: bool):
    archives = []
    for each in ("pyspark", "py4j"):
        (tmp_path / each / each).mkdir(parents=True)
        (tmp_path / each / each / "__init__.py").touch()
        archives.append(shutil.make_archive(str(tmp_path / each), "zip", tmp_path / each))
    beside = [str(tmp_path / each) for each in ("pyspark", "py4j")] if installed else []
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, *archives, *beside],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[2]), *beside])},
        check=True,
        capture_output=True,
        text=True,
    )
    lies = tmp_path / "pyspark" if installed else Path(archives[0])
    assert done.stdout.split() == ["pyspark.daemon", str(lies / "pyspark" / "__init__.py")]


def test_another_python_need_not_have_this_package(monkeypatch: pytest.MonkeyPatch):
    """Of a JVM of one's own; a server always runs this one where its executors are here."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert own_python() == SETTING
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python3")
    assert own_python() == {}
    assert os.environ["PYSPARK_PYTHON"] == "/another/python3"


@pytest.mark.spark
def test_a_servers_functions_run_in_the_installed_pyspark(spark: Any):
    def ask(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__, py4j.__file__]})

    told = spark.range(1, numPartitions=1).mapInArrow(ask, "place string").toArrow()
    places = told.column("place").to_pylist()
    assert len(places) == 2
    assert not [each for each in places if ".zip" in each]
