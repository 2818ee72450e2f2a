"""Finds what waits if a group seems to stand still: a record, nothing readable, a transaction.

Problem: aborted transactions and control records also use offsets, and a read_committed reader
stops before an open transaction; the log's end counts all of these. Choice: the few partitions of a
group that seems to have stopped are read from its offset, as a read_committed reader does, until a
record is found. A query (KIP-664) names the producer of an open transaction. The result is valid
until the log's end moves. Cost: Read on the topic; without it, or without time, the lag status
stays. No broker knows whether the group itself reads uncommitted records.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fleet.kafka_source.batch_fetcher import BatchFetcher, FetchedPart
from fleet.kafka_source.bounds import LATEST, Where, leaders_of, list_offsets
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.record_batches import DamagedBatch, cut, select_committed
from fleet.kafka_source.record_fields import fields
from fleet.lag.lag_columns import Longs
from fleet.lag.snapshot import CASES, Snapshot
from fleet.model import LagCase, TopicPartition

MOST: Final = 128
"""Partitions that one refresh reads."""
_ROWS: Final = 4_096
"""Rows that one refresh checks in earlier results: some 20 ms."""
_SECONDS: Final = 3.0
"""Seconds for all partitions together."""
_BYTES: Final = (16 << 20) // MOST
"""Bytes of each partition in an answer, so that all fit."""
_OPEN: Final = "an open transaction"

Position = tuple[Where, int]


@dataclass(frozen=True, slots=True)
class _Behind:
    """What waits at an offset, as long as the log's end does not move."""

    end: int
    case: LagCase
    held: str = ""


class WaitingRecords:
    """For one thread at a time. `config` is librdkafka's, with bootstrap.servers and security."""

    def __init__(self, config: Mapping[str, Any], net: Connections) -> None:
        self._config, self._net = config, net
        self._known: dict[Position, _Behind] = {}

    def read_on(self, seen: Snapshot, rows: Longs) -> Snapshot:
        """Adds to a snapshot what waits in these rows, as far as it can be read."""
        wanted = {row: self._position(seen, row) for row in rows[:_ROWS].tolist()}
        ends = {wanted[row]: int(seen.lag.end[row]) for row in wanted}
        self._known = {at: self._known[at] for at in ends.keys() & self._known.keys()}
        new = {at: end for at, end in ends.items() if self._is_new(at, end)}
        if new:
            self._known |= self._read_first_records(dict(list(new.items())[:MOST]))
        case, held = seen.lag.case.copy(), dict(seen.held)
        seconds, waited = seen.lag.seconds.copy(), seen.lag.waited.copy()
        for row, at in wanted.items():
            found = self._known.get(at)
            if found is None or found.end != ends[at]:
                continue
            case[row] = CASES.index(found.case)
            if found.case is LagCase.NOTHING:
                seconds[row] = waited[row] = 0.0
            if found.held:
                held[TopicPartition(*at[0])] = found.held
        lag = replace(seen.lag, case=case, seconds=seconds, waited=waited)
        return replace(seen, lag=lag, held=held)

    def _is_new(self, at: Position, end: int) -> bool:
        found = self._known.get(at)
        return found is None or (found.case is not LagCase.OK and found.end != end)

    @staticmethod
    def _position(seen: Snapshot, row: int) -> Position:
        commits = seen.commits
        where = (commits.topics[commits.topic[row]], int(commits.partition[row]))
        return where, max(int(commits.committed[row]), int(seen.lag.start[row]))

    def _read_first_records(self, new: Mapping[Position, int]) -> dict[Position, _Behind]:
        until = time.monotonic() + _SECONDS
        places = {where for where, _ in new}
        try:
            leaders = leaders_of(self._net.metadata({topic for topic, _ in places}, _SECONDS))
            stable = list_offsets(
                self._net,
                leaders,
                dict.fromkeys(places, LATEST),
                committed=True,
                timeout=max(0.1, until - time.monotonic()),
            )
            reached = {where: each.offset for where, each in stable.items() if not each.error}
            stable_ends = {at: reached[at[0]] for at in new if at[0] in reached}
            with BatchFetcher(
                self._config, client_id="fleet", committed=True, wait=0.0, most_of_one=_BYTES
            ) as fetcher:
                read = _FirstRecords(fetcher, stable_ends).done(until)
            found = {
                at: _Behind(new[at], _case(readable=readable, held=stable_ends[at] < new[at]))
                for at, readable in read.items()
            }
            return found | self._named(found, leaders, reached, until)
        except NoAnswer:
            return {}

    def _named(
        self,
        found: Mapping[Position, _Behind],
        leaders: Mapping[Where, int],
        stable: Mapping[Where, int],
        until: float,
    ) -> dict[Position, _Behind]:
        """Those that a transaction holds back, with what is known of it."""
        held = {at: each for at, each in found.items() if each.case is LagCase.HELD}
        if not held:
            return {}
        producers = self._producers({where for where, _ in held}, leaders, until)
        open_ = {
            at: min(
                (each for each in producers.get(at[0], ()) if each.current_txn_start_offset >= 0),
                key=lambda each: int(each.current_txn_start_offset),
                default=None,
            )
            for at in held
        }
        ids = self._ids({each.producer_id for each in open_.values() if each is not None}, until)
        return {
            at: replace(each, held=_sentence(open_[at], ids, stable[at[0]]))
            for at, each in held.items()
        }

    def _producers(
        self, places: Collection[Where], leaders: Mapping[Where, int], until: float
    ) -> dict[Where, Any]:
        from kafka.protocol.admin import DescribeProducersRequest  # noqa: PLC0415 - rarely asked

        if not self._net.knows(DescribeProducersRequest):
            return {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, number in places:
            if (topic, number) in leaders:
                mine = by_leader.setdefault(leaders[topic, number], {})
                mine.setdefault(topic, []).append(number)
        requests = {
            leader: DescribeProducersRequest(
                topics=[
                    DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
                    for topic, numbers in topics.items()
                ]
            )
            for leader, topics in by_leader.items()
        }
        return {
            (topic.name, part.partition_index): part.active_producers
            for answer in self._answers(requests, until)
            for topic in answer.topics
            for part in topic.partitions
            if not part.error_code
        }

    def _ids(self, producers: Collection[int], until: float) -> dict[int, tuple[str, float]]:
        """Transactional id of each producer, and since when its transaction is open (0: unknown).

        Asked of all brokers: each coordinates some.
        """
        from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest  # noqa: PLC0415 - rarely asked

        if not producers or not self._net.knows(ListTransactionsRequest):
            return {}
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=sorted(producers), max_version=0
        )
        brokers = self._net.brokers()
        answers = self._net.ask(dict.fromkeys(brokers, request), max(0.1, until - time.monotonic()))
        by_broker = {
            broker: {each.transactional_id: each.producer_id for each in answer.transaction_states}
            for broker, answer in answers.items()
            if not isinstance(answer, NoAnswer) and not answer.error_code
        }
        described = self._answers(
            {
                broker: DescribeTransactionsRequest(transactional_ids=list(ids))
                for broker, ids in by_broker.items()
                if ids
            },
            until,
        )
        since = {
            each.transactional_id: each.transaction_start_time_ms / 1000
            for answer in described
            for each in answer.transaction_states
            if not each.error_code
        }
        return {
            producer: (name, since.get(name, 0.0))
            for ids in by_broker.values()
            for name, producer in ids.items()
        }

    def _answers(self, requests: Mapping[int, Any], until: float) -> list[Any]:
        answers = self._net.ask(requests, max(0.1, until - time.monotonic()))
        return [each for each in answers.values() if not isinstance(each, NoAnswer)]


def _case(*, readable: bool, held: bool) -> LagCase:
    if readable:
        return LagCase.OK
    return LagCase.HELD if held else LagCase.NOTHING


def _sentence(producer: Any, ids: Mapping[int, tuple[str, float]], first: int) -> str:
    """Which transaction it is."""
    if producer is None:
        return f"{_OPEN} that begins at offset {first:,}"
    name, since = ids.get(producer.producer_id, ("", 0.0))
    since = since if since > 0 else producer.last_timestamp / 1000
    transaction = f" (transactional.id {name})" if name else ""
    began = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{_OPEN} of producer {producer.producer_id}{transaction} since {began}"


class _FirstRecords:
    """Reads on from positions until each has met a committed record, or its end."""

    def __init__(self, fetcher: BatchFetcher, stable: Mapping[Position, int]) -> None:
        self._fetcher, self._stable = fetcher, stable
        self._at = {position: position[1] for position in stable}
        self._alone: set[Position] = set()
        """What came back empty among others: its first batch may only have had no room."""
        self._found: dict[Position, bool] = {}

    def done(self, until: float) -> dict[Position, bool]:
        """Whether a committed record stands there or behind it; left out where time is up.

        What is refused or damaged counts as a record: it is not asked for again.
        """
        while True:
            for position, at in self._at.items():
                if at >= self._stable[position]:
                    self._found.setdefault(position, False)
            asked = self._asked()
            left = until - time.monotonic()
            if not asked or left <= 0:
                break
            places = {where: self._at[position] for where, position in asked.items()}
            answers = self._fetcher.fetch(places, left)
            if not answers:
                break
            for each in answers:
                self._take(asked[each.where], each, alone=len(asked) == 1)
        return self._found

    def _asked(self) -> dict[Where, Position]:
        """One position of each partition; what came back empty among others is asked alone."""
        left = [each for each in self._at if each not in self._found]
        together = [each for each in left if each not in self._alone]
        return {position[0]: position for position in reversed(together or left[:1])}

    def _take(self, position: Position, fetched: FetchedPart, *, alone: bool) -> None:
        if fetched.error:
            self._found[position] = True
            return
        if not fetched.data:
            if alone:
                self._found[position] = False
            self._alone.add(position)
            return
        found = cut(fetched.data)
        try:
            records = fields(found.batches)
        except DamagedBatch:
            self._found[position] = True
            return
        there = records.offset >= position[1]
        stays = select_committed(found, fetched.aborted)
        read = (there if stays is None else there & stays[records.batch]).any()
        if read or found.damaged is not None or found.next is None:
            self._found[position] = True
        else:
            self._at[position] = found.next
