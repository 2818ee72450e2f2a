"""`python -m benchmarks.start_probe SPARK TOKEN_FILE BOOTSTRAP`: a worker's start, part by part.

Problem: in a worker all parts are one, and which of them costs what is guessed. Choice: one process
does what a worker does until it is warm, in the same order and in the same way, and tells CPU,
seconds and memory of each step as a JSON line; behind them what a worker loads only when it is
first used. Memory is what the step added (PSS, Linux). Cost: no slot is looked for, so the step
before `PySpark` opens no store.
"""

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures import pss_of
from fleet.collector import gc_disabled

LOADED = "load"
"""Once for all workers that a fork server forks."""
AT_START = "start"
FIRST_USE = "first use"
_IMPORTS = (
    ("settings", "fleet.worker.__main__"),
    ("Arrow and numpy", "pyarrow"),
    ("librdkafka", "confluent_kafka"),
    ("Fleet's worker", "fleet.worker.slot.process"),
)
_LATER = (
    ("slots of a cluster", "fleet.kubernetes.kind"),
    ("Arrow's functions", "pyarrow.compute"),
    ("Prometheus' client", "prometheus_client"),
    ("pandas", "pandas"),
    ("kubernetes", "kubernetes.client"),
)


@contextlib.contextmanager
def _part(name: str, when: str = AT_START) -> Iterator[None]:
    memory, wall, cpu = pss_of("self"), time.monotonic(), time.process_time()
    yield
    spent = (time.process_time() - cpu, time.monotonic() - wall, pss_of("self") - memory)
    _tell(name, when, *spent)


def _tell(name: str, when: str, cpu: float, seconds: float | None, memory: float) -> None:
    line = {"part": name, "when": when, "cpu_seconds": cpu, "seconds": seconds, "mb": memory}
    sys.stdout.write(json.dumps(line) + "\n")


def main(spark: str, token_file: str, bootstrap: str) -> None:
    """All parts; whoever starts this has a broker and a Spark Connect server there."""
    _tell("interpreter", LOADED, time.process_time(), None, pss_of("self"))
    for name, module in _IMPORTS:
        with _part(name, LOADED), gc_disabled():
            importlib.import_module(module)
    from fleet.worker.batch.spark_link import load_client  # noqa: PLC0415 - measured

    with _part("PySpark", LOADED):
        load_client()
    for name, step in _steps(spark, Path(token_file).read_text(encoding="ascii"), bootstrap):
        with _part(name):
            step()
    for name, module in _LATER:
        with contextlib.suppress(ImportError), _part(name, FIRST_USE):
            importlib.import_module(module)


def _steps(spark: str, token: str, bootstrap: str) -> Iterator[tuple[str, Callable[[], object]]]:
    from fleet.clock import SystemClock  # noqa: PLC0415 - measured before
    from fleet.worker.batch.batches import InlineBatch  # noqa: PLC0415
    from fleet.worker.batch.spark_link import SparkLink  # noqa: PLC0415
    from fleet.worker.broker_reach import make_broker_reach  # noqa: PLC0415
    from fleet.worker.login_files import LoginFiles  # noqa: PLC0415

    def look() -> None:
        options = {"bootstrap.servers": bootstrap}
        make_broker_reach(
            lambda: options,
            files=LoginFiles({}),
            group="start-probe",
            topics=["bench"],
            bootstrap=bootstrap,
        ).check()

    link = SparkLink(where=lambda: spark, token=lambda: token, clock=SystemClock(), app="probe")
    yield "a broker's answer", look
    yield "Connect session", lambda: link.connect(timeout=60.0, given_up=lambda: False)
    yield "a task", lambda: link.runs_tasks(60.0)
    empty = InlineBatch(ranges=(), tables={}).frame(link.session)
    yield "dummy batch", lambda: empty.selectExpr("count(*) AS records").collect()
    link.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
