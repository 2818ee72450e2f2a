"""From a snapshot's columns to the picture that metrics are made of: sums are taken in columns."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from fleet.exporter.picture import (
    GroupPicture,
    LongTransaction,
    PartitionLag,
    Picture,
    SlotPicture,
    TopicLag,
)
from fleet.lag.lag_columns import NONE, Floats, Longs
from fleet.lag.partition_lag import CASES
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.held_commits import OpenTransaction
from fleet.manager.lag_judge import worst_verdicts
from fleet.model.totals import Totals

_LONG: Final = 10.0
"""Seconds for which a transaction may be open without being told: Kafka Streams' own limit."""


def picture_of(
    seen: Snapshot,
    *,
    totals: Mapping[str, Totals],
    owners: Mapping[str, str],
    slots: tuple[SlotPicture, ...] = (),
    decode_errors: Mapping[tuple[int, int], int],
    records: int,
    transactions: Iterable[OpenTransaction] = (),
    partitions: bool = False,
    unread: tuple[str, ...] = (),
) -> Picture:
    """What the metrics of one look are made of."""
    judged = worst_verdicts(seen)
    topics, cases = _by_topic(seen), _by_case(seen)
    single = _by_partition(seen) if partitions else {}
    none = Totals()
    groups = []
    for group, facts in seen.facts.items():
        counted = totals.get(group) or (none if facts.generation is not None else None)
        groups.append(
            GroupPicture(
                group=group,
                owner=owners.get(group, ""),
                state=facts.state.value,
                type=facts.type,
                members=facts.members,
                generation=facts.generation,
                topics=tuple(topics.get(group, ())),
                cases=cases.get(group, {}),
                verdict=judged[group].value,
                level=judged[group].level.value,
                totals=counted if seen.from_log else None,
                partitions=tuple(single.get(group, ())),
            )
        )
    return Picture(
        cluster=seen.cluster,
        took=seen.took,
        from_log=seen.from_log,
        groups=tuple(groups),
        slots=slots,
        decode_errors=decode_errors,
        transactions=tuple(_long(seen.at, transactions)),
        records=records,
        problems=(*seen.problems, *unread),
    )


def _long(now: float, transactions: Iterable[OpenTransaction]) -> Iterator[LongTransaction]:
    for each in transactions:
        if now - each.since >= _LONG:
            yield LongTransaction(
                partition=each.partition,
                producer=each.producer,
                since=each.since,
                seconds=now - each.since,
                commits=each.commits,
            )


def _by_topic(seen: Snapshot) -> dict[str, list[TopicLag]]:
    commits = seen.commits
    found: dict[str, list[TopicLag]] = {}
    if not len(commits):
        return found
    different = np.unique(np.concatenate([np.unique(_pairs(part)) for part in seen.portions()]))
    counts, lags, waiting = np.zeros((3, len(different)))
    oldest = np.full(len(different), np.nan)
    for part in seen.portions():
        place, records = np.searchsorted(different, _pairs(part)), part.lag.records
        known, waits = records != NONE, records > 0
        counts += np.bincount(place[known], minlength=len(different))
        lags += np.bincount(place[known], records[known], minlength=len(different))
        # What does not wait tells nothing of how old the oldest is that does.
        waiting += np.bincount(place[waits], minlength=len(different))
        np.fmax.at(oldest, place[waits], _ages(part)[waits])
    oldest[(counts > 0) & (waiting == 0)] = 0.0
    rows = zip(different.tolist(), counts.tolist(), lags.tolist(), oldest.tolist(), strict=True)
    for pair, count, lag, seconds in rows:
        topic = TopicLag(
            topic=commits.topics[pair & 0xFFFFFFFF],
            lag=int(lag) if count else None,
            seconds=None if seconds != seconds else seconds,  # noqa: PLR0124 - NaN
        )
        found.setdefault(commits.groups[pair >> 32], []).append(topic)
    return found


def _pairs(seen: Snapshot) -> Longs:
    """The group and topic of each row as one number."""
    pairs: Longs = seen.commits.group.astype(np.int64) << 32 | seen.commits.topic
    return pairs


def _ages(seen: Snapshot) -> Floats:
    """Of a position that was never seen to move: since the first look of all, at least."""
    return np.where(np.isnan(seen.lag.seconds), seen.lag.waited, seen.lag.seconds)


def _by_case(seen: Snapshot) -> dict[str, dict[str, int]]:
    groups = seen.commits.groups
    counts = np.zeros(len(groups) * len(CASES), dtype=np.int64)
    for part in seen.portions():
        places = part.commits.group * len(CASES) + part.lag.case
        counts += np.bincount(places, minlength=len(counts))
    found: dict[str, dict[str, int]] = {}
    for place in np.flatnonzero(counts).tolist():
        group, case = divmod(place, len(CASES))
        found.setdefault(groups[group], {})[CASES[case].value] = int(counts[place])
    return found


def _by_partition(seen: Snapshot) -> dict[str, list[PartitionLag]]:
    commits = seen.commits
    found: dict[str, list[PartitionLag]] = {}
    columns = (
        commits.group,
        commits.topic,
        commits.partition,
        commits.committed,
        seen.lag.records,
        _ages(seen),
    )
    for group, topic, number, committed, lag, seconds in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        part = PartitionLag(
            topic=commits.topics[topic],
            partition=number,
            committed=committed,
            lag=None if lag == NONE else lag,
            seconds=None if seconds != seconds else seconds,  # noqa: PLR0124 - NaN
        )
        found.setdefault(commits.groups[group], []).append(part)
    return found
