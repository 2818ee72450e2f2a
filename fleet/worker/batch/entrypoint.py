"""The user's function, loaded and called as `function(df, context)`.

A module-level `setup(spark)` runs once per Spark session.
"""

import contextlib
import importlib
import inspect
import json
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

from fleet.errors import ConfigError
from fleet.kafka_source.failures import text_of
from fleet.model.batch_context import BatchContext
from fleet.system.code import NUMBERED, SHAPE, is_number
from fleet.worker.batch.spark_link import first_line

# `mapInArrow`, a UDF or `foreachPartition` names a function that the task's machine may lack, or
# have in another revision. So PySpark's pickler sends the functions of the entrypoint's module or
# package by value, and those that it imported from beside it. What is installed stays a name. A
# function carries the globals that it names, which have to be picklable.


_OUR_PACKAGE: Final = "fleet"


def pickle_by_value(entrypoint: str) -> bool:
    """Sends the functions of a loaded entrypoint's code by value; False: it is installed."""
    top = sys.modules[entrypoint.partition(":")[0].partition(".")[0]]
    if top.__name__ == _OUR_PACKAGE or _is_installed(top):
        return False
    from pyspark import cloudpickle  # noqa: PLC0415 - loads PySpark

    for name in imported_from({place.parent for place in _places(top)}):
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    return True


def imported_from(folders: Collection[Path]) -> list[str]:
    """Returns top-level modules and packages that Python found in these folders first."""
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if "." not in name
        and name not in {_OUR_PACKAGE, "__main__"}
        and not _is_installed(module)
        and _places(module)[0].parent in folders
    )


def _places(module: object) -> list[Path]:
    """Returns the file of a module, or the folders of a package."""
    file = getattr(module, "__file__", None)
    return [Path(each) for each in getattr(module, "__path__", None) or ([file] if file else [])]


def _is_installed(module: object) -> bool:
    places = [place.resolve() for place in _places(module)]
    installed = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
    }
    return not places or any(place.is_relative_to(root) for place in places for root in installed)


# The failure that a job's author sees: a traceback without Fleet's frames and PySpark's client's,
# from Spark's worker if a task failed, once per process for errors of the same places. Secrets of
# the settings are removed in every form in which texts may have them, before anything is cut: half
# of a secret is no match.


MOST_CHARACTERS: Final = 3000
"""Characters of a traceback that is kept beside the slots."""
MOST_OF_A_LINE: Final = 300
_MOST_TOLD: Final = 100
"""Distinct errors that one process logs."""
_LEAST_LINE: Final = 16
"""Characters of a secret's line, such as a key's, that no other text happens to contain."""
RESULT_LIMIT: Final = "spark.driver.maxResultSize"
"""The setting that limits the rows that a job takes from Spark at once, for sinks and `toArrow`,
`collect`."""
_OVER_LIMIT: Final = re.compile(
    r"serialized results of \d+ tasks? \(([^)]*)\) is bigger than "
    rf"{re.escape(RESULT_LIMIT)} \(([^)]*)\)"
)
_OURS: Final = str(Path(__file__).parents[1])
_LEFT_OUT: Final = (
    _OURS,
    "/fleet/testing/",
    "<frozen importlib",
    "/pyspark/",
    "/importlib/__init__.py",
)
_PLACE: Final = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_NOT_THEIRS: Final = ("site-packages", "/lib/python3", "<frozen", *_LEFT_OUT)
_JVM: Final = "\nJVM stacktrace:"
_REMOTE: Final = "An exception was thrown from the Python worker"


class JobErrors:
    """The failures of the job's code in this process."""

    def __init__(self, *, say: Callable[[str], None], secrets: Iterable[str] = ()) -> None:
        self._say = say
        written = {form for secret in secrets if len(secret) >= 4 for form in _forms(secret)}
        self._secrets = sorted(written, key=len, reverse=True)
        self._seen: set[tuple[object, ...]] = set()
        self._last: tuple[str, str] | None = None

    def describe(self, error: BaseException) -> str:
        """Returns the error in a line for stores and logs, with the place in the job."""
        if (large := over_limit(error)) is not None:
            if (RESULT_LIMIT,) not in self._seen:
                self._seen.add((RESULT_LIMIT,))
                self._say(f"{large}; such batches are run in parts")
            return large
        text = self.clean(traceback_of(error))
        line = self.line(error)
        line = self.clean(_with_place(_of_task(error, self.clean) or line, text))
        key = (type(error), *_PLACE.findall(text))
        if key not in self._seen and len(self._seen) < _MOST_TOLD:
            self._seen.add(key)
            self._say(f"the job failed: {line}\n{text}")
        self._last = (line, truncate_middle(text))
        return line

    def line(self, error: BaseException) -> str:
        """Returns an error in a line, without secrets."""
        return (
            f"{type(error).__name__}: {self.clean(first_line(error, most=None))[:MOST_OF_A_LINE]}"
        )

    def traceback_in(self, sentence: str | None) -> str | None:
        """Returns the last traceback if it belongs to this sentence."""
        if sentence is None or self._last is None or self._last[0] not in sentence:
            return None
        return self._last[1]

    def clean(self, text: str) -> str:
        """Returns the text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text.encode(errors="backslashreplace").decode()


def over_limit(error: BaseException | None) -> str | None:
    """Returns a sentence if Spark's driver refused rows for their size; None for another error."""
    seen = 0
    while error is not None and seen < 10:
        match = _OVER_LIMIT.search(text_of(error))
        if match is not None:
            return (
                f"the rows that the job takes from Spark have {match[1]} or more, and "
                f"{RESULT_LIMIT} is {match[2]}: lower batch.ranges and batch.inline, or raise that "
                "setting where Spark's driver is started"
            )
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def traceback_of(error: BaseException) -> str:
    """Returns the traceback of an error and of its causes, with the job's frames only."""
    made = traceback.TracebackException.from_exception(error, compact=True)
    each: traceback.TracebackException | None = made
    while each is not None:
        kept = [frame for frame in each.stack if not _is(frame.filename, _LEFT_OUT)]
        each.stack = traceback.StackSummary.from_list(kept)
        each = each.__cause__ or each.__context__
    return "".join(made.format()).partition(_JVM)[0].rstrip()


def _forms(secret: str) -> Iterator[str]:
    """Returns the forms in which texts have a secret; of several lines each long enough one."""
    yield from (secret, quote(secret, safe=""), quote_plus(secret))
    yield from (repr(secret)[1:-1], json.dumps(secret)[1:-1])
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= _LEAST_LINE)


def _of_task(error: BaseException, clean: Callable[[str], str]) -> str | None:
    """Returns the line of a Python function's error inside Spark; None for any other error."""
    remote = text_of(error).partition(_JVM)[0]
    if _REMOTE not in remote:
        return None
    rest = remote.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]
    line = next((one for one in rest if one.strip() and not one.startswith(" ")), None)
    return None if line is None else clean(line)[:MOST_OF_A_LINE]


def _with_place(line: str, text: str) -> str:
    """Returns the line, and where in the job it was raised; `text` is its traceback."""
    places = _PLACE.findall(text)
    theirs = [place for place in places if not _is(place[0], _NOT_THEIRS)]
    if not theirs:
        return line
    file, number, function = theirs[-1]
    return f"{line} ({Path(file).name}:{number} in {function})"


def _is(file: str, parts: Iterable[str]) -> bool:
    return any(part in file for part in parts)


def truncate_middle(text: str, most: int = MOST_CHARACTERS) -> str:
    """Returns at most so many characters: the end with the error before the beginning."""
    if len(text) <= most:
        return text
    note = f"\n… {len(text) - most} characters left out …\n"
    head = most // 3
    return text[:head] + note + text[-(most - head - len(note)) :]


class EntrypointExit(RuntimeError):
    """The user's code raised what ends a thread or a process instead of failing."""


def call(function: Callable[..., object], *arguments: Any) -> object:
    """Calls the user's code; whatever it raises comes back as an Exception.

    `sys.exit()`, in a library for command lines, would end the calling thread without a message.
    The worker would stay a member that processes nothing.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise EntrypointExit(
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
        """Processes one batch; whatever the user's code raises comes as an Exception."""
        self.call_returning(frame, context)

    def call_returning(self, frame: Any, context: BatchContext) -> object:
        """Does the same and returns the function's result, which no worker uses."""
        return call(self.function, frame, context)


def load(
    name: str,
    python_path: Sequence[str] = (),
    *,
    describe: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}",
) -> Entrypoint:
    """Imports `module:function` with `python_path` in front of the module path.

    describe: makes a line of what the module raises while it is imported. Raises ConfigError if the
    import fails, the function is missing, or takes other arguments than a batch and its context.
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
            f"({describe(error)}); look at worker.python_path {list(python_path)}"
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
    """Whether the second parameter is foreachBatch's number; ConfigError for another signature."""
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigError(
                f"worker.entrypoint {name} is an async function: Fleet awaits none; {SHAPE}"
            )
        if inspect.isgeneratorfunction(each):
            raise ConfigError(f"worker.entrypoint {name} is a generator: Fleet reads none; {SHAPE}")
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
    """Returns an annotation as source code."""
    made = getattr(annotation, "__supertype__", annotation)  # of typing.NewType
    if made is inspect.Parameter.empty:
        return ""
    return made.__name__ if isinstance(made, type) else str(made)
