"""Updates the history for a Dagster run, and reports each table through Pipes.

It runs the same command as a user (`fleet history sync`). If another process writes the tables, it
only reports their content.
"""

import contextlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dagster_pipes import open_dagster_pipes

from fleet import cli
from fleet.history.tables import TABLES, Tables
from fleet.model.rebalances import Rebalance
from fleet.report.wording import cause_text, clock_text, duration_text, members_text

_HOURS = 48
_LISTED = 20
_COLUMNS = (
    *(("when (UTC)", "string"), ("group", "string"), ("no", "int"), ("cause", "string")),
    *(("who", "string"), ("moved", "int"), ("took", "string")),
)


def main() -> int:
    """Runs the update and reports each table; returns the command's exit code."""
    with open_dagster_pipes() as pipes:
        tables = list(pipes.asset_keys)
        began = time.time()
        code, done = run_history_command("sync")
        if done is None:
            _, done = run_history_command("status")
            if done is None or (done["at"] or 0.0) < began:
                return code
            pipes.log.info("another process writes the history: this run only reports its tables")
        for key in tables:
            table = key.rpartition("/")[2]
            pipes.report_asset_materialization(asset_key=key, metadata=metadata(done, table))
    return 0


def run_history_command(*arguments: str) -> tuple[int, dict[str, Any] | None]:
    """Runs `fleet history …`; returns its exit code and JSON, None if it failed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.run(["history", *arguments, "-o", "json"])
    return code, json.loads(out.getvalue()) if code == 0 else None


def metadata(done: dict[str, Any], table: str) -> dict[str, Any]:
    """Builds the metadata of one table, the most useful figures first."""
    held = done["tables"][table]
    shown: dict[str, Any] = {
        "dagster/row_count": held["rows"],
        "dagster/column_schema": {"raw_value": _column_schema(table), "type": "table_schema"},
    }
    if table == "rebalances":
        shown |= _last_rebalances(done["path"], end=time.time())
    if "added" in done:
        shown |= {"rows added": done["added"][table], "took (s)": round(done["seconds"], 1)}
    return {
        **shown,
        "from": held["first_day"] or "none",
        "to": held["last_day"] or "none",
        "files": held["files"],
        "size (MB)": round(held["bytes"] / 1e6, 3),
        "path": done["path"],
    }


def _column_schema(table: str) -> dict[str, Any]:
    """Builds Dagster's schema of a table's columns."""
    return {"columns": [{"name": each.name, "type": str(each.type)} for each in TABLES[table]]}


def _last_rebalances(path: str, *, end: float) -> dict[str, Any]:
    found = Tables(path).rebalances(since=end - _HOURS * 3600, until=end)
    causes = Counter(each.cause.value for each in found).most_common()
    return {
        "in the last hour": sum(each.ended_at >= end - 3600 for each in found),
        f"in {_HOURS} h": len(found),
        f"causes ({_HOURS} h)": ", ".join(f"{n} {cause}" for cause, n in causes) or "none",
        "latest": {"raw_value": _latest(found), "type": "table"},
    }


def _latest(found: Sequence[Rebalance]) -> dict[str, Any]:
    """Builds a Dagster table of the last rebalances, the latest first."""
    records = [
        {
            "when (UTC)": clock_text(each.ended_at),
            "group": each.group,
            "no": each.number,
            "cause": cause_text(each),
            "who": members_text(each),
            "moved": len(each.moved),
            "took": duration_text(each),
        }
        for each in reversed(found[-_LISTED:])
    ]
    return {"records": records, "schema": [{"name": n, "type": t} for n, t in _COLUMNS]}


if __name__ == "__main__":
    sys.exit(main())
