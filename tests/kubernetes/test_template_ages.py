"""How old a pod template is stays known while a pod of it is there, however long its name is."""

import pytest

from fleet.clock import ManualClock
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.memory_server import MemoryServer

LONG = "payments-settlement-reconciliation-worker"


def pod_of(group: str, template_hash: str) -> str:
    """As the API server names it: of what its ReplicaSet asks for it takes 58 characters."""
    return f"{ObjectNames('main', group).deployment}-{template_hash}-"[:58] + "x2b7k"


@pytest.mark.parametrize("group", ["orders", LONG])
@pytest.mark.parametrize("in_use", ["7d9f8b6c54", "5c4"])
def test_the_age_of_a_template_in_use_stays(group: str, in_use: str) -> None:
    """A container of an old one that starts again does not become the newest thereby [22]."""
    server, clock = MemoryServer(), ManualClock()
    names = ObjectNames("main", group)
    ages = {f"since.{in_use}": "100.5", "since.84bbd9c7f8": "50.0"}
    server.put({"kind": "ConfigMap", "metadata": {"name": names.reports}, "data": ages})
    store = LeaseStore.for_manager(server.api(clock), cluster="main", clock=clock, lease=10.0)
    store.keep_reports(group, lambda: [pod_of(group, in_use), "theirs"])
    assert server.get("ConfigMap", names.reports)["data"] == {f"since.{in_use}": "100.5"}
