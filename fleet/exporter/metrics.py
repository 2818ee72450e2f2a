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

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fleet import __version__
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


# What one look found, as the values that metrics are made of.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """One topic as one group sees it; None = cannot be said."""

    topic: str
    lag: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition as one group sees it."""

    topic: str
    partition: int
    committed: int
    lag: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPicture:
    """One group."""

    group: str
    owner: str
    """Of the fleet that declares it; empty where none does."""
    state: str
    type: str
    members: int | None
    generation: int | None
    topics: tuple[TopicLag, ...]
    cases: Mapping[str, int]
    """Partitions by what their lag figure means (fleet.model.LagCase)."""
    verdict: str
    level: str
    totals: Totals | None
    """Rebalances since the exporter began; None where the log is not read."""
    partitions: tuple[PartitionLag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPicture:
    """One slot of a declared group."""

    group: str
    owner: str
    slot: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTransaction:
    """A transaction with offsets that has not ended for long: its commits do not count yet."""

    partition: int
    """Of the offsets topic."""
    producer: int
    since: float
    """Wall time of its first commit."""
    seconds: float
    commits: int
    """Partitions whose commits it holds back."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since, UTC)
        return (
            f"a transaction of producer {self.producer} has been open in "
            f"__consumer_offsets-{self.partition} since {began:%H:%M:%S} UTC: "
            f"{plural(self.commits, 'committed offset')} in it "
            f"{'does' if self.commits == 1 else 'do'} not count until it ends"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One complete look."""

    cluster: str
    took: float
    from_log: bool
    """The offsets topic was read; else only the coordinators were asked."""
    groups: tuple[GroupPicture, ...] = ()
    slots: tuple[SlotPicture, ...] = ()
    decode_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By record type and value version."""
    records: int = 0
    """Records of the offsets topic read."""
    transactions: tuple[LongTransaction, ...] = ()
    problems: tuple[str, ...] = ()


_GROUP: Final = ("cluster", "group", "owner")
_TOPIC: Final = ("cluster", "group", "topic", "owner")
_PARTITION: Final = ("cluster", "group", "topic", "partition", "owner")
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
    yield from _membership(picture)
    yield from _rebalances(picture)
    yield from _verdicts(picture)
    yield from _slots(picture)
    yield from _reading(picture)


def _lag(picture: Picture) -> Iterator[Family]:
    records = Family("gauge", "fleet_group_lag_records", "Records that wait, by topic.", _TOPIC)
    seconds = Family(
        "gauge", "fleet_group_lag_seconds", "Age of the oldest position where records wait.", _TOPIC
    )
    cases = Family(
        "gauge",
        "fleet_group_partitions",
        "Partitions with a commit, by what their lag means.",
        (*_GROUP, "case"),
    )
    for group in picture.groups:
        for topic in group.topics:
            labels = (picture.cluster, group.group, topic.topic, group.owner)
            records.add(labels, topic.lag)
            seconds.add(labels, topic.seconds)
        for case, count in group.cases.items():
            cases.add((*_labels(picture, group), case), count)
    yield from (records, seconds, cases)
    if any(group.partitions for group in picture.groups):
        yield from _partitions(picture)


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
    for group in picture.groups:
        for part in group.partitions:
            number = str(part.partition)
            labels = (picture.cluster, group.group, part.topic, number, group.owner)
            records.add(labels, part.lag)
            seconds.add(labels, part.seconds)
            committed.add(labels, part.committed)
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
    for group in picture.groups:
        labels = _labels(picture, group)
        members.add(labels, group.members)
        state.add((*labels, group.state, group.type), 1)
        generation.add(labels, group.generation)
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
    for group in picture.groups:
        totals, labels = group.totals, _labels(picture, group)
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


def _verdicts(picture: Picture) -> Iterator[Family]:
    verdict = Family(
        "gauge",
        "fleet_group_verdict",
        "1 for the group's verdict, that of its worst partition.",
        (*_GROUP, "verdict", "level"),
    )
    for group in picture.groups:
        verdict.add((*_labels(picture, group), group.verdict, group.level), 1)
    yield verdict


def _slots(picture: Picture) -> Iterator[Family]:
    slots = Family(
        "gauge",
        "fleet_slot_state",
        "1 for the state of a declared group's slot.",
        (*_GROUP, "slot", "state"),
    )
    for slot in picture.slots:
        labels = (picture.cluster, slot.group, slot.owner, str(slot.slot), slot.state)
        slots.add(labels, 1)
    yield slots


def _reading(picture: Picture) -> Iterator[Family]:
    errors = Family(
        "counter",
        "fleet_decode_errors",
        "Records of the offsets topic that could not be read.",
        ("cluster", "type", "version"),
    )
    for (kind, version), count in picture.decode_errors.items():
        errors.add((picture.cluster, str(kind), str(version)), count)
    yield errors
    held = Family(
        "gauge",
        "fleet_offsets_transaction_open_seconds",
        "Seconds for which a transaction with offsets has been open, from 10 s on.",
        ("cluster", "partition", "producer"),
    )
    for each in picture.transactions:
        held.add((picture.cluster, str(each.partition), str(each.producer)), each.seconds)
    yield held
    for name, text, value in (
        ("groups", "Groups in the last look.", len(picture.groups)),
        ("look_duration_seconds", "Seconds that the last look took.", picture.took),
        ("problems", "Parts of the last look that could not be read.", len(picture.problems)),
        (
            "reads_offsets_topic",
            "1 where the offsets topic is read; 0: coordinators only, no rebalances.",
            int(picture.from_log),
        ),
    ):
        gauge = Family("gauge", f"fleet_exporter_{name}", text, ("cluster",))
        gauge.add((picture.cluster,), value)
        yield gauge
    read = Family(
        "counter", "fleet_exporter_records_read", "Records of the offsets topic.", ("cluster",)
    )
    read.add((picture.cluster,), picture.records)
    yield read


def _labels(picture: Picture, group: GroupPicture) -> tuple[str, str, str]:
    return picture.cluster, group.group, group.owner


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
