"""The Python that a Spark on this machine runs functions and data sources in: this one.

Problem: Spark starts a Python process for each kind of work (finding data sources, making one,
planning its reading, functions), and puts the archives of its own folder first on their path. What
is imported from an archive is compiled each time: three quarters of the 2 CPU seconds that such a
process takes until it serves, four times before the first batch. Choice: PYSPARK_PYTHON names a
few lines of shell that take the archives off the path and become this process' Python, where the
same modules are installed, compiled. (`spark.python.daemon.module` would be for functions only.)
Cost: only where what Spark runs is on this machine, in an environment with PySpark as here.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CHOSEN: Final = "PYSPARK_PYTHON"
_OURS: Final = "FLEET_SPARK_PYTHON"
"""Which Python the script becomes."""
_SCRIPT: Final = Path(__file__).with_suffix(".sh")


def variables() -> Mapping[str, str]:
    """The environment with which Spark runs this process' Python (else the first of PATH)."""
    if not os.access(_SCRIPT, os.X_OK):  # as unpacked by something that keeps no modes
        return {CHOSEN: sys.executable}
    return {CHOSEN: str(_SCRIPT), _OURS: sys.executable}


def choose() -> None:
    """Before a JVM of this process' own; who chose another Python by PYSPARK_PYTHON has it."""
    if os.environ.get(CHOSEN, sys.executable) == sys.executable:
        os.environ.update(variables())
