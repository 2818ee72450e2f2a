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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from fleet import __version__
from fleet.exporter.picture import GroupPicture, Picture
from fleet.model.rebalances import Cause
from fleet.model.totals import BUCKETS

Family = Metric
_GROUP: Final = ("cluster", "group", "owner")
_TOPIC: Final = ("cluster", "group", "topic", "owner")
_PARTITION: Final = ("cluster", "group", "topic", "partition", "owner")
_BOUNDS: Final = (*(str(bound) for bound in BUCKETS), "+Inf")
_TO_ESCAPE: Final = re.compile(r'[\\\n"]')
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""In a label's value."""


class _One(Collector):
    """Gives away one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def rendered(picture: Picture, more: Iterable[Metric] = ()) -> bytes:
    """Prometheus text of one look, and of what else was decided from it.

    One family after the other: its samples as objects take ten times as much as its text. What is
    said of a family is the library's; its samples are written here, since the library looks
    through each name and label of each of them, which is half of a look's CPU.
    """
    return b"".join(map(_text, chain(families(picture), more)))


def _text(family: Metric) -> bytes:
    samples, family.samples = family.samples, []
    return generate_latest(_One(family)) + "".join(_lines(samples)).encode()


def _lines(samples: Iterable[Sample]) -> Iterator[str]:
    """As Prometheus reads them; names are ours, and need no care."""
    names: tuple[str, ...] = ()
    sorted_names: list[str] = []
    form = ""
    for name, labels, value, *_ in samples:
        if names != tuple(labels):
            names = tuple(labels)
            sorted_names = sorted(names)
            form = ",".join(f'{each}="%s"' for each in sorted_names)
        values = [labels[each] for each in sorted_names]
        if _TO_ESCAPE.search("".join(values)):
            values = [each.translate(_ESCAPED) for each in values]
        yield f"{name}{{{form % tuple(values)}}} {_number(value)}\n"


@lru_cache(maxsize=1024)
def _number(value: float) -> str:
    """Most figures are the same few."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def families(picture: Picture) -> Iterator[Metric]:
    """Every family of one look, in the order of docs/metrics.md."""
    yield from _lag(picture)
    yield from _membership(picture)
    yield from _rebalances(picture)
    yield from _verdicts(picture)
    yield from _slots(picture)
    yield from _reading(picture)


def _lag(picture: Picture) -> Iterator[Metric]:
    records = GaugeMetricFamily(
        "fleet_group_lag_records", "Records that wait, by topic.", labels=_TOPIC
    )
    seconds = GaugeMetricFamily(
        "fleet_group_lag_seconds", "Age of the oldest position where records wait.", labels=_TOPIC
    )
    cases = GaugeMetricFamily(
        "fleet_group_partitions",
        "Partitions with a commit, by what their lag means.",
        labels=(*_GROUP, "case"),
    )
    for group in picture.groups:
        for topic in group.topics:
            labels = (picture.cluster, group.group, topic.topic, group.owner)
            _add(records, labels, topic.lag)
            _add(seconds, labels, topic.seconds)
        for case, count in group.cases.items():
            _add(cases, (*_labels(picture, group), case), count)
    yield from (records, seconds, cases)
    if any(group.partitions for group in picture.groups):
        yield from _partitions(picture)


def _partitions(picture: Picture) -> Iterator[Metric]:
    records = GaugeMetricFamily(
        "fleet_partition_lag_records", "Records that wait in one partition.", labels=_PARTITION
    )
    seconds = GaugeMetricFamily(
        "fleet_partition_lag_seconds",
        "Age of the committed position in one partition.",
        labels=_PARTITION,
    )
    committed = GaugeMetricFamily(
        "fleet_partition_committed_offset", "Committed offset.", labels=_PARTITION
    )
    for group in picture.groups:
        for part in group.partitions:
            number = str(part.partition)
            labels = (picture.cluster, group.group, part.topic, number, group.owner)
            _add(records, labels, part.lag)
            _add(seconds, labels, part.seconds)
            _add(committed, labels, part.committed)
    yield from (records, seconds, committed)


def _membership(picture: Picture) -> Iterator[Metric]:
    members = GaugeMetricFamily("fleet_group_members", "Members.", labels=_GROUP)
    state = GaugeMetricFamily(
        "fleet_group_state",
        "1 for the state that the group is in.",
        labels=(*_GROUP, "state", "type"),
    )
    generation = GaugeMetricFamily(
        "fleet_group_generation", "Generation, or assignment epoch (KIP-848).", labels=_GROUP
    )
    for group in picture.groups:
        labels = _labels(picture, group)
        _add(members, labels, group.members)
        _add(state, (*labels, group.state, group.type), 1)
        _add(generation, labels, group.generation)
    yield from (members, state, generation)


def _rebalances(picture: Picture) -> Iterator[Metric]:
    counted = CounterMetricFamily(
        "fleet_group_rebalances", "Completed rebalances, by cause.", labels=(*_GROUP, "cause")
    )
    aborted = CounterMetricFamily(
        "fleet_group_rebalances_aborted", "Rounds that never completed.", labels=_GROUP
    )
    moved = CounterMetricFamily(
        "fleet_group_partitions_moved", "Partitions that changed their owner.", labels=_GROUP
    )
    durations = HistogramMetricFamily(
        "fleet_group_rebalance_duration_seconds",
        "Duration of rebalances of which it is known.",
        labels=_GROUP,
    )
    least = HistogramMetricFamily(
        "fleet_group_rebalance_least_duration_seconds",
        "What the other rebalances took at least.",
        labels=_GROUP,
    )
    for group in picture.groups:
        totals, labels = group.totals, _labels(picture, group)
        if totals is None:
            continue
        for cause in Cause:
            counted.add_metric((*labels, cause.value), totals.by_cause[cause])
        aborted.add_metric(labels, totals.aborted)
        moved.add_metric(labels, totals.moved)
        for family, took in ((durations, totals.durations), (least, totals.least)):
            if any(took.counts):
                buckets = list(zip(_BOUNDS, map(float, accumulate(took.counts)), strict=True))
                family.add_metric(labels, buckets, took.seconds)
    yield from (counted, aborted, moved, durations, least)


def _verdicts(picture: Picture) -> Iterator[Metric]:
    verdict = GaugeMetricFamily(
        "fleet_group_verdict",
        "1 for the group's verdict, that of its worst partition.",
        labels=(*_GROUP, "verdict", "level"),
    )
    for group in picture.groups:
        _add(verdict, (*_labels(picture, group), group.verdict, group.level), 1)
    yield verdict


def _slots(picture: Picture) -> Iterator[Metric]:
    slots = GaugeMetricFamily(
        "fleet_slot_state",
        "1 for the state of a declared group's slot.",
        labels=(*_GROUP, "slot", "state"),
    )
    for slot in picture.slots:
        labels = (picture.cluster, slot.group, slot.owner, str(slot.slot), slot.state)
        slots.add_metric(labels, 1)
    yield slots


def _reading(picture: Picture) -> Iterator[Metric]:
    errors = CounterMetricFamily(
        "fleet_decode_errors",
        "Records of the offsets topic that could not be read.",
        labels=("cluster", "type", "version"),
    )
    for (kind, version), count in picture.decode_errors.items():
        errors.add_metric((picture.cluster, str(kind), str(version)), count)
    yield errors
    held = GaugeMetricFamily(
        "fleet_offsets_transaction_open_seconds",
        "Seconds for which a transaction with offsets has been open, from 10 s on.",
        labels=("cluster", "partition", "producer"),
    )
    for each in picture.transactions:
        held.add_metric((picture.cluster, str(each.partition), str(each.producer)), each.seconds)
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
        gauge = GaugeMetricFamily(f"fleet_exporter_{name}", text, labels=("cluster",))
        gauge.add_metric((picture.cluster,), value)
        yield gauge
    read = CounterMetricFamily(
        "fleet_exporter_records_read", "Records of the offsets topic.", labels=("cluster",)
    )
    read.add_metric((picture.cluster,), picture.records)
    yield read


def _labels(picture: Picture, group: GroupPicture) -> tuple[str, str, str]:
    return picture.cluster, group.group, group.owner


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float | None) -> None:
    """What is not known is no sample."""
    if value is not None:
        family.add_metric(labels, value)


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
        _add(log, labels, self._log_age())
        looks = CounterMetricFamily(
            "fleet_exporter_looks", "Looks at the cluster.", labels=("cluster", "result")
        )
        for result, count in zip(("complete", "failed"), self._looks(), strict=True):
            looks.add_metric((self._cluster, result), count)
        build = GaugeMetricFamily("fleet_build_info", "1.", labels=("version",))
        build.add_metric((__version__,), 1)
        return age, log, looks, build
