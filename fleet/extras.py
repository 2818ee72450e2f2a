"""What is installed only where it is asked for, and the sentence for whoever lacks it.

Problem: who looks at a cluster shall not install Spark, Dagster and Kubernetes (1.4 GB), and a
command that needs one of them shall not end in a traceback. Choice: imports of these stand inside
what needs them; the module that was not found names the extra, in one place for all commands
(fleet.cli) and for `fleet doctor`. Cost: the table below says again what pyproject.toml says, and a
test compares them.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from fleet.errors import ConfigError

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
    """Returns the command that installs an extra; no index has the package yet."""
    return f"pip install '.[{extra}]' in the clone of Fleet"


def installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def need(*modules: str, extra: str | None = None) -> None:
    """Raise ConfigError where one is not installed, before anything was started.

    extra: what installs them, where that is another one than the table says.
    """
    for module in modules:
        if not installed(module):
            raise _sentence(module, extra or EXTRAS[module])


def lacking(error: BaseException | None) -> ConfigError | None:
    """The sentence for a module that is not installed; None where the error is another.

    Looks along the chain of causes, too: a client may wrap what it could not import.
    """
    while error is not None:
        name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        module = name.partition(".")[0]
        if module in EXTRAS:
            return _sentence(module, EXTRAS[module])
        error = error.__cause__
    return None


def _sentence(module: str, extra: str) -> ConfigError:
    return ConfigError(f"this needs {module}, which is not installed here: {pip_line(extra)}")
