"""What the manager makes, keeps small, translates and forgets."""

import json
from dataclasses import replace
from functools import partial

import pytest

from fleet.errors import SchemaTooNew
from fleet.kubernetes.client.api import LEASE
from fleet.kubernetes.leases import lease_objects as objects
from fleet.slots import FirstOpening, Handover, SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.slot_records import report_of

pytestmark = pytest.mark.kubernetes
GROUP = "orders"


report = partial(report_of, group=GROUP)


def test_objects_that_were_applied_from_manifests_are_taken_as_they_are(place):
    """Rendered objects hold no state; applied again they take none away."""
    manager = place.manager()
    first = {objects.FIRST: json.dumps({"slots": 1, "after": 60})}
    rendered = objects.blank(LEASE, place.names.targets, place.names)
    rendered["metadata"]["annotations"].update(first)
    manager.leases.api.apply(rendered, manager="kubectl")
    assert manager.first_opening(GROUP) == FirstOpening(slots=1, after=60)
    make_leases(manager, GROUP, slots=1, first=FirstOpening(slots=1, after=60))
    targets = manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    assert manager.first_opening(GROUP) is None, "somebody opened"
    manager.leases.api.apply(rendered, manager="kubectl")
    assert make_leases(manager, GROUP, slots=1, first=FirstOpening(slots=1, after=60)) == 0
    assert manager.targets(GROUP) == targets


def test_a_manager_reads_plain_revisions_and_a_worker_raw_ones(place):
    """Of templates that the manager rendered; a worker's answer leaves the pins as they are."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=2)
    manager.register_template(GROUP, "abc", "r1")
    manager.register_template(GROUP, "abc", "r1")
    assert manager.templates(GROUP) == {"abc": "r1"}
    pins = {0: Handover(token=0, revision="r1"), 1: Handover(token=0, revision="r2~zzz")}
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1}), handover=pins))

    worker = place.worker("r1~abc")
    targets = worker.targets(GROUP)
    assert targets.handover[0].revision == "r1~abc"
    assert worker.write_targets(replace(targets, quarantined=frozenset({3})))
    assert manager.targets(GROUP).handover == pins
    (zero, one) = worker.slots(GROUP)
    assert worker.take(zero, worker="x", revision="r1~hand", spark_session=None) is None
    held = worker.take(zero, worker="w", revision="r1~abc", spark_session=None)
    assert held.revision == "r1~abc"
    assert worker.take(one, worker="z", revision="r2~zzz", spark_session=None)
    worker.report(report("w", revision="r1~abc"))
    worker.report(report("z", revision="r2~zzz"))
    assert [slot.revision for slot in manager.slots(GROUP)] == ["r1", "r2~zzz"]
    assert [told.revision for told in manager.reports(GROUP)] == ["r1", "r2~zzz"]
    assert [slot.revision for slot in worker.slots(GROUP)] == ["r1~abc", "r2~zzz"]


def test_a_template_is_as_old_as_its_first_worker(place):
    """A container that starts again is not newer thereby [22]."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=1)
    assert place.worker().since(GROUP, "abc", 100.5) == 100.5
    place.worker().report(report("w", revision="r1~abc", since=100.5))
    assert place.worker().since(GROUP, "abc", 200.0) == 100.5
    assert place.worker().since(GROUP, "def", 200.0) == 200.0
    assert manager.keep_reports(GROUP, lambda: ["w"]) == 0
    assert place.worker().since(GROUP, "abc", 300.0) == 100.5
    assert manager.keep_reports(GROUP, lambda: ["another"]) == 1
    assert place.worker().since(GROUP, "abc", 300.0) == 300.0, "no pod of it was left: it is new"


def test_reports_of_the_dead_go(place):
    """By name, and by the list of those that live; who comes while they are counted stays."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=1)
    for number in range(12):
        manager.report(report(f"w{number:02}"))
    living = [f"w{number:02}" for number in range(2, 12)]

    def counted() -> list[str]:
        manager.report(report("late"))  # a standby says only once that it is warm
        return living

    assert manager.keep_reports(GROUP, counted) == 2
    assert manager.keep_reports(GROUP, lambda: [*living, "late"]) == 0
    manager.forget_worker("w02")
    assert {told.worker for told in manager.reports(GROUP)} == {*living[1:], "late"}


def test_a_newer_schema_is_refused(place):
    """State of a newer version is left alone, with the version in the message."""
    manager = place.manager()
    names = place.names
    make_leases(manager, GROUP, slots=1)
    manager.leases.api.create(objects.blank(LEASE, names.change, names))
    patch = {"metadata": {"annotations": {objects.SCHEMA_ANNOTATION: "99"}}}
    for name in (names.targets, names.change, names.slot(0), names.report(0)):
        manager.leases.api.merge(LEASE, name, patch)
    reads = (manager.targets, manager.slots, manager.change, manager.reports)
    for read in (*reads, place.worker().targets):
        with pytest.raises(SchemaTooNew, match="schema 99"):
            read(GROUP)
