"""Asking leaders where partitions begin and end, without stopping the poll loop.

Problem: range ends come from ListOffsets [7], a broker may take seconds to answer, and the thread
that asks is the one that must keep polling [1]. Choice: the admin client asks on its own
connections (behind no parked fetch) and its futures are looked at once per turn. librdkafka's
ListOffsets goes by cached leaders and never refreshes them, so a failed look is followed by a
metadata request. A leader that tells nothing is named, and the others are believed without it.
Cost: three requests per broker and look, at most one look per batch or wait.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in __all__

from fleet.model import TopicPartition
from fleet.worker.batch.ranges import PartitionBounds
from fleet.worker.events import names
from fleet.worker.listed_offset import listed_offset

_TIMEOUT: Final = 5.0
_METADATA_TIMEOUT: Final = 1.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class PartitionEnds:
    """One look at a time; used on the consumer thread. say: told of leaders that tell nothing."""

    def __init__(self, *, admin: Any, isolation: str, say: Callable[[str], None]) -> None:
        self._admin = admin
        self._say = say
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
        errors: list[str] = []
        first, end, high = (_values(asked, errors) for asked in self._asked)
        known = first.keys() & end.keys() & high.keys()
        failed = [tp for tp in _tps(self._asked[0]) if tp not in known]
        self._asked = ()
        if failed:
            untold = f"no leader tells where {names(failed)} ends ({errors[0]})"
            self._say(f"{untold}: not read meanwhile, unlike other partitions")
        with contextlib.suppress(KafkaException):  # none answers: the next look tells
            for topic in sorted({tp.topic for tp in failed}):
                self._admin.list_topics(topic, timeout=_METADATA_TIMEOUT)
        # Asked one after the other: a log that grows between two answers is no contradiction.
        return {tp: PartitionBounds(first[tp], end[tp], max(end[tp], high[tp])) for tp in known}

    def _list(self, wanted: list[KafkaPartition], spec: Any, level: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = self._admin.list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=_TIMEOUT
        )
        return found


def _values(asked: dict[Any, Any], errors: list[str]) -> dict[TopicPartition, int]:
    """Offsets by partition; errors: added to, in words."""
    found = {}
    for each, future in asked.items():
        try:
            found[TopicPartition(each.topic, each.partition)] = listed_offset(future)
        except KafkaException as error:
            errors.append(error.args[0].str())
    return found


def _tps(asked: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in asked]
