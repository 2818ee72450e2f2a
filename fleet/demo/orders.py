"""The example entrypoint: what a user of Fleet writes.

The worker calls `process` once per batch with a DataFrame of the records and a context that names
their offset ranges. Spark computes the rows. Then the function journals their numbers (the demo's
proof that no record is lost or duplicated), and delivers them. `fleet demo` runs a copy of this
file and rolls the fleet to an edited copy.
"""

import os
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own custom

from fleet.demo.coverage import write_journal

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame

    from fleet.model.batch_context import BatchContext

VERSION = 1
TAX_PERCENT = 7

SCHEMA = "seq LONG, customer STRING, item STRING, quantity INT, cents LONG, at DOUBLE"

DELIVERY_SECONDS = float(os.environ.get("ORDERS_DELIVERY_SECONDS", "0"))


def process(df: "DataFrame", context: "BatchContext") -> None:
    """Computes the total of each order with tax, and delivers the batch."""
    order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("o")
    orders = df.select("topic", "partition", order).select("topic", "partition", "o.*")
    enriched = orders.withColumn("total", F.expr(f"quantity * cents * {100 + TAX_PERCENT} div 100"))
    totals = enriched.toArrow()
    write_journal(context, totals)
    deliver(totals)


def deliver(orders: "Table") -> None:
    """Stands for a service that takes orders in bulk: so more workers are faster, even here."""
    if orders.num_rows:
        time.sleep(DELIVERY_SECONDS)
