"""The example entrypoint: what a user of Fleet writes.

`process` is called once per batch with a DataFrame of the records read and a context that says
which they are. It first writes down what it was called with (the demo's proof that nothing is
lost or done twice), then does its work. `fleet demo` runs a copy of this file, and rolls the
fleet to a changed copy.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own custom

from fleet.demo.journal import FOLDER_VARIABLE, Entry, append

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame

    from fleet.worker.context import BatchContext

VERSION = 1
TAX_PERCENT = 7

SCHEMA = "seq LONG, customer STRING, item STRING, quantity INT, cents LONG, at DOUBLE"

DELIVERY_SECONDS = float(os.environ.get("ORDERS_DELIVERY_SECONDS", "0"))


def process(df: "DataFrame", context: "BatchContext") -> None:
    """Work out what each order comes to with its tax, and deliver the batch."""
    write_journal(context)
    orders = df.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("o")).select("o.*")
    enriched = orders.withColumn("total", F.expr(f"quantity * cents * {100 + TAX_PERCENT} div 100"))
    deliver(enriched.toArrow())


def deliver(orders: "Table") -> None:
    """Stands for a service that takes orders in bulk: why more workers are faster, even here."""
    if orders.num_rows:
        time.sleep(DELIVERY_SECONDS)


def write_journal(context: "BatchContext") -> None:
    """Say which offsets this call is for, before anything is done with them."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or context.warm:
        return
    now = time.time()
    append(
        Path(folder),
        context.worker,
        [
            Entry(
                group=context.group,
                tp=each.tp,
                first=each.start,
                last=each.end - 1,
                worker=context.worker,
                attempt=context.attempt,
                revision=context.revision,
                at=now,
            )
            for each in context.ranges
        ],
    )
