"""Metrics of storms and of receipts that differ, from what was decided.

`fleet_group_storm` is there for every group, 0 or 1, so that its absence is no fair weather.
Cause, member and words are labels of a series beside it that exists only during the storm:
a label that changes would end one alert and begin another, and series that come and go cost
Prometheus nothing while there is no storm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fleet.decide.storms.storm_watch import StormWatch
from fleet.exporter.families import Family
from fleet.model import Verdict
from fleet.slots import Change

_NAMES: Final = ("cluster", "group", "owner")
REMEMBERED: Final = 86_400.0
"""Seconds for which a receipt that differs is told; the next change ends it too."""


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
        "1 for the cause and the worst member of a storm, while it lasts.",
        (*_NAMES, "cause", "member", "words"),
    )
    for group, owner in owners.items():
        found = watch.storms.get(group)
        storm.add((cluster, group, owner), float(found is not None))
        if found is not None:
            member = found.member or ""
            info.add((cluster, group, owner, found.cause, member, found.words), 1.0)
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
        ("cluster", "cause", "words"),
    )
    if watch.cluster is not None:
        told.add((cluster, watch.cluster.cause, watch.cluster.words), 1.0)
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
        found = last is not None and any(r.verdict is Verdict.DIFFERS for r in last.receipts)
        differs.add((cluster, group, owners.get(group, "")), float(recent and found))
    yield differs
