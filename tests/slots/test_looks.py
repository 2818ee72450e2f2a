"""A look at many slots decodes what has changed since the one before, and always tells the truth.

A slot that was not written since is the very object that was told before.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import Gate, Phase, Slot
from fleet.slots.store import Store
from tests.slots.opened import sqlite
from tests.support.memory_server import MemoryServer
from tests.support.waiting import until

GROUP = "orders"
SLOTS = 30


def opened(store: Store) -> Slot:
    """Thirty slots; as a holder has slot 7."""
    assert store.write_gate(Gate(group=GROUP, open=frozenset(range(SLOTS))))
    seen = store.slots(GROUP)[7]
    held = store.take(seen, worker="w", revision="r", spark_session=None)
    assert held is not None
    return held


def anew(before: Sequence[Slot], after: Sequence[Slot]) -> list[int]:
    """Numbers of the slots that were decoded for the second look."""
    told = zip(before, after, strict=True)
    return [now.number for then, now in told if now is not then]


@pytest.fixture
def here(tmp_path: Path) -> Any:
    store = sqlite(tmp_path)
    yield store
    store.close()


def test_one_renewal_is_one_slot_decoded(here: Store, tmp_path: Path):
    """Of the file; whoever wrote it."""
    held, other = opened(here), sqlite(tmp_path)
    before = here.slots(GROUP)
    renewed = other.renew(replace(held, phase=Phase.ACTIVE, batches=3))
    after = here.slots(GROUP)
    assert anew(before, after) == [7]
    assert after[7] == renewed
    assert anew(after, here.slots(GROUP)) == []
    assert here.gate(GROUP) is here.gate(GROUP)
    other.close()


def test_groups_and_clusters_are_told_apart(here: Store, tmp_path: Path):
    """The same number and the same row of another group is another slot."""
    for group in ("a", "b"):
        assert here.write_gate(Gate(group=group, open=frozenset({0})))
    assert [here.slots(group)[0].group for group in ("a", "b", "a")] == ["a", "b", "a"]
    assert [here.gate(group).group for group in ("a", "b", "a")] == ["a", "b", "a"]


def test_one_renewal_is_one_lease_decoded():
    """Of what the watches brought, to a worker."""
    clock, server = SystemClock(), MemoryServer()
    api = server.api(clock)
    manager = LeaseStore.for_manager(api, cluster="main", clock=clock, lease=30.0)
    held = opened(manager)
    worker = LeaseStore.for_worker(
        api, cluster="main", group=GROUP, revision="r", slots=SLOTS, lease=30.0, clock=clock
    )
    before = worker.slots(GROUP)
    renewed = manager.renew(replace(held, phase=Phase.ACTIVE, batches=3))
    until(lambda: worker.slots(GROUP)[7] == renewed, "the event", every=0.01)
    assert anew(before, worker.slots(GROUP)) == [7]
    worker.close()
