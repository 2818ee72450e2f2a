"""What a fleet at rest asks of the API server, counted there: renewals, one watch each, no more."""

import time
from collections.abc import Iterator

import pytest

from fleet.slots import SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.pods_at_rest import PodAtRest, events_at, requests_at, watches_at
from tests.support.waiting import until

pytestmark = pytest.mark.kubernetes
GROUP = "orders"
PODS, SLOTS = 6, 4
LEASE_SECONDS = 3.0
MEASURED = 9.0


@pytest.fixture
def others(place) -> tuple[int, int]:
    """Open watches of others, and those of Leases. One is the server's own, of its own Leases; that
    of a controller brings every renewal.
    """
    return watches_at(place.server), watches_at(place.server, "leases")


@pytest.fixture
def fleet(place, others) -> Iterator[list[PodAtRest]]:
    """Six pods of four slots, all of them owned; the others are standbys."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=SLOTS)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset(range(SLOTS))))
    made = [
        PodAtRest(
            lambda: place.worker(lease=LEASE_SECONDS),
            group=GROUP,
            name=f"w{number}",
            revision="r1",
            lease=LEASE_SECONDS,
        )
        for number in range(PODS)
    ]
    try:
        for pod in made:
            pod.start()
        yield made
    finally:
        for pod in made:
            pod.close()


def test_a_fleet_at_rest_keeps_its_budget(place, others, fleet):
    """One write per pod and third of a lease, one watch per pod; nothing is read or polled.

    An owner's watch brings its own renewals, a standby's those of all.
    """
    until(lambda: sum(pod.slot is not None for pod in fleet) == SLOTS, "all slots owned")
    until(lambda: sum(pod.is_narrow for pod in fleet) == SLOTS, "owners watch their own slots")
    time.sleep(LEASE_SECONDS / 2)
    first, began = requests_at(place.server), time.monotonic()
    sent = events_at(place.server)
    time.sleep(MEASURED)
    took = time.monotonic() - began
    sent = events_at(place.server) - sent
    asked = {key: n - first.get(key, 0.0) for key, n in requests_at(place.server).items()}
    written = sum(n for (verb, _), n in asked.items() if verb in {"PUT", "PATCH", "POST"})
    thirds = took / (LEASE_SECONDS / 3)
    # Each pod may begin a third more; the server renews a Lease of its own.
    assert PODS * (thirds - 2) <= written <= PODS * (thirds + 1) + took / 10 + 1, asked
    assert {verb for (verb, _), n in asked.items() if n and verb in {"GET", "LIST"}} == set(), asked
    every, foreign = others
    assert watches_at(place.server) == every + PODS
    wide = PODS - SLOTS + foreign - 1
    assert sent <= (SLOTS + wide * PODS) * (thirds + 1) + took / 10, (sent, foreign)
    pod = 60 * LEASE_SECONDS / 30 / took
    print(f"{foreign} foreign; {pod * sent / PODS:.1f} events a minute and pod at a lease of 30 s")
