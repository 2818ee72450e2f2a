"""The example entrypoint: what a user of Fleet writes.

`process` is called once per batch with a DataFrame of the records read and a context that says
which they are. It lets Spark work its rows out and first of all writes down which they are (the
demo's proof that nothing is lost or done twice), then delivers them. `fleet demo` runs a copy of
this file, and rolls the fleet to a changed copy.
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
    """Work out what each order comes to with its tax, and deliver the batch."""
    order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("o")
    orders = df.select("topic", "partition", order).select("topic", "partition", "o.*")
    enriched = orders.withColumn("total", F.expr(f"quantity * cents * {100 + TAX_PERCENT} div 100"))
    priced = enriched.toArrow()
    write_journal(context, priced)
    deliver(priced)


def deliver(orders: "Table") -> None:
    """Stands for a service that takes orders in bulk: why more workers are faster, even here."""
    if orders.num_rows:
        time.sleep(DELIVERY_SECONDS)
