"""The user's functions inside Spark's tasks: their code travels with the query.

Problem: `mapInArrow`, a UDF or `foreachPartition` names a function of the entrypoint's module,
and the machine that runs the task has no such module, or has it of another revision: a shared
Spark server outlives many of them, and executors of a cluster have none. Choice: as with Fleet's
own data sources, PySpark's pickler sends the functions of the entrypoint's module or package
by value, so that a task runs exactly the code of the worker that asked; nothing is put on any
executor. What is installed stays a name: it has to be installed on executors too, or added by
the entrypoint's `setup(spark)` (`spark.addArtifacts`). Cost: a function takes along the globals
that it names, which therefore can be pickled (a Kafka client cannot: make it inside the
function), and a module that it names takes along all that stands in it.
"""

import sys
import sysconfig
from pathlib import Path
from typing import Final

_OURS: Final = "fleet"


def pickle_by_value(entrypoint: str) -> bool:
    """Send the functions of a loaded entrypoint's module or package by value; False: installed."""
    top = sys.modules[entrypoint.partition(":")[0].partition(".")[0]]
    if top.__name__ == _OURS or _is_installed(top):
        return False
    from pyspark import cloudpickle  # noqa: PLC0415 - loads PySpark

    cloudpickle.register_pickle_by_value(top)  # type: ignore[no-untyped-call]
    return True


def _is_installed(module: object) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))
    installed = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
    }
    return not places or any(
        Path(place).resolve().is_relative_to(root) for place in places for root in installed
    )
