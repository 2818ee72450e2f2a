"""The exporter: look on a schedule of its own, judge, and keep what the next scrape gets.

Problem: Prometheus asks when it likes, from several servers at once, and a cluster that hangs
must not hang the scrape nor read as zero. Choice: one thread looks every `exporter.interval`
seconds; a complete look becomes the text of all metrics, a failed one changes nothing, so that
only the age grows. Looks and scrapes share nothing but that text. Cost: a figure is up to one
interval old.
"""

import contextlib
import gzip
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fleet import __version__
from fleet.decide.storms import StormWatch, watch_most, watch_reach
from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Floats, Longs
from fleet.lag.snapshot import CASES, Snapshot
from fleet.log.readers.log_view import KEEP, MOST, OpenTransaction
from fleet.log.readers.tail import Coordinators, Tail
from fleet.log.records import Unreadable
from fleet.manager.cycle import Fleet
from fleet.manager.keeping_up import standing, worst_lag_status
from fleet.model import ReceiptResult
from fleet.model.rebalances import BUCKETS, Cause, Totals
from fleet.observe.watcher import GroupWatcher
from fleet.slots import Change, Phase
from fleet.system.closing import Closing
from fleet.system.listening import ELSEWHERE, Listening
from fleet.text import duration, plural

# The exporter's metrics: their names are a contract (docs/reference/metrics.md), and a test holds
# it.
#
# Problem: a scrape must answer in a blink, whatever the cluster does, and a figure that is not
# known must not read as zero. Choice: every family is made from the last complete look when that
# look ends, and a scrape gives those bytes away; what cannot be said is absent, since one NaN
# spoils every sum; ages and the exporter's own state are made at the scrape. A group that is gone
# has no series any more. Cost: figures are as old as `fleet_snapshot_age_seconds` says.
#
# Every cause of `fleet_group_rebalances_total` begins at 0 with a group's first membership record,
# so that `increase()` sees the first rebalance too.


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
    """Every family of one look, in the order of docs/reference/metrics.md."""
    yield from _lag(picture)
    yield _cases(picture)
    if picture.partitions:
        yield from _partitions(picture)
    yield from _membership(picture)
    yield from _rebalances(picture)
    yield _lag_statuses(picture)
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
        "fleet_group_rebalance_duration_lower_bound_seconds",
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


def _lag_statuses(picture: Picture) -> Family:
    family = Family(
        "gauge",
        "fleet_group_lag_status",
        "1 for the group's lag status, that of its worst partition.",
        (*_GROUP, "status", "level"),
    )
    for group, judged in worst_lag_status(picture.seen).items():
        family.add((*picture.labels(group), judged.value, judged.level.value), 1)
    return family


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
        ("refresh_duration_seconds", "Seconds that the last refresh took.", seen.took),
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
            "fleet_exporter_refreshes",
            "Refreshes of what the cluster says.",
            labels=("cluster", "result"),
        )
        for result, count in zip(("complete", "failed"), self._looks(), strict=True):
            looks.add_metric((self._cluster, result), count)
        build = GaugeMetricFamily("fleet_build_info", "1.", labels=("version",))
        build.add_metric((__version__,), 1)
        return age, log, looks, build


# Storms and receipts for the exporter: decided at each look, told as metrics.
#
# Problem: an alert must know at the next scrape that a group is in a storm, who makes it, and
# whether ten others have the same cause. Choice: each complete look gives the rebalances that the
# tail has read to `fleet.decide.storms`, together with what our own changes were to
# cost and with moves of coordinators. Nothing is stored: after a restart the tail reads the log
# again, and the same storms follow from it. Where the place that keeps changes is away, the last
# known ones excuse what they were to cost. Cost: where the log cannot be read there are no storms,
# and the families are absent rather than 0.
#
# `fleet_group_storm` is there for every group, 0 or 1, so that its absence is no fair weather.
# Cause, member and words are labels of a series beside it that exists only during the storm:
# a label that changes would end one alert and begin another, and series that come and go cost
# Prometheus nothing while there is no storm.


_CHANGES: Final = 5
"""Changes of a group that are looked at: those within a storm's reach."""
_NAMES: Final = ("cluster", "group", "owner")
REMEMBERED: Final = 86_400.0
"""Seconds for which a receipt that differs is told; the next change ends it too."""


class StormFamilies(Closing):
    """Asked with each complete look; keeps the storms between looks."""

    def __init__(self, fleet: Fleet, tail: Tail) -> None:
        self._fleet, self._tail = fleet, tail
        self._coordinators = Coordinators(fleet.client, clock=fleet.clock)
        self._watch = StormWatch()
        self._changes: dict[str, tuple[Change, ...]] = {}

    def _last_changes(self) -> dict[str, tuple[Change, ...]]:
        managed = [fleet.group for fleet in self._fleet.spec.fleets if fleet.worker is not None]
        with contextlib.suppress(FleetError):  # the exporter tells it of the slots
            self._changes = {g: self._fleet.readable_changes(g, limit=_CHANGES) for g in managed}
        return self._changes

    def close(self) -> None:
        """Let go of the connection."""
        self._coordinators.close()

    def families(self, seen: Snapshot) -> Iterable[Family]:
        """The families of storms and receipts."""
        spec, now = self._fleet.spec, seen.at
        changes = self._last_changes()
        owners = dict.fromkeys(seen.groups, "") | {
            fleet.group: fleet.owner for fleet in spec.fleets if fleet.group in seen.groups
        }
        told = receipt_families(changes.items(), cluster=spec.cluster.name, owners=owners, now=now)
        if not seen.from_log:
            return tuple(told)
        move = self._coordinators.look()
        self._watch = self._watch.look(
            spec,
            self._tail.rebalances(since=now - watch_reach(spec)),
            now=now,
            changes=changes,
            moves=() if move is None else (move,),
        )
        storms = storm_families(self._watch, cluster=spec.cluster.name, owners=owners)
        return (*told, *storms)


def storm_families(
    watch: StormWatch, *, cluster: str, owners: Mapping[str, str]
) -> Iterator[Family]:
    """`fleet_group_storm`, `fleet_cluster_storm` and what is known of them.

    `owners` names every group that is exported, with its owner ("" where none is declared).
    """
    storm = Family(
        "gauge", "fleet_group_storm", "1 while the group rebalances beyond its budget.", _NAMES
    )
    info = Family(
        "gauge",
        "fleet_group_storm_info",
        "1 for the cause and the top offender of a storm, while it lasts.",
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
        "1 while ten or more groups are in a storm, or coordinators have moved.",
        ("cluster",),
    )
    whole.add((cluster,), float(watch.cluster is not None))
    yield whole
    told = Family(
        "gauge",
        "fleet_cluster_storm_info",
        "1 for the cause of the cluster's storm, while it lasts.",
        ("cluster", "cause", "summary"),
    )
    if watch.cluster is not None:
        told.add((cluster, watch.cluster.cause, watch.cluster.summary), 1.0)
    yield told


def receipt_families(
    changes: Iterable[tuple[str, Sequence[Change]]],
    *,
    cluster: str,
    owners: Mapping[str, str],
    now: float,
) -> Iterator[Family]:
    """`fleet_group_receipt_differs` of (group, its changes, latest first)."""
    differs = Family(
        "gauge",
        "fleet_group_receipt_differs",
        "1 where the last change cost another number of rebalances than its plan said.",
        _NAMES,
    )
    for group, known in changes:
        last = next(iter(known), None)
        recent = last is not None and now - (last.ended_at or now) < REMEMBERED
        found = last is not None and any(r.result is ReceiptResult.DIFFERS for r in last.receipts)
        differs.add((cluster, group, owners.get(group, "")), float(recent and found))
    yield differs


# /metrics and /healthz of the exporter: bytes that are already there.
#
# A scrape never waits for the cluster: the last complete look's text is kept, plain and (from the
# first scrape that wants it) gzipped. Until there was one, only the ages and the exporter's own
# metrics are told.


KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = b"/metrics /healthz /readyz\n"


class Body:
    """The text of the last complete look. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._packed: bytes | None = None

    def show(self, text: bytes) -> None:
        """From now on, this."""
        with self._lock:
            self._text, self._packed = text, None

    def get(self, *, packed: bool) -> bytes:
        """The text, gzipped where asked for (members of a gzip file may follow each other)."""
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
    """Listens until closed. Raises ConfigError where it cannot bind.

    `ages` gives the text that is made at each scrape; `healthy` and `ready` a reason why not,
    None where all is well.
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
) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                packed = "gzip" in self.headers.get("Accept-Encoding", "")
                now = ages()
                answer = (gzip.compress(now, 1) if packed else now) + body.get(packed=packed)
                self._answer(200, answer, KIND, packed=packed)
            elif path in checks:
                reason = checks[path]()
                told = f"{reason or 'ok'}\n".encode()
                self._answer(503 if reason else 200, told, "text/plain")
            else:
                self._answer(200 if path == "/" else 404, _PAGE, "text/plain")

        def _answer(self, code: int, answer: bytes, kind: str, *, packed: bool = False) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Scrapes are no events."""

    return MetricsHandler


Say = Callable[[str], None]
_READING: Final = 5.0
"""Seconds between readings of the log: a look reads it to its end in any case."""
_HANGING: Final = 60.0
"""Seconds beyond an interval after which a look hangs, and the exporter is not healthy."""


class Exporter(Closing):
    """One cluster's exporter: listens from the start, looks when `look` or `run` is called.

    Raises ConfigError where the address is taken, before anything else begins.
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
        self._clock = fleet.clock
        self._every = fleet.spec.exporter.interval
        self._body = Body()
        self._began = self._turned = self._clock.monotonic()
        self._complete_at: float | None = None
        self._complete = self._failed = 0
        self._full = False
        self._said: set[str] = set()
        self._failure: str | None = None
        self._ages = Ages(
            fleet.spec.cluster.name, age=self.age, log_age=tail.age, looks=self._looks
        )
        self._server = Server(
            listen, self._body, ages=self._ages.rendered, healthy=self._healthy, ready=self._ready
        )
        tail.start()

    @classmethod
    def of(cls, fleet: Fleet, *, listen: str, say: Say) -> "Exporter":
        """The exporter that a fleet.yaml describes."""
        spec, client = fleet.spec, fleet.client
        tail = Tail(
            client,
            cluster=spec.cluster.name,
            clock=fleet.clock,
            groups=spec.exporter.groups.takes,
            keep=max(KEEP, watch_reach(spec)),
            most=max(MOST, 2 * watch_most(spec)),
            beat=min(_READING, spec.exporter.interval),
        )
        watcher = GroupWatcher(
            cluster=spec.cluster.name,
            config=client,
            clock=fleet.clock,
            tail=tail,
            ends=fleet.ends,
        )
        return cls(fleet, listen=listen, tail=tail, watcher=watcher, say=say)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    @property
    def failing(self) -> bool:
        """Whether the last look saw nothing."""
        return self._failure is not None

    def close(self) -> None:
        """Listen and read no more."""
        self._server.close()
        self._tail.close()
        self._watcher.close()
        self._storms.close()

    def run(self, stop: threading.Event, until: Callable[[], bool] = lambda: False) -> None:
        """Look on schedule until told to stop; a look that fails is told once, not each time.

        One that fails by a defect, too: groups that are not looked at any more are worse.
        `until` is asked after each look, and ends it where it is true.
        """
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                self.look()
            except FleetError as error:
                self._failed += 1
                self._fails(str(error))
            except Exception as error:  # noqa: BLE001 - told, counted, and the age grows
                self._failed += 1
                self._fails(f"a look failed by a defect: {type(error).__name__}: {error}")
            if until():
                return
            due = max(due + self._every, self._clock.monotonic())
            stop.wait(due - self._clock.monotonic())

    def wait_for_log(self, timeout: float = 60.0, *, quiet: float = 3.0) -> None:
        """Wait until the offsets topic is read, or cannot be; after `quiet` seconds say so.

        Raises Unreachable where no broker answers then: nobody waits for the log of such a cluster.
        """
        with contextlib.suppress(Unreadable):
            if self._tail.catch_up(quiet):
                return
            why = self._tail.problem
            self._say(
                f"waiting for brokers at {self._fleet.bootstrap} and what is in the offsets topic, "
                f"up to {duration(timeout)}{f': {why}' if why else ''}"
            )
            self._fleet.topic_ids()
            self._tail.catch_up(timeout - quiet)

    def text(self) -> str:
        """What /metrics answers now."""
        return (self._ages.rendered() + self._body.get(packed=False)).decode()

    def look(self) -> Picture:
        """Look once; what was found is what /metrics answers from now on."""
        self._turned = self._clock.monotonic()
        seen = self._watcher.look()
        seen = self._watcher.read_on(seen, standing(seen))
        slots, unread = self._slots_told()
        picture = Picture(
            seen=seen,
            totals=self._tail.totals(),
            owners={fleet.group: fleet.owner for fleet in self._fleet.spec.fleets},
            slots=slots,
            decode_errors=self._tail.decode_errors(),
            records=self._tail.records,
            open_transactions=tuple(self._tail.open_transactions()),
            partitions=self._fleet.spec.exporter.partitions,
            unread=unread,
        )
        self._body.show(rendered(picture, self._storms.families(seen)))
        # The age is that of the figures, not of the text.
        self._complete_at = self._turned
        self._complete += 1
        self._full |= not seen.partial
        blind = None if seen.from_log else self._tail.problem
        held = map(sentence_of, picture.transactions)
        self._tell({*picture.problems, *held, *filter(None, (blind,))})
        return picture

    def age(self) -> float:
        """Seconds since the last complete look began, or since the start."""
        return self._clock.monotonic() - (self._complete_at or self._began)

    def _looks(self) -> tuple[int, int]:
        return self._complete, self._failed

    def _slots_told(self) -> tuple[tuple[tuple[str, int, str], ...], tuple[str, ...]]:
        """The slots, and why they cannot be told."""
        try:
            return tuple(self._slots()), ()
        except FleetError as error:
            return (), (f"slots and changes are not told: {error}",)

    def _slots(self) -> Iterator[tuple[str, int, str]]:
        """Group, number, state."""
        for fleet in self._fleet.spec.fleets:
            if fleet.worker is None:
                continue
            shut = self._fleet.targets(fleet.group).quarantined
            for slot in self._fleet.slots(fleet.group):
                phase = slot.phase if slot.owner is not None else Phase.FREE
                state = "quarantined" if slot.number in shut else phase.value
                yield fleet.group, slot.number, state

    def _healthy(self) -> str | None:
        silent = self._clock.monotonic() - self._turned
        if silent <= self._every + _HANGING:
            return None
        return f"a look at the cluster has been hanging for {duration(silent)}"

    def _ready(self) -> str | None:
        """Not before one look saw the groups of every broker: fewer would read as deleted ones."""
        if self._full:
            return None
        return "no look at all brokers yet" if self._complete else "no complete look yet"

    def _fails(self, why: str) -> None:
        """A look that saw nothing: of what an earlier one told nothing is known."""
        if why != self._failure:
            self._say(why)
        self._failure = why

    def _tell(self, problems: set[str]) -> None:
        """What a look saw, and that it looks again."""
        if self._failure is not None:
            self._say(f"well again: {self._failure}")
        self._failure = None
        for problem in sorted(problems - self._said):
            self._say(problem)
        for problem in sorted(self._said - problems):
            self._say(f"well again: {problem}")
        self._said = problems
