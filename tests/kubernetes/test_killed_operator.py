"""kill -9 of the operator at each of its writes: the next one ends the same change, at its price.

API server, controllers and broker are real; workers are processes that a played kubelet runs.
"""

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from fleet.kubernetes.client.object_names import GROUP_LABEL
from fleet.kubernetes.operator.resource import KIND
from tests.membership.conftest import Counting
from tests.program.conftest import ProgramShop
from tests.support import mortal_operator
from tests.support.brokers import RunningBroker
from tests.support.declared_fleets import Declared, crd, serves
from tests.support.kube_api import KubeApi
from tests.support.local_pods import LocalPods
from tests.support.mortal_operator import Kill

pytestmark = [pytest.mark.kubernetes, pytest.mark.broker]

NAME = "orders"
MADE = ("Deployment", "PodDisruptionBudget", "Lease", "ConfigMap", "Role", "ServiceAccount")
FEW, MANY = 1, 4
QUICK = "heartbeat.interval.ms=500"
ROLLOUT = {"bake": "1s", "canary_batches": 1, "drain_timeout": "10s", "warm_timeout": "9m"}


class DeclaredShop(ProgramShop):
    """A group of programs in pods, which a ConsumerFleet declares."""

    def __init__(self, place: Declared, pods: LocalPods, broker: RunningBroker) -> None:
        group = f"operated-{uuid.uuid4().hex[:8]}"
        super().__init__(pods.home, broker.bootstrap_servers, group)
        self.place = place
        self.pods = pods
        self.count = Counting(broker, self)
        self._turn = 0
        place.cluster(broker.bootstrap_servers, name="test")

    def wish(self, slots: int, *, roll: bool = False) -> None:
        """So many slots, and perhaps other workers: in fleet.yaml and in the resource."""
        self._turn += roll
        runtime = {"image": "fleet:1", "lease": "5s"}
        self.declare(
            scaling={"policy": "fixed", "workers": slots},
            rollout=ROLLOUT,
            runtime={"kind": "kubernetes", "namespace": self.place.api.namespace, **runtime},
        )
        interval = f"{300 - self._turn}s"
        self.run_program(QUICK, heartbeat_interval="500ms", max_poll_interval=interval)
        (entry,) = yaml.safe_load(self.config.read_text())["fleets"]
        self.place.write(NAME, fleet={**entry, "runtime": runtime}, clusterRef={"name": "test"})

    def mortal(self, kill: Kill) -> AbstractContextManager["Popen[bytes]"]:
        """An operator as a process that is killed."""
        return mortal_operator.running(
            self.home, kill, kubeconfig=self.pods.kubeconfig, clusters=self.place.clusters,
            namespace=self.place.api.namespace,
        )  # fmt: skip

    def serves(self, slots: int) -> bool:
        """Whether the resource says so of what it declares now."""
        found = self.place.found(NAME) or {}
        status = found.get("status") or {}
        made = status.get("observedGeneration") == found["metadata"]["generation"]
        return made and serves(slots)(status)

    def members(self) -> int:
        """How many members the group has, by the broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return len(admin.describe_consumer_groups([self.group])[self.group].result(60).members)

    def owners(self, slots: int) -> dict[int, tuple[str | None, int]]:
        """Owner and token of the first slots."""
        with self.fleet() as fleet:
            found = {s.number: (s.owner, s.token) for s in fleet.slots(self.group)}
        return {number: found[number] for number in range(slots)}

    def interrupted(self, kill: Kill, reached: Callable[[], bool], what: str) -> bool:
        """Whether the operator died before all was done; the next one has done it either way."""
        with self.mortal(kill) as operator:
            self.until(lambda: operator.poll() is not None or reached(), f"{what}, or {kill}")
            died = operator.poll()
        assert died in {None, -signal.SIGKILL}
        with self.place.operator():
            self.until(reached, f"{what} after {kill}")
        return died is not None

    def change(self, kill: Kill, slots: int, most: int, *, roll: bool = False) -> bool:
        """Make it so with an operator that is killed; it costs what its receipts say."""
        before = self.count.recorded()
        self.wish(slots, roll=roll)
        died = self.interrupted(kill, lambda: self.serves(slots), f"{slots} slots")
        with self.fleet() as fleet:
            done = fleet.changes(self.group, limit=1)[0]
        recorded = self.count.recorded() - before
        self.count.check(done, recorded)
        assert len(done.receipts) == 1
        assert recorded <= most, kill
        assert self.members() == slots
        self.until(lambda: self.pods.count() == slots + 1, "other pods to end")
        assert not self.pods.ended
        return died

    def scaled(self, up: Kill, down: Kill) -> list[bool]:
        """Three more at two rebalances at most, three fewer at one: who stays keeps its slot."""
        held = self.owners(FEW)
        died = [self.change(up, MANY, 2), self.change(down, FEW, 1)]
        assert self.owners(FEW) == held
        return died

    def rolled(self, kill: Kill) -> bool:
        """New workers in every slot, at none; each slot passes on once."""
        held = self.owners(FEW)
        died = self.change(kill, FEW, 0, roll=True)
        tokens = {number: token + 1 for number, (_, token) in held.items()}
        assert {number: token for number, (_, token) in self.owners(FEW).items()} == tokens
        return died

    def deleted(self, kill: Kill) -> bool:
        """All leave together, by one request; nothing of the fleet is left, the finalizer too."""
        before = self.count.recorded()
        self.place.api.delete(KIND, NAME)
        died = self.interrupted(kill, lambda: self.place.found(NAME) is None, "it to be deleted")
        assert self.count.recorded() - before == 1
        assert self.members() == 0
        left = [e for kind in MADE for e in self.place.api.find(kind, GROUP_LABEL)[0]]
        assert not left
        self.until(lambda: not self.pods.count(), "the pods to end")
        return died

    def begin(self) -> None:
        """The fleet at work."""
        self.wish(FEW)
        with self.place.operator():
            self.until(lambda: self.serves(FEW), "the fleet to begin")


@pytest.fixture
def shop(
    control_plane: KubeApi, broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeclaredShop]:
    """A fleet of one slot at work, under a steady stream; at the end nothing was lost."""
    control_plane.define(crd())
    config = control_plane.kubeconfig()
    monkeypatch.setenv("KUBECONFIG", str(config))
    with (
        control_plane.api(control_plane.namespace()) as api,
        LocalPods(api, config, tmp_path / "shop") as pods,
    ):
        place = Declared(api, {"KUBECONFIG": str(config)}, tmp_path)
        shop = DeclaredShop(place, pods, broker)
        shop.create_topic(6)
        with shop.stream(rate=50):
            shop.begin()
            yield shop
        assert shop.account()[0] == 0


def test_killed_once_in_each_change(shop: DeclaredShop) -> None:
    """The canary asked; the slots opened; the leave sent and not yet noted; in mid-deletion."""
    assert shop.rolled(Kill(1, "after", "-targets"))
    assert shop.scaled(Kill(1, "after", "-targets"), Kill(2, "before", "-targets")) == [True, True]
    assert shop.deleted(Kill(1, "after", "-slot-"))


Act = Callable[[DeclaredShop, Kill], bool]


def scaled(shop: DeclaredShop, kill: Kill) -> bool:
    """Up and down, each with a kill."""
    return any(shop.scaled(kill, kill))


def deleted(shop: DeclaredShop, kill: Kill) -> bool:
    """And made anew."""
    died = shop.deleted(kill)
    shop.begin()
    return died


@pytest.mark.long
@pytest.mark.parametrize("act", [scaled, DeclaredShop.rolled, deleted])
def test_killed_at_any_write(shop: DeclaredShop, act: Act) -> None:
    """With all done that comes before it, until an operator lives to the end of the change."""
    number = 1
    while act(shop, Kill(number, "before")):
        number += 1
    print(f"killed at {number - 1} writes")
    assert number > 6
