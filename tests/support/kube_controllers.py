"""The controllers of Deployments, and the scheduler, beside a scratch API server; no kubelets."""

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
    arguments = (
        f"--controllers={','.join(CONTROLLERS)}",
        "--horizontal-pod-autoscaler-sync-period=1s",
    )
    with _running(server, folder, "kube-controller-manager", *arguments) as process:
        server.controllers = process
        try:
            yield server
        finally:
            server.controllers = None


@contextmanager
def scheduler(server: KubeApi, folder: Path) -> Iterator[None]:
    """Pods get nodes meanwhile, of those that a test makes."""
    with _running(server, folder, "kube-scheduler"):
        yield


@contextmanager
def _running(
    server: KubeApi, folder: Path, name: str, *arguments: str
) -> Iterator["subprocess.Popen[bytes]"]:
    with on_free_ports(name, lambda port: _on_port(server, folder, port, name, *arguments)) as made:
        yield made


@contextmanager
def _on_port(
    server: KubeApi, folder: Path, port: int, name: str, *arguments: str
) -> Iterator["subprocess.Popen[bytes]"]:
    log = folder / f"{name}.log"
    with log.open("ab") as said:
        process = subprocess.Popen(
            [
                programs.path(name),
                f"--kubeconfig={server.kubeconfig()}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={folder / f'{name}-certs'}",
                "--kube-api-qps=200",
                "--kube-api-burst=200",
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        _await(process, port, log)
        yield process
    finally:
        process.kill()
        process.wait()


def _await(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        with (
            suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(
                f"https://127.0.0.1:{port}/healthz", timeout=2, context=_create_unverified_context()
            ) as answer,
        ):
            if answer.status == 200:
                return
        assert time.monotonic() < end, f"{log.stem} does not answer"
        time.sleep(0.1)
