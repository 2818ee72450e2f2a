"""`fleet history sql`: a question to the tables, answered as a table, JSON or CSV."""

import csv
import json
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common
from fleet.extras import need

if TYPE_CHECKING:
    from fleet.history.query import QueryAnswer


@click.command(
    epilog='Example:  fleet history sql "SELECT cause, count(*) FROM rebalances GROUP BY cause"'
)
@click.argument("query")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format; JSON is described in docs/json.md.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Print the first N rows.",
)
@common
def sql(invocation: Invocation, query: str, *, output: str, limit: int) -> None:
    """Ask the tables: one SELECT, by DuckDB.

    Tables are commits, events, rebalances, memberships and lag, each with its `day` (UTC), all as
    of one moment; docs/history.md has the columns. Nothing but these tables can be read, and
    nothing changed.
    """
    need("pyarrow", "deltalake", "duckdb", extra="history")
    from fleet.history.query import answered
    from fleet.history.tables import Tables

    with invocation.open() as fleet:
        answer = answered(Tables(fleet.history_path), query, limit=limit)
    {"table": _print_table, "json": _print_json, "csv": _print_csv}[output](answer)
    if answer.more and output != "json":
        click.echo(f"the first {limit:,} rows; more with --limit", err=True)


def _print_table(answer: "QueryAnswer") -> None:
    from fleet.commands.answers import stdout, table

    numeric = [
        name
        for name, values in zip(answer.columns, zip(*answer.rows, strict=True), strict=False)
        if any(isinstance(value, int | float | Decimal) for value in values)
    ]
    shown = table(*answer.columns, right=numeric)
    for row in answer.rows:
        shown.add_row(*(_text(value) for value in row))
    stdout().print(shown, markup=False)


def _print_json(answer: "QueryAnswer") -> None:
    from fleet.commands.answers import print_json

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
    out.writerows([["" if v is None else _text(v) for v in row] for row in answer.rows])


def _text(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return "-" if plain is None else json.dumps(plain)


def _plain(value: Any) -> Any:
    """As JSON has it: times and days as ISO 8601, bytes as hex digits, what is no number null."""
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
