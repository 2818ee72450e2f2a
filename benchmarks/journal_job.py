"""The benchmarks' entrypoint: the journal, then as little work as a real job could have.

A benchmark measures membership, so the work must not hide it: the rows' numbers, which Spark
works out without a job where the batch was read inline, and with `BENCH_SPARK=1` one small query.
A benchmark runs a copy of this file and edits its version.
"""

import os
from typing import TYPE_CHECKING, Any

from fleet.demo.coverage import write_journal

if TYPE_CHECKING:
    from fleet.model.batch_context import BatchContext

VERSION = 1
SEQ = "try_cast(get_json_object(cast(value AS STRING), '$.seq') AS LONG) AS seq"
"""An order's number."""
SPARK = os.environ.get("BENCH_SPARK") == "1"


def process(df: Any, context: "BatchContext") -> None:
    """Write down which rows there are, and count them."""
    write_journal(context, df.selectExpr("topic", "partition", SEQ).toArrow())
    if SPARK:
        df.selectExpr("count(*) AS records").collect()
