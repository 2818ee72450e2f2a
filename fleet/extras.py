"""Maps optional modules to the extras that install them.

Problem: observing a cluster must not need Spark, Dagster and Kubernetes (1.4 GB), and a command
that needs one of them must not end in a traceback. Choice: these modules are imported inside the
functions that use them. A missing module is turned into a message that names its extra, for all
commands (fleet.cli) and for `fleet doctor`. Cost: the table repeats pyproject.toml; a test compares
both.
"""

import json
from collections.abc import Mapping
from importlib.metadata import distribution
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit

from fleet.errors import ConfigError

_OWN: Final = "fleet-for-kafka"
EXTRAS: Final[Mapping[str, str]] = {
    "pyspark": "worker",
    "pyarrow": "worker",
    "deltalake": "history",
    "duckdb": "history",
    "dagster": "dagster",
    "dagster_webserver": "dagster",
    "kubernetes": "kubernetes",
    "fastavro": "formats",
    "jsonschema": "formats",
    "pyiceberg": "iceberg",
    "pyiceberg_core": "iceberg",
    "pytest": "testing",
}
"""Module → the extra that installs it."""


def pip_line(extra: str) -> str:
    """Returns the command that installs an extra: from the wheel or the clone that is installed."""
    url = json.loads(distribution(_OWN).read_text("direct_url.json") or "{}").get(
        "url", ""
    )  # PEP 610
    if url.endswith(".whl"):
        return f"pip install '{unquote(urlsplit(url).path)}[{extra}]'"
    return f"pip install '.[{extra}]' in the clone of Fleet"


def is_installed(module: str) -> bool:
    """Tells whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def need(*modules: str, extra: str | None = None) -> None:
    """Raises ConfigError if a module is not installed, before anything starts.

    extra: the extra that installs them, if it differs from the table.
    """
    for module in modules:
        if not is_installed(module):
            raise _sentence(module, extra or EXTRAS[module])


def missing_extra(error: BaseException | None) -> ConfigError | None:
    """Returns the message for a module that is not installed; None for any other error.

    Checks the chain of causes too, since a client may wrap an ImportError.
    """
    while error is not None:
        name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        module = name.partition(".")[0]
        if module in EXTRAS:
            return _sentence(module, EXTRAS[module])
        error = error.__cause__
    return None


def _sentence(module: str, extra: str) -> ConfigError:
    return ConfigError(f"module {module} is not installed: run {pip_line(extra)}")
