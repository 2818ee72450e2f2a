"""The cluster itself: pods, their network, their accounts; and that nothing of it stays.

What docs/contributing/README.md shows is run here.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.system import processes
from k8s.cluster import boundary
from k8s.cluster.cluster_layout import DOMAIN, PAUSE
from k8s.cluster.lifecycle import TrialCluster
from tests.support import kube as support

pytestmark = [pytest.mark.kubernetes]

WHO_AM_I = """
from kubernetes import client, config
config.load_incluster_config()
assert client.Configuration.get_default_copy().verify_ssl
review = client.AuthenticationV1Api().create_self_subject_review({})
print(review.status.user_info.username)
try:
    client.CoreV1Api().list_namespaced_secret("kube-system")
except client.ApiException as error:
    print(error.status)
"""
UNVERIFIED = """
import os, ssl, urllib.request
host = os.environ["KUBERNETES_SERVICE_HOST"]
try:
    urllib.request.urlopen(f"https://{host}/readyz", context=ssl.create_default_context())
except urllib.error.URLError as error:
    print(error.reason)
"""
BROKER = """
import sys
from confluent_kafka.admin import AdminClient
found = AdminClient({"bootstrap.servers": sys.argv[1]}).list_topics(timeout=30)
print([str(each) for each in found.brokers.values()])
"""
OUTSIDE = """
import socket
try:
    socket.create_connection(("198.51.100.1", 443), timeout=5)
except OSError as error:
    print(error.strerror)
"""
FETCH = """
import sys, time, urllib.request
end = time.monotonic() + 30
while True:
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
        break
    except OSError:  # a Service that was made just now is not yet known on the node
        if time.monotonic() > end:
            raise
        time.sleep(0.5)
"""


def test_pod_has_an_address_of_its_own(kube, namespace) -> None:
    """Not the node's: this machine reaches it, and other pods do by a Service and its name."""
    serving = ["sh", "-c", "cd /var/lib/fleet && echo served > page && exec python3 -m http.server"]
    kube.pod(namespace, "server", support.image("worker"), *serving)
    address = kube.reached(namespace, "server", "Running").status.pod_ip
    assert address.rpartition(".")[0] == kube.status.pods.rpartition(".")[0]
    assert address not in {kube.status.node_address, kube.host_address}
    kube.kubectl("expose", "-n", namespace, "pod/server", "--port=80", "--target-port=8000")
    _wait_for_port(address, 8000)
    url = f"http://server.{namespace}.svc.{DOMAIN}/page"
    answer = kube.ran(namespace, "client", support.image("worker"), "python3", "-c", FETCH, url)
    assert answer.strip() == "served"
    assert kube.kubectl("exec", "-n", namespace, "server", "--", "id", "-u").strip() == "10001"


def test_service_account_is_authenticated_and_the_server_verified(kube, namespace) -> None:
    """Inside a pod the API server's certificate is checked, and the account is known."""
    image, script = support.image("worker"), WHO_AM_I + UNVERIFIED
    who, status, doubted = kube.ran(namespace, "who", image, "python3", "-c", script).split("\n", 2)
    assert [who, status] == [f"system:serviceaccount:{namespace}:default", "403"]
    assert "certificate verify failed" in doubted, "no other authority vouches for it"


def test_pods_reach_the_broker_and_nothing_beyond(kube, kube_broker, namespace) -> None:
    """The broker's address is the same for pods and for this machine."""
    image, servers = support.image("worker"), kube_broker.bootstrap_servers
    assert servers.startswith(f"{kube.host_address}:")
    script = BROKER + OUTSIDE
    found, outside = kube.ran(namespace, "reader", image, "python3", "-c", script, servers).split(
        "\n", 1
    )
    assert servers in found
    assert outside.strip() == "Network is unreachable"


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


def _wait_for_port(address: str, port: int) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


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
