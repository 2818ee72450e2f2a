"""One SELECT over the tables, by DuckDB in this process.

Problem: an answer from the tables should need no server, no notebook and no code. Choice: DuckDB,
which is one package and reads Arrow's datasets by name, with only the columns and the days that a
query needs. All tables are those of one state, so that joins are of one moment, where Delta
logs may be a batch apart. It can change nothing: a single SELECT, a database in memory, and no
access to files or the network but through the tables. Cost: 22 MB of a package that is optional.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError
from fleet.extras import pip_line
from fleet.history.tables import Tables

_READS: Final = ("SELECT", "EXPLAIN")


class QueryAnswer(NamedTuple):
    """Names of the columns, rows as Python values, and whether there were more."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    more: bool


def answered(tables: Tables, sql: str, *, limit: int) -> QueryAnswer:
    """The first `limit` rows of a query. Raises FleetError where it is none, or DuckDB refuses."""
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError as error:
        raise FleetError(f"`fleet history query` needs DuckDB: {pip_line('history')}") from error
    state = tables.state()
    if state is None:
        raise FleetError(f"nothing is recorded in {tables.place} yet: `fleet history sync`")
    with duckdb.connect(":memory:", config={"python_enable_replacements": False}) as database:
        for name, rows in tables.datasets(state).items():
            database.register(name, rows)
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type.name not in _READS:
                raise FleetError("`fleet history query` takes one SELECT: tables are only read")
            found = database.execute(statements[0])
            rows = found.fetchmany(limit + 1)
        except duckdb.Error as error:
            raise FleetError(_told(error)) from error
        columns = [each[0] for each in found.description]
        return QueryAnswer(columns, rows[:limit], len(rows) > limit)


def _told(error: Exception) -> str:
    """DuckDB's sentence without its picture of the line."""
    return f"DuckDB: {str(error).partition('LINE ')[0].strip()}"
