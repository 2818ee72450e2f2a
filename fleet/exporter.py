"""Refreshes the cluster's metrics on its own schedule and serves them to Prometheus.

Problem: several Prometheus servers scrape at any time. A cluster that hangs must neither block a
scrape nor read as zero. Choice: one thread refreshes every `exporter.interval` seconds. A complete
refresh becomes the text of all metrics; a failed one changes nothing, so that only the age grows.
Refreshes and scrapes share only that text. Cost: a figure is up to one interval old.
"""

import contextlib
import gzip
import re
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from fleet.config.spec import GroupSpec, WantedMembersSpec
from fleet.decide.scaling import ScalingMemory, wanted_slots
from fleet.decide.storms import StormWatch, watch_reach
from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Floats
from fleet.lag.snapshot import CASES, Snapshot
from fleet.log.readers.log_view import OpenTransaction
from fleet.log.readers.tail import CoordinatorPoller, Tail
from fleet.log.records import Unreadable
from fleet.manager.cycle import Fleet
from fleet.manager.lag_assessment import find_still_rows, worst_lag_status
from fleet.manager.live_cluster import live_readers
from fleet.model import GroupSnapshot, LagCase, ReceiptResult
from fleet.model.rebalances import BUCKETS, Cause, Totals
from fleet.observe.watcher import GroupWatcher
from fleet.slots import Change, Phase
from fleet.system.closing import Closing
from fleet.system.listening import ELSEWHERE, Listening, QuietHandler
from fleet.text import duration, plural

# The exporter's metrics. Their names are a contract (docs/reference/metrics.md), which a test
# checks.
#
# Problem: a scrape must be fast whatever the cluster does. An unknown figure must not read as zero.
# Choice: each complete refresh renders all families, and a scrape returns these bytes. Unknown
# figures are absent, because one NaN spoils every sum. A scrape computes only the ages and the
# exporter's own state. A deleted group has no series. Cost: figures are as old as
# `fleet_snapshot_age_seconds` says.
#
# Every cause of `fleet_group_rebalances_total` starts at 0 with a group's first membership record,
# so that `increase()` counts the first rebalance too.


# Metric families of a refresh, and their text.
#
# Problem: prometheus_client makes an object with a dictionary of labels for every sample and checks
# each name again when it writes. With a thousand groups that is two thirds of a refresh. Choice: a
# family keeps its label values as tuples and writes its text at once. Cost: this module implements
# the text format again; a test compares it with the library byte for byte.
#
# Source: Prometheus, "Exposition formats" (text, version 0.0.4).


Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[str, tuple[str, ...], float]
"""One line: what is appended to the family's name, values of the labels, the value."""
_TO_ESCAPE: Final = re.compile(r'[\\\n"]')
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""Characters that a label value escapes."""


class Family:
    """One family; `labels` are the names that its samples have values for.

    A counter's name gets the suffix `_total`, and a histogram's buckets get the label `le`.
    """

    def __init__(self, kind: Kind, name: str, text: str, labels: Sequence[str]) -> None:
        self.kind, self.name, self.help = kind, name, text
        self.labels = tuple(labels)
        self.samples: list[Sample] = []
        self._suffix = "_total" if kind == "counter" else ""

    def add(self, values: tuple[str, ...], value: float | None) -> None:
        """Adds a sample; an unknown value (None) adds none."""
        if value is not None:
            self.samples.append((self._suffix, values, value))

    def add_buckets(
        self, values: tuple[str, ...], buckets: Iterable[tuple[str, float]], total: float
    ) -> None:
        """Adds a histogram: (upper bound, cumulative count) in rising order, and the sum."""
        count = 0.0
        for bound, count in buckets:
            self.samples.append(("_bucket", (*values, bound), count))
        self.samples.append(("_count", values, count))
        self.samples.append(("_sum", values, total))

    def text(self) -> str:
        """Renders the family as Prometheus text."""
        name = self.name + self._suffix
        return f"# HELP {name} {self.help}\n# TYPE {name} {self.kind}\n" + "".join(self._lines())

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
    """Builds a line's template and the order of its label values: by label name."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    pairs = ",".join(f'{labels[at]}="%s"' for at in order)
    # One index alone would give the value without a tuple around it.
    pick: Any = itemgetter(*order) if len(order) > 1 else itemgetter(slice(None))
    return _Form(f"{name}{{{pairs}}} %s\n", pick)


@lru_cache(maxsize=1024)
def _number(value: float) -> str:
    """Formats a number; cached, because most figures repeat."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


_LONG: Final = 10.0
"""Seconds for which an open transaction is not reported: the limit of Kafka Streams."""


def transaction_sentence(held: OpenTransaction) -> str:
    """Describes an open transaction with offsets: its commits do not count yet."""
    began = datetime.fromtimestamp(held.since, UTC)
    return (
        f"a transaction of producer {held.producer} has been open in "
        f"__consumer_offsets-{held.partition} since {began:%H:%M:%S} UTC: "
        f"{plural(held.commits, 'committed offset')} in it "
        f"{'does' if held.commits == 1 else 'do'} not count until it ends"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshResult:
    """The data of one complete refresh: the groups' columns and what belongs to them."""

    seen: Snapshot
    owners: Mapping[str, str] = field(default_factory=dict)
    """Owner of each declared group; an undeclared group has the owner ""."""
    totals: Mapping[str, Totals] = field(default_factory=dict)
    """Rebalances of each group since the exporter started."""
    slots: tuple[tuple[str, int, str], ...] = ()
    """Slots of declared groups: group, number, state."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Members that the declared policy of a group wants."""
    decode_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Counts by record type and value version."""
    records: int = 0
    """Records read from the offsets topic."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    unread: tuple[str, ...] = ()
    """Other parts that could not be read."""
    partitions: bool = False
    """Whether metrics of single partitions are exported."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Returns the parts of the refresh that could not be read."""
        return (*self.seen.problems, *self.unread)

    @property
    def transactions(self) -> tuple[OpenTransaction, ...]:
        """Returns the transactions that have been open for long."""
        return tuple(t for t in self.open_transactions if self.seen.at - t.since >= _LONG)

    def labels(self, group: str) -> tuple[str, str, str]:
        """Returns the label values of a group's series (`_GROUP`)."""
        return self.seen.cluster, group, self.owners.get(group, "")


_GROUP: Final = ("cluster", "group", "owner")
_TOPIC: Final = (*_GROUP, "topic")
_PARTITION: Final = (*_TOPIC, "partition")
_CAUSES: Final = tuple((cause, cause.value) for cause in Cause)
_BOUNDS: Final = (*(str(bound) for bound in BUCKETS), "+Inf")


def render(result: RefreshResult, more: Iterable[Family] = ()) -> bytes:
    """Renders the Prometheus text of one refresh and of the families in `more`.

    Clears the samples of each rendered family: they take more memory than its text.
    """
    return b"".join(map(_text, chain(families(result), more)))


def _text(family: Family) -> bytes:
    text = family.text().encode()
    family.samples.clear()
    return text


def families(result: RefreshResult) -> Iterator[Family]:
    """Yields every family of one refresh, in the order of docs/reference/metrics.md."""
    yield from _lag(result)
    yield _cases(result)
    if result.partitions:
        yield from _partitions(result)
    yield from _membership(result)
    yield from _rebalances(result)
    yield _lag_statuses(result)
    yield _wanted(result)
    yield _slots(result)
    yield from _reading(result)


def _lag(result: RefreshResult) -> Iterator[Family]:
    records = Family("gauge", "fleet_group_lag_records", "Waiting records, by topic.", _TOPIC)
    seconds = Family(
        "gauge", "fleet_group_lag_seconds", "Age in seconds of the oldest waiting record.", _TOPIC
    )
    for group, topic, lag, age in _by_topic(result.seen):
        labels = (*result.labels(group), topic)
        records.add(labels, lag)
        seconds.add(labels, age)
    yield from (records, seconds)


def _by_topic(seen: Snapshot) -> Iterator[tuple[str, str, int | None, float | None]]:
    """Yields group, topic, waiting records and age of the oldest; None if unknown."""
    commits = seen.commits
    if not len(commits):
        return
    different = np.unique(
        np.concatenate([np.unique(part.commits.of_topics()) for part in seen.portions()])
    )
    counts, lags, waiting = np.zeros((3, len(different)))
    oldest = np.full(len(different), np.nan)
    for part in seen.portions():
        place, records = np.searchsorted(different, part.commits.of_topics()), part.lag.records
        known, waits = records != NONE, records > 0
        counts += np.bincount(place[known], minlength=len(different))
        lags += np.bincount(place[known], records[known], minlength=len(different))
        # Only partitions with waiting records have an age that counts.
        waiting += np.bincount(place[waits], minlength=len(different))
        np.fmax.at(oldest, place[waits], _ages(part)[waits])
    oldest[(counts > 0) & (waiting == 0)] = 0.0
    rows = zip(different.tolist(), counts.tolist(), lags.tolist(), oldest.tolist(), strict=True)
    for pair, count, lag, age in rows:
        group = commits.groups[pair >> 32]
        if group in seen.facts:
            topic = commits.topics[pair & 0xFFFFFFFF]
            yield group, topic, int(lag) if count else None, _known(age)


def _ages(seen: Snapshot) -> Floats:
    """Returns the ages; an offset that never moved has waited since the first refresh at least."""
    return np.where(np.isnan(seen.lag.seconds), seen.lag.waited, seen.lag.seconds)


def _known(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124 - NaN


def _cases(result: RefreshResult) -> Family:
    cases = Family(
        "gauge",
        "fleet_group_partitions",
        "Partitions with a committed offset, by lag case.",
        (*_GROUP, "case"),
    )
    seen = result.seen
    groups = seen.commits.groups
    counts = np.zeros(len(groups) * len(CASES), dtype=np.int64)
    for part in seen.portions():
        places = part.commits.group * len(CASES) + part.lag.case
        counts += np.bincount(places, minlength=len(counts))
    for place in np.flatnonzero(counts).tolist():
        group, case = divmod(place, len(CASES))
        if groups[group] in seen.facts:
            cases.add((*result.labels(groups[group]), CASES[case].value), int(counts[place]))
    return cases


def _partitions(result: RefreshResult) -> Iterator[Family]:
    records = Family(
        "gauge", "fleet_partition_lag_records", "Waiting records of one partition.", _PARTITION
    )
    seconds = Family(
        "gauge",
        "fleet_partition_lag_seconds",
        "Age in seconds of the oldest waiting record of one partition.",
        _PARTITION,
    )
    committed = Family("gauge", "fleet_partition_committed_offset", "Committed offset.", _PARTITION)
    seen, commits = result.seen, result.seen.commits
    columns = (
        *(commits.group, commits.topic, commits.partition),
        *(commits.committed, seen.lag.records, _ages(seen)),
    )
    for group, topic, number, offset, lag, age in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if commits.groups[group] in seen.facts:
            place = (commits.topics[topic], str(number))
            labels = (*result.labels(commits.groups[group]), *place)
            records.add(labels, None if lag == NONE else lag)
            seconds.add(labels, _known(age))
            committed.add(labels, offset)
    yield from (records, seconds, committed)


def _membership(result: RefreshResult) -> Iterator[Family]:
    members = Family("gauge", "fleet_group_members", "Members of the group.", _GROUP)
    state = Family(
        "gauge",
        "fleet_group_state",
        "1 for the group's current state.",
        (*_GROUP, "state", "type"),
    )
    generation = Family(
        "gauge", "fleet_group_generation", "Generation (classic) or epoch (KIP-848).", _GROUP
    )
    for group, facts in result.seen.facts.items():
        labels = result.labels(group)
        members.add(labels, facts.members)
        state.add((*labels, facts.state.value, facts.type), 1)
        generation.add(labels, facts.generation)
    yield from (members, state, generation)


def _rebalances(result: RefreshResult) -> Iterator[Family]:
    counted = Family(
        "counter", "fleet_group_rebalances", "Completed rebalances, by cause.", (*_GROUP, "cause")
    )
    aborted = Family(
        "counter",
        "fleet_group_rebalances_aborted",
        "Rebalance rounds that did not complete.",
        _GROUP,
    )
    moved = Family(
        "counter", "fleet_group_partitions_moved", "Partitions that got another owner.", _GROUP
    )
    durations = Family(
        "histogram",
        "fleet_group_rebalance_duration_seconds",
        "Duration in seconds of rebalances whose start is known.",
        _GROUP,
    )
    least = Family(
        "histogram",
        "fleet_group_rebalance_duration_lower_bound_seconds",
        "Lower bound in seconds of the duration of the other rebalances.",
        _GROUP,
    )
    none = Totals()
    for group, facts in result.seen.facts.items() if result.seen.from_log else ():
        totals = result.totals.get(group) or (none if facts.generation is not None else None)
        labels = result.labels(group)
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


def _lag_statuses(result: RefreshResult) -> Family:
    family = Family(
        "gauge",
        "fleet_group_lag_status",
        "1 for the group's lag status: the status of its worst partition.",
        (*_GROUP, "status", "level"),
    )
    for group, judged in worst_lag_status(result.seen).items():
        family.add((*result.labels(group), judged.value, judged.level.value), 1)
    return family


def _wanted(result: RefreshResult) -> Family:
    family = Family(
        "gauge",
        "fleet_group_wanted_members",
        "Members that the scaling policy of fleet.yaml wants.",
        _GROUP,
    )
    for group, members in result.wanted.items():
        family.add(result.labels(group), members)
    return family


def _slots(result: RefreshResult) -> Family:
    slots = Family(
        "gauge",
        "fleet_slot_state",
        "1 for the current state of a slot.",
        (*_GROUP, "slot", "state"),
    )
    for group, number, state in result.slots:
        slots.add((*result.labels(group), str(number), state), 1)
    return slots


def _reading(result: RefreshResult) -> Iterator[Family]:
    seen = result.seen
    errors = Family(
        "counter",
        "fleet_decode_errors",
        "Records of the offsets topic that could not be decoded.",
        ("cluster", "type", "version"),
    )
    for (kind, version), count in result.decode_errors.items():
        errors.add((seen.cluster, str(kind), str(version)), count)
    yield errors
    held = Family(
        "gauge",
        "fleet_offsets_transaction_open_seconds",
        "Seconds since the begin of an open transaction with offsets, if 10 or more.",
        ("cluster", "partition", "producer"),
    )
    for each in result.transactions:
        held.add((seen.cluster, str(each.partition), str(each.producer)), seen.at - each.since)
    yield held
    for name, text, value in (
        ("groups", "Groups in the last refresh.", len(seen.facts)),
        ("refresh_duration_seconds", "Duration in seconds of the last refresh.", seen.took),
        ("problems", "Parts of the last refresh that could not be read.", len(result.problems)),
        (
            "reads_offsets_topic",
            "1 if the exporter reads the offsets topic, 0 if it only asks coordinators.",
            int(seen.from_log),
        ),
    ):
        gauge = Family("gauge", f"fleet_exporter_{name}", text, ("cluster",))
        gauge.add((seen.cluster,), value)
        yield gauge
    read = Family(
        "counter",
        "fleet_exporter_records_read",
        "Records read from the offsets topic.",
        ("cluster",),
    )
    read.add((seen.cluster,), result.records)
    yield read


class ScrapeAges(Collector):
    """Collects the metrics of a scrape: ages, and the count of refreshes."""

    def __init__(
        self,
        cluster: str,
        *,
        age: Callable[[], float],
        log_age: Callable[[], float | None],
        refresh_counts: Callable[[], tuple[int, int]],
    ) -> None:
        self._cluster = cluster
        self._age, self._log_age, self._refresh_counts = age, log_age, refresh_counts
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Renders the current Prometheus text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Returns the current families."""
        labels = (self._cluster,)
        age = GaugeMetricFamily(
            "fleet_snapshot_age_seconds",
            "Seconds since the last complete refresh, or since the start before the first one.",
            labels=("cluster",),
        )
        age.add_metric(labels, self._age())
        log = GaugeMetricFamily(
            "fleet_offsets_topic_age_seconds",
            "Seconds since the exporter had read all records of the offsets topic.",
            labels=("cluster",),
        )
        if (log_age := self._log_age()) is not None:
            log.add_metric(labels, log_age)
        looks = CounterMetricFamily(
            "fleet_exporter_refreshes",
            "Refreshes of the cluster's data, by result.",
            labels=("cluster", "result"),
        )
        for result, count in zip(("complete", "failed"), self._refresh_counts(), strict=True):
            looks.add_metric((self._cluster, result), count)
        build = GaugeMetricFamily("fleet_build_info", "1 for the version.", labels=("version",))
        build.add_metric((__version__,), 1)
        return age, log, looks, build


# Storms and receipts as metrics, decided at each refresh.
#
# Problem: the next scrape must show that a group is in a storm, its top offender, and whether ten
# other groups have the same cause. Choice: each complete refresh passes the rebalances of the tail
# to `fleet.decide.storms`, with the expected costs of Fleet's changes and the moves of
# coordinators. The exporter stores nothing: after a restart the tail reads the log again and finds
# the same storms. If the store does not answer, the last known changes excuse their expected
# costs. Cost: if the log cannot be read, the families are absent rather than 0.
#
# `fleet_group_storm` is 0 or 1 for every group, so that absence never means "no storm". Cause, top
# offender and summary are labels of a second series that exists only during the storm: as labels
# of the first one, a change would end one alert and start another.


_CHANGES: Final = 5
"""Changes of a group that the exporter reads: those within a storm's reach."""
_NAMES: Final = ("cluster", "group", "owner")
RECEIPT_SHOWN_SECONDS: Final = 86_400.0
"""Seconds for which a receipt that differs is exported, unless another change follows."""


class StormFamilies(Closing):
    """Builds the families of storms and receipts; keeps the storms between refreshes."""

    def __init__(self, fleet: Fleet, tail: Tail) -> None:
        self._fleet, self._tail = fleet, tail
        self._coordinators = CoordinatorPoller(fleet.client, clock=fleet.clock)
        self._watch = StormWatch()
        self._changes: dict[str, tuple[Change, ...]] = {}

    def _last_changes(self) -> dict[str, tuple[Change, ...]]:
        managed = [fleet.group for fleet in self._fleet.spec.fleets if fleet.worker is not None]
        with contextlib.suppress(FleetError):  # the exporter reports it with the slots
            self._changes = {g: self._fleet.readable_changes(g, limit=_CHANGES) for g in managed}
        return self._changes

    def close(self) -> None:
        """Closes the connection."""
        self._coordinators.close()

    def current_storms(self, seen: Snapshot) -> Container[str]:
        """Returns the groups in a storm at the last call of `families`; none if unknown."""
        return self._watch.storms if seen.from_log else ()

    def families(self, seen: Snapshot) -> Iterable[Family]:
        """Returns the families of storms and receipts."""
        spec, now = self._fleet.spec, seen.at
        changes = self._last_changes()
        owners = dict.fromkeys(seen.groups, "") | {
            fleet.group: fleet.owner for fleet in spec.fleets if fleet.group in seen.groups
        }
        cluster = spec.cluster.name
        receipts = receipt_families(changes.items(), cluster=cluster, owners=owners, now=now)
        if not seen.from_log:
            return tuple(receipts)
        move = self._coordinators.poll()
        self._watch = self._watch.refresh(
            spec,
            self._tail.rebalances(since=now - watch_reach(spec)),
            now=now,
            changes=changes,
            moves=() if move is None else (move,),
        )
        storms = storm_families(self._watch, cluster=spec.cluster.name, owners=owners)
        return (*receipts, *storms)


def storm_families(
    watch: StormWatch, *, cluster: str, owners: Mapping[str, str]
) -> Iterator[Family]:
    """Yields `fleet_group_storm`, `fleet_cluster_storm` and their info series.

    `owners` names every exported group with its owner ("" if none is declared).
    """
    storm = Family(
        "gauge", "fleet_group_storm", "1 while the group is over its budget of rebalances.", _NAMES
    )
    info = Family(
        "gauge",
        "fleet_group_storm_info",
        "1 for the cause and the top offender of a group's storm, during the storm.",
        (*_NAMES, "cause", "top_offender", "summary"),
    )
    for group, owner in owners.items():
        found = watch.storms.get(group)
        storm.add((cluster, group, owner), float(found is not None))
        if found is not None:
            member = found.top_offender or ""
            info.add((cluster, group, owner, found.cause, member, found.summary), 1.0)
    yield storm
    yield info
    whole = Family(
        "gauge",
        "fleet_cluster_storm",
        "1 while ten or more groups are in a storm, or after coordinators moved.",
        ("cluster",),
    )
    whole.add((cluster,), float(watch.cluster is not None))
    yield whole
    cause = Family(
        "gauge",
        "fleet_cluster_storm_info",
        "1 for the cause of the cluster's storm, during the storm.",
        ("cluster", "cause", "summary"),
    )
    if watch.cluster is not None:
        cause.add((cluster, watch.cluster.cause, watch.cluster.summary), 1.0)
    yield cause


def receipt_families(
    changes: Iterable[tuple[str, Sequence[Change]]],
    *,
    cluster: str,
    owners: Mapping[str, str],
    now: float,
) -> Iterator[Family]:
    """Yields `fleet_group_receipt_differs` from (group, its changes, latest first)."""
    differs = Family(
        "gauge",
        "fleet_group_receipt_differs",
        "1 if the recorded rebalances of the last change differ from its plan.",
        _NAMES,
    )
    for group, known in changes:
        last = next(iter(known), None)
        recent = last is not None and now - (last.ended_at or now) < RECEIPT_SHOWN_SECONDS
        found = last is not None and any(r.result is ReceiptResult.DIFFERS for r in last.receipts)
        differs.add((cluster, group, owners.get(group, "")), float(recent and found))
    yield differs


# Computes how many members a group wants, for scalers that are not Fleet.
#
# Problem: KEDA and an HPA scale a Deployment by lag alone, since nobody tells them capacity and the
# cost of a rebalance. Choice: the exporter asks the group's policy at each refresh, and serves its
# number. It needs no right to change anything. The policy is `scaling` of a declared group, else
# that of the first entry of `exporter.wanted_members` that takes the group. A group that Kafka does
# not report has no number, so that a scaler keeps what it has. In a storm the number stays, since
# each change costs one more rebalance, and members and lag jump. Cost: the memory of a policy lasts
# as long as the exporter, and after a restart the first number is the present one; one more request
# per refresh.

_UNREAD: Final = frozenset({LagCase.TOPIC_DELETED, LagCase.LEFT})


class WantedMembers:
    """Asks the policies of a fleet.yaml."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._memories: dict[str, ScalingMemory] = {}
        self._last: Mapping[str, int] = {}

    def refresh(self, known: Iterable[str], storms: Container[str] = ()) -> Mapping[str, int]:
        """Returns the wanted members of each group with a policy; known: groups that it exports.

        A group in `storms` keeps its last number; it has none if there was none before the storm.

        It asks the coordinators for these groups, since the offsets topic alone names no owner
        until the next rebalance.
        """
        policies = self._policies(known)
        self._memories = {g: kept for g, kept in self._memories.items() if g in policies}
        if not policies:
            self._last = {}
            return {}
        seen, found = self._fleet.snapshot(list(policies)), {}
        for name, policy in policies.items():
            group = seen.groups.get(name)
            if group is None or not group.exists:
                continue
            spec = policy if isinstance(policy, GroupSpec) else _undeclared(group, seen, policy)
            if not spec.topics or group.type == "share":
                continue
            decision = wanted_slots(
                spec=spec,
                group=group,
                topics=seen.topics,
                current=len(group.members),
                memory=self._memories.get(name, ScalingMemory()),
                now=seen.at,
                reports=() if spec.worker is None else self._fleet.reports(name),
                unit="member",
                external=self._fleet.external_number(spec),
            )
            self._memories[name] = decision.memory
            if name not in storms:
                found[name] = decision.wanted
            elif name in self._last:
                found[name] = self._last[name]
        self._last = found
        return found

    def _policies(self, known: Iterable[str]) -> dict[str, GroupSpec | WantedMembersSpec]:
        """Returns what sizes each group that declares `scaling` or that an entry takes."""
        spec = self._fleet.spec
        declared = {each.group: each for each in spec.fleets}
        found: dict[str, GroupSpec | WantedMembersSpec] = {
            name: each for name, each in declared.items() if "scaling" in each.model_fields_set
        }
        for name in known if spec.exporter.wanted_members else ():
            if name in found:
                continue
            entry = next((e for e in spec.exporter.wanted_members if e.groups.takes(name)), None)
            if entry is not None:
                own = declared.get(name)
                found[name] = own.model_copy(update=_sizing(entry)) if own else entry
        return found


def _sizing(entry: WantedMembersSpec) -> dict[str, Any]:
    return {"scaling": entry.scaling, "replicas": entry.replicas}


def _undeclared(group: GroupSnapshot, seen: Snapshot, entry: WantedMembersSpec) -> GroupSpec:
    """Returns an entry's policy for a group that no fleet declares, with the topics it reads."""
    topics = {each.tp.topic for each in group.partitions if each.case not in _UNREAD}
    topics |= {tp.topic for member in group.members for tp in member.partitions}
    topics |= seen.topics.keys() & (seen.facts[group.group].topics or ())
    # Without validation: Kafka allows names of groups that no file can declare.
    return GroupSpec.model_construct(
        group=group.group, topics=tuple(sorted(topics)), **_sizing(entry)
    )


# /metrics and /healthz of the exporter.
#
# A scrape never waits for the cluster: it returns the text of the last complete refresh, gzipped if
# the client accepts that. Before the first one it returns the ages and the exporter's own metrics.


KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = b"/metrics /healthz /readyz\n"


class Body:
    """The text of the last complete refresh. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._packed: bytes | None = None

    def show(self, text: bytes) -> None:
        """Replaces the text."""
        with self._lock:
            self._text, self._packed = text, None

    def get(self, *, packed: bool) -> bytes:
        """Returns the text, gzipped if `packed` (members of a gzip file may be concatenated)."""
        with self._lock:
            text, found = self._text, self._packed
        if not packed:
            return text
        if found is None:
            found = gzip.compress(text, compresslevel=1)
            with self._lock:
                if self._text is text:
                    self._packed = found
        return found


class Server(Listening):
    """Serves the metrics until closed. Raises ConfigError if it cannot bind.

    `ages` returns the text of each scrape. `healthy` and `ready` return a reason why not, or None.
    """

    def __init__(
        self,
        address: str,
        body: Body,
        *,
        ages: Callable[[], bytes],
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
    ) -> None:
        handler = _handler(body, ages, {"/healthz": healthy, "/readyz": ready})
        super().__init__(address, handler, key="exporter.listen", remedy=ELSEWHERE)


def _handler(
    body: Body, ages: Callable[[], bytes], checks: dict[str, Callable[[], str | None]]
) -> type[QuietHandler]:
    class MetricsHandler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                packed = "gzip" in self.headers.get("Accept-Encoding", "")
                now = ages()
                answer = (gzip.compress(now, 1) if packed else now) + body.get(packed=packed)
                encoding = {"Content-Encoding": "gzip"} if packed else {}
                self.answer(200, answer, KIND, **encoding)
            elif path in checks:
                reason = checks[path]()
                text = f"{reason or 'ok'}\n".encode()
                self.answer(503 if reason else 200, text)
            else:
                self.answer(200 if path == "/" else 404, _PAGE)

    return MetricsHandler


Say = Callable[[str], None]
_READING: Final = 5.0
"""Seconds between polls of the log; a refresh reads it to its end in any case."""
_HANGING: Final = 60.0
"""Seconds beyond the interval after which a refresh hangs and the exporter is unhealthy."""


class Exporter(Closing):
    """Exports one cluster: listens from the start, refreshes when `refresh` or `run` is called.

    Raises ConfigError if the address is in use, before it does anything else.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        listen: str,
        tail: Tail,
        watcher: GroupWatcher,
        say: Say,
    ) -> None:
        self._fleet = fleet
        self._tail, self._watcher = tail, watcher
        self._say = say
        self._storms = StormFamilies(fleet, tail)
        self._wanted = WantedMembers(fleet)
        self._clock = fleet.clock
        self._interval = fleet.spec.exporter.interval
        self._body = Body()
        self._began = self._refresh_began = self._clock.monotonic()
        self._complete_at: float | None = None
        self._complete = self._failed = 0
        self._full = False
        self._reported: set[str] = set()
        self._failure: str | None = None
        self._ages = ScrapeAges(
            fleet.spec.cluster.name,
            age=self.age,
            log_age=tail.age,
            refresh_counts=self._refresh_counts,
        )
        self._server = Server(
            listen, self._body, ages=self._ages.render, healthy=self._healthy, ready=self._ready
        )
        tail.start()

    @classmethod
    def of(cls, fleet: Fleet, *, listen: str, say: Say) -> "Exporter":
        """Creates the exporter that a fleet.yaml describes."""
        tail, watcher = live_readers(
            fleet,
            groups=fleet.spec.exporter.groups.takes,
            beat=min(_READING, fleet.spec.exporter.interval),
        )
        return cls(fleet, listen=listen, tail=tail, watcher=watcher, say=say)

    @property
    def address(self) -> str:
        """Returns the address on which it listens."""
        return self._server.address

    @property
    def is_failing(self) -> bool:
        """Returns whether the last refresh failed."""
        return self._failure is not None

    def close(self) -> None:
        """Stops listening and reading."""
        self._server.close()
        self._tail.close()
        self._watcher.close()
        self._storms.close()

    def run(self, stop: threading.Event, until: Callable[[], bool] = lambda: False) -> None:
        """Refreshes on schedule until `stop` is set; reports a repeated failure once.

        Goes on after a defect too: groups without new data are worse. `until` is called after
        each refresh and stops the loop if it returns True.
        """
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                self.refresh()
            except FleetError as error:
                self._failed += 1
                self._report_failure(str(error))
            except Exception as error:  # noqa: BLE001 - reported, counted, and the age grows
                self._failed += 1
                why = f"{type(error).__name__}: {error}"
                self._report_failure(f"refresh failed by a defect: {why}; report it")
            if until():
                return
            due = max(due + self._interval, self._clock.monotonic())
            stop.wait(due - self._clock.monotonic())

    def wait_for_log(self, timeout: float = 60.0, *, quiet: float = 3.0) -> None:
        """Waits until the offsets topic is read or unreadable; reports it after `quiet` seconds.

        Raises Unreachable if no broker answers by then.
        """
        with contextlib.suppress(Unreadable):
            if self._tail.catch_up(quiet):
                return
            why = self._tail.problem
            self._say(
                f"waiting up to {duration(timeout)} for the brokers at {self._fleet.bootstrap} and "
                f"their offsets topic{f': {why}' if why else ''}"
            )
            self._fleet.topic_ids()
            self._tail.catch_up(timeout - quiet)

    def text(self) -> str:
        """Returns the current text of /metrics."""
        return (self._ages.render() + self._body.get(packed=False)).decode()

    def refresh(self) -> RefreshResult:
        """Refreshes once; /metrics returns the result from then on."""
        self._refresh_began = self._clock.monotonic()
        seen = self._watcher.refresh()
        seen = self._watcher.read_on(seen, find_still_rows(seen))
        slots, unread = self._read_slots()
        storms = self._storms.families(seen)
        try:
            wanted = self._wanted.refresh(seen.facts, self._storms.current_storms(seen))
        except FleetError as error:  # the store is unreadable: no number, so nothing shrinks
            wanted, unread = {}, (*unread, f"cannot size groups: {error}")
        result = RefreshResult(
            seen=seen,
            totals=self._tail.totals(),
            owners={fleet.group: fleet.owner for fleet in self._fleet.spec.fleets},
            slots=slots,
            wanted=wanted,
            decode_errors=self._tail.decode_errors(),
            records=self._tail.records,
            open_transactions=tuple(self._tail.open_transactions()),
            partitions=self._fleet.spec.exporter.partitions,
            unread=unread,
        )
        self._body.show(render(result, storms))
        # The age counts from the start of the refresh, when the figures were read.
        self._complete_at = self._refresh_began
        self._complete += 1
        self._full |= not seen.partial
        blind = None if seen.from_log else self._tail.problem
        held = map(transaction_sentence, result.transactions)
        self._report_problems({*result.problems, *held, *filter(None, (blind,))})
        return result

    def age(self) -> float:
        """Returns the seconds since the last complete refresh began, or since the start."""
        return self._clock.monotonic() - (self._complete_at or self._began)

    def _refresh_counts(self) -> tuple[int, int]:
        return self._complete, self._failed

    def _read_slots(self) -> tuple[tuple[tuple[str, int, str], ...], tuple[str, ...]]:
        """Returns the slots, and why they cannot be read."""
        try:
            return tuple(self._slots()), ()
        except FleetError as error:
            return (), (f"slots and changes cannot be read: {error}",)

    def _slots(self) -> Iterator[tuple[str, int, str]]:
        """Yields group, slot number and state."""
        for fleet in self._fleet.spec.fleets:
            if fleet.worker is None:
                continue
            quarantined = self._fleet.targets(fleet.group).quarantined
            for slot in self._fleet.slots(fleet.group):
                phase = slot.phase if slot.owner is not None else Phase.FREE
                state = "quarantined" if slot.number in quarantined else phase.value
                yield fleet.group, slot.number, state

    def _healthy(self) -> str | None:
        silent = self._clock.monotonic() - self._refresh_began
        if silent <= self._interval + _HANGING:
            return None
        return f"the refresh of the cluster has been hanging for {duration(silent)}"

    def _ready(self) -> str | None:
        """Returns why not: before a refresh has all groups, missing ones would look deleted."""
        if self._full:
            return None
        return "no refresh of all brokers yet" if self._complete else "no complete refresh yet"

    def _report_failure(self, why: str) -> None:
        """Reports a failed refresh, unless the last one failed for the same reason."""
        if why != self._failure:
            self._say(why)
        self._failure = why

    def _report_problems(self, problems: set[str]) -> None:
        """Reports new problems of a refresh, and those that are resolved."""
        if self._failure is not None:
            self._say(f"resolved: {self._failure}")
        self._failure = None
        for problem in sorted(problems - self._reported):
            self._say(problem)
        for problem in sorted(self._reported - problems):
            self._say(f"resolved: {problem}")
        self._reported = problems
