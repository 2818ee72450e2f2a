"""The cluster itself: what it starts and stops, where its pods cannot go; and that nothing stays.

What docs/contributing/README.md shows is run here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.system import processes
from k8s.cluster import boundary
from k8s.cluster.cluster_layout import PAUSE
from k8s.cluster.lifecycle import TrialCluster
from tests.support import kube as support

pytestmark = [pytest.mark.kubernetes]

OUTSIDE = """
import socket
try:
    socket.create_connection(("198.51.100.1", 443), timeout=5)
except OSError as error:
    print(error.strerror)
"""


def test_pods_reach_nothing_beyond_this_machine(kube, namespace) -> None:
    """Brokers are on it, at the same address for pods and for this machine."""
    said = kube.ran(namespace, "reader", support.image("worker"), "python3", "-c", OUTSIDE)
    assert said.strip() == "Network is unreachable"


def test_component_is_stopped_and_started(kube) -> None:
    """Not the API server of the cluster that other tests use at this moment (see the long form):
    without a scheduler their new pods only wait.
    """
    kube.cluster.stop("kube-scheduler")
    try:
        assert kube.cluster.status().components["kube-scheduler"] is None
    finally:
        kube.cluster.start("kube-scheduler")
    assert kube.cluster.status().components["kube-scheduler"] is not None
    with pytest.raises(FleetError, match="no component nothing exists; choose one of etcd"):
        kube.cluster.stop("nothing")


def _machine() -> dict[str, object]:
    """What a cluster could change: mounts, interfaces, routes, rules, kernel settings, cgroups."""
    settings = ("vm/overcommit_memory", "kernel/panic", "net/ipv4/ip_forward")
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    return {
        "settings": {name: Path("/proc/sys", name).read_text() for name in settings},
        "rules": [line for line in rules.splitlines() if not line.startswith(("#", ":"))],
        "routes": sorted(line for line in routes.splitlines() if "fleet-" not in line),
        "folders": [name for name in ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet",
                                      "/etc/cni/net.d", "/opt/containerd") if Path(name).exists()],
    }  # fmt: skip


@pytest.mark.long
def test_nothing_stays(tmp_path) -> None:
    """Killed with -9 it comes back with its data; ended, the machine is as before.

    In the short form the end of the session's own cluster fails where anything is left.
    """
    before = _machine()
    own = TrialCluster(tmp_path)
    first = own.up()
    try:
        kube = support.Kube(own, first)
        kube.pod("default", "steady", PAUSE)
        kube.reached("default", "steady", "Running")
        layout = own._load().layout
        inside = _inside(layout.name)
        assert len(inside) >= 2, "the pod's processes"
        assert _machine() == before, "also while it runs"

        running = kube.reached("default", "steady", "Running")
        own.stop("kube-apiserver")
        assert own.status().components["kube-apiserver"] is None
        own.start("kube-apiserver")
        after = kube.core.read_namespaced_pod("steady", "default")
        assert after.status.pod_ip == running.status.pod_ip
        assert after.status.container_statuses[0].restart_count == 0, "pods go on without it"

        processes.signal_group(own._load().outer, signal.SIGKILL)
        deadline = time.monotonic() + 300
        while any(Path(f"/proc/{pid}").exists() for pid in inside):
            assert time.monotonic() < deadline, "shims and containers die with it"
            time.sleep(0.1)
        again = own.up()
        assert again.kubeconfig == first.kubeconfig
        known = json.loads(kube.kubectl("get", "pod", "steady", "-o", "json"))
        assert known["metadata"]["name"] == "steady"
        assert own.up() == again, "starting what runs changes nothing"
    finally:
        own.down()
    assert boundary.leftovers(layout) == []
    assert own.status() is None
    assert [path.name for path in tmp_path.iterdir()] == [".cluster.lock"]
    assert _machine() == before
    own.down()


def test_another_cluster_is_only_asked(kube, tmp_path) -> None:
    """With KUBECONFIG set, `up` starts nothing and `down` ends nothing of that cluster."""
    environ = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "FLEET_HOME": str(tmp_path)}
    said = ""
    for command in ("up", "down"):
        done = subprocess.run(
            [sys.executable, "-m", "k8s.cluster", command],
            env=environ, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert "answers; nothing was started" in said
    assert TrialCluster(tmp_path).status() is None
    assert kube.kubectl("get", "--raw=/readyz") == "ok"


def _inside(name: str) -> list[int]:
    """Processes in the cluster's cgroups."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"/{name}/" in _cgroup(entry)
    ]


def _cgroup(process: Path) -> str:
    try:
        return (process / "cgroup").read_text()
    except OSError:
        return ""
