"""How many rows Spark wrote, counted by the job that writes them.

Problem: a task writes where the path leads on its own machine and says that all went well. Of a
folder that driver, executors and this process do not share, some or all files are missing here,
with no error anywhere. Choice: rows are counted in the same pass (`DataFrame.observe`), and who
reads the files compares. Cost: an accumulator per task; a DataFrame is observed once.
"""

from collections.abc import Callable
from typing import Any, Final

_ROWS: Final = "rows"


def observed(frame: Any) -> tuple[Any, Callable[[], int]]:
    """The frame to write instead, and how many rows were written, to be asked after the write.

    Tasks that run again count once. Spark Connect or not.
    """
    remote = "connect" in type(frame).__module__
    if remote:  # pyspark.sql's own look at the environment, which another session may have set
        from pyspark.sql.connect import functions as f  # noqa: PLC0415 - loads PySpark
        from pyspark.sql.connect.observation import Observation  # noqa: PLC0415
    else:
        from pyspark.sql import functions as f  # type: ignore[no-redef]  # noqa: PLC0415
        from pyspark.sql.observation import Observation  # type: ignore[assignment]  # noqa: PLC0415
    observation = Observation()
    counted = frame.observe(observation, f.count(f.lit(1)).alias(_ROWS))
    return counted, lambda: int(observation.get[_ROWS])
