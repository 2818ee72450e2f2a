"""Queries topics: partitions, leaders, ids, and starts and ends of logs.

Problem: lag needs the start and the end of thousands of logs, from their leaders, and leaders
move. Choice: one Metadata of all topics names the leaders; each is asked once for all its
partitions; where a leader moves, metadata and offsets are asked again, three times at most.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fleet.kafka_source.bounds import (
    EARLIEST,
    LATEST,
    ListedOffset,
    Where,
    leaders_of,
    list_offsets,
)
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import ABSENT, DENIED, NO_ANSWER, code_named
from fleet.lag.lag_columns import NONE, Longs
from fleet.lag.snapshot import Lag, Logs
from fleet.model import TopicPartition
from fleet.observe.poll_answers import MIN_WAIT_SECONDS, Poll

Resource = tuple[str, str]
"""("group", name) or ("topic", name)."""
_NO_ID: Final = "0" * 32
_NO_LEADER: Final = 5
_MOVING: Final = frozenset({_NO_LEADER, 6, 74, 75, 76})
"""No leader, another leader, or one that is a step ahead or behind."""
AGES: Final = (60.0, 900.0)
"""Seconds of waiting that a lag status needs: the shortest and the longest grace period."""
_AGAIN: Final = 3
"""Searches for a leader that moves, a tenth of a second apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """All topics that this login may see, at one moment."""

    partitions: Mapping[str, int]
    """Topic name → number of partitions."""
    leaders: Mapping[Where, int]
    names: Mapping[str, str]
    """Topic name by topic id, as 32 hex digits; empty before Kafka 2.8."""


class TopicQuestions:
    """For one thread at a time, as its connections are."""

    def __init__(self, net: Connections) -> None:
        self._net = net

    def topics(self, poll: Poll, named: Collection[str] | None = None) -> Topics:
        """Reads these topics or all; reports those that cannot be read. Raises NoAnswer."""
        metadata = self._net.metadata(named, poll.left())
        for topic in metadata.topics:
            if topic.error_code:
                poll.problems.append(
                    f"topic {topic.name} cannot be read: {code_named(topic.error_code)}"
                )
        there = [topic for topic in metadata.topics if not topic.error_code]
        ids = ((topic.topic_id, topic.name) for topic in there)
        return Topics(
            partitions={topic.name: len(topic.partitions) for topic in there},
            leaders=leaders_of(metadata),
            names={i.hex: name for i, name in ids if i is not None and i.hex != _NO_ID},
        )

    def offsets(
        self, tps: Collection[TopicPartition], topics: Topics, poll: Poll
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Reads starts and ends of these logs; leaves out and reports what cannot be read.

        Raises NoAnswer if every leader of the cluster is silent: the cluster became unreachable
        during the poll, and a snapshot without logs would hide the lag of the last one.
        """
        wanted = {(tp.topic, tp.partition): tp for tp in tps}
        failed: dict[str, str] = {}
        bounds = []
        for each in (EARLIEST, LATEST):
            found = self._listed(wanted, topics.leaders, each, poll)
            silent = {topics.leaders.get(w) for w in wanted if found[w].error == NO_ANSWER}
            if silent and silent >= set(topics.leaders.values()):
                raise NoAnswer("no broker returned the starts and ends of its logs")
            bounds.append({tp: found[w].offset for w, tp in wanted.items() if not found[w].error})
            refused = {w: found[w].error for w in wanted if found[w].error}
            failed |= {f"{w[0]}-{w[1]}": code_named(code) for w, code in refused.items()}
        poll.report(failed, "partition(s) have unreadable offsets")
        starts, ends = bounds
        return starts, ends

    def first_offsets_since(
        self, tps: Collection[TopicPartition], time: float, topics: Topics, poll: Poll
    ) -> dict[TopicPartition, int | None]:
        """Reads the first offset written at a time or later; None if no record is so young.

        Partitions that are not told are left out.
        """
        wanted = {(tp.topic, tp.partition): tp for tp in tps}
        found = self._listed(wanted, topics.leaders, int(time * 1000), poll)
        return {
            tp: None if found[where].offset < 0 else found[where].offset
            for where, tp in wanted.items()
            if not found[where].error
        }

    def _listed(
        self, wanted: Iterable[Where], leaders: Mapping[Where, int], at: int, poll: Poll
    ) -> dict[Where, ListedOffset]:
        def ask(places: Iterable[Where], leaders: Mapping[Where, int]) -> dict[Where, ListedOffset]:
            # The end that lag is told by counts records of open transactions, too.
            return list_offsets(
                self._net,
                leaders,
                dict.fromkeys(places, at),
                committed=False,
                timeout=poll.part(len(set(leaders.values()))),
            )

        nobody = dict.fromkeys(wanted, ListedOffset(-1, _NO_LEADER))
        found = nobody | ask(nobody, leaders)
        for _ in range(_AGAIN):
            moved = [where for where, each in found.items() if each.error in _MOVING]
            if not moved or poll.left() <= MIN_WAIT_SECONDS:
                break
            self._net.pause(MIN_WAIT_SECONDS)
            try:
                now = leaders_of(self._net.metadata({t for t, _ in moved}, poll.left()))
            except NoAnswer:
                break
            found |= ask(moved, now)
        return found

    def deleted_topics(self, topics: Collection[str], poll: Poll) -> frozenset[str]:
        """Returns which of these topics are deleted, not only hidden from this login."""
        if not topics:
            return frozenset()
        try:
            named = self._named(topics, poll)
        except NoAnswer as error:
            poll.report(dict.fromkeys(topics, str(error)), "topic(s) cannot be read")
            return frozenset()
        for name, topic in named.items():
            if topic.error_code not in {0, ABSENT}:
                poll.problems.append(f"topic {name} cannot be read: {code_named(topic.error_code)}")
        return frozenset(name for name, topic in named.items() if topic.error_code == ABSENT)

    def allowed_operations(
        self, topics: Collection[str], poll: Poll
    ) -> dict[Resource, frozenset[str]]:
        """Returns what this login may do; see Observer.allowed_operations. Raises NoAnswer."""
        from fleet.observe.group_questions import operations_of  # noqa: PLC0415 - loads kafka-python

        found: dict[Resource, frozenset[str]] = {}
        for name, topic in self._named(topics, poll, operations=True).items():
            operations = operations_of(topic.authorized_operations)
            if topic.error_code in DENIED:
                found["topic", name] = frozenset()
            elif not topic.error_code and operations is not None:
                found["topic", name] = operations
        return found

    def _named(
        self, topics: Collection[str], poll: Poll, *, operations: bool = False
    ) -> dict[str, Any]:
        answer = self._net.metadata(sorted(topics), poll.left(), operations=operations)
        return {topic.name: topic for topic in answer.topics}


class RecordTimes:
    """Bounds the age of offsets that are older than all refreshes, by the times of their records.

    Problem: with a new state directory no age is known, and a group that has stood still for an
    hour seems to keep up. Choice: a query finds the first record of the last minute and of the last
    quarter of an hour in each such partition. Cost: two requests to each leader, once; producers
    may set these times.
    """

    def __init__(self, questions: TopicQuestions) -> None:
        self._questions = questions
        self._first: dict[TopicPartition, tuple[float, tuple[int, ...]]] = {}
        """Time of each query, and the first offset of the last `AGES` then."""

    def bound(
        self, lag: Lag, tps: Sequence[TopicPartition], which: Longs, at: Longs, logs: Logs,
        *, topics: Topics, poll: Poll,
    ) -> None:  # fmt: skip
        """Raises `lag.waited` of rows last committed `at` (ms), if the records show more."""
        silent = (at == NONE) | (logs.at - at / 1000 >= AGES[0])
        rows = np.flatnonzero((lag.records > 0) & np.isnan(lag.seconds) & silent)
        rows = rows[~(lag.waited[rows] >= AGES[-1])]
        if not len(rows):
            return
        different, place = np.unique(which[rows], return_inverse=True)
        mine = [tps[each] for each in different.tolist()]
        self._ask([tp for tp in mine if self._is_new(tp, logs)], logs, topics, poll)
        positions = (lag.end - lag.records)[rows]
        unknown = (logs.at, (NONE,) * len(AGES))
        known = [self._first.get(tp, unknown) for tp in mine]
        asked = np.array([each for each, _ in known])[place]
        for number, age in enumerate(AGES):
            first = np.array([offsets[number] for _, offsets in known])[place]
            older = rows[positions < first]
            since = (logs.at - asked + age)[positions < first]
            lag.waited[older] = np.fmax(lag.waited[older], since)

    def _is_new(self, tp: TopicPartition, logs: Logs) -> bool:
        """Returns whether it was not queried yet, or is another log with the same name."""
        known = self._first.get(tp)
        return known is None or max(known[1]) > logs.ends.get(tp, NONE)

    def _ask(self, tps: Sequence[TopicPartition], logs: Logs, topics: Topics, poll: Poll) -> None:
        answers = [
            self._questions.first_offsets_since(tps, logs.at - age, topics, poll) if tps else {}
            for age in AGES
        ]
        for tp in tps:
            # Where no record is so young, all are older.
            found = (each.get(tp, NONE) for each in answers)
            end = logs.ends.get(tp, NONE)
            first = tuple(end if offset is None else offset for offset in found)
            self._first[tp] = (logs.at, first)
