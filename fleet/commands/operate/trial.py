"""`fleet test`: calls a job once on real records; joins no group and commits nothing.

Problem: the author of a job wants to see it run on real records before a worker runs it. Choice:
this process does once what a worker does with a batch (`setup`, the warming call, `process`), in
its own Spark. Cost: the job writes to its sinks, unless it checks `context.trial`; the reported
memory excludes Spark's JVM.
"""

import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa

from fleet.commands.answers import as_answer, print_json, print_traceback, stdout, table
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    common,
    group_argument,
    output_option,
    topic_ranges,
    with_worker,
)
from fleet.commands.screen import Progress
from fleet.config.references import worker_environment
from fleet.config.settings import WorkerSettings
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.columns import SCHEMA, batch_of_pieces, to_stderr
from fleet.kafka_source.failures import RangeTruncated, RangeUnread
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges, reading
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.system.code import examine_entrypoint
from fleet.testing.sample_batch import SampleBatch, local_spark, make_batch
from fleet.text import plural
from fleet.worker.batch.entrypoint import Entrypoint, JobErrors, call, load
from fleet.worker.batch.ranges import fair
from fleet.worker.events import catch_job_logs
from fleet.worker.login_files import known_secrets

if TYPE_CHECKING:
    from fleet.config.spec import FleetSpec, GroupSpec


_ROWS: Final = 20
"""Rows shown of a DataFrame that the entrypoint returned."""
_RETURNED: Final = 2000
"""Characters shown of anything else that it returned."""


@dataclass(slots=True)
class TrialOutcome:
    """Keeps the result, the seconds of each part, and the memory of this process in bytes."""

    seconds: dict[str, float] = field(default_factory=dict)
    memory_before: int = 0
    memory_peak: int = 0
    returned: str | None = None
    rows: list[dict[str, Any]] | None = None
    """Rows of a returned DataFrame."""
    error: str | None = None
    traceback: str | None = None


def try_entrypoint(
    load: Callable[[], Entrypoint],
    batch: SampleBatch,
    *,
    where: str,
    errors: JobErrors,
    step: Callable[[str], None],
) -> TrialOutcome:
    """Calls it as a worker does, on the Spark `where`. Raises errors that are not the job's."""
    outcome = TrialOutcome()

    def timed(name: str, work: Callable[[], Any]) -> Any:
        step(name)
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            outcome.error = f"{name} failed: {errors.describe(error)}"
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
            if (setup := entrypoint.setup) is not None:
                timed("setup", lambda: call(setup, spark))
            of = ("cluster", "group", "slot", "worker", "revision")
            named = {name: getattr(batch.context, name) for name in of}
            warm = make_batch([], **named, trial=True, warm=True)
            timed("warming", lambda: entrypoint.call_returning(warm.frame(spark), warm.context))
            outcome.memory_before = _peak()
            value = timed(
                "process", lambda: entrypoint.call_returning(batch.frame(spark), batch.context)
            )
            outcome.returned, outcome.rows = timed("result", lambda: _shown(value))
        except _JobFailed:
            pass
        outcome.memory_peak = _peak()
    return outcome


class _JobFailed(Exception):
    """Ends a trial whose outcome has the job's error."""


def _shown(value: object) -> tuple[str | None, list[dict[str, Any]] | None]:
    if value is None:
        return None, None
    if hasattr(value, "limit") and hasattr(value, "schema"):  # a DataFrame of either kind
        table = value.limit(_ROWS).toArrow()
        return f"DataFrame[{value.schema.simpleString()}]", table.to_pylist()
    return repr(value)[:_RETURNED], None


def _peak() -> int:
    """Returns the peak memory of this process in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


_READ_SECONDS: Final = 20.0
_MOST: Final = 1_000_000
"""Offsets that one trial may read; all are held in memory."""
_RANGE: Final = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+):(?P<start>\d+)-(?P<end>\d+)")


def of_file(path: Path) -> list[dict[str, Any]]:
    """Reads JSON lines with key, value, headers, …, as `fleet.testing.make_batch` takes them."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --from {path} as text: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ConfigError(f'{path}:{number} is no object: a record is {{"key": …, "value": …}}')
        found.append(record)
    return found


def parsed(text: str) -> OffsetRange:
    """Reads `TOPIC:PARTITION:FIRST-LAST`, both ends included. Raises ConfigError."""
    match = _RANGE.fullmatch(text)
    if match is None or int(match["end"]) < int(match["start"]):
        raise ConfigError(
            f"--offsets {text} is no TOPIC:PARTITION:FIRST-LAST, such as orders:0:100-199"
        )
    start, last = int(match["start"]), int(match["end"])
    return OffsetRange(match["topic"], int(match["partition"]), start, last + 1)


def last_records(
    login: Mapping[str, str], topics: Sequence[str], count: int, *, isolation: str
) -> list[OffsetRange]:
    """Returns ranges of the last `count` offsets of the topics, equal shares of each partition.

    Raises FleetError if there are none, Unreachable.
    """
    waiting: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        try:
            found = log_bounds(login, topic, timeout=5.0)
        except RangeUnread as error:
            raise Unreachable(str(error)) from error
        for partition, log in found.items():
            end = log.readable(isolation)
            if end > log.first:
                tp = TopicPartition(topic, partition)
                waiting[tp], ends[tp] = end - log.first, end
    if not waiting:
        raise FleetError(
            f"no record in {', '.join(topics) or 'no topic'}: write records into a file, and "
            "name it with --from FILE"
        )
    shares = fair(waiting, count)
    return [
        OffsetRange(tp.topic, tp.partition, ends[tp] - share, ends[tp])
        for tp, share in sorted(shares.items())
        if share > 0
    ]


def read(login: Mapping[str, str], ranges: Sequence[OffsetRange], *, isolation: str) -> pa.Table:
    """Reads their records. Raises FleetError if they were deleted, Unreachable."""
    size = sum(each.end - each.start for each in ranges)
    if size > _MOST:
        raise FleetError(f"{size:,} offsets are too many for one trial: take at most {_MOST:,}")
    fetching, make = reading(login, isolation=isolation), partial(batch_of_pieces, tell=to_stderr())
    try:
        batches = list(read_ranges(fetching, ranges, read_timeout=_READ_SECONDS, make=make))
    except (RangeTruncated, RangeUnread) as error:
        raise FleetError(str(error)) from error
    return pa.Table.from_batches(batches, schema=SCHEMA).sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )


_SHOWN_LOG: Final = 200
_WORKER: Final = "fleet-test"


@click.command(
    name="test",
    epilog="Examples:  fleet test orders  |  fleet test orders --from records.jsonl  |  "
    "fleet test orders --offsets orders:0:100-199",
)
@group_argument
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Take the last N records of the group's topics (default: 100).",
)
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Take records from a file of JSON lines with key, value and headers.",
)
@click.option(
    "--offsets",
    "ranges",
    multiple=True,
    metavar="TOPIC:PARTITION:FIRST-LAST",
    shell_complete=topic_ranges,
    help="Take these offsets, both ends included; repeatable.",
)
@output_option
@common
def trial(
    invocation: Invocation,
    group: str,
    *,
    sample: int | None,
    file: Path | None,
    ranges: tuple[str, ...],
    output: str,
) -> None:
    """Call a job once on real records, and commit nothing.

    Calls the entrypoint as a worker does: setup, the warming call, process. It joins no group. The
    job writes to its sinks, unless it checks `context.trial`. If it fails, the exit code is 1 and
    its traceback is printed.
    """
    if sum(map(bool, (sample, file, ranges))) > 1:
        raise click.UsageError("give only one of --sample, --from and --offsets")
    if file is None:
        with invocation.open() as fleet:
            spec, bootstrap, config = fleet.spec, fleet.bootstrap, fleet.config
            declared = _declared(spec, group, config)

            wanted = [parsed(each) for each in ranges]
            batch = _of_topics(fleet, declared, wanted, sample or 100)
    else:
        config, spec = invocation.existing_path(), invocation.spec()
        declared, bootstrap = _declared(spec, group, config), spec.cluster.bootstrap_servers
        records = of_file(file)
        if not records:
            raise FleetError(f"{file} holds no record: write one JSON object per line")
        batch = make_batch(records, topic=declared.topics[0], **_who(spec, group))
    settings = WorkerSettings(
        cluster=spec.cluster, bootstrap_servers=bootstrap, group=declared, revision="test"
    )
    _try(settings, batch, output=output)


def _declared(spec: "FleetSpec", group: str, config: Path) -> "GroupSpec":
    found = with_worker(spec, group, config)

    examine_entrypoint(found)
    return found


def _who(spec: "FleetSpec", group: str) -> dict[str, Any]:
    return {
        "cluster": spec.cluster.name,
        "group": group,
        "slot": None,
        "worker": _WORKER,
        "revision": "test",
        "trial": True,
    }


def _of_topics(
    fleet: Any, group: "GroupSpec", ranges: "list[OffsetRange]", sample: int
) -> "SampleBatch":
    """Reads records of the cluster, with the context that a worker would have."""
    from fleet.decide.scaling import subscribed_topics

    assert group.worker is not None
    isolation = group.worker.isolation
    if not ranges:
        topics = sorted(subscribed_topics(fleet.snapshot([group.group]).topics, group))
        if not topics:
            raise FleetError(
                f"no topic of {', '.join(group.topics)} exists: create it, or use --from FILE"
            )
        ranges = last_records(fleet.client, topics, sample, isolation=isolation)
    table = read(fleet.client, ranges, isolation=isolation)
    if table.num_rows == 0:
        raise FleetError("no record at these offsets: only transaction markers, or compacted away")
    ids = {name: id_ for id_, name in fleet.topic_ids().items()}
    named = tuple(
        BatchRange(
            topic=each.topic,
            topic_id=ids.get(each.topic, each.topic),
            partition=each.partition,
            start=each.start,
            end=each.end,
        )
        for each in ranges
    )
    empty = make_batch([], **_who(fleet.spec, group.group))
    return SampleBatch(table=table, context=replace(empty.context, ranges=named))


def _try(settings: WorkerSettings, batch: "SampleBatch", *, output: str) -> None:
    from fleet.config.spec import KubernetesRuntimeSpec

    worker = settings.group.worker
    assert worker is not None
    os.environ.update(worker_environment(worker.env, os.environ))
    errors = JobErrors(say=lambda _: None, secrets=known_secrets(settings, os.environ))
    log: list[str] = []
    catch_job_logs(worker.log_level, say=lambda line: log.append(errors.clean(line)))
    in_pods = isinstance(settings.group.runtime, KubernetesRuntimeSpec)
    where = "shared" if in_pods and worker.spark.startswith("sc://") else worker.spark
    with Progress("testing") as progress, contextlib.redirect_stdout(sys.stderr):
        outcome = try_entrypoint(
            lambda: load(worker.entrypoint, worker.python_path, describe=errors.describe),
            batch,
            where=where,
            errors=errors,
            step=progress,
        )
    if output == "json":
        print_json(answer(settings, batch, outcome, log))
    else:
        _show(batch, outcome, log)
    if outcome.error is not None:
        raise FleetError(f"{worker.entrypoint} {outcome.error}")


def answer(
    settings: WorkerSettings, batch: "SampleBatch", outcome: "TrialOutcome", log: list[str]
) -> dict[str, Any]:
    """Returns the JSON of `fleet test -o json`."""
    assert settings.group.worker is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "group": settings.group.group,
        "entrypoint": settings.group.worker.entrypoint,
        "ok": outcome.error is None,
        "records": batch.table.num_rows,
        "ranges": [each.id for each in batch.context.ranges],
        "columns": [{"name": each.name, "type": str(each.type)} for each in batch.table.schema],
        "memory_bytes": {"before": outcome.memory_before, "peak": outcome.memory_peak},
        "log": log,
        "rows": json.loads(json.dumps(outcome.rows, default=str)),
        **as_answer(outcome, "seconds", "returned", "error", "traceback"),
    }


def _show(batch: "SampleBatch", outcome: "TrialOutcome", log: list[str]) -> None:
    console = stdout()
    size = sum(batch.table[name].nbytes for name in ("key", "value"))
    console.print(
        f"{plural(batch.table.num_rows, 'record')} ({size:,} bytes) of "
        f"{', '.join(each.id for each in batch.context.ranges)}",
        markup=False,
    )
    columns = ", ".join(f"{each.name} {each.type}" for each in batch.table.schema)
    console.print(f"columns: {columns}", markup=False)
    for line in log[-_SHOWN_LOG:]:
        console.print(line, markup=False)
    if outcome.rows:
        rows = table(*outcome.rows[0])
        for row in outcome.rows:
            rows.add_row(*(str(value) for value in row.values()))
        console.print(rows, markup=False)
    if outcome.error is None:
        console.print(f"returned: {outcome.returned or 'nothing'}", markup=False)
    if outcome.traceback is not None:
        print_traceback(console, outcome.traceback)
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in outcome.seconds.items())
    console.print(f"took: {parts}")
    if outcome.memory_peak:
        grown = max(0, outcome.memory_peak - outcome.memory_before) / 1e6
        console.print(
            f"memory: peak {outcome.memory_peak / 1e6:.0f} MB, {grown:.0f} MB of it by the job "
            "(this process, without Spark's JVM)"
        )
