"""Metrics of storms and of receipts that differ, from what was decided.

`fleet_group_storm` is there for every group, 0 or 1, so that its absence is no fair weather.
Cause, member and words are labels of a series beside it that exists only during the storm:
a label that changes would end one alert and begin another, and series that come and go cost
Prometheus nothing while there is no storm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from fleet.decide.storms.storm_watch import StormWatch
from fleet.model import Verdict
from fleet.slots import Change

_NAMES: Final = ("cluster", "group", "owner")
REMEMBERED: Final = 86_400.0
"""Seconds for which a receipt that differs is told; the next change ends it too."""


def storm_families(
    watch: StormWatch, *, cluster: str, owners: Mapping[str, str]
) -> Iterator[Metric]:
    """`fleet_group_storm`, `fleet_cluster_storm` and what is known of them.

    `owners` names every group that is exported, with its owner ("" where none is declared).
    """
    storm = GaugeMetricFamily(
        "fleet_group_storm", "1 while the group rebalances beyond its budget.", labels=_NAMES
    )
    info = GaugeMetricFamily(
        "fleet_group_storm_info",
        "1 for the cause and the worst member of a storm, while it lasts.",
        labels=(*_NAMES, "cause", "member", "words"),
    )
    for group, owner in owners.items():
        found = watch.storms.get(group)
        storm.add_metric([cluster, group, owner], float(found is not None))
        if found is not None:
            member = found.member or ""
            info.add_metric([cluster, group, owner, found.cause, member, found.words], 1.0)
    yield storm
    yield info
    whole = GaugeMetricFamily(
        "fleet_cluster_storm",
        "1 while ten or more groups are in a storm, or coordinators have moved.",
        labels=("cluster",),
    )
    whole.add_metric([cluster], float(watch.cluster is not None))
    yield whole
    told = GaugeMetricFamily(
        "fleet_cluster_storm_info",
        "1 for the cause of the cluster's storm, while it lasts.",
        labels=("cluster", "cause", "words"),
    )
    if watch.cluster is not None:
        told.add_metric([cluster, watch.cluster.cause, watch.cluster.words], 1.0)
    yield told


def receipt_families(
    changes: Iterable[tuple[str, Sequence[Change]]],
    *,
    cluster: str,
    owners: Mapping[str, str],
    now: float,
) -> Iterator[Metric]:
    """`fleet_group_receipt_differs` of (group, its changes, latest first)."""
    differs = GaugeMetricFamily(
        "fleet_group_receipt_differs",
        "1 where the last change cost another number of rebalances than its plan said.",
        labels=_NAMES,
    )
    for group, known in changes:
        last = next(iter(known), None)
        recent = last is not None and now - (last.ended_at or now) < REMEMBERED
        found = last is not None and any(r.verdict is Verdict.DIFFERS for r in last.receipts)
        differs.add_metric([cluster, group, owners.get(group, "")], float(recent and found))
    yield differs
