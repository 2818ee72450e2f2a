"""Runs one SELECT over the tables with DuckDB in this process.

Problem: a query of the tables should need no server, notebook or code. Choice: DuckDB is one
package and reads Arrow datasets by name, with only the columns and days that a query needs. All
tables belong to one state, so that joins are consistent, while Delta logs may be a batch apart. A
query cannot change anything: it is one SELECT in an in-memory database, without access to files or
the network. Cost: an optional package of 22 MB.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError
from fleet.extras import pip_line
from fleet.history.tables import Tables

_READS: Final = ("SELECT", "EXPLAIN")


class QueryAnswer(NamedTuple):
    """Names of the columns, rows as Python values, and whether there are more."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    more: bool


def run_query(tables: Tables, sql: str, *, limit: int) -> QueryAnswer:
    """Returns the first `limit` rows. Raises FleetError if it is no SELECT or DuckDB refuses."""
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError as error:
        raise FleetError(f"`fleet history query` needs DuckDB: {pip_line('history')}") from error
    state = tables.state()
    if state is None:
        raise FleetError(f"{tables.place} holds no history yet: run `fleet history sync`")
    with duckdb.connect(":memory:", config={"python_enable_replacements": False}) as database:
        for name, rows in tables.datasets(state).items():
            database.register(name, rows)
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type.name not in _READS:
                raise FleetError("`fleet history query` takes one SELECT, because it only reads")
            found = database.execute(statements[0])
            rows = found.fetchmany(limit + 1)
        except duckdb.Error as error:
            raise FleetError(_message(error)) from error
        columns = [each[0] for each in found.description]
        return QueryAnswer(columns, rows[:limit], len(rows) > limit)


def _message(error: Exception) -> str:
    """Returns DuckDB's message without its excerpt of the query."""
    return f"DuckDB: {str(error).partition('LINE ')[0].strip()}"
