"""`fleet test`: an entrypoint once, on real records, without joining and without committing."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fleet.commands.completing import topic_ranges
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, output_option
from fleet.commands.targets import group_argument, with_worker
from fleet.errors import FleetError, Refused

if TYPE_CHECKING:
    from fleet.config.settings import WorkerSettings
    from fleet.config.spec import FleetSpec, GroupSpec
    from fleet.kafka_source.pieces import OffsetRange
    from fleet.testing.made_batch import MadeBatch
    from fleet.testing.trial import TrialOutcome

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
    help="Take the last N records of its topics (default: 100).",
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
    metavar="T:P:A-B",
    shell_complete=topic_ranges,
    help="Take offsets A to B of partition P of topic T; repeatable.",
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
    """Call an entrypoint once, on real records, and commit nothing.

    As a worker does: setup, the warming call, process. No group is joined.
    What the entrypoint itself writes is written, unless it looks at `context.trial`.
    Exit code 1 where it fails, with its traceback.
    """
    if sum(map(bool, (sample, file, ranges))) > 1:
        raise click.UsageError("--sample, --from and --offsets are three ways to name the records")
    if file is None:
        with invocation.open() as fleet:
            spec, bootstrap, config = fleet.spec, fleet.bootstrap, fleet.config
            declared = _declared(spec, group, config)
            from fleet.testing.chosen_records import parsed

            wanted = [parsed(each) for each in ranges]
            batch = _of_topics(fleet, declared, wanted, sample or 100)
    else:
        from fleet.config.load import load
        from fleet.testing.chosen_records import of_file
        from fleet.testing.made_batch import make_batch

        config = invocation.existing_path()
        spec = load(config, os.environ)
        declared, bootstrap = _declared(spec, group, config), spec.cluster.bootstrap_servers
        records = of_file(file)
        if not records:
            raise Refused(f"{file} holds no record")
        batch = make_batch(records, topic=declared.topics[0], **_who(spec, group))
    _try(_settings(spec, bootstrap, declared), batch, output=output)


def _declared(spec: "FleetSpec", group: str, config: Path) -> "GroupSpec":
    found = with_worker(spec, group, config)
    from fleet.system.code import examine_entrypoint

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


def _settings(spec: "FleetSpec", bootstrap: str, group: "GroupSpec") -> "WorkerSettings":
    from fleet.config.settings import WorkerSettings

    return WorkerSettings(
        cluster=spec.cluster, bootstrap_servers=bootstrap, group=group, revision="test"
    )


def _of_topics(
    fleet: Any, group: "GroupSpec", ranges: "list[OffsetRange]", sample: int
) -> "MadeBatch":
    """Records of the cluster, with the context that a worker would have of them."""
    from fleet.decide.capacity import subscribed
    from fleet.model.batch_context import BatchRange
    from fleet.testing.chosen_records import last_records, read
    from fleet.testing.made_batch import MadeBatch, make_batch

    assert group.worker is not None
    isolation = group.worker.isolation
    if not ranges:
        topics = sorted(subscribed(fleet.snapshot([group.group]).topics, group))
        if not topics:
            raise Refused(f"no topic of {', '.join(group.topics)} exists; use --from FILE")
        ranges = last_records(fleet.client, topics, sample, isolation=isolation)
    table = read(fleet.client, ranges, isolation=isolation)
    if table.num_rows == 0:
        raise Refused("there is no record at these offsets: transaction markers, or compacted away")
    ids = {name: id_ for id_, name in fleet.topic_ids().items()}
    told = tuple(
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
    from dataclasses import replace

    return MadeBatch(table=table, context=replace(empty.context, ranges=told))


def _try(settings: "WorkerSettings", batch: "MadeBatch", *, output: str) -> None:
    from fleet.commands.progress import Progress
    from fleet.config.references import worker_environment
    from fleet.config.spec import KubernetesRuntimeSpec
    from fleet.testing.trial import try_entrypoint
    from fleet.worker.batch.entrypoint import load
    from fleet.worker.batch.job_errors import JobErrors
    from fleet.worker.job_log import catch_job_logs
    from fleet.worker.slot.known_secrets import known_secrets

    worker = settings.group.worker
    assert worker is not None
    os.environ.update(worker_environment(worker.env, os.environ))
    errors = JobErrors(say=lambda _: None, secrets=known_secrets(settings, os.environ))
    log: list[str] = []
    catch_job_logs(worker.log_level, say=lambda line: log.append(errors.clean(line)))
    in_pods = isinstance(settings.group.runtime, KubernetesRuntimeSpec)
    where = "shared" if in_pods and worker.spark.startswith("sc://") else worker.spark
    with Progress("trying") as progress, contextlib.redirect_stdout(sys.stderr):
        outcome = try_entrypoint(
            lambda: load(worker.entrypoint, worker.python_path, told=errors.told),
            batch,
            where=where,
            errors=errors,
            step=progress,
        )
    if output == "json":
        from fleet.commands.answers import print_json

        print_json(answer(settings, batch, outcome, log))
    else:
        _show(batch, outcome, log)
    if outcome.error is not None:
        raise FleetError(f"{worker.entrypoint} {outcome.error}")


def answer(
    settings: "WorkerSettings", batch: "MadeBatch", outcome: "TrialOutcome", log: list[str]
) -> dict[str, Any]:
    """The contract of `fleet test -o json`."""
    assert settings.group.worker is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "group": settings.group.group,
        "entrypoint": settings.group.worker.entrypoint,
        "ok": outcome.error is None,
        "records": batch.table.num_rows,
        "ranges": [each.id for each in batch.context.ranges],
        "columns": [{"name": each.name, "type": str(each.type)} for each in batch.table.schema],
        "seconds": outcome.seconds,
        "memory_bytes": {"before": outcome.memory_before, "peak": outcome.memory_peak},
        "returned": outcome.returned,
        "rows": json.loads(json.dumps(outcome.rows, default=str)),
        "log": log,
        "error": outcome.error,
        "traceback": outcome.traceback,
    }


def _show(batch: "MadeBatch", outcome: "TrialOutcome", log: list[str]) -> None:
    from fleet.commands.answers import print_traceback, stdout, table

    console = stdout()
    size = sum(batch.table[name].nbytes for name in ("key", "value"))
    console.print(
        f"{batch.table.num_rows:,} records ({size:,} bytes) of "
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
            f"memory: {outcome.memory_peak / 1e6:.0f} MB at most, {grown:.0f} MB more while it ran "
            "(this process, without Spark's JVM)"
        )
