"""Stopping what a former holder that did not release left running on Spark [3].

Problem: who reads before that is over may commit what the dead one still writes, and ending it
takes longer than a gate is ahead. Choice: it is the batch thread's first work, so every batch of
ours runs behind it, while the join waits for nothing: whoever joins late costs a rebalance [19].
Until it is over the slot goes on naming the session that is to be ended, and is not clean; then it
names ours, before a batch of ours runs. Cost: a renewal on the batch thread, once per unclean take.
"""

from collections.abc import Callable
from concurrent.futures import Future

from fleet.slots import Slot
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import Events


class SparkCleanup:
    """Begins at once, where there is something to end. renew: writes the slot with our session."""

    def __init__(
        self,
        runner: BatchRunner,
        seen: Slot,
        *,
        ours: str | None,
        renew: Callable[[], bool],
        events: Events,
    ) -> None:
        self._renew = renew
        self._events = events
        former = seen.spark_session
        self.over = seen.clean or former is None or former == ours
        """Whether nothing of a former holder runs any more, as far as we can see to it."""
        if former is not None and not self.over:
            runner.cure(former).add_done_callback(self._ended)

    def _ended(self, cure: "Future[str | None]") -> None:
        error = cure.exception()
        why = cure.result() if error is None else type(error).__name__
        result = "is interrupted and released" if why is None else f"could not be ended ({why})"
        self._events.log(f"the former holder's Spark session {result}")
        self.over = True
        self._renew()  # a store that is silent holds up no batch
