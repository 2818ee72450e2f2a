"""An API server that is read but refuses to write makes nobody a new owner of the living [38]."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kubernetes.leases.lease_store import Rule, worker_rules
from fleet.slots import SlotTargets
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from tests.support.batch_parts import events_of
from tests.support.fleet_leases import make_leases
from tests.support.slot_records import report_of

pytestmark = pytest.mark.kubernetes
GROUP = "orders"
LEASE_SECONDS = 2.0
WORKER = "worker"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def _role(place, rules: list[Rule]) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.name}/roles/{WORKER}"
    place.server.send("PUT", path, {"metadata": {"name": WORKER}, "rules": rules})


@contextmanager
def refused_by_role(place) -> Iterator[None]:
    """403: somebody replaced the Role, with one that reads."""
    whole = worker_rules(place.names, slots=1, reports=8)
    reading = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "update"]} for rule in whole
    ]
    _role(place, [rule for rule in reading if rule["verbs"]])
    yield
    _role(place, whole)


@contextmanager
def refused_by_webhook(place) -> Iterator[None]:
    """500: a webhook that fails closed, and does not answer."""
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["leases"],
    }
    hook = {
        "name": "closed.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.name}},
    }
    place.server.post(_WEBHOOKS, {"metadata": {"name": place.name}, "webhooks": [hook]})
    yield
    place.server.send("DELETE", f"{_WEBHOOKS}/{place.name}", None)


class Standby:
    """Looks, reports and reaches, as a worker without a slot does."""

    def __init__(self, place) -> None:
        self.store = place.worker(lease=LEASE_SECONDS, user=WORKER)
        clock = SystemClock()
        self.looker = SlotWatcher(self.store, group=GROUP, lease=LEASE_SECONDS, clock=clock)
        self.taken = False
        self._reported_at = 0.0

    def live(self, seconds: float) -> None:
        """So long, or until it has the slot."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.taken:
            with contextlib.suppress(FleetError):
                self._once()
            time.sleep(0.05)

    def _once(self) -> None:
        if time.monotonic() - self._reported_at > LEASE_SECONDS / 3:
            self._reported_at = time.monotonic()
            self.store.report(report_of("s", GROUP, counter=int(self._reported_at)))
        self.looker.refresh()
        for seen in self.looker.takeable_slots(worker="s", revision="r1", since=0.0):
            taken = self.store.take(seen, worker="s", revision="r1", spark_session=None)
            self.taken = taken is not None


@pytest.mark.parametrize("refused", [refused_by_role, refused_by_webhook])
def test_refused_writes_make_nobody_a_new_owner(place, refused):
    """For longer than a lease, and when they go through again the owner is the first."""
    place.server.grant(place.name, WORKER, worker_rules(place.names, slots=1, reports=8))
    manager = place.manager()
    make_leases(manager, GROUP, slots=1)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    store = place.worker(lease=LEASE_SECONDS, user=WORKER)
    held = store.take(store.slots(GROUP)[0], worker="w", revision="r1", spark_session=None)
    clock = SystemClock()
    holding = SlotLease(
        store,
        held,
        lease=LEASE_SECONDS,
        fields=dict,
        clock=clock,
        events=events_of("w", clock),
    )
    holding.start()
    standby = Standby(place)
    standby.live(LEASE_SECONDS / 3)
    with refused(place):
        standby.live(1.5 * LEASE_SECONDS)
        with pytest.raises(FleetError):
            store.beat(GROUP)
        assert manager.slots(GROUP)[0].token == held.token
    standby.live(1.5 * LEASE_SECONDS)
    assert not standby.taken
    assert holding.lost is None
    holding.abandon()
    standby.live(20.0)
    assert standby.taken, "who really died is replaced"
