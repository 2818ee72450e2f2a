"""The names of the metrics are a contract, and Prometheus itself finds nothing to complain of."""

import gzip
import re
import shutil
import subprocess
import urllib.request
from dataclasses import replace
from urllib.error import HTTPError

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families

from fleet.config.spec import FleetSpec
from fleet.decide.storms import StormWatch
from fleet.errors import ConfigError
from fleet.exporter import (
    Body,
    Family,
    RefreshResult,
    ScrapeAges,
    Server,
    families,
    receipt_families,
    render,
    storm_families,
    transaction_sentence,
)
from fleet.log.readers.log_view import OpenTransaction
from fleet.model import LagCase
from fleet.model.rebalances import Cause, CoordinatorMove, Rebalance, TimeSource, Totals
from fleet.worker.slot.reporting import _exposition
from tests.support.needs import repository
from tests.support.rebalances import rebalance as plain
from tests.support.seen_groups import group_seen, member_seen, partition_seen
from tests.support.snapshots import snapshot_of

DOC = repository() / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(fleet_\w+)` \| (\w+) \| ([\w, ]+) \|", re.MULTILINE)


def rebalance(
    cause: Cause, seconds: float | None, known: TimeSource = TimeSource.STATES
) -> Rebalance:
    if seconds is None:
        return plain(3, 100.0, cause=cause)
    return plain(3, 100.0, cause=cause, started_at=100.0 - seconds, start_source=known)


OPEN = OpenTransaction(partition=12, producer=4711, since=0.0, commits=48)
TOLD = (
    "a transaction of producer 4711 has been open in __consumer_offsets-12 since 00:00:00 UTC: "
    "48 committed offsets in it do not count until it ends"
)


def picture(
    name: str = 'g "quoted"\\', *, cluster: str = "main", from_log: bool = True
) -> RefreshResult:
    """Every family has a sample."""
    totals = Totals()
    for seconds in (0.05, 0.7, 4000.0, None):
        totals.add(rebalance(Cause.JOIN, seconds))
    for known in (TimeSource.COMMITS, TimeSource.SEEN):
        totals.add(rebalance(Cause.JOIN, 7.0, known))
    totals.add(replace(rebalance(Cause.JOIN, 50.0, TimeSource.RECORD), end_source=TimeSource.NOT))
    late = {"committed": 5, "lag_seconds": 1.5}
    parts = [
        partition_seen(0, 7, topic="t", **late),
        partition_seen(1, None, topic="t", committed=5, case=LagCase.UNKNOWN),
        partition_seen(0, None, topic="unknown", committed=5, case=LagCase.UNKNOWN),
    ]
    members = [member_seen(name) for name in ("m1", "m2")]
    seen = snapshot_of(
        group_seen(name, members=members, partitions=parts),
        at=100.0, took=0.2, from_log=from_log, problems=("one",), cluster=cluster,
    )  # fmt: skip
    facts = {name: replace(seen.facts[name], generation=3)}
    return RefreshResult(
        seen=replace(seen, facts=facts if from_log else {}),
        owners={name: "team", "g": "team"},
        totals={name: totals},
        slots=(("g", 3, "active"),),
        wanted={name: 4},
        decode_errors={(1, 9): 4} if from_log else {},
        records=100,
        open_transactions=(OPEN, OPEN._replace(since=91.0)),
        partitions=True,
    )


def ages() -> ScrapeAges:
    return ScrapeAges("main", age=lambda: 3.0, log_age=lambda: 0.2, refresh_counts=lambda: (5, 1))


def of_library(families) -> list[Metric]:
    """Families as prometheus-client makes them."""
    made = []
    for family in families:
        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        kind = kinds.get(family.kind, HistogramMetricFamily)
        metric = kind(family.name, family.help, labels=family.labels)
        made.append(metric)
        if kind is not HistogramMetricFamily:
            for _, values, value in family.samples:
                metric.add_metric(values, value)
            continue
        buckets = []
        for suffix, values, value in family.samples:
            if suffix == "_bucket":
                buckets.append((values[-1], value))
            elif suffix == "_sum":
                metric.add_metric(values, buckets, value)
                buckets = []
    return made


def decided() -> list[Family]:
    """What was decided from the look: a storm, and a receipt that is well."""
    flaps = [
        replace(rebalance(Cause.JOIN, None), joined=("g-1",), ended_at=at, log_offset=at)
        for at in range(40, 100, 10)
    ]
    move = CoordinatorMove(at=99.0, partitions=3, of=50, lost=(1,), gained=(2,))
    watch = StormWatch().refresh(FleetSpec(), flaps, now=100.0, moves=[move])
    owners = {"g": "team"}
    return [
        *storm_families(watch, cluster="main", owners=owners),
        *receipt_families([("g", ())], cluster="main", owners=owners, now=100.0),
    ]


def test_storms_are_told_in_words():
    """Who makes it, beside a gauge whose labels stay the same."""
    text = render(picture(), decided()).decode()
    assert 'fleet_group_storm{cluster="main",group="g",owner="team"} 1.0' in text
    assert 'owner="team",summary="g-1 joins every 10 s"' in text
    assert 'summary="3 of 50 coordinators moved from broker 1 to broker 2 1 s ago"' in text
    assert 'fleet_group_receipt_differs{cluster="main",group="g",owner="team"} 0.0' in text


def test_a_transaction_that_is_open_for_long_is_told():
    """Whose, where and since when; one that began 9 s ago is nobody's business."""
    (each,) = picture().transactions
    assert transaction_sentence(each) == TOLD
    series = 'fleet_offsets_transaction_open_seconds{cluster="main",partition="12",producer="4711"}'
    assert f"{series} 100.0" in render(picture()).decode()


def test_names_types_and_labels_are_those_of_the_table():
    """docs/reference/metrics.md is the contract: nothing more, nothing less."""
    found = shapes(
        (*of_library((*families(picture()), *decided())), *ages().collect(), *of_a_worker())
    )
    assert found == {
        name: (kind, sorted(labels.split(", ")))
        for name, kind, labels in ROW.findall(DOC.read_text())
    }


def test_labels_of_a_fleet_are_none_of_metrics():
    """They are for --select and Dagster; the page of the keys promised them here, too."""
    keys = (repository() / "docs" / "reference" / "fleet-yaml.md").read_text(encoding="utf-8")
    (row,) = [line for line in keys.splitlines() if line.startswith("| `fleets[].labels`")]
    assert "metrics and alerts carry only `owner`" in row


def shapes(found) -> dict[str, tuple[str, list[str]]]:
    """Name → type and labels."""
    shown = {}
    for family in found:
        suffix = "_total" if family.type == "counter" else ""
        labels = {key for sample in family.samples for key in sample.labels} - {"le"}
        shown[family.name + suffix] = (family.type, sorted(labels))
    return shown


def of_a_worker() -> list[Metric]:
    """What one answers that has committed."""
    facts = {
        **dict.fromkeys(("cluster", "group", "worker", "revision", "phase"), "x"),
        **dict.fromkeys(("batches", "records", "busy_seconds", "lost_records", "dead_letters"), 1),
        **dict.fromkeys(("partitions", "stopped_partitions", "failing_seconds"), 0),
        "ready": True,
        "last_commit_timestamp_seconds": 1.0,
    }
    return list(text_string_to_metric_families(_exposition(lambda: facts).decode()))


@pytest.mark.parametrize("odd", ["plain", 'a "quote"', "back\\slash", "two\nlines", "ümläut {x=1}"])
def test_text_is_what_the_library_writes(odd):
    """It is written here, for its CPU; byte for byte as prometheus-client does."""
    named = picture(odd, cluster=odd)

    class All:
        def collect(self):
            return of_library([*families(named), *decided()])

    assert render(named, decided()) == generate_latest(All())


@pytest.mark.prometheus
def test_promtool_has_no_complaint():
    """Names, units, types and help texts as Prometheus wants them."""
    promtool = shutil.which("promtool")
    assert promtool
    text = ages().render() + render(picture(), decided())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_not_known_is_no_sample():
    """Neither 0 nor NaN: one NaN spoils every sum."""
    text = render(picture()).decode()
    assert "NaN" not in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    for unknown in ('topic="unknown"', 'partition="1"'):
        assert {line.partition("{")[0] for line in samples if unknown in line} == {
            "fleet_partition_committed_offset"
        }
    blind = picture(from_log=False)
    names = {
        s.name for f in text_string_to_metric_families(render(blind).decode()) for s in f.samples
    }
    assert "fleet_group_rebalances_total" not in names


def test_rebalances_are_counted_by_cause_and_duration():
    """All causes are there from the start; a duration beyond all bounds is in +Inf."""
    found = {family.name: family.samples for family in of_library(families(picture()))}
    by_cause = {s.labels["cause"]: s.value for s in found["fleet_group_rebalances"]}
    assert set(by_cause) == {cause.value for cause in Cause}
    assert by_cause["join"] == 7
    assert by_cause["expiry"] == 0
    known, least = (
        {s.labels.get("le", s.name.rpartition("_")[2]): s.value for s in found[name]}
        for name in (
            "fleet_group_rebalance_duration_seconds",
            "fleet_group_rebalance_duration_lower_bound_seconds",
        )
    )
    assert (known["0.1"], known["1.0"], known["300.0"], known["+Inf"]) == (1, 2, 2, 3)
    assert (least["0.1"], least["5.0"], least["10.0"], least["60.0"]) == (1, 1, 3, 4), "bounds"
    assert (least["count"], least["sum"]) == (4, 64.0)


def get(address: str, path: str, **headers: str) -> tuple[int, bytes, str]:
    asked = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, answer.read(), answer.headers.get("Content-Encoding", "")
    except HTTPError as error:
        return error.code, error.read(), ""


def test_pages():
    """Plain and gzipped text of the last look with the ages of now; health and readiness."""
    body, well = Body(), ["nothing yet"]
    reason = lambda: well[0]  # noqa: E731
    well_ever = {"ages": lambda: b"age 1\n", "healthy": lambda: None, "ready": reason}
    with Server("127.0.0.1:0", body, **well_ever) as server:
        assert get(server.address, "/metrics") == (200, b"age 1\n", "")
        assert get(server.address, "/readyz")[:2] == (503, b"nothing yet\n")
        body.show(b"look 1\n")
        well[0] = None
        assert get(server.address, "/readyz")[:2] == (200, b"ok\n")
        assert get(server.address, "/healthz")[:2] == (200, b"ok\n")
        for _ in range(2):
            code, text, packed = get(server.address, "/metrics", **{"Accept-Encoding": "gzip"})
            assert (code, packed) == (200, "gzip")
            assert gzip.decompress(text) == b"age 1\nlook 1\n"
        body.show(b"look 2\n")
        text = get(server.address, "/metrics", **{"Accept-Encoding": "gzip"})[1]
        assert gzip.decompress(text) == b"age 1\nlook 2\n"
        assert get(server.address, "/nothing")[0] == 404
        with pytest.raises(ConfigError, match=r"cannot bind .* --listen"):
            Server(server.address, body, **well_ever)
