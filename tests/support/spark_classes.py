"""The archive of Spark's classes (fleet/system/class_sharing.py) is there before a test needs it.

The first server that ends would write it, and all that started before it would have used 20 CPU
seconds more than those after it; most of a short session's servers start before one ends.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.system import class_sharing
from fleet.system.home import cache_home

# What batches of tests do: their records as Arrow, expressions, an aggregate, a file.
QUERY = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
got = pa.table({"value": pa.array([b"1", b"2"]), "partition": pa.array([0, 1], pa.int32())})
frame = spark.createDataFrame(got).selectExpr(
    "partition", "try_cast(cast(value AS STRING) AS LONG) AS seq",
    "from_json(cast(value AS STRING), 'a INT, b STRING') AS parsed",
)
assert frame.toArrow().num_rows == 2
assert frame.groupBy("partition").count().toArrow().num_rows == 2
frame.drop("parsed").write.parquet(sys.argv[2])
spark.stop()
"""


def prepare() -> None:
    """Make it where there is none, which may take a minute; the processes of a run wait for one."""
    folder = cache_home()
    folder.mkdir(parents=True, exist_ok=True)
    mine = zlib.crc32(sys.prefix.encode())  # other checkouts have jars of their own
    with (folder / f".spark-classes-{mine:x}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with tempfile.TemporaryDirectory() as made:
            home = Path(made)
            arguments = spark_server._arguments(home, host="127.0.0.1", port=0, environ=os.environ)
            if class_sharing.writes(arguments):
                _write(home)


def _write(home: Path) -> None:
    spark_server.start(home)
    try:
        url = spark_server.wait_ready(home, timeout=300.0, clock=SystemClock())
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", QUERY, url, str(home / "table")],
            env={**os.environ, spark_server.TOKEN_ENV: str(spark_server.token(home))},
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
    finally:
        spark_server.stop(home, grace=300.0)
