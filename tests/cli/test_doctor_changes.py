"""What `fleet doctor` says of changes that are not finished: all are watched together."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.commands.doctor import changes, slots, topics
from fleet.manager.cycle import Fleet
from fleet.model import Severity, TopicPartition
from fleet.slots import StoppedPartition
from fleet.slots.store import Store
from tests.support.clocks import Turning
from tests.support.declared import group_spec
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of
from tests.support.seen_groups import group_seen, member_seen
from tests.support.snapshots import snapshot_of

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
        change=store.change,
        pauses=store.pauses,
        workers=lambda: (),
        slots=store.slots,
        targets=store.targets,
    )
    made.change_alive = lambda name: Fleet.change_alive(made, name)
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
    assert [f.found for f in changes(fleet)] == ["none is unfinished"]
    assert fleet.clock.monotonic() == began


def test_partitions_that_are_gone_and_owned_are_named(fleet: Any) -> None:
    """The topic was recreated with fewer: nothing fails, and nothing else would tell."""
    fleet.undescribed = lambda specs, seen: []
    owned = frozenset(TopicPartition("orders", n) for n in (0, 2, 4))
    fleet.spec.fleets = (group_spec(group="new", topics=["orders"]),)
    seen = group_seen("new", members=(member_seen(member_id="m", partitions=owned),))
    told = {}
    for count in (6, 3):
        found = list(topics(fleet, snapshot_of(seen, topics={"orders": count})))
        told[count] = [each.found for each in found if each.level is Severity.WARN]
    assert told[6] == []
    assert "members of new own orders-4, which does not exist" in told[3][0]


@pytest.mark.parametrize(
    ("attempts", "said"), [(3, "`fleet roll new`"), (0, "a roll does not help")]
)
def test_what_ends_a_stopped_partition_is_named(fleet: Any, attempts: int, said: str) -> None:
    """Code that fails is mended and rolled; what the log does not hold, no code brings back."""
    mark = StoppedPartition(
        group="new",
        tp=TopicPartition("orders", 1),
        offset=7,
        error="why",
        attempts=attempts,
        revision="r",
        at=0.0,
    )
    fleet.store.stop_partition(mark)
    (found,) = [each for each in slots(fleet) if each.level is Severity.WARN]
    assert "orders-1 of new is stopped at offset 7: why" in found.found
    assert said in found.remedy
