"""`fleet history query`: what it answers, in every form, and what it refuses.

What docs/how-to/history.md shows is run here.
"""

import csv
import io
import json
import sys

import pytest

from fleet import cli
from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.history.query import run_query
from fleet.history.tables import DAY, TABLES, Tables
from tests.history.test_published import add
from tests.history.test_tables import DAY as SECONDS
from tests.history.test_tables import NOW, opened
from tests.support.json_contract import documented, shape

OF_TRINO_AND_SPARK = """
all alter and anti any array as asc at authorization between both by case cast check collate
column constraint create cross cube current deallocate delete describe distinct drop else end
escape except execute exists extract false fetch filter for foreign from full grant group
grouping having in inner insert intersect into is join lateral leading left like listagg
localtime natural normalize not null offset on only or order outer overlaps percent prepare
primary recursive references right rollup select skip some table then time to trailing trim
true uescape union unique unknown unnest user using values when where with within
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Tables of three days, two rebalances each, and a fleet.yaml that names them."""
    made = tmp_path / "tables"
    writer = opened(made, ManualClock(at=NOW))
    for number in range(3):
        add(writer, number, NOW - number * SECONDS)
    (tmp_path / "fleet.yaml").write_text(
        f'cluster: {{name: main, bootstrap_servers: "127.0.0.1:1"}}\nhistory: {{path: {made}}}\n'
    )
    monkeypatch.setenv("FLEET_CONFIG", str(tmp_path / "fleet.yaml"))
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    return made


def test_no_column_needs_quotes():
    """Not in DuckDB, by its own list, nor in Spark or Trino."""
    import duckdb

    asked = "SELECT keyword_name, keyword_category FROM duckdb_keywords()"
    words = duckdb.connect().execute(asked).fetchall()
    free = {"unreserved", "column_name"}  # the latter is none for a function's name only
    reserved = {word for word, kind in words if kind not in free} | {*OF_TRINO_AND_SPARK.split()}
    assert {"group", "offset", "case", "left", "at"} <= reserved
    for table, schema in TABLES.items():
        assert not reserved & {DAY.name, *schema.names}, table


def test_it_answers_in_every_form(path, capsys):
    """Times, days, lists, structs and nulls; a limit is told."""
    query = (
        "SELECT r.number, day, also, moved, started_at, to_timestamp(ended_at), sum(1) OVER () "
        "FROM rebalances AS r JOIN memberships USING (day) ORDER BY 1"
    )
    assert cli.run(["history", "query", query, "-o", "json", "--limit", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    (row,) = told["rows"]
    assert row[:4] == [0, "2026-09-21", ["leave"], [{"topic": "t", "partition": n} for n in (0, 1)]]
    assert row[5].startswith("2026-09-21T")
    assert (row[6], told["more"]) == (6, True)
    assert cli.run(["history", "query", query, "-o", "csv"]) == 0
    lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert [line[0] for line in lines] == ["number", "0", "1", "2", "3", "4", "5"]
    assert lines[1][2] == '["leave"]'
    assert cli.run(["history", "query", "SELECT cause, count(*) FROM rebalances GROUP BY 1"]) == 0
    assert capsys.readouterr().out.split() == ["cause", "count_star()", "join", "6"]
    assert cli.run(["history", "query", query, "--limit", "2"]) == 0
    assert "the first 2 rows" in capsys.readouterr().err


def test_its_json_is_the_contract(path, capsys):
    """docs/reference/json.md."""
    query = "SELECT cause, count(*) AS rebalances FROM rebalances GROUP BY cause"
    assert cli.run(["history", "query", query, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert shape(told) == shape(documented("fleet history query -o json"))


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("DROP VIEW rebalances", "takes one SELECT"),
        ("SELECT 1; SELECT 2", "takes one SELECT"),
        ("COPY rebalances TO 'out.csv'", "takes one SELECT"),
        ("SELECT * FROM read_csv('/etc/hostname')", "disabled by configuration"),
        ("SELECT * FROM rebalance", 'Did you mean "rebalances"?'),
        ("SELEC 1", "syntax error"),
    ],
)
def test_it_only_reads_and_only_tables(path, query, sentence):
    """Told in DuckDB's words, without its picture of the line."""
    with pytest.raises(FleetError, match=sentence.replace("?", r"\?")) as told:
        run_query(Tables(path), query, limit=5)
    assert "LINE" not in str(told.value)


def test_what_is_missing_is_said(path, tmp_path, monkeypatch):
    """No tables, no rows, no DuckDB."""
    with pytest.raises(FleetError, match="holds no history yet"):
        run_query(Tables(tmp_path / "none"), "SELECT 1", limit=5)
    assert run_query(Tables(path), "SELECT 1 FROM lag", limit=5).rows == []
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(FleetError, match="needs DuckDB: pip install"):
        run_query(Tables(path), "SELECT 1", limit=5)
