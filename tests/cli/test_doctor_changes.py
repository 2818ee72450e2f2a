"""What `fleet doctor` says of changes that are not finished: all are watched together."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.commands.doctor.checks_fleet import changes, slots
from fleet.manager.planning import PlanningFleet
from fleet.model import TopicPartition
from fleet.model.findings import Severity
from fleet.slots import Quarantine
from fleet.slots.memory import Memory, MemoryBackend
from fleet.slots.store import Store
from tests.support.clocks import Turning
from tests.support.declared import group_spec
from tests.support.plans import plan_of

LEASE = 10.0
"""Of a local runtime as it comes."""


@pytest.fixture
def fleet() -> Any:
    """Three groups: nothing was ever changed in the first, the others' changes are not over."""
    clock = Turning()
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)
    specs = {name: group_spec(group=name) for name in ("new", "living", "dead")}
    for name in ("living", "dead"):
        assert store.begin_change(
            plan_of(group=name, id=f"p-{name}"), actor=f"{name}@elsewhere:1", started_at=0.0
        )
    made = SimpleNamespace(
        clock=clock,
        store=store,
        spec=SimpleNamespace(fleets=tuple(specs.values())),
        group=specs.get,
        changes=store.changes,
        pauses=store.pauses,
        workers=lambda: (),
        slots=store.slots,
        gate=store.gate,
    )
    made.change_alive = lambda name: PlanningFleet.change_alive(made, name)
    return made


def test_the_dead_and_the_living_are_told_apart_within_one_lease(fleet):
    """By what they renew meanwhile."""
    began = fleet.clock.monotonic()
    fleet.clock.turn = lambda: fleet.store.advance(fleet.store.change("living"))
    found = {f.found: f for f in changes(fleet)}
    assert set(found) == {
        "living@elsewhere:1 is changing living now",
        "dead@elsewhere:1 left a change of dead unfinished",
    }
    assert found["dead@elsewhere:1 left a change of dead unfinished"].level is Severity.WARN
    assert fleet.clock.monotonic() - began <= LEASE + 1


def test_none_unfinished_is_said(fleet):
    """Without a wait."""
    fleet.spec.fleets = fleet.spec.fleets[:1]
    began = fleet.clock.monotonic()
    assert [f.found for f in changes(fleet)] == ["none was left unfinished"]
    assert fleet.clock.monotonic() == began


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("ValueError: no JSON", "correct the entrypoint, then `fleet roll living`"),
        (
            "t-0 ends before the committed offset 8000 (worker.on_truncated: stop)",
            "set worker.on_truncated: skip, then `fleet roll living`",
        ),
    ],
)
def test_a_stopped_partition_has_the_remedy_of_its_cause(fleet, error, remedy):
    """No code is at fault where the log has no record at the committed offset."""
    fleet.store.quarantine(
        Quarantine(
            group="living", tp=TopicPartition("t", 0), offset=8000, error=error, attempts=0,
            revision="abc", at=1.0,
        )
    )  # fmt: skip
    (found,) = [each for each in slots(fleet) if each.check == "partitions"]
    assert (found.level, found.remedy) == (Severity.WARN, remedy)
