"""The user's function, loaded and called as `function(df, context)`.

A module-level `setup(spark)` runs once per Spark session.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import ConfigError
from fleet.model.batch_context import BatchContext
from fleet.system.job_signature import NUMBERED, SHAPE, is_number


class CodeEnds(RuntimeError):
    """The user's code raised what ends a thread or a process instead of failing."""


def call(function: Callable[..., object], *arguments: Any) -> object:
    """Call the user's code; whatever it raises comes back as an Exception.

    `sys.exit()`, in a library that was made for a command line, would end the thread that calls
    it without a word; the worker would stay a member, and nothing would be processed any more.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise CodeEnds(
            f"it raised {type(error).__name__}({error}), which ends a process: a batch that "
            "cannot be processed raises an Exception"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrypoint:
    """A loaded entrypoint; call it with a DataFrame and a BatchContext."""

    name: str
    function: Callable[..., object]
    setup: Callable[[Any], object] | None

    def __call__(self, frame: Any, context: BatchContext) -> None:
        """Process one batch; whatever the user's code raises comes as an Exception."""
        self.returned(frame, context)

    def returned(self, frame: Any, context: BatchContext) -> object:
        """The same, and what the function gave back, which no worker looks at."""
        return call(self.function, frame, context)


def load(
    name: str,
    python_path: Sequence[str] = (),
    *,
    told: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}",
) -> Entrypoint:
    """Import `module:function` with `python_path` in front of the module path.

    told: makes a line of what the module raises while it is imported.
    Raises ConfigError where it cannot be imported, is missing, or takes other than a batch and its
    context.
    """
    for folder in reversed(python_path):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module_name, _, function_name = name.partition(":")
    try:
        module = call(importlib.import_module, module_name)
    except Exception as error:
        raise ConfigError(
            f"worker.entrypoint {name}: module {module_name} cannot be imported "
            f"({told(error)}); look at worker.python_path {list(python_path)}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = sorted(k for k, v in vars(module).items() if inspect.isfunction(v))
        raise ConfigError(
            f"worker.entrypoint {name}: {module_name} has no function {function_name}; "
            f"it has {', '.join(known[:10]) or 'none'}"
        )
    if takes_batch_id(function, name):
        raise ConfigError(f"worker.entrypoint {name}: {NUMBERED}")
    setup = getattr(module, "setup", None)
    return Entrypoint(name=name, function=function, setup=setup if callable(setup) else None)


def takes_batch_id(function: Callable[..., object], name: str) -> bool:
    """Whether the second parameter is foreachBatch's number; ConfigError for another shape."""
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigError(
                f"worker.entrypoint {name} is an async function, which nobody awaits; {SHAPE}"
            )
        if inspect.isgeneratorfunction(each):
            raise ConfigError(
                f"worker.entrypoint {name} is a generator, which nobody reads; {SHAPE}"
            )
    number, told = None, "arguments that Python does not tell"
    with contextlib.suppress(TypeError, ValueError, IndexError):  # builtin, or other arguments
        shape = _signature(function)
        told = str(shape)
        second = shape.parameters[list(shape.bind(None, None).arguments)[1]]
        if second.kind is not inspect.Parameter.VAR_POSITIONAL:
            number = is_number(second.name, _text(second.annotation))
    if number is None:
        raise ConfigError(f"worker.entrypoint {name} takes {told}; {SHAPE}")
    return number


def _signature(function: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - an annotation may be a name for type checkers alone
        return inspect.signature(function)


def _text(annotation: Any) -> str:
    """An annotation as source would have it."""
    made = getattr(annotation, "__supertype__", annotation)  # of typing.NewType
    if made is inspect.Parameter.empty:
        return ""
    return made.__name__ if isinstance(made, type) else str(made)
