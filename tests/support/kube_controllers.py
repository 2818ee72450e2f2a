"""The controllers of Deployments and ReplicaSets beside a scratch API server; still no nodes."""

import http.client
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import _create_unverified_context

from fleet.system.ports import on_free_ports
from k8s.cluster import programs
from tests.support.kube_api import KubeApi

CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "horizontal-pod-autoscaler-controller",
)


@contextmanager
def controllers(server: KubeApi, folder: Path) -> Iterator[KubeApi]:
    """The server, while its controllers run."""
    with on_free_ports("the controllers", lambda port: _controllers(server, folder, port)):
        yield server


@contextmanager
def _controllers(server: KubeApi, folder: Path, port: int) -> Iterator[None]:
    config = str(server.kubeconfig())
    with (folder / "controllers.log").open("ab") as log:
        process = subprocess.Popen(
            [
                programs.path("kube-controller-manager"),
                f"--kubeconfig={config}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={folder / 'controller-certs'}",
                "--kube-api-qps=200",
                "--kube-api-burst=200",
                "--horizontal-pod-autoscaler-sync-period=1s",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await(process, port, folder)
        server.controllers = process
        yield
    finally:
        server.controllers = None
        process.kill()
        process.wait()


def _await(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, (folder / "controllers.log").read_text()[-2000:]
        with (
            suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(
                f"https://127.0.0.1:{port}/healthz", timeout=2, context=_create_unverified_context()
            ) as answer,
        ):
            if answer.status == 200:
                return
        assert time.monotonic() < end, "the controller manager does not answer"
        time.sleep(0.1)
