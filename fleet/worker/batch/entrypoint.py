"""The user's function, loaded and called in the shape it was written for.

`module:function` is called as `function(df, context)`. Where its second parameter is named
`batch_id` or `epoch_id`, the shape of Structured Streaming's `foreachBatch`, it gets an int, so
that such a function works unchanged. A module-level `setup(spark)` runs once per Spark session.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.errors import ConfigError
from fleet.model.batch_context import BatchContext

BATCH_ID_NAMES: Final = frozenset({"batch_id", "epoch_id", "batchId", "epochId"})


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
    takes_batch_id: bool

    def __call__(self, frame: Any, context: BatchContext) -> None:
        """Process one batch; whatever the user's code raises comes as an Exception."""
        self.returned(frame, context)

    def returned(self, frame: Any, context: BatchContext) -> object:
        """The same, and what the function gave back, which no worker looks at."""
        return call(self.function, frame, context.batch_id if self.takes_batch_id else context)


def load(
    name: str,
    python_path: Sequence[str] = (),
    *,
    told: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}",
) -> Entrypoint:
    """Import `module:function` with `python_path` in front of the module path.

    told: makes a line of what the module raises while it is imported.
    Raises ConfigError where it cannot be imported, is missing, or takes other than two arguments.
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
    setup = getattr(module, "setup", None)
    return Entrypoint(
        name=name,
        function=function,
        setup=setup if callable(setup) else None,
        takes_batch_id=takes_batch_id(function, name),
    )


def takes_batch_id(function: Callable[..., object], name: str) -> bool:
    """Whether the second parameter is foreachBatch's int; ConfigError for another shape."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin or C function tells nothing: give it the context
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    if len(positional) < 2 or len(required) > 2:
        raise ConfigError(
            f"worker.entrypoint {name} takes ({', '.join(p.name for p in parameters)}); "
            "it must be process(df, context) or, as for foreachBatch, (df, batch_id)"
        )
    return positional[1].name in BATCH_ID_NAMES
