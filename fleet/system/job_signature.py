"""Whether an entrypoint's source has the function that fleet.yaml names, and in the right shape.

Problem: a name that is misspelt, or a function with one argument, shows only when a worker has
started Spark, and importing the user's code to look would run it in the manager. Choice: the
source is parsed and not run. What it cannot tell (a name that is imported, assigned or decorated)
is left to the worker. Cost: a few milliseconds per look.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet.errors import ConfigError

SHAPE: Final = "it must be process(df, context) or, as for foreachBatch, (df, batch_id)"
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


def _examine_arguments(function: _Function, entrypoint: str, group: str) -> None:
    told = f"group {group!r}: worker.entrypoint {entrypoint}"
    if isinstance(function, ast.AsyncFunctionDef):
        raise ConfigError(f"{told} is an async function, which nobody awaits; {SHAPE}")
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    wanted = [a.arg for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
    many = given.vararg is not None
    if wanted or required > 2 or (len(positional) < 2 and not many):
        names = ", ".join([*(a.arg for a in positional), *(f"{each}=" for each in wanted)])
        raise ConfigError(f"{told} takes ({names}); {SHAPE}")


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
