"""What a step's process reports arrives, in whatever pieces it is written."""

import sys
from collections.abc import Iterator
from typing import Any

from dagster import (
    AssetExecutionContext,
    DagsterInstance,
    PipesSubprocessClient,
    asset,
    materialize,
)

from fleet.dagster.group_assets import pipes_client

CHILD = """
import dagster_pipes, json, os, time
with dagster_pipes.open_dagster_pipes() as pipes:
    path = dagster_pipes.decode_param(os.environ["DAGSTER_PIPES_MESSAGES"])["path"]
    rows, text = {"raw_value": 7, "type": "int"}, {"raw_value": "x" * 9_000, "type": "text"}
    told = {"rows": rows, "text": text}
    params = {"asset_key": "report", "data_version": None, "metadata": told}
    method = "report_asset_materialization"
    line = json.dumps({"__dagster_pipes_version": "0.1", "method": method, "params": params})
    for piece in (line[:8192], line[8192:] + "\\n", "no message\\n"):
        with open(path, "a") as file:
            file.write(piece)
        time.sleep(0.3)
    pipes.log.info("the last word")
"""


def test_a_message_written_in_two_pieces_is_one() -> None:
    """And one that is none takes none of the others with it."""

    @asset
    def report(context: AssetExecutionContext, pipes: PipesSubprocessClient) -> Iterator[Any]:
        yield from pipes.run(context=context, command=[sys.executable, "-c", CHILD]).get_results()

    instance = DagsterInstance.ephemeral()
    done = materialize([report], resources={"pipes": pipes_client()}, instance=instance)
    (made,) = done.asset_materializations_for_node("report")
    assert made.metadata["rows"].value == 7
    said = [entry.message for entry in instance.all_logs(done.run_id)]
    assert "[pipes] framework exception occurred in a message" in said
    assert "the last word" in said
