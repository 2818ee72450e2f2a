"""`fleet history`: records the offsets topic as tables, and queries, lists and compacts them."""

import csv
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
from rich.markup import escape

from fleet.commands.answers import as_answer, print_json, stdout, table
from fleet.commands.groups.rebalances import Moment, wall
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    agree,
    changing_options,
    common,
    group_argument,
    output_as,
    output_option,
)
from fleet.commands.operate.processes import RenewedLogin
from fleet.commands.screen import Progress
from fleet.demo.interrupts import interruptible
from fleet.extras import need
from fleet.report.wording import clock_text
from fleet.text import duration, plural

if TYPE_CHECKING:
    from collections import Counter
    from datetime import datetime

    from fleet.history.pipeline import BatchSummary
    from fleet.history.query import QueryAnswer
    from fleet.manager.cycle import Fleet

_GAPS: Final = 5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group()
def history() -> None:
    """Record and query the past of every group.

    The tables hold rebalances with their causes, members, commits and lag of all groups of the
    cluster. They are Delta tables in `history.path` (default: $FLEET_HOME/history).
    """


spark_option = click.option(
    "--spark",
    metavar="ADDRESS",
    help="Spark to use: shared (the server of $FLEET_HOME), sc://HOST:PORT or local[N] (default: "
    "history.spark of fleet.yaml).",
)
polled_option = click.option(
    "--polled", is_flag=True, help="Poll the groups, even if the offsets topic can be read."
)


@history.command(epilog="Examples:  fleet history sync -o json  |  fleet history sync --follow")
@click.option(
    "--follow", "-f", is_flag=True, help="Keep recording until Ctrl-C or SIGTERM; prints no answer."
)
@spark_option
@polled_option
@output_option
@common
def sync(
    invocation: Invocation, *, follow: bool, spark: str | None, polled: bool, output: str
) -> None:
    """Record what is new in the cluster.

    Continues where the last sync stopped, whatever stopped it: the tables have no duplicates and
    no losses. If the offsets topic cannot be read, Fleet polls the groups instead.

    With --follow, Fleet records a batch every `history.batch_interval`. It waits while a broker or
    Spark does not answer, and reads renewed passwords and certificates when a batch fails.
    SIGTERM finishes the current batch first; a second SIGTERM stops at once.
    """
    if follow:
        if output == "json":
            raise click.UsageError("--follow prints no answer: leave out -o json")
        _follow(invocation, spark, polled=polled)
        return
    need("pyarrow", "deltalake", extra="history")
    from fleet.manager.history_session import open_recorder

    with (
        invocation.open() as fleet,
        Progress("history") as say,
        interruptible(lambda: say("stopping; this takes a moment")) as ending,
        open_recorder(fleet, spark=spark, polled=polled, say=say) as recorder,
    ):
        try:
            done = recorder.catch_up()
        finally:
            ending.start()
        answer = _answer(fleet, done)
    if output == "json":
        print_json(answer)
        return
    _print(answer)


def _follow(invocation: Invocation, spark: str | None, *, polled: bool) -> None:
    """Records batches until SIGINT or SIGTERM."""
    from fleet.manager.history_session import open_recorder

    with _stop_requests() as stopped, Progress("history") as say:
        while not stopped():
            with invocation.open() as fleet:
                renewed = RenewedLogin(invocation, fleet)
                record = partial(open_recorder, fleet, spark=spark, polled=polled, say=say)
                _keep_on(record, renewed, fleet.spec.history.batch_interval, stopped, say)
        say("stopped; the tables hold everything up to the last batch")


def _keep_on(
    record: Callable[[], Any],
    renewed: RenewedLogin,
    interval: float,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Records through transient errors, until a stop is requested or the login was renewed."""
    while not stopped():
        try:
            with record() as recorder:
                while not stopped():
                    began = time.monotonic()
                    done = recorder.catch_up(stopped=stopped)
                    if done.polled and done.rows.get("rebalances"):
                        say(f"polling found {done.rows['rebalances']} rebalances")
                    _sleep(interval - (time.monotonic() - began), stopped)
        except Exception as error:  # noqa: BLE001 - PySpark raises what gRPC gave it
            _wait_out(error, say)
            if renewed.ready(say):
                return
            _sleep(interval, stopped)


def _wait_out(error: Exception, say: Callable[[str], None]) -> None:
    """Reports a transient error, and raises any other."""
    from fleet.errors import FleetError, LostLease, Unreachable
    from fleet.kafka_source.failures import failure_in
    from fleet.worker.batch.spark_link import first_line, is_spark_failure

    known = failure_in(error)
    if known is not None:
        say(f"{known[1]}; retrying")
    elif isinstance(error, LostLease | Unreachable) or (
        not isinstance(error, FleetError) and is_spark_failure(error)
    ):
        say(f"{first_line(error)}; retrying")
    else:
        raise error


def _sleep(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not stopped() and (left := end - time.monotonic()) > 0:
        time.sleep(min(0.2, left))


@history.command(epilog="Example:  fleet history status -o json")
@output_option
@common
def status(invocation: Invocation, *, output: str) -> None:
    """Show what the tables hold, and up to when."""
    with invocation.open() as fleet:
        answer = _state(fleet)
    if output == "json":
        print_json(answer)
        return
    console = stdout()
    if not answer["number"]:
        sentence = f"nothing is recorded in {answer['path']} yet: run `fleet history sync`"
        console.print(sentence, markup=False)
        return
    shown = table("TABLE", "ROWS", "FILES", "MB", "FROM", "TO", right=("ROWS", "FILES", "MB"))
    for name, each in answer["tables"].items():
        shown.add_row(
            name,
            f"{each['rows']:,}",
            str(each["files"]),
            f"{each['bytes'] / 1e6:.1f}",
            each["first_day"] or "-",
            each["last_day"] or "-",
        )
    console.print(shown)
    age = max(0.0, time.time() - answer["at"])
    console.print(
        f"{answer['path']}: as of {duration(age)} ago ({answer['what']}), state {answer['number']}",
        markup=False,
        soft_wrap=True,
    )
    for sentence in _gap_sentences(answer["lost"]):
        console.print(sentence, markup=False, soft_wrap=True)


@history.command(epilog="Example:  fleet history compact --dry-run")
@changing_options
@common
def compact(invocation: Invocation, *, dry_run: bool, yes: bool) -> None:
    """Merge small files now, and delete unused ones.

    `fleet history sync` does this by itself when there are many files.
    """
    need("pyarrow", "deltalake", extra="history")
    from fleet.history.retention import clear_old_days, tidy
    from fleet.history.tables import TABLES
    from fleet.manager.history_session import open_writer

    with invocation.open() as fleet:
        writer = open_writer(fleet)
        before = sum(len(writer.files(table)) for table in TABLES)
        action = f"merge the small ones of {plural(before, 'file')} in {fleet.history_path}"
        if not agree([f"{action}, and delete unused files"], yes=yes, dry_run=dry_run):
            return
        merged = tidy(writer, thoroughly=True)
        deleted = clear_old_days(writer)
        after = sum(len(writer.files(table)) for table in TABLES)
    click.echo(f"merged {plural(merged, 'file')}: {before} → {after}; deleted {deleted} unused")


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yields a test for a stop signal; a second signal raises KeyboardInterrupt."""
    requested = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield requested.is_set
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def _answer(fleet: "Fleet", done: "BatchSummary") -> dict[str, Any]:
    """Returns the JSON of `fleet history sync -o json`."""
    state = _state(fleet)
    return {
        **{key: state[key] for key in ("schema_version", "cluster", "path", "positions", "tables")},
        **as_answer(done, "batches", "offsets", "commits", compacted_files=done.compacted),
        "source": "polling" if done.polled else "offsets topic",
        "added": {name: done.rows.get(name, 0) for name in state["tables"]},
        "groups": len(done.groups),
        "causes": _counts("cause", done.causes),
        "problems": _counts("problem", done.problems),
        "lost": _gaps(done.lost),
        "seconds": round(done.seconds, 3),
        "manifest": state["number"],
    }


def _state(fleet: "Fleet") -> dict[str, Any]:
    """Returns the JSON of `fleet history status -o json`."""
    need("pyarrow", "deltalake", extra="history")
    from fleet.history.tables import TABLES, Tables

    found = Tables(fleet.history_path)
    state = found.state()
    tables = {}
    for name in TABLES:
        files = found.files(state, name)
        days = sorted(f.day for f in files)
        tables[name] = {
            "rows": sum(f.rows for f in files),
            "files": len(files),
            "bytes": sum(f.bytes for f in files),
            "first_day": days[0] if days else None,
            "last_day": days[-1] if days else None,
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": fleet.spec.cluster.name,
        "path": str(found.place),
        **as_answer(state, "at", "what", "began"),
        "number": 0 if state is None else state.number,
        "positions": [
            {"partition": partition, "offset": offset}
            for partition, offset in sorted(state.positions.items() if state else ())
        ],
        "lost": _gaps(() if state is None else state.lost),
        "tables": tables,
    }


def _gaps(lost: Iterable[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [{"partition": p, "from": start, "to": end} for p, start, end in lost]


def _gap_sentences(lost: Sequence[Mapping[str, int]]) -> list[str]:
    """Describes the latest gaps, and counts the earlier ones."""
    from fleet.history.pipeline import gap_sentence

    latest = [gap_sentence((gap["partition"], gap["from"], gap["to"])) for gap in lost[-_GAPS:]]
    more = len(lost) - len(latest)
    return [*latest, *([f"and {more:,} earlier gaps: -o json lists all"] if more else [])]


def _counts(name: str, counted: "Counter[str]") -> list[dict[str, Any]]:
    """Lists the most frequent first."""
    return [{name: each, "count": count} for each, count in counted.most_common()]


def _print(answer: dict[str, Any]) -> None:
    console = stdout()
    shown = table("TABLE", "ADDED", "ROWS", "FILES", right=("ADDED", "ROWS", "FILES"))
    for name, each in answer["tables"].items():
        shown.add_row(name, f"{answer['added'][name]:,}", f"{each['rows']:,}", str(each["files"]))
    console.print(shown)
    causes = ", ".join(f"{each['count']} {each['cause']}" for each in answer["causes"])
    read = f"{answer['offsets']:,} offsets of {len(answer['positions'])} partitions"
    sentences = [
        f"{read} in {duration(answer['seconds'])}: {answer['commits']:,} commits",
        f"rebalances: {causes or 'none'}",
        *(f"not decoded: {each['problem']} ({each['count']})" for each in answer["problems"]),
        *_gap_sentences(answer["lost"]),
    ]
    if answer["source"] == "polling":
        sentences[0] = (
            f"polled in {duration(answer['seconds'])}: generations and commits are unknown"
        )
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)


@history.command(
    epilog='Example:  fleet history query "SELECT cause, count(*) FROM rebalances GROUP BY cause"'
)
@click.argument("sql", metavar="SQL")
@output_as("table", "json", "csv")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Print the first N rows.",
)
@common
def query(invocation: Invocation, sql: str, *, output: str, limit: int) -> None:
    """Query the tables with one SELECT.

    The tables are commits, events, rebalances, memberships and lag, each with its `day` (UTC), all
    as of one moment. DuckDB runs the SELECT. It can read no other table or file, and change
    nothing.
    """
    need("pyarrow", "deltalake", "duckdb", extra="history")
    from fleet.history.query import run_query
    from fleet.history.tables import Tables

    with invocation.open() as fleet:
        answer = run_query(Tables(fleet.history_path), sql, limit=limit)
    {"table": _print_rows, "json": _print_json, "csv": _print_csv}[output](answer)
    if answer.more and output != "json":
        click.echo(f"printed the first {limit:,} rows: --limit N prints more", err=True)


@history.command(epilog="Example:  fleet history decisions orders --since 1d")
@group_argument
@click.option("--since", type=Moment(), metavar="TIME",
              help="Start of the period: 2h (ago) or 2026-11-21T14:30 (UTC).")  # fmt: skip
@output_option
@common
def decisions(
    invocation: Invocation, *, group: str, since: "datetime | float | None", output: str
) -> None:
    """Show what the scaling policy of a group decided, and why.

    Lists decisions that were news: another number, or another reason to leave it. Fleet keeps
    the last 120 beside the slots, so this command needs no tables. `fleet plan GROUP --explain`
    shows the decision of now.
    """
    with invocation.open() as fleet:
        fleet.group(group)
        begin, known = wall(since, fleet.clock.now()), fleet.decisions(group)
        kept = [each for each in known if begin is None or each.at >= begin]
        if output == "json":
            cluster, found = fleet.spec.cluster.name, [as_answer(each) for each in kept]
            head = {"schema_version": SCHEMA_VERSION, "cluster": cluster, "group": group}
            print_json({**head, "decisions": found})
            return
    if not kept:
        why = (
            f"the last one is of {clock_text(known[-1].at)} UTC: choose an earlier --since"
            if known
            else f"declare `scaling:` in fleet.yaml, and plan the group (`fleet plan {group}`)"
        )
        click.echo(f"group {group} has no decision to show: {why}")
        return
    numbers = ("WANTED", "SLOTS", "MEMBERS", "LAG", "OLDEST", "HOURS")
    shown = table("AT (UTC)", *numbers, "WHY", right=numbers)
    for each in kept:
        shown.add_row(
            clock_text(each.at),
            *(str(each.wanted), str(each.current), str(each.members)),
            "-" if each.lag is None else f"{each.lag:,}",
            duration(each.lag_seconds),
            f"{each.member_hours:,.1f}",
            escape(each.sentence),
        )
    stdout().print(shown)


def _print_rows(answer: "QueryAnswer") -> None:
    numeric = [
        name
        for name, values in zip(answer.columns, zip(*answer.rows, strict=True), strict=False)
        if any(isinstance(value, int | float | Decimal) for value in values)
    ]
    shown = table(*answer.columns, right=numeric)
    for row in answer.rows:
        shown.add_row(*(_cell(value) for value in row))
    stdout().print(shown, markup=False)


def _print_json(answer: "QueryAnswer") -> None:
    print_json(
        {
            "schema_version": SCHEMA_VERSION,
            "columns": list(answer.columns),
            "rows": [[_plain(value) for value in row] for row in answer.rows],
            "more": answer.more,
        }
    )


def _print_csv(answer: "QueryAnswer") -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(answer.columns)
    out.writerows([["" if v is None else _cell(v) for v in row] for row in answer.rows])


def _cell(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return "-" if plain is None else json.dumps(plain)


def _plain(value: Any) -> Any:
    """Converts to JSON: times and days as ISO 8601, bytes as hex digits, NaN as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
