"""The same fleet on a cluster: pods of a Deployment, a manager's own runtime, slots in Leases.

A manager is what it is there: `KubernetesRuntime` and `LeaseStore` over an API server in memory,
with the Deployment's controllers played by seed. Each pod's container is a simulated worker; here
is its kubelet.
"""

from functools import partial
from typing import Any

from fleet.config.spec import GroupSpec
from fleet.errors import FleetError
from fleet.kubernetes.client.object_names import CONTAINER, REVISION_ANNOTATION, ObjectNames
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.deployment.pod_status import hash_of, is_gone, is_marked, is_ready
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.lease_objects import raw_revision
from fleet.kubernetes.leases.lease_store import LeaseStore, PatientStore
from fleet.kubernetes.manifests.pod_template import grace_seconds
from fleet.slots import Change, Slot, SlotTargets
from fleet.slots.backend import SlotTargetsRecord
from fleet.slots.store import Store
from fleet.worker.slot.process import end_former_slots
from tests.schedules.simulated_broker import GROUP
from tests.schedules.simulated_fleet import (
    DRAIN,
    HEARTBEAT,
    LEASE,
    REST,
    ROLLOUT,
    SESSION,
    Body,
    SimulatedFleet,
    worker_of,
)
from tests.schedules.simulated_group_side import Times
from tests.schedules.simulated_server import SimulatedServer, SimulatedView
from tests.schedules.simulated_time import Process
from tests.schedules.simulated_worker import SimulatedWorker
from tests.schedules.weather import Sky
from tests.support.declared import ON_KUBERNETES, fleet_spec, group_spec, settings_of
from tests.support.memory_server import Object
from tests.support.played_controllers import PlayedControllers, PlayedInformer

NAMES = ObjectNames("main", GROUP)
MAX_POLL = 30.0
_TICK = 0.05
_BETWEEN = {"waiting": {"reason": "CrashLoopBackOff"}}
_SPECS: dict[bool, GroupSpec] = {}


def spec_of(*, static: bool) -> GroupSpec:
    """As fleet.yaml would have it."""
    if static not in _SPECS:
        _SPECS[static] = group_spec(
            GROUP,
            worker={**worker_of(static=static, max_poll=MAX_POLL), "spark": "local[1]"},
            replicas={"min": 0, "max": 16, "standby": 1},
            rollout=ROLLOUT,
            runtime={**ON_KUBERNETES, "namespace": "ns", "lease": LEASE},
        )
    return _SPECS[static]


class PodWorker(SimulatedWorker):
    """The only worker of its pod."""

    def _live(self) -> None:
        end_former_slots(self.store, group=GROUP, name=self.name, events=self.events)
        super()._live()

    @property
    def ready(self) -> bool:
        """What its kubelet is told."""
        process, tenure = self.process, self.tenure
        if not process.alive or self.ending or process.stopped_until > process.world.now:
            return False
        if tenure is None:
            return self.phase == "standby"
        return tenure.member is not None and str(tenure.member.state.reported_phase) == "active"


class Controllers(PlayedControllers):
    """Without kubelets; they may be away."""

    away_until = 0.0

    def _kubelet(self, *, everywhere: bool = False) -> None:
        """It is the fleet's."""


class _Pods(PlayedInformer):
    """A manager's; they stand while the server does not answer it."""

    def __init__(self, controllers: Controllers, process: Any, fleet: "SimulatedPods") -> None:
        super().__init__(controllers, process)
        self._process, self._fleet = process, fleet

    def items(self) -> tuple[Object, ...]:
        if self._fleet.weather.over(self._process) is Sky.AWAY:
            return tuple(found for _, found in sorted(self._known.items()))
        return super().items()

    def close(self) -> None:
        """Nothing is kept."""


class SimulatedPods(SimulatedFleet):
    """See the module."""

    def __init__(self, seed: int, *, static: bool, partitions: int) -> None:
        super().__init__(seed, static=static, partitions=partitions, supervised=False)
        self.spec = spec_of(static=static)
        self.times = Times(session=SESSION, heartbeat=HEARTBEAT, max_poll=MAX_POLL, drain=DRAIN)
        self.bad = ""
        """What workers of a new revision do."""
        self.let_go = False
        """Whether the Deployment goes on by itself."""
        self.excused_until = 0.0
        self.grace = float(grace_seconds(self.spec))
        self.server = SimulatedServer(self.weather)
        self.server.written = self._stored
        self.controllers = Controllers(self.server, self.world.random)
        self.controllers.pace = self.world.random.choice([0.3, 1.0, 3.0])
        self.controllers.created = self._made
        self.controllers.deleted = self._deleted
        self._tick()

    # --- who is around ------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.controllers.away_until <= self.world.now:
            self.controllers.go_on(self.controllers.pace)
        self.world.after(_TICK, self._tick)

    def store_for(self, process: Process) -> Store:
        """A worker's."""
        pod = self.server.objects["Pod", process.name]
        watching: Any = partial(
            SimulatedView,
            server=self.server,
            process=process,
            changed=lambda: self._rings(process.name),
        )
        store = LeaseStore.for_worker(
            self.server.api_of(process),
            cluster="main",
            group=GROUP,
            revision=raw_of(pod),
            lease=LEASE,
            clock=process,
            watching=watching,
        )
        self._by_chance(store)
        return store

    def store_of_manager(self, manager: Process) -> Any:
        """As a cluster's kind opens it, but that it asks the server instead of watching."""
        store = LeaseStore.for_manager(
            self.server.api_of(manager), cluster="main", clock=manager, lease=LEASE
        )
        setattr(store.leases, "follow", _asks)  # noqa: B010 - mypy knows the method
        self._by_chance(store)
        return PatientStore(store, clock=manager)

    def _by_chance(self, store: LeaseStore) -> None:
        chance = self.world.random.random
        store._jitter = chance
        store.leases.calls._jitter = chance

    def runtime_for(self, manager: Process, store: Any) -> KubernetesRuntime:
        """A manager's own."""
        made = KubernetesRuntime(
            fleet_spec(self.spec.model_dump(mode="json")),
            api=self.server.api_of(manager),
            store=store,
            clock=manager,
        )
        pods: Any = _Pods(self.controllers, manager, self)
        made._pods = pods
        return made

    def publish(self, runtime: KubernetesRuntime, revision: str) -> None:
        """As before a plan of that revision."""
        runtime.publish(
            GROUP, revision, settings_of(self.spec, revision=revision).model_dump_json()
        )

    def _rings(self, name: str) -> None:
        body = self.bodies.get(name)
        if body is not None and body.worker.process.alive:
            body.worker.bell.ring(0.01)

    def _ring(self, chosen: Any) -> None:
        """Their watches tell them."""

    # --- as it is stored --------------------------------------------------------------------

    def _lease(self, name: str) -> Object | None:
        return self.server.objects.get(("Lease", name))

    def memory_slots(self) -> list[Slot]:
        """All whose Lease is there."""
        found = [(n, self._lease(NAMES.slot(n))) for n in range(40)]
        return [objects.slot_from(f, GROUP, n) for n, f in found if f is not None]

    def memory_targets(self) -> SlotTargets:
        """The slot targets."""
        found = self._record(self._lease(NAMES.targets), self._lease(NAMES.answers))
        return SlotTargets(group=GROUP) if found is None else found.targets

    def _record(self, targets: Object | None, answers: Object | None) -> SlotTargetsRecord | None:
        if targets is None:
            return None
        return objects.with_answers_of(objects.targets_from(targets, GROUP), answers).record

    def memory_change(self) -> Change | None:
        """The last one."""
        found = self._lease(NAMES.change)
        return None if found is None else objects.change_from(found)

    def _stored(self, before: Object | None, after: Object, process: Process | None) -> None:
        name = after["metadata"]["name"]
        if after["kind"] != "Lease" or process is None:
            return
        if name in {NAMES.targets, NAMES.answers}:
            targets, answers = self._lease(NAMES.targets), self._lease(NAMES.answers)
            was = (before, answers) if name == NAMES.targets else (targets, before)
            now = self._record(targets, answers)
            if now is not None:
                self._written(self._record(*was), now, process)
        elif name == NAMES.change:
            last = None if before is None else objects.change_from(before)
            change = objects.change_from(after)
            if change is not None:
                self._written(last, change, process)
        elif name.startswith(NAMES.slot(0)[:-1]):
            number = int(name.rpartition("-")[2])
            had = None if before is None else objects.slot_from(before, GROUP, number)
            if had is not None:
                self._written(had, objects.slot_from(after, GROUP, number), process)

    # --- kubelets ----------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        """That count."""
        return [p for p in self.controllers._now("Pod").values() if not is_gone(p)]

    def _made(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        self.world.tell(name, f"pod of {raw_of(pod)} is made")
        self.world.after(0.05 + 0.5 * self.world.random.random(), lambda: self._run(name))

    def _run(self, name: str) -> None:
        pod = self.server.objects.get(("Pod", name))
        if pod is None or is_gone(pod):
            return
        if self._is_bad(raw_of(pod), "never starts"):
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            self._status(name, restarts=0, state={"waiting": waiting}, ready=False)
            return
        self._status(name, restarts=0, state={"running": {}}, ready=False)
        self._born(name, raw_of(pod), 0)
        self.world.after(2.0 * self.world.random.random(), lambda: self._probe(name))

    def _is_bad(self, revision: str, how: str) -> bool:
        return self.bad == how and revision.startswith("new~")

    def batch_begins(self, worker: SimulatedWorker, member: Any, work: Any) -> None:
        """Which may end its process."""
        super().batch_begins(worker, member, work)
        if self._is_bad(worker.revision, "fails in a batch"):
            self.invariants.hurt(worker.process)
            self.world.after(0.01, lambda: self.crash(worker.name))

    def _born(self, name: str, revision: str, restarts: int) -> None:
        process = self.process(name)
        self.world.tell(name, f"starts, revision {revision}")
        warm = 0.3 + 1.5 * self.world.random.random()
        since = 0.0 if revision.startswith("old") else 1.0
        worker = PodWorker(process, self, revision=revision, since=since, warm=warm)
        self.bodies[name] = Body(worker, True, restarts, self.world.now)
        if self._is_bad(revision, "ends early"):
            self.invariants.hurt(process)
            self.world.after(0.2, lambda: self.crash(name))

    def _status(self, name: str, *, restarts: int, state: Object, ready: bool) -> None:
        pod = self.server.objects.get(("Pod", name))
        if pod is None:
            return
        container = {"name": CONTAINER, "state": state, "restartCount": restarts}
        others = [c for c in pod["status"].get("conditions", []) if c["type"] != "Ready"]
        status = {
            "phase": "Running",
            "conditions": [*others, {"type": "Ready", "status": str(ready)}],
            "containerStatuses": [container],
        }
        if pod["status"] != status:
            self.server.put({**pod, "status": status})

    def _probe(self, name: str, misses: int = 0) -> None:
        """Every two seconds; it takes two misses to be not ready (`pod_lifecycle.probes`)."""
        pod = self.server.objects.get(("Pod", name))
        if pod is None or is_gone(pod):
            return
        body = self.bodies[name]
        worker: Any = body.worker
        alive = worker.process.alive
        misses = 0 if worker.ready else misses + 1
        ready = alive and (misses == 0 or (misses < 2 and is_ready(pod)))
        state: Object = {"running": {}} if alive else _BETWEEN
        self._status(name, restarts=body.restarts, state=state, ready=ready)
        self.world.after(2.0, lambda: self._probe(name, misses))

    def _deleted(self, pod: Object) -> None:
        """By its ReplicaSet's controller."""
        name = pod["metadata"]["name"]
        held = [s.number for s in self.memory_slots() if s.owner == name]
        self.world.tell(name, f"is deleted, marked: {is_marked(pod)}, holds {held}")
        # One that stopped being ready goes first: between a manager's look and its controller's.
        excused = self.let_go or self.world.now < self.excused_until or not is_ready(pod)
        if held and not is_marked(pod) and not excused:
            self.world.violated(f"K1: pod {name} holds slot {held[0]}, and nobody asked it to go")
        self.world.after(0.05 + 0.4 * self.world.random.random(), lambda: self._term(name))

    def delete(self, name: str, *, drained: bool) -> None:
        """By somebody else, or since its node is drained."""
        pod = self.server.get("Pod", name)
        if drained:
            self.world.tell(name, "is evicted")
            target = {"type": "DisruptionTarget", "status": "True"}
            pod["status"].setdefault("conditions", []).append(target)
        pod["metadata"]["deletionTimestamp"] = "now"
        self.server.put(pod)
        self._term(name)

    def _term(self, name: str) -> None:
        body = self.bodies.get(name)
        if body is None or not body.worker.process.alive:
            self._remove(name)
            if body is not None:
                self.bodies[name] = body._replace(wanted=False)
            return
        self.bodies[name] = body._replace(wanted=False)
        worker = body.worker
        worker.process.later(0.0, worker.stop)
        self.world.after(self.grace, lambda: self._kill_late(worker))

    def _remove(self, name: str) -> None:
        if ("Pod", name) in self.server.objects:
            self.server.delete("Pod", name)

    def _gone(self, worker: SimulatedWorker) -> None:
        body = self.bodies[worker.name]
        if body.worker is not worker:
            return
        if body.wanted:
            self._status(worker.name, restarts=body.restarts, state=_BETWEEN, ready=False)
            self.world.after(REST, lambda: self._again(worker.name))
        else:
            self.world.after(0.1, lambda: self._remove(worker.name))

    # --- at the end --------------------------------------------------------------------------

    def check_pods(self, revision: str, count: int) -> None:
        """So many, all of that revision and ready, and their Deployment keeps itself."""
        pods = self.pods()
        kinds = sorted({raw_of(p).partition("~")[0] for p in pods})
        if len(pods) != count or kinds != [revision]:
            names = [p["metadata"]["name"] for p in pods]
            self.world.violated(f"K2: {len(pods)} pods of {kinds}, {count} of {revision}: {names}")
        if not all(map(is_ready, pods)):
            self.world.violated("K2: a pod is not ready")
        observer = Process("observer", self.world)
        told: list[Any] = []

        def look() -> None:
            try:
                runtime = self.runtime_for(observer, self.store_of_manager(observer))
                told.append(runtime.frozen(GROUP))
            except FleetError as error:
                told.append(error)

        observer.start(look)
        self.world.run(self.world.now + 1.0)
        if told != [None]:
            self.world.violated(f"K2: {told}")


def _asks(group: str) -> None:
    """No watch."""


def raw_of(pod: Object) -> str:
    """What its worker calls itself."""
    return raw_revision(pod["metadata"]["annotations"][REVISION_ANNOTATION], hash_of(pod))
