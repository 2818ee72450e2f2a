"""Storms and receipts for the exporter: decided at each look, told as metrics.

Problem: an alert must know at the next scrape that a group is in a storm, who makes it, and
whether ten others have the same cause. Choice: each complete look gives the rebalances that the
tail has read to `fleet.decide.storms.storm_watch`, together with what our own changes were to cost
and with moves of coordinators. Nothing is stored: after a restart the tail reads the log again, and
the same storms follow from it. Where the place that keeps changes is away, the last known ones
excuse what they were to cost. Cost: where the log cannot be read there are no storms, and the
families are absent rather than 0.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

from fleet.decide.storms.storm_watch import StormWatch, watch_reach
from fleet.errors import FleetError
from fleet.exporter.families import Family
from fleet.exporter.storm_metrics import receipt_families, storm_families
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.coordinators import Coordinators
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.slots import Change
from fleet.system.closing import Closing

_CHANGES: Final = 5
"""Changes of a group that are looked at: those within a storm's reach."""


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
