"""Many groups of one fleet.yaml whose workers are simulated: no process and no member is started.

Everything else is real: the commands, the local runtime with its process table, the slot store, the
broker that receipts are read from. A thread is the home's supervisor: it plays each worker of the
table as `standbys.Crowd` does. A roll of static members costs no rebalance, so no member is missed.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act.local.process_table import ProcessTable
from fleet.act.revisions import Revisions
from fleet.clock import SystemClock
from fleet.manager.cycle import Fleet
from fleet.slots import Phase, SlotTargets
from fleet.slots.store import Store
from fleet.system.processes import ProcessId, identify
from tests.acting.standbys import Behaviour, Crowd, Worker
from tests.support import waiting

_TICK = 0.05
_JOB = "def process(df, context):\n    df.count()\n"


class TickingClock(SystemClock):
    """The real clock, with what a Crowd sets."""

    turn: Any = None


class SimulatedGroups:
    """A home with so many declared groups of two slots each, labelled team=pay.

    like: how all workers behave. bake: seconds of a canary that does not commit.
    """

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        names: list[str],
        *,
        lease: float,
        bake: float = 30.0,
        like: Behaviour | None = None,
    ) -> None:
        self.home, self.bootstrap, self.names = home, bootstrap, names
        self.lease, self.bake, self.like = lease, bake, like or Behaviour(warm_after=0.0)
        self.config = home / "fleet.yaml"
        self.topic = f"{names[0]}-topic"
        (home / "simulated_job.py").write_text(_JOB)
        self.declare()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(120)

    def declare(self, **keys: Any) -> None:
        """Write fleet.yaml; keys are those of the whole file."""
        worker = {"entrypoint": "simulated_job:process", "python_path": [str(self.home)]}
        common = {
            "topics": [self.topic],
            "labels": {"team": "pay"},
            "worker": worker,
            "replicas": {"min": 1, "max": 2, "standby": 0},
            "scaling": {"policy": "fixed", "workers": 2},
            "rollout": {"canary_batches": 1, "bake": self.bake},
            "runtime": {"kind": "local", "lease": self.lease},
        }
        spec = {
            "cluster": {"name": "test", "bootstrap_servers": self.bootstrap},
            "mode": "act",
            "fleets": [{"group": name, **common} for name in self.names],
            **keys,
        }
        self.config.write_text(yaml.safe_dump(spec))

    @contextmanager
    def running(self) -> Iterator[Fleet]:
        """Their workers run, and each slot has its owner."""
        with Fleet.open(self.config, home=self.home) as fleet:
            for name in self.names:
                self._open_slots(fleet, name)
            with waiting.meanwhile(partial(self._supervise, fleet)):
                waiting.until(
                    lambda: all(self.is_active(fleet, name) for name in self.names),
                    "every slot to have an owner",
                )
                yield fleet

    def _open_slots(self, fleet: Fleet, name: str) -> None:
        revisions = Revisions(
            cluster=fleet.spec.cluster,
            bootstrap=fleet.bootstrap,
            runtime=fleet.runtime,
            clock=fleet.clock,
        )
        spec = fleet.group(name)
        revision = revisions.wanted(spec)
        revisions.publish(spec, revision)
        fleet.runtime.start(name, revision, 2)
        fleet.store.write_targets(SlotTargets(group=name, open=frozenset({0, 1})))

    def _supervise(self, fleet: Fleet, stop: threading.Event) -> None:
        table, clock = ProcessTable(fleet.home.resolve(), clock=fleet.clock), TickingClock()
        table.enter(_me())
        crowds = {
            name: Crowd(fleet.store, clock, group=name, lease=self.lease)  # type: ignore[arg-type]
            for name in self.names
        }
        played: dict[str, float] = {}
        while not stop.wait(_TICK):
            self._sync(table, crowds, clock)
            for name, crowd in crowds.items():
                now = clock.monotonic()
                if now - played.get(name, 0.0) > self.lease / 6 or _is_moving(fleet.store, crowd):
                    played[name] = now
                    crowd.turn()
        table.close()

    def _sync(self, table: ProcessTable, crowds: dict[str, Crowd], clock: SystemClock) -> None:
        """What the table wants is so: new workers live, unwanted ones without a slot are gone."""
        for row in table.rows():
            crowd = crowds[row.group]
            worker = crowd.people.get(row.name)
            if worker is None:
                worker = Worker(name=row.name, revision=row.revision, born=clock.monotonic())
                crowd.people[row.name] = worker
                crowd.like.setdefault(row.revision, self.like)
                table.started(row.name, _me(), at=clock.now())
            worker.wanted = row.wanted
            if not row.wanted and worker.slot is None:
                table.delete(row)
                del crowd.people[row.name]

    def is_active(self, fleet: Fleet, name: str) -> bool:
        """Whether its two slots have owners."""
        return [slot.phase for slot in fleet.slots(name)] == [Phase.ACTIVE] * 2

    def owners(self, fleet: Fleet, name: str) -> list[int]:
        """Of its slots by number, how often each was taken."""
        return [slot.token for slot in fleet.slots(name)]


def _me() -> ProcessId:
    me = identify(os.getpid())
    assert me is not None
    return me


def _is_moving(store: Store, crowd: Crowd) -> bool:
    people = crowd.people.values()
    settled = all(each.slot is not None and each.phase == Phase.ACTIVE for each in people)
    return not settled or bool(store.targets(crowd.group).handover)
