"""Storms and receipts for the exporter: decided at each look, told as metrics.

Problem: an alert must know at the next scrape that a group is in a storm, who makes it, and
whether ten others have the same cause. Choice: each complete look gives the rebalances that the
tail has read to `fleet.decide.storms.storm_watch`, together with what our own changes were to cost
and with moves of coordinators. Nothing is stored: after a restart the tail reads the log again, and
the same storms follow from it. Where the place that keeps changes is away, the last known ones
excuse what they were to cost. Cost: where the log cannot be read there are no storms, and the
families are absent rather than 0.

`fleet_group_storm` is there for every group, 0 or 1, so that its absence is no fair weather.
Cause, member and words are labels of a series beside it that exists only during the storm:
a label that changes would end one alert and begin another, and series that come and go cost
Prometheus nothing while there is no storm.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fleet.decide.storms.storm_watch import StormWatch, watch_reach
from fleet.errors import FleetError
from fleet.exporter.families import Family
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.coordinators import Coordinators
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.model import Verdict
from fleet.slots import Change
from fleet.system.closing import Closing

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
