"""A member's topics: subscribed to for its join, and again for the heartbeat that it sends [41]."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaException

from fleet.worker.member.member_state import MemberState
from fleet.worker.member.nudging import Nudging


class Subscription:
    """Of one consumer; used on its thread. callbacks: on_assign, on_revoke, on_lost.

    nudging: None where the protocol takes a second subscribe for a new join.
    """

    def __init__(
        self,
        consumer: Any,
        topics: Sequence[str],
        nudging: Nudging | None,
        callbacks: Sequence[Callable[..., None]],
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._nudging = nudging
        self._callbacks = callbacks

    def join(self, now: float) -> None:
        """Subscribe for the first time, at this monotonic time; KafkaException."""
        self._subscribe()
        if self._nudging is not None:
            self._nudging.begin("its join", now)

    def nudge(self, state: MemberState, generation: Callable[[], int | None]) -> None:
        """Subscribe to the same topics once more, where that is due."""
        nudging = self._nudging
        if nudging is None or not nudging.due(
            lambda: (generation(), state.assigned, state.partitions)
        ):
            return
        with contextlib.suppress(KafkaException):  # what is fatal comes by the error callback
            self._subscribe()

    def _subscribe(self) -> None:
        assigned, revoked, lost = self._callbacks
        self._consumer.subscribe(
            list(self._topics), on_assign=assigned, on_revoke=revoked, on_lost=lost
        )
