"""The kubelet of pods without a node: it runs each worker as a process of this machine.

API server and controllers are real, and so is the worker: it reads its pod's settings, owns slots
and ends at SIGTERM. Only containers and images are missing. A pod is bound to a node that does not
exist, since the API server deletes an unbound pod without a grace period.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Object, Request
from fleet.kubernetes.client.object_names import HASH_LABEL, REVISION_ANNOTATION
from fleet.kubernetes.deployment.pod_status import is_gone
from fleet.system.closing import Closing
from fleet.system.ports import free_ports
from tests.support.needs import repository
from tests.support.nodeless import write_pod_status

_EVERY = 0.25
_ANSWER = 2.0
"""Seconds that a probe waits."""


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    port: int
    ready: bool = False
    told: bool = False
    """Whether it was asked to end."""


@dataclass
class LocalPods(Closing):
    """Runs the pods of one namespace until closed."""

    api: Api
    kubeconfig: Path
    home: Path
    """Logs are in `workers`, as those of local workers are."""
    ended: list[str] = field(default_factory=list)
    """Pods whose worker ended before anybody deleted them."""

    def __post_init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._stop = threading.Event()
        (self.home / "workers").mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends them all."""
        self._stop.set()
        self._thread.join()
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.wait(60)

    def count(self) -> int:
        """How many pods there are, also on their way out."""
        return len(self.api.find("Pod")[0])

    def _keep(self) -> None:
        while not self._stop.wait(_EVERY):
            with contextlib.suppress(FleetError):
                self._turn()

    def _turn(self) -> None:
        found = {pod["metadata"]["name"]: pod for pod in self.api.find("Pod")[0]}
        for name, pod in found.items():
            if name not in self._workers:
                self._workers[name] = self._start(name, pod)
            elif is_gone(pod):
                self._end(name)
            else:
                self._probe(name)

    def _start(self, name: str, pod: Object) -> _Worker:
        meta, namespace = pod["metadata"], self.api.namespace
        node = {"apiVersion": "v1", "kind": "Node", "name": "here"}
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": node,
        }  # fmt: skip
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        self.api._call(Request("POST", path, body=binding))
        (port,) = free_ports(1)
        mine = self.home / "pods" / name
        mine.mkdir(parents=True)
        (mine / "settings.json").write_text(self._settings(pod, port))
        environ = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "FLEET_HOME": str(mine),
            "FLEET_NAMESPACE": namespace,
            "FLEET_REVISION": meta["annotations"][REVISION_ANNOTATION],
            "FLEET_TEMPLATE_HASH": meta["labels"][HASH_LABEL],
        }
        settings = ("--settings", str(mine / "settings.json"), "--name", name)
        with (self.home / "workers" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fleet.worker", *settings],
                env=environ, cwd=repository(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return _Worker(process, port)

    def _settings(self, pod: Object, port: int) -> str:
        """What the kubelet would mount; each pod has an address, and these have a port each."""
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        found = self.api.get("ConfigMap", volumes["settings"]["configMap"]["name"])
        assert found is not None
        (text,) = (text for key, text in found["data"].items() if key.endswith(".json"))
        settings: dict[str, Any] = json.loads(text)
        settings["group"]["runtime"]["http_port"] = port
        return json.dumps(settings)

    def _end(self, name: str) -> None:
        worker = self._workers[name]
        if worker.process.poll() is None:
            if not worker.told:
                worker.process.terminate()
                worker.told = True
            return
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}"
        self.api._call(Request("DELETE", path, query=[("gracePeriodSeconds", "0")]))

    def _probe(self, name: str) -> None:
        worker = self._workers[name]
        if worker.process.poll() is not None:
            if name not in self.ended:
                self.ended.append(name)
            return
        url = f"http://127.0.0.1:{worker.port}/readyz"
        try:
            ready = urllib.request.urlopen(url, timeout=_ANSWER).status == 200
        except (urllib.error.URLError, OSError):
            ready = False
        if ready != worker.ready:
            write_pod_status(self.api, name, ready=ready)
            worker.ready = ready
