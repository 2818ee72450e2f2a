"""A DataFrame as the sinks use it, over an Arrow table, without Spark.

Conditions are asked of DuckDB, whose SQL is Spark's as far as they go.
"""

import re
from typing import Any

import pyarrow as pa


class Frame:
    """Some rows, as a session of Spark would hold them."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.columns = rows.column_names

    @property
    def schema(self) -> Any:
        """As PySpark has it."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._rows.schema)

    def where(self, condition: str) -> "Frame":
        """The rows of which it is true."""
        import duckdb

        rows = self._rows  # noqa: F841 - DuckDB finds it by its name
        quoted = re.sub(r"\b(offset|partition)\b", r'"\1"', condition)
        return Frame(duckdb.sql(f"SELECT * FROM rows WHERE {quoted}").arrow().read_all())

    def limit(self, most: int) -> "Frame":
        """The first of them."""
        return Frame(self._rows.slice(0, most))

    def toArrow(self) -> pa.Table:  # noqa: N802 - PySpark's name
        """The rows."""
        return self._rows
