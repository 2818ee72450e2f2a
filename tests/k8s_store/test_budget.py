"""What a fleet at rest asks of the API server, counted there: renewals, one watch each, no more.

The long form is the fleet of docs/contributing/slot-store.md; `pytest -s` shows its figures.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.slots import SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.pods_at_rest import PodAtRest, events_at, requests_at, watches_at
from tests.support.waiting import until

pytestmark = pytest.mark.kubernetes
GROUP = "orders"


@dataclass(frozen=True)
class Size:
    """A fleet, and for how many seconds it is measured."""

    pods: int
    slots: int
    lease: float
    measured: float
    tick: float
    """Seconds between two looks of a pod."""


@pytest.fixture(
    params=[
        pytest.param(Size(6, 4, 3.0, 9.0, 0.05), id="six pods"),
        pytest.param(Size(20, 18, 30.0, 180.0, 0.2), id="twenty pods", marks=pytest.mark.long),
    ]
)
def size(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def others(place) -> tuple[int, int]:
    """Open watches of others, and those of Leases. One is the server's own, of its own Leases; that
    of a controller brings every renewal.
    """
    return watches_at(place.server), watches_at(place.server, "leases")


@pytest.fixture
def fleet(place, others, size: Size) -> Iterator[list[PodAtRest]]:
    """All slots are owned; the pods beyond their number are standbys."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=size.slots, reports=2 * size.pods)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset(range(size.slots))))
    made = [
        PodAtRest(
            lambda: place.worker(lease=size.lease),
            group=GROUP,
            name=f"w{number}",
            revision="r1",
            lease=size.lease,
            tick=size.tick,
        )
        for number in range(size.pods)
    ]
    try:
        for pod in made:
            pod.start()
        until(lambda: sum(pod.slot is not None for pod in made) == size.slots, "all slots owned")
        until(lambda: sum(pod.is_narrow for pod in made) == size.slots, "narrow watches")
        until(lambda: all(pod.store.known_since() is not None for pod in made), "their first lists")
        yield made
    finally:
        for pod in made:
            pod.close()


def test_a_fleet_at_rest_keeps_its_budget(place, others, fleet, size: Size):
    """One write per pod and third of a lease, one watch per pod; nothing is read or polled.

    An owner's watch brings its own renewals, a standby's those of all.
    """
    time.sleep(size.lease / 2)
    first, began = requests_at(place.server), time.monotonic()
    sent = events_at(place.server)
    time.sleep(size.measured)
    took = time.monotonic() - began
    sent = events_at(place.server) - sent
    asked = {key: n - first.get(key, 0.0) for key, n in requests_at(place.server).items()}
    written = sum(n for (verb, _), n in asked.items() if verb in {"PUT", "PATCH", "POST"})
    thirds = took / (size.lease / 3)
    # Each pod may begin a third more; the server renews a Lease of its own.
    assert size.pods * (thirds - 2) <= written <= size.pods * (thirds + 1) + took / 10 + 1, asked
    assert {verb for (verb, _), n in asked.items() if n and verb in {"GET", "LIST"}} == set(), asked
    every, foreign = others
    assert watches_at(place.server) == every + size.pods
    wide = size.pods - size.slots + foreign - 1
    assert sent <= (size.slots + wide * size.pods) * (thirds + 1) + took / 10, (sent, foreign)
    events = 60 * size.lease / 30 * sent / took / size.pods
    print(
        f"{events:.1f} events a minute and pod at a lease of 30 s, with {foreign} foreign watches"
    )
    print(f"{2000 / size.pods * written / took:.0f} writes a second of 2,000 pods")
