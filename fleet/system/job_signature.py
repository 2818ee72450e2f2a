"""Whether an entrypoint is a function that can be called with a batch and its context.

Problem: a name that is misspelt, or a function with one argument, shows only when a worker has
started Spark, and importing the user's code to look would run it in the manager. Choice: the
source is parsed and not run. What it cannot tell (a name that is imported, assigned or decorated)
is left to the worker. What the second parameter stands for is said by its annotation, else by its
name. foreachBatch's number is refused: no number grows over all workers of a group, since a slow
batch ends after quicker ones with larger numbers. Cost: a few milliseconds per look.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet.errors import ConfigError

SHAPE: Final = "write process(df, context), or annotate: process(df, batch: BatchContext)"
NUMBERED: Final = (
    "it takes foreachBatch's number, and no number grows over all workers of a group: a job that "
    "skips numbers below the last would lose records; write process(df, context), and skip by the "
    "ends of context.ranges, which grow with their partitions"
)
_CONTEXTS: Final = frozenset({"context", "ctx", "batch_context"})
_NUMBERS: Final = frozenset({"batch_id", "epoch_id", "batchId", "epochId"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def examine_source(file: Path, *, entrypoint: str, group: str) -> None:
    """ConfigError where the function is missing, takes other arguments, or nothing can be read."""
    name = entrypoint.rpartition(":")[2]
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise ConfigError(
            f"group {group!r}: worker.entrypoint {entrypoint}: {where} is no Python that can be "
            f"read: {getattr(error, 'msg', error)}"
        ) from error
    statements = list(_top_level(tree.body))
    named = [each for each in statements if name in _names(each)]
    functions = [each.name for each in statements if isinstance(each, _Function)]
    if not named:
        if "*" in {n for each in statements for n in _names(each)} or "__getattr__" in functions:
            return
        raise ConfigError(
            f"group {group!r}: worker.entrypoint {entrypoint}: {file} has no function {name}; it "
            f"has {', '.join(functions[:10]) or 'none'}"
        )
    last = named[-1]
    if isinstance(last, _Function) and not last.decorator_list:
        _examine_arguments(last, entrypoint, group)


def is_number(name: str, annotation: str) -> bool | None:
    """Whether a second parameter is foreachBatch's number, not the context; None: neither."""
    words = set(re.findall(r"\w+", annotation))
    if "BatchContext" in words or "int" in words:
        return "BatchContext" not in words
    return name in _NUMBERS if name in _CONTEXTS | _NUMBERS else None


def _examine_arguments(function: _Function, entrypoint: str, group: str) -> None:
    told = f"group {group!r}: worker.entrypoint {entrypoint}"
    if isinstance(function, ast.AsyncFunctionDef):
        raise ConfigError(f"{told} is an async function, which nobody awaits; {SHAPE}")
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(function)):
        raise ConfigError(f"{told} is a generator, which nobody reads; {SHAPE}")
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    wanted = [a.arg for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
    number = None
    if len(positional) >= 2:
        second = positional[1]
        annotation = "" if second.annotation is None else ast.unparse(second.annotation)
        number = is_number(second.arg, annotation)
        if number is None and annotation:  # of a name that only an import tells
            number = False
    if number:
        raise ConfigError(f"{told}: {NUMBERED}")
    if wanted or required > 2 or number is None:
        raise ConfigError(f"{told} takes ({ast.unparse(given)}); {SHAPE}")


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, but not in functions and classes inside of it."""
    for each in ast.iter_child_nodes(function):
        if not isinstance(each, _Function | ast.ClassDef | ast.Lambda):
            yield each
            yield from _own(each)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that make names of the module, also within if, try and with."""
    for each in body:
        yield each
        for inside in ("body", "orelse", "finalbody"):
            if not isinstance(each, _Function | ast.ClassDef):
                yield from _top_level(getattr(each, inside, []))
        for handler in getattr(each, "handlers", []):
            yield from _top_level(handler.body)


def _names(statement: ast.stmt) -> set[str]:
    """Names that a statement gives; `*` where it gives whatever another module has."""
    if isinstance(statement, _Function | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return set()
