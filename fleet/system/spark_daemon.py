"""`python -m fleet.system.spark_daemon`: PySpark's daemon, of the PySpark that is installed.

Problem: Spark starts a Python daemon for each kind of work (making a data source, planning its
reading, functions), and puts the archives of its own folder first on their path. What is imported
from an archive is compiled each time: three quarters of the 2 CPU seconds that such a daemon takes
until it serves, four times before the first batch. Choice: this module is named as
`spark.python.daemon.module`; it takes the archives off the path where the same modules are
installed beside them, compiled, and then is PySpark's own daemon. Cost: a setting that Spark
documents in its code only, and only where executors run on this machine in this Python, which has
this package.
"""

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SETTING: Final = {"spark.python.daemon.module": "fleet.system.spark_daemon"}
_DAEMON: Final = "pyspark.daemon"
_IN_ARCHIVES: Final = ("pyspark", "py4j")


def without_archives(path: Sequence[str]) -> list[str]:
    """A module path without Spark's `pyspark.zip` and `py4j-*-src.zip`."""
    return [each for each in path if not _is_archive(Path(each))]


def _is_archive(entry: Path) -> bool:
    return entry.suffix == ".zip" and entry.name.startswith(_IN_ARCHIVES)


def main() -> None:
    """Become the daemon; what it is to do stands in its arguments, as Spark wrote them."""
    with_archives = sys.path
    sys.path = without_archives(with_archives)
    if not all(importlib.util.find_spec(each) for each in _IN_ARCHIVES):
        sys.path = with_archives
    runpy.run_module(_DAEMON, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
