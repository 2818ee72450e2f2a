"""One call of an entrypoint on records of one's choice: what `fleet test` does.

Problem: the author of a job wants to see it run on real records before a worker does. Choice: what
a worker does with a batch, `setup`, the warming call, `process`, once and in this process, on a
Spark of its own; no group is joined and nothing is committed. Cost: what the entrypoint itself
writes is written, unless it looks at `context.trial`; Spark's JVM is not in the memory told.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.kafka_source.columns import SCHEMA
from fleet.testing.made_batch import MadeBatch, make_batch
from fleet.testing.own_spark import local_spark
from fleet.worker.batch.entrypoint import Entrypoint, call
from fleet.worker.batch.job_errors import JobErrors

_ROWS: Final = 20
"""Of a DataFrame that the entrypoint returned: as many as are shown."""
_RETURNED: Final = 2000
"""Characters of anything else that it returned."""


@dataclass(slots=True)
class TrialOutcome:
    """What came of it; seconds by part, memory in bytes of this process."""

    seconds: dict[str, float] = field(default_factory=dict)
    memory_before: int = 0
    memory_peak: int = 0
    returned: str | None = None
    rows: list[dict[str, Any]] | None = None
    """Of a DataFrame that it returned."""
    error: str | None = None
    traceback: str | None = None


def try_entrypoint(
    load: Callable[[], Entrypoint],
    batch: MadeBatch,
    *,
    where: str,
    errors: JobErrors,
    step: Callable[[str], None],
) -> TrialOutcome:
    """Call it as a worker does; where: as `worker.spark`. Raises what is not the job's."""
    outcome = TrialOutcome()

    def timed(name: str, work: Callable[[], Any]) -> Any:
        step(name)
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            outcome.error = f"{name} failed: {errors.told(error)}"
            outcome.traceback = errors.traceback_in(outcome.error)
            raise _JobFailed from error
        finally:
            outcome.seconds[name] = round(time.monotonic() - began, 3)

    step("starting Spark")
    began = time.monotonic()
    with local_spark(where) as spark:
        outcome.seconds["spark"] = round(time.monotonic() - began, 3)
        try:
            entrypoint: Entrypoint = timed("import", load)
            if entrypoint.setup is not None:
                timed("setup", lambda: call(_setup(entrypoint), spark))
            warm = make_batch([], **_of(batch), warm=True)
            timed("warming", lambda: entrypoint.returned(warm.frame(spark), warm.context))
            outcome.memory_before = _peak()
            value = timed("process", lambda: entrypoint.returned(batch.frame(spark), batch.context))
            _note(outcome, timed("result", lambda: _shown(value)))
        except _JobFailed:
            pass
        outcome.memory_peak = _peak()
    return outcome


class _JobFailed(Exception):
    """Told in the outcome already."""


def _setup(entrypoint: Entrypoint) -> Callable[..., object]:
    assert entrypoint.setup is not None
    return entrypoint.setup


def _of(batch: MadeBatch) -> dict[str, Any]:
    context = batch.context
    return {
        "cluster": context.cluster,
        "group": context.group,
        "slot": context.slot,
        "worker": context.worker,
        "revision": context.revision,
        "trial": True,
    }


def _shown(value: object) -> tuple[str | None, list[dict[str, Any]] | None]:
    if value is None:
        return None, None
    if hasattr(value, "limit") and hasattr(value, "schema"):  # a DataFrame of either kind
        table = value.limit(_ROWS).toArrow()
        return f"DataFrame[{value.schema.simpleString()}]", table.to_pylist()
    return repr(value)[:_RETURNED], None


def _note(outcome: TrialOutcome, shown: tuple[str | None, list[dict[str, Any]] | None]) -> None:
    outcome.returned, outcome.rows = shown


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def schema_of(batch: MadeBatch) -> Sequence[tuple[str, str]]:
    """Columns of the input, by name and type."""
    return [(each.name, str(each.type)) for each in SCHEMA if each.name in batch.table.schema.names]
