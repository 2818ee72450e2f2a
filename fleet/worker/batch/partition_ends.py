"""Asking leaders where partitions begin and end, without stopping the poll loop.

Problem: range ends come from ListOffsets [7], a broker may take seconds to answer, and the thread
that asks is the one that must keep polling [1]. Choice: the admin client asks on its own
connections (behind no parked fetch) and its futures are looked at once per turn. librdkafka's
ListOffsets goes by cached leaders and never refreshes them, so a failed look is followed by a
metadata request. Cost: three requests per broker and look, at most one look per batch or wait.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in __all__

from fleet.model import TopicPartition
from fleet.worker.batch.ranges import PartitionBounds

_TIMEOUT: Final = 5.0
_METADATA_TIMEOUT: Final = 1.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class PartitionEnds:
    """One look at a time; used on the consumer thread."""

    def __init__(self, *, admin: Any, isolation: str) -> None:
        self._admin = admin
        self._level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._asked: tuple[dict[Any, Any], ...] = ()

    @property
    def pending(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked)

    def ask(self, tps: Iterable[TopicPartition]) -> None:
        """Begin a look; an earlier one is forgotten."""
        wanted = [KafkaPartition(tp.topic, tp.partition) for tp in sorted(tps)]
        self._asked = ()
        if wanted:
            self._asked = (
                self._list(wanted, _EARLIEST, IsolationLevel.READ_UNCOMMITTED),
                self._list(wanted, _LATEST, self._level),
                self._list(wanted, _LATEST, IsolationLevel.READ_UNCOMMITTED),
            )

    def forget(self) -> None:
        """The answer is not wanted any more."""
        self._asked = ()

    def answer(self) -> dict[TopicPartition, PartitionBounds] | None:
        """What the leaders said, once all have; partitions that failed are left out."""
        if not self._asked or not all(f.done() for asked in self._asked for f in asked.values()):
            return None
        first, end, high = (self._values(asked) for asked in self._asked)
        known = first.keys() & end.keys() & high.keys()
        failed = {tp.topic for tp in _tps(self._asked[0]) if tp not in known}
        self._asked = ()
        with contextlib.suppress(KafkaException):  # none answers: the next look tells
            for topic in sorted(failed):
                self._admin.list_topics(topic, timeout=_METADATA_TIMEOUT)
        # Asked one after the other: a log that grows between two answers is no contradiction.
        return {tp: PartitionBounds(first[tp], end[tp], max(end[tp], high[tp])) for tp in known}

    def _list(self, wanted: list[KafkaPartition], spec: Any, level: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = self._admin.list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=_TIMEOUT
        )
        return found

    @staticmethod
    def _values(asked: dict[Any, Any]) -> dict[TopicPartition, int]:
        found = {}
        for each, future in asked.items():
            with contextlib.suppress(KafkaException):
                found[TopicPartition(each.topic, each.partition)] = int(future.result().offset)
        return found


def _tps(asked: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in asked]
