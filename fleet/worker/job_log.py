"""What a job logs, in its worker's log.

Problem: without a handler Python drops `log.info` of a job, and prints warnings without a time.
Choice: one handler on the root logger that writes a line as the worker's own, with the level and
the job's logger name; `worker.log_level` is the root's level. Libraries that talk at every call
stay at WARNING, unless the job sets them otherwise. Cost: a job that configures logging itself
(`basicConfig(force=True)`) writes past it.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

_TALKATIVE: Final = (
    *("botocore", "boto3", "grpc", "kafka", "kubernetes", "numba", "parso", "py4j", "pyspark"),
    *("s3transfer", "urllib3", "asyncio", "httpx", "httpcore", "fsspec"),
)


class _ToLog(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; what cannot be formatted is told as such."""
        with contextlib.suppress(Exception):
            self._say(f"{record.levelname} {record.name}: {self.format(record)}")


def catch_job_logs(level: str, *, say: Callable[[str], None]) -> None:
    """From here on the root logger writes through `say`; once per process."""
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if not isinstance(each, _ToLog)]
    root.addHandler(_ToLog(say))
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(max(logging.WARNING, root.level))
