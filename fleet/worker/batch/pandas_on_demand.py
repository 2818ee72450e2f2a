"""Loads PySpark's Connect client without pandas until it is used.

Problem: PySpark's Connect client imports pandas, 33 MB and a quarter second of CPU. It needs only
its version and a check for pandas DataFrames, which most jobs never pass. Choice: while the client
is imported, a stand-in module replaces pandas. It knows the version, and that nothing is a
DataFrame while pandas is not loaded. Any other attribute loads the real one. Cost: names that
PySpark takes from pandas are listed here.
"""

import contextlib
import importlib
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

_PANDAS: Final = "pandas"
_TYPES: Final = "pandas.api.types"
"""Functions that PySpark takes by name from pandas.api.types, to call with columns of a DataFrame.
"""
_PREDICATES: Final = ("is_datetime64_dtype", "is_timedelta64_dtype")
"""What PySpark takes by name from pandas.api.types, to call it with columns of a DataFrame."""


@contextlib.contextmanager
def pandas_on_demand() -> Iterator[None]:
    """Makes imports of pandas in this block get the stand-in; import nothing else in it."""
    version = _version()
    if version is None or any(name.partition(".")[0] == _PANDAS for name in sys.modules):
        yield
        return
    standing = {
        _PANDAS: _stand_in(_PANDAS, __version__=version, DataFrame=_DataFrame),
        _TYPES: _stand_in(_TYPES, **{name: _predicate(name) for name in _PREDICATES}),
    }
    sys.modules.update(standing)
    try:
        yield
    finally:
        _withdraw()


def _version() -> str | None:
    try:
        return importlib.metadata.version(_PANDAS)
    except importlib.metadata.PackageNotFoundError:
        return None


class _StandIn(str):
    """Marks a stand-in among modules, which need the plain type to be pickled by name."""

    __slots__ = ()


def _stand_in(name: str, **known: Any) -> types.ModuleType:
    made = types.ModuleType(name, _StandIn("Loads the real module when it is used."))

    def attribute(wanted: str) -> Any:
        if (
            name == _TYPES and wanted == "__path__"
        ):  # what `from pandas.api.types import …` looks at
            raise AttributeError(wanted)
        return getattr(_real(name), wanted)

    made.__dict__.update(known, __getattr__=attribute)
    return made


def _real(name: str) -> types.ModuleType:
    _withdraw()
    return importlib.import_module(name)


def _withdraw() -> None:
    for name in (_PANDAS, _TYPES):
        module = sys.modules.get(name)
        if module is not None and isinstance(module.__doc__, _StandIn):
            del sys.modules[name]


class _Frames(type):
    def __instancecheck__(cls, instance: object) -> bool:
        """Checks against the real class, once it is loaded."""
        real = getattr(sys.modules.get(_PANDAS), "DataFrame", cls)
        return real is not cls and isinstance(instance, real)


class _DataFrame(metaclass=_Frames):
    """Stands for pandas.DataFrame in a check of types and in annotations."""


def _predicate(name: str) -> Any:
    def predicate(column: Any) -> bool:
        return bool(getattr(_real(_TYPES), name)(column))

    return predicate
