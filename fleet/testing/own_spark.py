"""A Spark of one's own, for a test or a trial: started here, and gone with this process.

Problem: a job that works in classic Spark may use what Spark Connect does not have, and the other
way round; a test has to meet what the workers meet. Choice: a place of `worker.spark`: `shared`
is a Connect server on this machine, as the workers share one, and `local[2]` the classic session
of a worker with a JVM of its own; `sc://` is left where it is. Both JVMs are children of this
process, so that nothing outlives it. PySpark's own local Connect server always listens on port
15002, so that of two test runs on a machine one would fail: here the system chooses the port.
Cost: one start of Spark, 5 to 10 s of CPU time, and the names by which PySpark keeps its server.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fleet.broker.jars import find_java
from fleet.errors import ConfigError

SHARED: Final = "shared"
_CORES: Final = "local[2]"
_SETTINGS: Final[dict[str, Any]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SERVER: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


@contextmanager
def local_spark(where: str = SHARED) -> Iterator[Any]:
    """A session, stopped at the end; `where` as `worker.spark` says it.

    Raises ConfigError for another place, FleetError where there is no Java.
    """
    # 0.3 s that a help text need not take.
    from fleet.worker.batch.spark_link import (  # noqa: PLC0415
        before_pyspark,
        forget_connect,
        own_jvm,
    )

    if not where.startswith("sc://"):
        find_java()
    before_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if where == SHARED:
        with own_jvm():
            spark = _connected()
    elif where.startswith("sc://"):
        spark = SparkSession.builder.remote(where).getOrCreate()
    elif where.startswith("local["):
        forget_connect()
        with own_jvm():
            spark = SparkSession.builder.master(where).config(map=_SETTINGS).getOrCreate()
    else:
        raise ConfigError(f"{where} is no place of Spark: write shared, local[N] or sc://HOST:PORT")
    try:
        yield spark
    finally:
        spark.stop()


def _connected() -> Any:
    """A session of a Connect server in a JVM of this process.

    What PySpark does for `remote("local[2]")`, but for the port. It knows the server by these
    variables: `stop` ends it, and a job's own `getOrCreate` gets this session.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as Connected  # noqa: PLC0415

    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", str(uuid.uuid4()))
    # Who was a client of Spark before may start one of its own only with this.
    os.environ["SPARK_LOCAL_REMOTE"] = "1"
    conf = SparkConf().setMaster(_CORES).setAll([*_SETTINGS.items(), *_SERVER.items()])
    server = SparkSession(SparkContext.getOrCreate(conf))
    service = "org.apache.spark.sql.connect.service.SparkConnectService$"
    jvm = server._jvm  # noqa: SLF001 - the only way to the port, as PySpark itself asks for it
    port = getattr(getattr(jvm, service), "MODULE$").localPort()
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return Connected.builder.remote(f"sc://localhost:{port}").getOrCreate()
