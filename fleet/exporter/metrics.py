"""The exporter's metrics: their names are a contract (docs/metrics.md), and a test holds it.

Problem: a scrape must answer in a blink, whatever the cluster does, and a figure that is not
known must not read as zero. Choice: every family is made from the last complete look when that
look ends, and a scrape gives those bytes away; what cannot be said is absent, since one NaN
spoils every sum; ages and the exporter's own state are made at the scrape. A group that is gone
has no series any more. Cost: figures are as old as `fleet_snapshot_age_seconds` says.

Every cause of `fleet_group_rebalances_total` begins at 0 with a group's first membership record,
so that `increase()` sees the first rebalance too.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet import __version__
from fleet.exporter.families import Family
from fleet.exporter.picture import GroupPicture, Picture
from fleet.model.rebalances import Cause
from fleet.model.totals import BUCKETS

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
