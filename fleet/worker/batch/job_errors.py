"""What the author of a job has to see of a failure: their own file and line, and nothing twice.

Problem: a sentence says what went wrong and not where; the whole traceback is mostly our frames
and Spark's, and of a batch that fails again and again it would fill the log. What a library says
may hold a login. Choice: a traceback without our frames and the client's inside PySpark; where a
Python function failed in one of Spark's tasks, the traceback that Spark's worker wrote into the
error stands in it. Errors that were raised at the same places are one, told once per process.
What the settings know as secret is blotted out, as it is and as addresses, JSON and Python write
it, before anything is cut: half of one is no match. Cost: a secret that the settings do not know of
is not recognised.
"""

import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

from fleet.kafka_source.failures import text_of
from fleet.worker.batch.spark_link import first_line

MOST_CHARACTERS: Final = 3000
"""Of a traceback that is kept beside the slots, as many as a person reads."""
MOST_OF_A_LINE: Final = 300
_MOST_TOLD: Final = 100
"""Distinct errors of one process."""
_LEAST_LINE: Final = 16
"""Characters of a secret's line, such as a key's, that no other text happens to have."""
RESULT_LIMIT: Final = "spark.driver.maxResultSize"
"""What bounds the rows that a job takes from Spark at once, for sinks and `toArrow`, `collect`."""
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
    """The failures of the job's code that this process has seen."""

    def __init__(self, *, say: Callable[[str], None], secrets: Iterable[str] = ()) -> None:
        self._say = say
        written = {form for secret in secrets if len(secret) >= 4 for form in _forms(secret)}
        self._secrets = sorted(written, key=len, reverse=True)
        self._seen: set[tuple[object, ...]] = set()
        self._last: tuple[str, str] | None = None

    def told(self, error: BaseException) -> str:
        """The error in a line that every store and log can hold, with the place in the job."""
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
        self._last = (line, bounded(text))
        return line

    def line(self, error: BaseException) -> str:
        """What an error is in a line, without secrets."""
        return (
            f"{type(error).__name__}: {self.clean(first_line(error, most=None))[:MOST_OF_A_LINE]}"
        )

    def traceback_in(self, sentence: str | None) -> str | None:
        """The last traceback, where it is this sentence's."""
        if sentence is None or self._last is None or self._last[0] not in sentence:
            return None
        return self._last[1]

    def clean(self, text: str) -> str:
        """Without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text.encode(errors="backslashreplace").decode()


def over_limit(error: BaseException | None) -> str | None:
    """A sentence if Spark's driver refused rows for their size; None: another error."""
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
    """The traceback of an error, and of what caused it, without frames that are not the job's."""
    made = traceback.TracebackException.from_exception(error, compact=True)
    each: traceback.TracebackException | None = made
    while each is not None:
        kept = [frame for frame in each.stack if not _is(frame.filename, _LEFT_OUT)]
        each.stack = traceback.StackSummary.from_list(kept)
        each = each.__cause__ or each.__context__
    return "".join(made.format()).partition(_JVM)[0].rstrip()


def _forms(secret: str) -> Iterator[str]:
    """A secret as texts have it; of one of several lines each that is long enough to be one."""
    yield from (secret, quote(secret, safe=""), quote_plus(secret))
    yield from (repr(secret)[1:-1], json.dumps(secret)[1:-1])
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= _LEAST_LINE)


def _of_task(error: BaseException, clean: Callable[[str], str]) -> str | None:
    """The line of an error that a Python function met inside Spark; None: it is no such error."""
    remote = text_of(error).partition(_JVM)[0]
    if _REMOTE not in remote:
        return None
    rest = remote.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]
    line = next((one for one in rest if one.strip() and not one.startswith(" ")), None)
    return None if line is None else clean(line)[:MOST_OF_A_LINE]


def _with_place(line: str, text: str) -> str:
    """The line, and where in the job it was raised; `text` is its traceback."""
    places = _PLACE.findall(text)
    theirs = [place for place in places if not _is(place[0], _NOT_THEIRS)]
    if not theirs:
        return line
    file, number, function = theirs[-1]
    return f"{line} ({Path(file).name}:{number} in {function})"


def _is(file: str, parts: Iterable[str]) -> bool:
    return any(part in file for part in parts)


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """At most so many characters: its end, where the error is, before its beginning."""
    if len(text) <= most:
        return text
    note = f"\n… {len(text) - most} characters left out …\n"
    head = most // 3
    return text[:head] + note + text[-(most - head - len(note)) :]
