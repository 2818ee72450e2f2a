"""What runs a batch, and what a batch is called with: real, with plain values."""

from collections.abc import Callable, Sequence
from typing import Any

from fleet.clock import Clock, SystemClock
from fleet.config.settings import WorkerSettings
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.worker.batch.entrypoint import Entrypoint
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.batch.spark_link import SparkLink
from fleet.worker.events import Events, WorkerContext
from tests.support.declared import group_spec, settings_of
from tests.support.spark_stand_in import Link

SYSTEM = SystemClock()


def events_of(worker: str = "w", clock: Clock = SYSTEM, **environ: str) -> Events:
    """Told to nobody, unless the environment says where."""
    return Events(worker=worker, clock=clock, environ=environ)


def worker_context(
    settings: WorkerSettings | None = None,
    *,
    name: str = "w",
    clock: Clock = SYSTEM,
    events: Events | None = None,
) -> WorkerContext:
    """Of a worker's process, with the usual settings if none are said."""
    events = events or events_of(name, clock)
    settings = settings or settings_of(group_spec("g"))
    return WorkerContext(settings=settings, name=name, clock=clock, events=events)


def connected(link: Link | None = None) -> Link:
    """A stand-in's session, open."""
    made = link or Link()
    made.connect(timeout=1.0, given_up=lambda: False)
    return made


def runner_of(
    link: SparkLink,
    process: Callable[[Any, BatchContext], None] = lambda *_: None,
    *,
    context: WorkerContext | None = None,
    slot: int | None = 0,
    batch_timeout: float = 60.0,
    **more: Any,
) -> BatchRunner:
    """The batch thread of a worker, that calls this."""
    usual: dict[str, Any] = {
        "is_ours": lambda: True,
        "renew": lambda: True,
        "pauses": (0.0, 0.0),
    }
    made = BatchRunner(
        context or worker_context(),
        link=link,
        entrypoint=Entrypoint(name="job:process", function=process, setup=None),
        **{**usual, **more},
    )
    made.slot, made._timeout = slot, batch_timeout
    return made


def context_of(ranges: Sequence[BatchRange] = (), **fields: Any) -> BatchContext:
    """Of worker `w` with slot 0, at its first attempt."""
    usual: dict[str, Any] = {
        "cluster": "main",
        "group": "g",
        "slot": 0,
        "worker": "w",
        "revision": "r1",
        "attempt": 1,
        "warm": False,
    }
    return BatchContext(ranges=tuple(ranges), **{**usual, **fields})
