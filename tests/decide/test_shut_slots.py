"""A slot that a foreign owner shut is no slot that works: neither policy nor roll counts it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.decide.plans import make_plan
from fleet.manager.cycle import Fleet
from fleet.model import StepKind
from fleet.slots import SlotTargets
from fleet.slots.store import Store
from tests.decide.worlds import GROUP, spec, state_snapshot
from tests.support.memory_slots import Memory, MemoryBackend

TOPICS = {"orders": 12}
THREE = spec(scaling={"policy": "partitions", "per_worker": 4})
"""Of 12 partitions: 3 slots are right."""


@pytest.fixture
def fleet() -> Any:
    """Slots 0 to 2 are open, and slot 1 is shut."""
    clock = ManualClock()
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)
    targets = SlotTargets(group=GROUP, open=frozenset({0, 1, 2}), quarantined=frozenset({1}))
    assert store.write_targets(targets)
    made: Any = SimpleNamespace(
        store=store, clock=clock, group=lambda name: THREE, pin=lambda name: None
    )
    made.external_number = lambda policy: None
    made.targets = store.targets
    made.open_slots = lambda name: Fleet.open_slots(made, name)
    made.external_number = lambda _: None
    made._decide = lambda *asked, **how: Fleet._decide(made, *asked, **how)
    return made


def minute(fleet: Any) -> list[tuple[StepKind, tuple[int, ...]]]:
    """One look, and what it changes at the slot targets."""
    seen: Any = SimpleNamespace(groups={}, topics=TOPICS, at=fleet.clock.now())
    wanted = Fleet.wanted(fleet, GROUP, seen).wanted
    targets, now = fleet.targets(GROUP), fleet.clock.now()
    held = tuple(sorted(targets.open - targets.quarantined))
    now_so = replace(
        state_snapshot(THREE, held=held, topics=TOPICS), targets=targets, snapshot_at=now
    )
    plan = make_plan(now_so, wanted=wanted, now=now)
    for step in plan.steps:
        opens = step.kind is StepKind.OPEN
        after = targets.open | set(step.slots) if opens else targets.open - set(step.slots)
        targets = fleet.store.write_targets(replace(targets, open=after))
    fleet.clock.sleep(60)
    return [(step.kind, step.slots) for step in plan.steps]


def test_a_shut_slot_is_made_up_for_once(fleet):
    """As many slots as the policy wants have owners, and no more are opened after that."""
    assert Fleet.open_slots(fleet, GROUP) == 2
    assert [minute(fleet) for _ in range(20)] == [[(StepKind.OPEN, (3,))], *[[]] * 19]
