"""What a member waits for before it gives partitions up: their batch in hand, and its commit [6].

It is within a callback of librdkafka's meanwhile, where nothing else is polled, so it serves the
queue of what other threads ask. Cost: a rebalance takes as long as the slowest of these batches.
"""

from collections.abc import Callable
from typing import Final

from fleet.clock import Clock
from fleet.model import TopicPartition
from fleet.worker.member.pipeline import Pipeline

_WAIT: Final = 0.05
_UNCLEAN_SECONDS: Final = 5.0
"""Seconds for a batch that was cancelled."""


def finish(
    tps: frozenset[TopicPartition],
    pipeline: Pipeline,
    *,
    timeout: float,
    serve: Callable[[float], None],
    clock: Clock,
) -> None:
    """Serve the queue until nothing of these is uncommitted, or its time is over [42].

    timeout: seconds from now after which the batch is cancelled. serve: takes the seconds that it
    may wait.
    """
    deadline = clock.monotonic() + timeout
    while pipeline.touches(tps) or pipeline.unsettled & tps:
        serve(_WAIT)
        pipeline.commit_chosen()
        pipeline.settle()
        if clock.monotonic() < deadline:
            continue
        if not pipeline.touches(tps):
            return
        pipeline.cut_short("the revocation")
        if clock.monotonic() >= deadline + _UNCLEAN_SECONDS:
            return  # without its token it cannot commit; its watchdog sees to the rest
