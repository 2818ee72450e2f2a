"""The user's functions inside Spark's tasks: their code travels with the query.

Problem: `mapInArrow`, a UDF or `foreachPartition` names a function of the entrypoint's module,
and the machine that runs the task has no such module, or has it of another revision: a shared
Spark server outlives many of them, and executors of a cluster have none. Choice: as with Fleet's
own data sources, PySpark's pickler sends by value the functions of the entrypoint's module or
package and of those that it imported from beside it, so that a task runs exactly the code of the
worker that asked; nothing is put on any executor. What is installed stays a name: it has to be
installed on executors too, or added by the entrypoint's `setup(spark)` (`spark.addArtifacts`).
Cost: a function takes along the globals that it names, which therefore can be pickled (a Kafka
client cannot: make it inside the function), and a module that it names takes along all that
stands in it.
"""

import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path
from typing import Final

_OURS: Final = "fleet"


def pickle_by_value(entrypoint: str) -> bool:
    """Send the functions of a loaded entrypoint's code by value; False: it is installed."""
    top = sys.modules[entrypoint.partition(":")[0].partition(".")[0]]
    if top.__name__ == _OURS or _is_installed(top):
        return False
    from pyspark import cloudpickle  # noqa: PLC0415 - loads PySpark

    for name in imported_from({place.parent for place in _places(top)}):
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    return True


def imported_from(folders: Collection[Path]) -> list[str]:
    """Top-level modules and packages that Python found in these folders first."""
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if "." not in name
        and name not in {_OURS, "__main__"}
        and not _is_installed(module)
        and _places(module)[0].parent in folders
    )


def _places(module: object) -> list[Path]:
    """The file of a module, or the folders of a package."""
    file = getattr(module, "__file__", None)
    return [Path(each) for each in getattr(module, "__path__", None) or ([file] if file else [])]


def _is_installed(module: object) -> bool:
    places = [place.resolve() for place in _places(module)]
    installed = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
    }
    return not places or any(place.is_relative_to(root) for place in places for root in installed)
