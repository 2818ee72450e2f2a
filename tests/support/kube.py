"""The test session's cluster (kube_home.py) as tests use it: client, kubectl, images."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

from fleet.kubernetes.client.object_names import ObjectNames
from k8s.cluster import programs
from k8s.cluster.lifecycle import ClusterStatus, TrialCluster
from k8s.images import image_build
from tests.support import dying
from tests.support.kube_home import HOME
from tests.support.needs import repository

QUICK_JVM = "quick-jvm"
"""For `runtime.env_from`: a Secret in every namespace of `Kube.namespace`, with which pods' JVMs
leave the optimising compiler out, as every JVM of a test does (tests/conftest.py)."""


@dataclass(frozen=True)
class Kube:
    """A running cluster: its client, its kubectl, its addresses."""

    cluster: TrialCluster
    status: ClusterStatus

    @property
    def host_address(self) -> str:
        """Where a broker for pods listens."""
        return self.status.host_address

    @property
    def kubeconfig(self) -> Path:
        return self.status.kubeconfig

    @cached_property
    def api(self) -> client.ApiClient:
        """The administrator's; makes all the typed APIs."""
        return config.new_client_from_config(str(self.kubeconfig))

    @property
    def core(self) -> client.CoreV1Api:
        """Pods, namespaces, config maps, secrets."""
        return client.CoreV1Api(self.api)

    @property
    def apps(self) -> client.AppsV1Api:
        return client.AppsV1Api(self.api)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints; AssertionError with its words where it fails."""
        done = subprocess.run(
            [programs.path("kubectl"), *words],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=stdin, capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def workers(
        self, namespace: str, names: ObjectNames, *, going: bool = False
    ) -> dict[str, client.V1Pod]:
        """A fleet's pods by name; those that end only with `going`."""
        found = self.core.list_namespaced_pod(namespace, label_selector=names.selection()).items
        return {
            pod.metadata.name: pod
            for pod in found
            if going or pod.metadata.deletion_timestamp is None
        }

    def await_rollout(self, namespace: str, deployment: str) -> None:
        """Until a Deployment is available; AssertionError with its pods after four minutes."""
        asked = ("-n", namespace, "rollout", "status", f"deployment/{deployment}")
        for _ in range(3):
            try:
                self.kubectl(*asked, "--timeout=80s")
            except AssertionError as error:
                last = error
            else:
                return
        raise AssertionError(self.kubectl("-n", namespace, "describe", "pods")) from last

    def pod(self, namespace: str, name: str, image: str, *command: str, **spec: Any) -> None:
        """Make a pod of one container; `spec` is of the pod, in it `container` of the container."""
        container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
        container |= spec.pop("container", {})
        if command:
            container["command"] = list(command)
        self.core.create_namespaced_pod(
            namespace,
            {
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                    **spec,
                },
            },
        )

    def reached(self, namespace: str, name: str, *phases: str) -> client.V1Pod:
        """The pod once it is in one of these phases; AssertionError with its state after 300 s."""
        watched = watch.Watch()
        found = None
        for event in watched.stream(
            self.core.list_namespaced_pod,
            namespace,
            field_selector=f"metadata.name={name}",
            timeout_seconds=300,
        ):
            found = event["object"]
            if found.status.phase in phases:
                watched.stop()
                return found
        raise AssertionError(f"{name} is not {' or '.join(phases)}: {found and found.status}")

    def ran(self, namespace: str, name: str, image: str, *command: str, **spec: Any) -> str:
        """What a pod that ends by itself printed; AssertionError with it where it failed."""
        self.pod(namespace, name, image, *command, **spec)
        ended = self.reached(namespace, name, "Succeeded", "Failed")
        printed = self.kubectl("logs", "-n", namespace, name)
        assert ended.status.phase == "Succeeded", printed
        return printed

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace that goes with everything in it; its end is not waited for."""
        self.core.create_namespace({"metadata": {"name": name}})
        try:
            self.core.create_namespaced_secret(
                name,
                {
                    "metadata": {"name": QUICK_JVM},
                    "stringData": {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
                },
            )
            # Pods are refused until the controller has made it.
            self.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default")
            yield name
        finally:
            self.core.delete_namespace(name, grace_period_seconds=0)


def ready(pods: Mapping[str, client.V1Pod]) -> set[str]:
    """Which of them are ready."""
    return {
        name
        for name, pod in pods.items()
        if any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
    }


def home() -> TrialCluster:
    """The session's cluster, running or not."""
    return TrialCluster(HOME.path)


@cache
def image(target: str) -> str:
    """This checkout's image `worker`, `spark` or `manager` (k8s.images), there for pods to run.

    Built since the session began (`prepare`); brought to the cluster by the first who asks.
    """
    name = _name(target)
    if name not in home().images():
        build()
        image_build.load([name], home())
    return name


def in_pods(namespace: str) -> dict[str, Any]:
    """A `runtime` section: this checkout's images, one Spark server for all."""
    return {
        "namespace": namespace,
        "image": image("worker"),
        "pull_policy": "Never",
        "lease": "10s",
        "env_from": [QUICK_JVM],
        "spark": {"image": image("spark"), "memory": "1g", "master": "local[2]"},
    }


def start() -> Kube:
    """The session's cluster, started by the first who asks: others go on when he has ended."""
    with dying.for_the_run():
        return Kube(home(), home().up())


def prepare() -> None:
    """Begin with this checkout's images, beside the first tests; FleetError where it fails.

    What may take minutes the first time, their bases, is waited for: no test's timeout runs here.
    """
    _tag()
    there = image_build.names()
    if not all(image_build.base_of(name) in there for name in image_build.BASES):
        build()
    elif os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        subprocess.Popen(
            [sys.executable, "-c", "from tests.support import kube; kube.build()"],
            cwd=repository(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip


def build() -> None:
    """Have this checkout's images. The processes of a run ask at once: one makes them, the others
    wait for it.
    """
    store = image_build.store()
    store.mkdir(parents=True, exist_ok=True)
    with (store.parent / ".tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        there = image_build.names()
        wanted = [target for target in image_build.TARGETS if _name(target) not in there]
        if wanted:
            image_build.build(wanted, _tag(), lambda text: print(text, file=sys.stderr))


def _name(target: str) -> str:
    return image_build.name_of(target, _tag())


@cache
def _tag() -> str:
    """Of the code as it was when the session began, also where somebody goes on editing it."""
    return os.environ.setdefault("FLEET_TEST_TAG", image_build.code_tag())
