"""An API server that is read but takes no write, under real workers: nobody living loses a slot.

The workers are processes of this machine whose slots are Leases of a real API server, as a pod's
are; their Role is replaced by one that may only read.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore, worker_rules
from fleet.system.ports import free_ports
from fleet.worker.pod_environment import SPARK, SPARK_TOKEN
from tests.conftest import RunningBroker
from tests.faults.six_fleets import WAYS, members
from tests.support.fleet_leases import make_leases
from tests.support.kafka_tools import dump_group_records
from tests.support.kube_api import KubeApi
from tests.worker.conftest import LEASE, Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.kubernetes, pytest.mark.long]

USER = "worker"
MOST_SLOTS = 4
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/" + USER


class LeaseGroup(Group):
    """A group whose slots are Leases."""

    def __init__(
        self, home: Path, bootstrap: str, name: str, folder: Path, server: KubeApi
    ) -> None:
        super().__init__(home, bootstrap, name, folder)
        self.server = server
        self.namespace = server.namespace()
        self.names = ObjectNames("main", name)
        self.rules = worker_rules(self.names, slots=MOST_SLOTS, reports=8)
        server.grant(self.namespace, USER, self.rules)
        api = server.api(self.namespace)
        store = LeaseStore.for_manager(api, cluster="main", clock=SystemClock(), lease=LEASE)
        make_leases(store, name, slots=MOST_SLOTS)
        self.store = store

    def place(self, lease: float) -> dict[str, Any]:
        """As of a pod."""
        (port,) = free_ports(1)
        runtime = {"kind": "kubernetes", "namespace": self.namespace, "image": "none"}
        return {
            "runtime": {**runtime, "lease": lease, "http_port": port},
            "replicas": {"min": 0, "max": MOST_SLOTS},
        }

    def environment(self, name: str) -> dict[str, str]:
        """As of a pod: a home of its own, an account, the shared Spark server."""
        return {
            "FLEET_HOME": str(self.folder / f"{name}-home"),
            "KUBECONFIG": str(self.server.kubeconfig(USER)),
            SPARK: spark_server.connect_url(self.home) or "",
            SPARK_TOKEN: spark_server.token(self.home) or "",
        }

    def refuse(self) -> None:
        """From now on workers may read."""
        reading = [
            {**rule, "verbs": [v for v in rule["verbs"] if v in {"get", "list", "watch"}]}
            for rule in self.rules
        ]
        self._role([rule for rule in reading if rule["verbs"]])

    def allow(self) -> None:
        self._role(self.rules)

    def _role(self, rules: list[Any]) -> None:
        path = ROLE.format(self.namespace)
        self.server.send("PUT", path, {"metadata": {"name": USER}, "rules": rules})


@pytest.fixture
def leased(
    spark_home: Path, broker: RunningBroker, kube_api: KubeApi, unique: str, tmp_path: Path
) -> Iterator[LeaseGroup]:
    """A group of its own."""
    name = f"refused-{unique}"
    made = LeaseGroup(spark_home, broker.bootstrap_servers, name, tmp_path, kube_api)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("way", WAYS)
def test_nobody_takes_a_slot_of_the_living(
    leased: LeaseGroup, broker: RunningBroker, way: str
) -> None:
    """For four leases no write goes through: all members stay, each record is processed once."""
    group = leased
    names = ("w1", "w2", "w3")
    group.standbys(*names, batch={"max_wait": "200ms"}, **WAYS[way])
    group.produce(40)
    group.open(0, 1)
    group.drained()
    before = members(dump_group_records(broker.broker, group.name))
    held = {n: (group.slot(n).owner, group.slot(n).token) for n in (0, 1)}
    assert len(before) == 2

    group.refuse()
    end = time.monotonic() + 4 * LEASE
    while time.monotonic() < end:
        group.produce(20)
        time.sleep(0.5)
    group.allow()
    end = time.monotonic() + 2 * LEASE
    while time.monotonic() < end:
        group.produce(20)
        time.sleep(0.5)
    group.drained()

    assert members(dump_group_records(broker.broker, group.name)) == before
    assert {n: (group.slot(n).owner, group.slot(n).token) for n in (0, 1)} == held
    due = {(p, at) for p, count in group.produced.items() for at in range(count)}
    assert group.times_called() == Counter(due)
    assert all(process.poll() is None for process in group.processes.values()), group.logs()
