"""Fetches record batches of partitions, as bytes, from their leaders.

Problem: a fast reader asks every leader for many partitions at once, requests the next answer while
it works on this one, and follows leaders that move. Choice: one Fetch request in flight per leader,
created from the caller's positions as soon as its answer is taken. The leader of a moved partition
is found again by metadata. The caller gets only errors that do not pass. There is no consumer group
and no Fetch session. Cost: up to `most` bytes of memory per leader. A partition whose leader sends
a large answer waits for it.

Source: KIP-74 (limits: the first batch comes whole whatever its size), KIP-98, KIP-227, KIP-392.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet.kafka_source.bounds import ListedOffset, Where, leaders_of, list_offsets
from fleet.kafka_source.connections import Connections, NoAnswer, describe_error
from fleet.system.closing import Closing

OUT_OF_RANGE: Final = 1
_MOVING: Final = frozenset({3, 5, 6, 8, 9, 56, 74, 75, 76, 100, 103})
"""Errors that pass by themselves: no or another leader, an unknown topic, storage, epochs, topic
ids."""
_ASKING: Final = 5.0
_AGAIN: Final = 0.1
_SLACK: Final = 10.0
"""Seconds beyond its own wait after which a Fetch is given up and its connection closed."""
_VERSION: Final = 12
"""The last version that names topics by their names."""


class FetchedPart(NamedTuple):
    """One partition's part of an answer.

    `error` is Kafka's code, 0 for none. `aborted`: producer and first offset of each aborted
    transaction in it (read_committed only).
    """

    where: Where
    data: bytes
    error: int
    aborted: tuple[tuple[int, int], ...]


class BatchFetcher(Closing):
    """Reads partitions from positions that the caller moves; for one thread.

    `options` are librdkafka's (bootstrap.servers and security). wait: seconds that a broker may
    hold a request without data. most, most_of_one: bytes of an answer and of a partition.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        client_id: str,
        committed: bool,
        wait: float = 0.05,
        most: int = 16 << 20,
        most_of_one: int = 1 << 20,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """check: called before each fetch; it raises if the result is no longer wanted."""
        self._check = check
        self._net = Connections(options, client_id=client_id)
        self._committed, self._wait = committed, wait
        self._most, self._most_of_one = most, most_of_one
        self._leaders: dict[Where, int] = {}
        self._sent: dict[int, tuple[Any, dict[Where, int]]] = {}
        """By leader: what is on its way, and from which positions."""
        self._look_at = 0.0
        self._turn = 0
        self.problem: str | None = None
        """Why nothing comes from some partition just now; None where all is well."""

    def close(self) -> None:
        """Closes all connections."""
        self._sent.clear()
        self._net.close()

    def fetch(self, positions: Mapping[Where, int], timeout: float) -> list[FetchedPart]:
        """Returns what came within `timeout` seconds from these positions; [] if nothing did.

        A part that is on its way counts only if it belongs to the present position. Errors that
        pass by themselves are in `problem`.
        """
        self._check()
        deadline = time.monotonic() + timeout
        self.send(positions)
        while True:
            found = self._take_answers(positions)
            if found or time.monotonic() >= deadline:
                return found
            if not self._sent:
                self._net.pause(min(_AGAIN, _left(deadline)))
            self.send(positions)
            self._net.wait([each for each, _ in self._sent.values()], _left(deadline), first=True)

    def partitions(self, topic: str, timeout: float) -> list[int] | int | str:
        """Returns the topic's partitions, Kafka's error code, or why there is no answer."""
        try:
            found = self._net.metadata([topic], timeout)
        except NoAnswer as error:
            return str(error)
        told = found.topics[0]
        if told.error_code:
            return int(told.error_code)
        self._leaders |= leaders_of(found)
        return sorted(part.partition_index for part in told.partitions)

    def list_offsets(
        self, wanted: Mapping[Where, int], timeout: float
    ) -> dict[Where, ListedOffset]:
        """Returns offsets by time, EARLIEST or LATEST, at this fetcher's isolation level."""
        if wanted.keys() - self._leaders.keys():
            self._look(wanted)
        found = list_offsets(
            self._net, self._leaders, wanted, committed=self._committed, timeout=timeout
        )
        self._forget((w for w, each in found.items() if each.error), "a leader moves")
        return found

    def send(self, positions: Mapping[Where, int]) -> None:
        """Sends a request to each leader without one on its way; `fetch` takes the answers."""
        if not positions:
            return
        unknown = positions.keys() - self._leaders.keys()
        if unknown and time.monotonic() >= self._look_at:
            self._look(positions)
        by_leader: dict[int, dict[Where, int]] = {}
        for where, position in positions.items():
            leader = self._leaders.get(where)
            if leader is not None and leader not in self._sent:
                by_leader.setdefault(leader, {})[where] = position
        for leader, wanted in by_leader.items():
            request = self._request(self._in_turn(wanted))
            timeout = self._wait + _SLACK
            self._sent[leader] = (self._net.send(leader, request, timeout=timeout), wanted)

    def _in_turn(self, wanted: Mapping[Where, int]) -> dict[Where, int]:
        """A broker fills its answer in order, so each partition comes first in turn."""
        self._turn += 1
        order = list(wanted.items())
        first = self._turn % len(order)
        return dict(order[first:] + order[:first])

    def _look(self, positions: Iterable[Where]) -> None:
        """Who leads."""
        self._look_at = time.monotonic() + _AGAIN
        topics = sorted({topic for topic, _ in positions})
        try:
            self._leaders = leaders_of(self._net.metadata(topics, _ASKING))
        except NoAnswer as error:
            self.problem, self._leaders = str(error), {}
            return
        absent = [each for each in positions if each not in self._leaders]
        self.problem = f"{absent[0][0]}-{absent[0][1]} has no leader" if absent else None

    def _request(self, wanted: Mapping[Where, int]) -> Any:
        from kafka.protocol.consumer import FetchRequest  # noqa: PLC0415 - loads kafka-python

        by_topic: dict[str, list[Any]] = {}
        for (topic, partition), position in wanted.items():
            by_topic.setdefault(topic, []).append(
                FetchRequest.FetchTopic.FetchPartition(
                    partition=partition,
                    fetch_offset=position,
                    partition_max_bytes=self._most_of_one,
                )
            )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=int(self._wait * 1000),
            min_bytes=1,
            max_bytes=self._most,
            isolation_level=int(self._committed),
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(topic=topic, partitions=parts)
                for topic, parts in by_topic.items()
            ],
            forgotten_topics_data=[],
            max_version=_VERSION,
        )

    def _take_answers(self, positions: Mapping[Where, int]) -> list[FetchedPart]:
        found: list[FetchedPart] = []
        for leader, (sent, wanted) in list(self._sent.items()):
            if not sent.is_done:
                continue
            del self._sent[leader]
            if sent.exception is not None:
                self._forget(wanted, describe_error(sent.exception))
                continue
            for topic in sent.value.responses:
                for part in topic.partitions:
                    where = (topic.topic, part.partition_index)
                    if positions.get(where) != wanted.get(where):
                        continue
                    if part.error_code in _MOVING:
                        self._forget([where], f"{where[0]}-{where[1]}: {part.error_code}")
                        continue
                    found.append(_fetched_part(where, part))
        return found

    def _forget(self, places: Iterable[Where], why: str) -> None:
        for where in places:
            self.problem = why
            self._leaders.pop(where, None)


def _fetched_part(where: Where, part: Any) -> FetchedPart:
    return FetchedPart(
        where=where,
        data=bytes(part.records or b""),
        error=part.error_code,
        aborted=tuple((a.producer_id, a.first_offset) for a in part.aborted_transactions or ()),
    )


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
