"""From an overview's columns to verdicts and to the picture that metrics are made of.

Problem: judging 240,000 partitions one by one takes seconds, and all but a few are well. Choice:
the rows that a rule could possibly object to are found in the columns, and only those become
values for `fleet.decide.verdicts`; sums by topic are taken in columns too. Cost: the condition
in `_doubtful` repeats what the rules need; a test holds both together.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from fleet.decide.verdicts import Around, GroupVerdict, Patience, Progress, group_verdict
from fleet.log.readers.positions import NONE, Longs
from fleet.model import TopicPartition
from fleet.observe.overview import CASES, GroupFacts, Overview
from fleet.report.picture import GroupPicture, PartitionLag, Picture, SlotPicture, TopicLag
from fleet.totals import Totals

_OK: Final = 0
assert CASES[_OK].value == "ok"


def verdicts(overview: Overview, *, patience: Patience | None = None) -> dict[str, GroupVerdict]:
    """The verdict on each group of an overview (docs/metrics.md; `as_json` for answers)."""
    patience = patience or Patience()
    commits = overview.commits
    total = np.bincount(commits.group, minlength=len(commits.groups))
    watched: dict[int, list[Progress]] = {}
    for row in _doubtful(overview, patience):
        watched.setdefault(int(commits.group[row]), []).append(_progress(overview, int(row)))
    place = {group: index for index, group in enumerate(commits.groups)}
    found = {}
    for group, facts in overview.groups.items():
        index = place.get(group)
        parts = watched.get(index, []) if index is not None else []
        found[group] = group_verdict(
            group,
            parts,
            around(facts, overview.at),
            others=int(total[index]) - len(parts) if index is not None else 0,
            patience=patience,
        )
    return found


def around(facts: GroupFacts, now: float) -> Around:
    """What a verdict needs of the group itself."""
    since = None if facts.changed_at is None else max(0.0, now - facts.changed_at)
    return Around(state=facts.state, since_settled=since)


def _doubtful(overview: Overview, patience: Patience) -> Longs:
    """Rows that the rules might not call OK: a few of many."""
    ordinary = overview.case == _OK
    late = (overview.lag > patience.allowed) & (
        (overview.waited >= patience.least) | (overview.commits.peak != NONE)
    )
    return np.flatnonzero(~ordinary | late)


def _progress(overview: Overview, row: int) -> Progress:
    commits, now = overview.commits, overview.at
    lag, committed, peak = (
        int(column[row]) for column in (overview.lag, commits.committed, commits.peak)
    )

    def since(ms: int) -> float | None:
        return None if ms == NONE else max(0.0, now - ms / 1000)

    def known(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    return Progress(
        tp=TopicPartition(commits.topics[commits.topic[row]], int(commits.partition[row])),
        case=CASES[overview.case[row]],
        lag=None if lag == NONE else lag,
        waited=known(overview.waited[row]),
        since_commit=since(int(commits.at[row])),
        since_moved=since(int(commits.moved[row])),
        gap=None if commits.gap[row] == NONE else float(commits.gap[row]) / 1000,
        fell_by=0 if peak == NONE else peak - committed,
        since_fell=since(int(commits.fell[row])),
        gained=known(overview.gained[row]),
        over=overview.over,
    )


def picture_of(
    overview: Overview,
    *,
    totals: Mapping[str, Totals],
    owners: Mapping[str, str],
    slots: tuple[SlotPicture, ...] = (),
    decode_errors: Mapping[tuple[int, int], int],
    records: int,
    partitions: bool = False,
) -> Picture:
    """What the metrics of one look are made of."""
    judged = verdicts(overview)
    topics, cases = _by_topic(overview), _by_case(overview)
    single = _by_partition(overview) if partitions else {}
    none = Totals()
    groups = []
    for group, facts in overview.groups.items():
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
                verdict=judged[group].verdict.value,
                level=judged[group].level.value,
                totals=counted if overview.from_log else None,
                partitions=tuple(single.get(group, ())),
            )
        )
    return Picture(
        cluster=overview.cluster,
        took=overview.took,
        from_log=overview.from_log,
        groups=tuple(groups),
        slots=slots,
        decode_errors=decode_errors,
        records=records,
        problems=overview.problems,
    )


def _by_topic(overview: Overview) -> dict[str, list[TopicLag]]:
    commits = overview.commits
    found: dict[str, list[TopicLag]] = {}
    if not len(commits):
        return found
    pairs = commits.group.astype(np.int64) << 32 | commits.topic.astype(np.int64)
    different, inverse = np.unique(pairs, return_inverse=True)
    known = overview.lag != NONE
    counts = np.bincount(inverse, weights=known)
    lags = np.bincount(inverse, weights=np.where(known, overview.lag, 0))
    oldest = np.full(len(different), np.nan)
    np.fmax.at(oldest, inverse, overview.seconds)
    rows = zip(different.tolist(), counts.tolist(), lags.tolist(), oldest.tolist(), strict=True)
    for pair, count, lag, seconds in rows:
        topic = TopicLag(
            topic=commits.topics[pair & 0xFFFFFFFF],
            lag=int(lag) if count else None,
            seconds=None if seconds != seconds else seconds,  # noqa: PLR0124 - NaN
        )
        found.setdefault(commits.groups[pair >> 32], []).append(topic)
    return found


def _by_case(overview: Overview) -> dict[str, dict[str, int]]:
    commits = overview.commits
    pairs = commits.group.astype(np.int64) * len(CASES) + overview.case
    different, counts = np.unique(pairs, return_counts=True)
    found: dict[str, dict[str, int]] = {}
    for pair, count in zip(different.tolist(), counts.tolist(), strict=True):
        group, case = divmod(pair, len(CASES))
        found.setdefault(commits.groups[group], {})[CASES[case].value] = count
    return found


def _by_partition(overview: Overview) -> dict[str, list[PartitionLag]]:
    commits = overview.commits
    found: dict[str, list[PartitionLag]] = {}
    columns = (
        commits.group,
        commits.topic,
        commits.partition,
        commits.committed,
        overview.lag,
        overview.seconds,
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
