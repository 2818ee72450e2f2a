"""The exporter's metrics: their names are a contract (docs/metrics.md), and a test holds it.

Problem: a scrape must answer in a blink, whatever the cluster does, and a figure that is not
known must not read as zero. Choice: every family is made from the last complete look when that
look ends, and a scrape gives those bytes away; what cannot be said is absent, since one NaN
spoils every sum; ages and the exporter's own state are made at the scrape. A group that is gone
has no series any more. Cost: figures are as old as `fleet_snapshot_age_seconds` says.

Every cause of `fleet_group_rebalances_total` begins at 0 with a group's first membership record,
so that `increase()` sees the first rebalance too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fleet import __version__
from fleet.lag.lag_columns import NONE, Floats, Longs
from fleet.lag.snapshot import CASES, Snapshot
from fleet.log.readers.log_view import OpenTransaction
from fleet.manager.keeping_up import worst_verdicts
from fleet.model.rebalances import BUCKETS, Cause, Totals
from fleet.text import plural

# Metric families of a look, and their text.
#
# Problem: prometheus_client makes an object with a dictionary of labels for every sample, and
# looks through each name and label again when it writes it: with a thousand groups, two thirds of
# all that a look costs. Choice: a family keeps the values of its labels as tuples, and writes its
# text at once. Cost: the format of samples stands here a second time; a test holds it against the
# library, byte for byte.
#
# Source: Prometheus, "Exposition formats" (text, version 0.0.4).


Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[str, tuple[str, ...], float]
"""One line: what is appended to the family's name, values of the labels, the value."""
_TO_ESCAPE: Final = re.compile(r'[\\\n"]')
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""In a label's value."""


class Family:
    """One family; `labels` are the names that its samples have values for.

    A counter's name is told with `_total`, a histogram's labels are followed by `le`.
    """

    def __init__(self, kind: Kind, name: str, text: str, labels: Sequence[str]) -> None:
        self.kind, self.name, self.help = kind, name, text
        self.labels = tuple(labels)
        self.samples: list[Sample] = []
        self._suffix = "_total" if kind == "counter" else ""

    def add(self, values: tuple[str, ...], value: float | None) -> None:
        """A sample; what is not known (None) is none."""
        if value is not None:
            self.samples.append((self._suffix, values, value))

    def add_buckets(
        self, values: tuple[str, ...], buckets: Iterable[tuple[str, float]], total: float
    ) -> None:
        """Of a histogram: (upper bound, how many up to it) in rising order, the sum of all."""
        count = 0.0
        for bound, count in buckets:
            self.samples.append(("_bucket", (*values, bound), count))
        self.samples.append(("_count", values, count))
        self.samples.append(("_sum", values, total))

    def text(self) -> str:
        """As Prometheus reads it."""
        told = self.name + self._suffix
        return f"# HELP {told} {self.help}\n# TYPE {told} {self.kind}\n" + "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        every = chain.from_iterable(values for _, values, _ in self.samples)
        odd = _TO_ESCAPE.search("".join(every)) is not None
        forms: dict[str, _Form] = {}
        for suffix, values, value in self.samples:
            form = forms.get(suffix)
            if form is None:
                names = (*self.labels, "le") if suffix == "_bucket" else self.labels
                form = forms[suffix] = _form(self.name + suffix, names)
            if odd:
                values = tuple(each.translate(_ESCAPED) for each in values)  # noqa: PLW2901
            yield form.line % (*form.order(values), _number(value))


class _Form(NamedTuple):
    line: str
    order: Callable[[tuple[str, ...]], tuple[str, ...]]


def _form(name: str, labels: Sequence[str]) -> _Form:
    """A line to be filled, and the order in which it wants the labels' values: by name."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    told = ",".join(f'{labels[at]}="%s"' for at in order)
    # One index alone would give the value without a tuple around it.
    pick: Any = itemgetter(*order) if len(order) > 1 else itemgetter(slice(None))
    return _Form(f"{name}{{{told}}} %s\n", pick)


@lru_cache(maxsize=1024)
def _number(value: float) -> str:
    """Most figures are the same few."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


_LONG: Final = 10.0
"""Seconds for which a transaction may be open without being told: Kafka Streams' own limit."""


def sentence_of(held: OpenTransaction) -> str:
    """A transaction with offsets that has not ended for long: its commits do not count yet."""
    began = datetime.fromtimestamp(held.since, UTC)
    return (
        f"a transaction of producer {held.producer} has been open in "
        f"__consumer_offsets-{held.partition} since {began:%H:%M:%S} UTC: "
        f"{plural(held.commits, 'committed offset')} in it "
        f"{'does' if held.commits == 1 else 'do'} not count until it ends"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One complete look: the groups' columns, and what is known beside them."""

    seen: Snapshot
    owners: Mapping[str, str] = field(default_factory=dict)
    """Of the fleets that declare groups; a group that none declares has the owner ""."""
    totals: Mapping[str, Totals] = field(default_factory=dict)
    """Rebalances of groups since the exporter began."""
    slots: tuple[tuple[str, int, str], ...] = ()
    """Of declared groups: group, number, state."""
    decode_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By record type and value version."""
    records: int = 0
    """Records of the offsets topic read."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    unread: tuple[str, ...] = ()
    """What else could not be read."""
    partitions: bool = False
    """Whether single partitions are told."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Parts of the look that could not be read."""
        return (*self.seen.problems, *self.unread)

    @property
    def transactions(self) -> tuple[OpenTransaction, ...]:
        """Those that have been open for long."""
        return tuple(t for t in self.open_transactions if self.seen.at - t.since >= _LONG)

    def labels(self, group: str) -> tuple[str, str, str]:
        """Of a group's own series: `_GROUP`."""
        return self.seen.cluster, group, self.owners.get(group, "")


_GROUP: Final = ("cluster", "group", "owner")
_TOPIC: Final = (*_GROUP, "topic")
_PARTITION: Final = (*_TOPIC, "partition")
_CAUSES: Final = tuple((cause, cause.value) for cause in Cause)
_BOUNDS: Final = (*(str(bound) for bound in BUCKETS), "+Inf")


def rendered(picture: Picture, more: Iterable[Family] = ()) -> bytes:
    """Prometheus text of one look, and of what else was decided from it.

    One family after the other, and then without its samples: they take more memory than its text.
    """
    return b"".join(map(_text, chain(families(picture), more)))


def _text(family: Family) -> bytes:
    text = family.text().encode()
    family.samples.clear()
    return text


def families(picture: Picture) -> Iterator[Family]:
    """Every family of one look, in the order of docs/metrics.md."""
    yield from _lag(picture)
    yield _cases(picture)
    if picture.partitions:
        yield from _partitions(picture)
    yield from _membership(picture)
    yield from _rebalances(picture)
    yield _verdicts(picture)
    yield _slots(picture)
    yield from _reading(picture)


def _lag(picture: Picture) -> Iterator[Family]:
    records = Family("gauge", "fleet_group_lag_records", "Records that wait, by topic.", _TOPIC)
    seconds = Family(
        "gauge", "fleet_group_lag_seconds", "Age of the oldest position where records wait.", _TOPIC
    )
    for group, topic, lag, age in _by_topic(picture.seen):
        labels = (*picture.labels(group), topic)
        records.add(labels, lag)
        seconds.add(labels, age)
    yield from (records, seconds)


def _by_topic(seen: Snapshot) -> Iterator[tuple[str, str, int | None, float | None]]:
    """Group, topic, records that wait, age of the oldest; None: it cannot be said."""
    commits = seen.commits
    if not len(commits):
        return
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
    for pair, count, lag, age in rows:
        group = commits.groups[pair >> 32]
        if group in seen.facts:
            topic = commits.topics[pair & 0xFFFFFFFF]
            yield group, topic, int(lag) if count else None, _known(age)


def _pairs(seen: Snapshot) -> Longs:
    """The group and topic of each row as one number."""
    pairs: Longs = seen.commits.group.astype(np.int64) << 32 | seen.commits.topic
    return pairs


def _ages(seen: Snapshot) -> Floats:
    """Of a position that was never seen to move: since the first look of all, at least."""
    return np.where(np.isnan(seen.lag.seconds), seen.lag.waited, seen.lag.seconds)


def _known(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124 - NaN


def _cases(picture: Picture) -> Family:
    cases = Family(
        "gauge",
        "fleet_group_partitions",
        "Partitions with a commit, by what their lag means.",
        (*_GROUP, "case"),
    )
    seen = picture.seen
    groups = seen.commits.groups
    counts = np.zeros(len(groups) * len(CASES), dtype=np.int64)
    for part in seen.portions():
        places = part.commits.group * len(CASES) + part.lag.case
        counts += np.bincount(places, minlength=len(counts))
    for place in np.flatnonzero(counts).tolist():
        group, case = divmod(place, len(CASES))
        if groups[group] in seen.facts:
            cases.add((*picture.labels(groups[group]), CASES[case].value), int(counts[place]))
    return cases


def _partitions(picture: Picture) -> Iterator[Family]:
    records = Family(
        "gauge", "fleet_partition_lag_records", "Records that wait in one partition.", _PARTITION
    )
    seconds = Family(
        "gauge",
        "fleet_partition_lag_seconds",
        "Age of the committed position in one partition.",
        _PARTITION,
    )
    committed = Family("gauge", "fleet_partition_committed_offset", "Committed offset.", _PARTITION)
    seen, commits = picture.seen, picture.seen.commits
    columns = (
        *(commits.group, commits.topic, commits.partition),
        *(commits.committed, seen.lag.records, _ages(seen)),
    )
    for group, topic, number, offset, lag, age in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if commits.groups[group] in seen.facts:
            place = (commits.topics[topic], str(number))
            labels = (*picture.labels(commits.groups[group]), *place)
            records.add(labels, None if lag == NONE else lag)
            seconds.add(labels, _known(age))
            committed.add(labels, offset)
    yield from (records, seconds, committed)


def _membership(picture: Picture) -> Iterator[Family]:
    members = Family("gauge", "fleet_group_members", "Members.", _GROUP)
    state = Family(
        "gauge",
        "fleet_group_state",
        "1 for the state that the group is in.",
        (*_GROUP, "state", "type"),
    )
    generation = Family(
        "gauge", "fleet_group_generation", "Generation, or assignment epoch (KIP-848).", _GROUP
    )
    for group, facts in picture.seen.facts.items():
        labels = picture.labels(group)
        members.add(labels, facts.members)
        state.add((*labels, facts.state.value, facts.type), 1)
        generation.add(labels, facts.generation)
    yield from (members, state, generation)


def _rebalances(picture: Picture) -> Iterator[Family]:
    counted = Family(
        "counter", "fleet_group_rebalances", "Completed rebalances, by cause.", (*_GROUP, "cause")
    )
    aborted = Family(
        "counter", "fleet_group_rebalances_aborted", "Rounds that never completed.", _GROUP
    )
    moved = Family(
        "counter", "fleet_group_partitions_moved", "Partitions that changed their owner.", _GROUP
    )
    durations = Family(
        "histogram",
        "fleet_group_rebalance_duration_seconds",
        "Duration of rebalances of which it is known.",
        _GROUP,
    )
    least = Family(
        "histogram",
        "fleet_group_rebalance_least_duration_seconds",
        "What the other rebalances took at least.",
        _GROUP,
    )
    none = Totals()
    for group, facts in picture.seen.facts.items() if picture.seen.from_log else ():
        totals = picture.totals.get(group) or (none if facts.generation is not None else None)
        labels = picture.labels(group)
        if totals is None:
            continue
        for cause, word in _CAUSES:
            counted.add((*labels, word), totals.by_cause[cause])
        aborted.add(labels, totals.aborted)
        moved.add(labels, totals.moved)
        for family, took in ((durations, totals.durations), (least, totals.least)):
            if any(took.counts):
                buckets = zip(_BOUNDS, map(float, accumulate(took.counts)), strict=True)
                family.add_buckets(labels, buckets, took.seconds)
    yield from (counted, aborted, moved, durations, least)


def _verdicts(picture: Picture) -> Family:
    verdict = Family(
        "gauge",
        "fleet_group_verdict",
        "1 for the group's verdict, that of its worst partition.",
        (*_GROUP, "verdict", "level"),
    )
    for group, judged in worst_verdicts(picture.seen).items():
        verdict.add((*picture.labels(group), judged.value, judged.level.value), 1)
    return verdict


def _slots(picture: Picture) -> Family:
    slots = Family(
        "gauge",
        "fleet_slot_state",
        "1 for the state of a declared group's slot.",
        (*_GROUP, "slot", "state"),
    )
    for group, number, state in picture.slots:
        slots.add((*picture.labels(group), str(number), state), 1)
    return slots


def _reading(picture: Picture) -> Iterator[Family]:
    seen = picture.seen
    errors = Family(
        "counter",
        "fleet_decode_errors",
        "Records of the offsets topic that could not be read.",
        ("cluster", "type", "version"),
    )
    for (kind, version), count in picture.decode_errors.items():
        errors.add((seen.cluster, str(kind), str(version)), count)
    yield errors
    held = Family(
        "gauge",
        "fleet_offsets_transaction_open_seconds",
        "Seconds for which a transaction with offsets has been open, from 10 s on.",
        ("cluster", "partition", "producer"),
    )
    for each in picture.transactions:
        held.add((seen.cluster, str(each.partition), str(each.producer)), seen.at - each.since)
    yield held
    for name, text, value in (
        ("groups", "Groups in the last look.", len(seen.facts)),
        ("look_duration_seconds", "Seconds that the last look took.", seen.took),
        ("problems", "Parts of the last look that could not be read.", len(picture.problems)),
        (
            "reads_offsets_topic",
            "1 where the offsets topic is read; 0: coordinators only, no rebalances.",
            int(seen.from_log),
        ),
    ):
        gauge = Family("gauge", f"fleet_exporter_{name}", text, ("cluster",))
        gauge.add((seen.cluster,), value)
        yield gauge
    read = Family(
        "counter", "fleet_exporter_records_read", "Records of the offsets topic.", ("cluster",)
    )
    read.add((seen.cluster,), picture.records)
    yield read


class Ages(Collector):
    """What is known only at the scrape: how old everything is, and how the looks go."""

    def __init__(
        self,
        cluster: str,
        *,
        age: Callable[[], float],
        log_age: Callable[[], float | None],
        looks: Callable[[], tuple[int, int]],
    ) -> None:
        self._cluster = cluster
        self._age, self._log_age, self._looks = age, log_age, looks
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def rendered(self) -> bytes:
        """Prometheus text of now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The families of now."""
        labels = (self._cluster,)
        age = GaugeMetricFamily(
            "fleet_snapshot_age_seconds",
            "Seconds since the last complete look; before it, since the exporter began.",
            labels=("cluster",),
        )
        age.add_metric(labels, self._age())
        log = GaugeMetricFamily(
            "fleet_offsets_topic_age_seconds",
            "Seconds since everything in the offsets topic had been read.",
            labels=("cluster",),
        )
        if (log_age := self._log_age()) is not None:
            log.add_metric(labels, log_age)
        looks = CounterMetricFamily(
            "fleet_exporter_looks", "Looks at the cluster.", labels=("cluster", "result")
        )
        for result, count in zip(("complete", "failed"), self._looks(), strict=True):
            looks.add_metric((self._cluster, result), count)
        build = GaugeMetricFamily("fleet_build_info", "1.", labels=("version",))
        build.add_metric((__version__,), 1)
        return age, log, looks, build
