"""One job for two engines: Fleet's worker calls `process`, Structured Streaming runs `main`.

Problem: two ways of reading compare only under the very same job. Choice: this file imports
nothing of Fleet, is the worker's entrypoint, and is run as a script by the other environment's
Python (Spark 4.2.0 with its Kafka connector). Each batch is one line of JSON: records, the
oldest record's time, when it was begun and done. Cost: one aggregate that both have to compute.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

JOURNAL = "FLEET_BENCH_JOURNAL"
FIELDS = "seq LONG, customer STRING, item STRING, quantity INT, cents LONG, at DOUBLE"


def measured(df: Any) -> dict[str, Any]:
    """Parse, group, collect: the job; what it found, and when."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - PySpark's own custom

    began = time.time()
    parsed = df.select("timestamp", F.from_json(F.col("value").cast("string"), FIELDS).alias("o"))
    rows = (
        parsed.groupBy("o.item")
        .agg(
            F.count("*").alias("n"),
            F.sum(F.expr("o.quantity * o.cents")).alias("cents"),
            F.min(F.expr("unix_micros(timestamp)")).alias("oldest"),
        )
        .collect()
    )
    return {
        "records": sum(row.n for row in rows),
        "oldest": min((row.oldest for row in rows), default=0) / 1e6,
        "began": began,
        "done": time.time(),
    }


def process(df: Any, context: Any) -> None:
    """Runs the worker's side of the benchmark."""
    line = measured(df)
    if not context.warm:
        with open(os.environ[JOURNAL], "a", encoding="utf-8") as journal:  # noqa: PTH123
            journal.write(json.dumps(line) + "\n")


def main() -> None:
    """Run queries one after the other, as the JSON of argument 1 says; tell of each on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    plan = json.loads(parser.parse_args().plan)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.master(plan["master"]).appName("structured-streaming")
    for key, value in plan["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for query in plan["queries"]:
        _tell({"begin": query["name"], "pid": os.getpid()})
        lines = _run(spark, plan, query)
        _tell({"end": query["name"], "batches": lines})
    spark.stop()


def _run(spark: Any, plan: dict[str, Any], query: dict[str, Any]) -> list[dict[str, Any]]:
    """One query until it has read `records`, or for `seconds`."""
    lines: list[dict[str, Any]] = []
    for key, value in query["conf"].items():
        spark.conf.set(key, value)
    reader = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": plan["bootstrap"], "subscribe": plan["topic"]},
        **query["options"],
    )
    running = (
        reader.load()
        .writeStream.foreachBatch(lambda df, _: lines.append(measured(df)))
        .option("checkpointLocation", query["checkpoint"])
        .start()
    )
    deadline = time.monotonic() + query["seconds"]
    while time.monotonic() < deadline and running.isActive:
        if query["records"] and sum(line["records"] for line in lines) >= query["records"]:
            break
        time.sleep(0.05)
    error = running.exception()
    running.stop()
    for key in query["conf"]:
        spark.conf.unset(key)
    if error is not None:
        raise error
    return [line for line in lines if line["records"]]


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
