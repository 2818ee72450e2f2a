"""One fleet of pods on the session's cluster, applied as its rendered manifests, with no manager.

Records come in all the time; what the workers do is read from Kafka and from the API server.
"""

import contextlib
import io
import json
import os
import signal
import tarfile
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.config.settings import revision_of
from fleet.kubernetes.client.api import connect
from fleet.kubernetes.client.object_names import SPARK, ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.kubernetes.manifests.deployment_objects import fleet_objects
from fleet.kubernetes.manifests.pod_template import token_key
from fleet.kubernetes.manifests.spark_objects import spark_objects, spark_servers
from fleet.slots import Phase, Slot, SlotTargets
from k8s.images import image_build
from tests.support import waiting
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec, settings_of
from tests.support.kube import QUICK_JVM, Kube, image, ready

LEASE = 10.0
SESSION = 180.0
PARTITIONS = 6
SLOTS = 3
JOB = """
import os

def process(df, context):
    if context.warm:
        return
    if os.environ.get("JOB_FAILS"):
        raise ValueError("broken on purpose")
    df.count()
"""


class PodFleet:
    """Slots, one standby, and one shared Spark server."""

    def __init__(self, kube: Kube, namespace: str, bootstrap: str) -> None:
        self.kube = kube
        self.namespace = self.group = group = namespace
        self.topic = f"{group}-topic"
        job = {"entrypoint": "pod_job:process", "session_timeout": f"{SESSION:g}s"}
        place = {
            **ON_KUBERNETES,
            "namespace": namespace,
            "image": image("worker"),
            "pull_policy": "Never",
            "lease": LEASE,
            "env_from": [QUICK_JVM],
            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
            "spark": {"image": image("spark"), "memory": "700m"},
        }
        declared = declaration(
            group,
            topics=[self.topic],
            worker=job,
            replicas={"min": SLOTS, "max": SLOTS + 1, "standby": 1},
            rollout={"drain_timeout": "10s", "bake": "2s"},
            runtime=place,
        )
        self.spec = fleet_spec(declared, bootstrap=bootstrap)
        self.names = ObjectNames("main", group)
        fleet = self.spec.fleets[0]
        self.settings = settings_of(
            fleet, revision=revision_of(fleet, JOB), bootstrap=bootstrap, cluster=self.spec.cluster
        )
        self.api = connect(
            namespace=namespace,
            context=None,
            environ={**os.environ, "KUBECONFIG": str(kube.kubeconfig)},
            clock=SystemClock(),
        )
        self.store = LeaseStore.for_manager(
            self.api, cluster="main", clock=SystemClock(), lease=LEASE
        )
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._stop = threading.Event()
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(120)

    # --- the manifests ----------------------------------------------------------------------

    def apply(self) -> None:
        """`kubectl apply` of everything, the Secret of Spark's token first."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SPARK, "namespace": self.namespace},
            "stringData": {token_key(name): f"of-{name}" for name in spark_servers(self.spec)},
        }
        objects = [
            secret,
            *spark_objects(self.spec),
            *fleet_objects(self.settings, code=_packed({"pod_job.py": JOB})),
        ]
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kube.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the fleet's namespace."""
        return self.kube.kubectl("-n", self.namespace, *words)

    @property
    def deployment(self) -> str:
        """As kubectl calls it."""
        return f"deployment/{self.names.deployment}"

    # --- what there is ------------------------------------------------------------------------

    def pods(self, *, going: bool = False) -> dict[str, Any]:
        """Workers' pods by name; those that end only with `going`."""
        return self.kube.workers(self.namespace, self.names, going=going)

    def ready(self) -> set[str]:
        """Pods that are ready."""
        return ready(self.pods())

    def targets(self) -> SlotTargets:
        return self.store.targets(self.group)

    def slots(self) -> dict[int, Slot]:
        """As stored, by number."""
        return {slot.number: slot for slot in self.store.slots(self.group)}

    def owners(self) -> dict[int, str | None]:
        """Slot → pod, of those that are active and fail in nothing."""
        return {
            n: slot.owner
            for n, slot in self.slots().items()
            if slot.phase is Phase.ACTIVE and slot.error is None
        }

    def serve(self, among: Callable[[], set[str]] | None = None) -> bool:
        """Whether all slots are active, held by living pods (of these)."""
        held = set(self.owners().values())
        return len(held) == SLOTS and held <= (among or (lambda: set(self.pods())))()

    def fails(self, why: str) -> bool:
        """Whether a worker reports this error."""
        return any(why in (report.error or "") for report in self.store.reports(self.group))

    def probe(self, pod: str, path: str) -> str:
        """What a pod answers at its own address, through the API server."""
        raw = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:9464/proxy{path}"
        return self.kube.kubectl("get", "--raw", raw).strip()

    def share(self, slot: int) -> set[int]:
        """The partitions of a slot, as its pod tells them."""
        status = json.loads(self.probe(str(self.slots()[slot].owner), "/status"))
        return {int(tp.rpartition("-")[2]) for tp in status["assignment"]}

    # --- records ------------------------------------------------------------------------------

    def committed(self) -> dict[int, int]:
        """Partition → committed offset, 0 where there is none."""
        asked = ConsumerGroupTopicPartitions(
            self.group, [TopicPartition(self.topic, p) for p in range(PARTITIONS)]
        )
        try:
            answer = self.admin.list_consumer_group_offsets([asked])[self.group].result(120)
        except KafkaException:  # the group is not there yet
            return dict.fromkeys(range(PARTITIONS), 0)
        return {each.partition: max(each.offset, 0) for each in answer.topic_partitions}

    def advanced(self, since: Mapping[int, int]) -> set[int]:
        """Partitions with a commit since then."""
        return {p for p, offset in self.committed().items() if offset > since[p]}

    def all_advance(self) -> None:
        """Wait until every partition has a new commit."""
        since = self.committed()
        self.until(lambda: len(self.advanced(since)) == PARTITIONS, "all partitions to advance")

    @contextlib.contextmanager
    def fed(self) -> Iterator[None]:
        """Ten records a second into every partition."""
        feeding = threading.Thread(target=self._feed, daemon=True)
        feeding.start()
        try:
            yield
        finally:
            self._stop.set()
            feeding.join(10)

    def _feed(self) -> None:
        while not self._stop.wait(0.1):
            for partition in range(PARTITIONS):
                self._producer.produce(self.topic, b"x", partition=partition)
            self._producer.flush(120)

    # --- misfortune ---------------------------------------------------------------------------

    def kill(self, pod: str) -> None:
        """SIGKILL to the worker inside."""
        kill_inside(pod)

    def until(self, condition: Callable[[], bool], what: str, *, timeout: float = 150.0) -> None:
        """Wait until nothing has moved for so long; a failure shows what there is."""
        waiting.until(
            condition, what, progress=self.moving, still=timeout, every=0.2, picture=self.told
        )

    def moving(self) -> Hashable:
        """What moves while the cluster and the workers make progress."""
        states = frozenset(
            (name, pod.status.phase, each.ready, each.restart_count)
            for name, pod in self.pods(going=True).items()
            for each in pod.status.container_statuses or ()
        )
        return states, waiting.stored(self.store, self.group)

    def told(self) -> str:
        """Pods, slots and the last lines of every log."""
        facts = [self.kubectl("get", "pods", "-o", "wide")]
        facts += [str(self.targets()), *(str(slot) for slot in self.slots().values())]
        for pod in self.pods(going=True):
            with contextlib.suppress(AssertionError):
                facts.append(f"--- {pod}\n{self.kubectl('logs', pod, '--tail=15')}")
        return "\n".join(facts)


def kill_inside(pod: str) -> None:
    """SIGKILL to a pod's worker, from the node: within its own namespace nobody can.

    What it started has its environment, too, and a smaller pid where the numbers began anew.
    """
    mine = f"POD_NAME={pod}".encode()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mine in (entry / "environ").read_bytes().split(b"\0"):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    first = [pid for pid, parent in parents.items() if parent not in parents]
    if len(first) != 1:
        pytest.fail(f"the worker of {pod} is one of {first}: pid and parent of all are {parents}")
    os.kill(first[0], signal.SIGKILL)


def _packed(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def derived(kube: Kube, tag: str, **environ: str) -> str:
    """The worker's image with more in its environment: another image for `kubectl set image`."""
    name = f"localhost/fleet-worker-{tag}:{image('worker').rpartition(':')[2]}"
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "Containerfile")
        lines = "".join(f"ENV {key}={value}\n" for key, value in environ.items())
        recipe.write_text(f"FROM {image('worker')}\n{lines}")
        image_build._buildah(
            *("build", "--quiet", "--isolation=chroot", "--network=host", "--pull-never"),
            *(f"--tag={name}", f"--file={recipe}", folder),
        )
    image_build.load([name], kube.cluster)
    return name
