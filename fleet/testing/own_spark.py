"""A Spark of one's own, for a test or a trial: started here, and gone with this process.

Problem: a job that works in classic Spark may use what Spark Connect does not have, and the other
way round; a test has to meet what the workers meet. Choice: a place of `worker.spark`: `shared`
is a Connect server on this machine, as the workers share one, and `local[2]` the classic session
of a worker with a JVM of its own; `sc://` is left where it is. Both JVMs are children of this
process, so that nothing outlives it. Cost: one start of Spark, 5 to 10 s of CPU time.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fleet.broker.jars import find_java
from fleet.errors import ConfigError

SHARED: Final = "shared"
_CORES: Final = "local[2]"


@contextmanager
def local_spark(where: str = SHARED) -> Iterator[Any]:
    """A session, stopped at the end; `where` as `worker.spark` says it.

    Raises ConfigError for another place, FleetError where there is no Java.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - 0.3 s that a help text need not take

    if not where.startswith("sc://"):
        find_java()
    warnings.filterwarnings("ignore", module=r"pyspark(\.|$)")  # of pandas 3
    # Spark would take the first python3 of PATH, which need not be this environment's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if where == SHARED:
        builder = SparkSession.builder.remote(_CORES)
    elif where.startswith("sc://"):
        builder = SparkSession.builder.remote(where)
    elif where.startswith("local["):
        builder = SparkSession.builder.master(where)
    else:
        raise ConfigError(f"{where} is no place of Spark: write shared, local[N] or sc://HOST:PORT")
    if not where.startswith("sc://"):
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
