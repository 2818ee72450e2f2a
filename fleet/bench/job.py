"""The benchmarks' entrypoint: the journal, then as little work as a real job could have.

A benchmark measures membership, so the work must not hide it: with `BENCH_SPARK=1` one small
Spark query per batch, else none. `fleet bench` runs a copy of this file and edits its version.
"""

import os
from typing import TYPE_CHECKING, Any

from fleet.demo.orders import write_journal

if TYPE_CHECKING:
    from fleet.worker.context import BatchContext

VERSION = 1
SPARK = os.environ.get("BENCH_SPARK") == "1"


def process(df: Any, context: "BatchContext") -> None:
    """Count the batch."""
    write_journal(context)
    if SPARK:
        df.selectExpr("count(*) AS records").collect()
