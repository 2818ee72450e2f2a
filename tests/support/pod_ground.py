"""A managed fleet of pods that a whole file of tests lives with, and what its changes cost.

Rebalances are counted by Kafka's own DumpLogSegments [33]; pauses [27] from the same
records; lost and twice from what the pods were really called with [34].
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from benchmarks.figures import Spread, spread
from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.demo.measure import Meter
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.log.readers.group_log import GroupLog
from fleet.model import GroupState
from fleet.slots import Change, Phase, Slot
from tests.support.kafka_tools import rebalances
from tests.support.kube import Kube, in_pods, ready
from tests.support.pod_shop import PodShop
from tests.support.workshop import until

PARTITIONS = 8
SLOTS = 4
RATE = 160
"""Records a second, over all partitions: each commits in its rhythm all the time [27]."""
_ROOT = Path(__file__).parents[2]


@dataclass
class Cost:
    """What one change of a group cost."""

    rebalances: int = -1
    """By DumpLogSegments."""
    pauses: Spread | None = None
    """Per partition that was handed over; `total` is in partition-seconds."""
    moved: int = 0


@dataclass(frozen=True)
class Ground:
    """One fleet of workers and a standby, under a steady stream."""

    kube: Kube
    broker: Broker
    shop: PodShop
    size: int = SLOTS
    """Slots that are open at rest."""

    # --- the fleet --------------------------------------------------------------------------

    def open(self) -> None:
        """The first apply; returns when all slots are served."""
        self.apply()
        self.serve()

    def manager(self, *words: str) -> subprocess.Popen[str]:
        """`fleet WORDS` as a process; its words in `manager.log`."""
        log = self.shop.home / "manager.log"
        with log.open("w") as file:
            return subprocess.Popen(
                [sys.executable, "-u", "-m", "fleet", *words, "--config", str(self.shop.config)],
                env={**os.environ, "FLEET_HOME": str(self.shop.home), "PYTHONPATH": str(_ROOT)},
                cwd=_ROOT, stdout=file, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """What the manager said so far."""
        return (self.shop.home / "manager.log").read_text()

    def ended(self, manager: subprocess.Popen[str], *, seconds: float = 300) -> None:
        """Wait for its good end."""
        code = manager.wait(seconds)
        print(self.said())
        assert code == 0, self.said()

    def killed(self, manager: subprocess.Popen[str], moment: Callable[[], bool]) -> None:
        """Kill -9 at this moment."""
        try:
            until(lambda: moment() or manager.poll() is not None, 180, "the moment to kill")
            assert manager.poll() is None, f"it was over before:\n{self.said()}"
        finally:
            os.killpg(manager.pid, signal.SIGKILL)
            manager.wait(10)
            print(self.said())

    # --- what there is ----------------------------------------------------------------------

    def slots(self) -> dict[int, Slot]:
        """The open ones, by number."""
        with self.shop.fleet() as fleet:
            opened = fleet.targets(self.shop.group).open
            return {s.number: s for s in fleet.slots(self.shop.group) if s.number in opened}

    def held_by(self, pod: str) -> list[int]:
        """Its slots: one or none."""
        return [n for n, slot in self.slots().items() if slot.owner == pod]

    def pods(self) -> dict[str, client.V1Pod]:
        """Those that are not on their way out, by name."""
        return self.kube.workers(self.shop.namespace, ObjectNames("test", self.shop.group))

    def ready(self) -> set[str]:
        """Pods that are ready."""
        return ready(self.pods())

    def apply(self, wanted: int | None = None) -> Change:
        """What fleet.yaml says, or so many slots, in this process."""
        return self.shop.apply(wanted)

    def serve(self, *, slots: int | None = None, seconds: float = 150) -> None:
        """Wait until living pods serve all slots, a standby is ready, and nothing is to come."""
        slots = self.size if slots is None else slots

        def served() -> bool:
            ready = self.ready()
            active = [s for s in self.slots().values() if s.phase is Phase.ACTIVE]
            owners = {s.owner for s in active if s.error is None}
            return len(owners) == slots and len(ready) == slots + 1 and owners <= ready

        until(served, seconds, f"{slots} slots to be served, and a ready standby")
        with self.shop.fleet() as fleet:

            def stable() -> bool:
                seen = fleet.snapshot([self.shop.group]).groups[self.shop.group]
                return seen.state is GroupState.STABLE and len(seen.members) == slots

            until(stable, 30, "the group to be stable")

    # --- what it cost -----------------------------------------------------------------------

    def recorded(self) -> int:
        """Its rebalances, by DumpLogSegments."""
        return rebalances(self.broker, self.shop.group)

    @contextmanager
    def costs(self) -> Iterator[Cost]:
        """What happens to it meanwhile; filled in at the end."""
        with GroupLog({"bootstrap.servers": self.shop.bootstrap}, clock=SystemClock()) as log:
            meter = Meter(log=log, clock=SystemClock())
            before, stretch = self.recorded(), meter.begin_step("change", self.shop.group)
            found = Cost()
            yield found
            SystemClock().sleep(2.0)  # each new owner's first commit belongs to it
            counted = meter.so_far(stretch)
            found.rebalances = self.recorded() - before
            found.moved = counted.moved
            found.pauses = spread(counted.every_downtime)
            assert counted.rebalances == found.rebalances, "two readers of one log"

    def account(self) -> tuple[int, int]:
        """(lost, twice) of all that the group has committed."""
        return self.shop.account()


@contextmanager
def opened(
    kube: Kube,
    broker: Any,
    home: Path,
    *,
    group: str,
    protocol: str = "classic",
    worker: Mapping[str, str] | None = None,
    place: Mapping[str, Any] | None = None,
    slots: int = SLOTS,
    begin: Callable[[Ground], None] = Ground.open,
) -> Iterator[Ground]:
    """A fleet in a namespace of its own, at work; at the end nothing of it is left.

    worker: terms of membership, in the place of static range. place: more of `runtime`. begin: who
    applies it first.
    """
    with pytest.MonkeyPatch.context() as patch, kube.namespace(group) as namespace:
        patch.setenv("KUBECONFIG", str(kube.kubeconfig))
        runtime = {**in_pods(namespace), **(place or {})}
        servers = broker.bootstrap_servers
        usual = {"protocol": protocol} if protocol == "consumer" else {"assignor": "range"}
        shop = PodShop(home, servers, group, runtime=runtime, **(worker or usual))
        shop.create_topic(PARTITIONS)
        shop.declare(scaling={"policy": "fixed", "workers": slots})
        ground = Ground(kube, broker.broker, shop, slots)
        try:
            with shop.stream(rate=RATE):
                begin(ground)
                yield ground
        finally:
            with shop.fleet() as fleet:
                fleet.down(purge=True)
