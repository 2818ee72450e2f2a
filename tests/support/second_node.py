"""A second node of the session's cluster, whose power can be cut.

Problem: a drain, a lost node and a spread need two nodes, and the trial cluster has one. Choice:
namespaces within the cluster's own, with a containerd, a kubelet and a kube-proxy; a link and two
routes join its pods' network to the first. All of its processes end when their process 1 is killed,
as by a power cut. Only pods that tolerate its taint come here: other tests share the cluster. Cost:
images are loaded once more.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import yaml

from fleet.errors import FleetError
from fleet.system import processes
from fleet.system.home import write_whole
from fleet.system.processes import ProcessId
from k8s.cluster import boundary, components, lifecycle, programs
from k8s.cluster.cluster_layout import INSIDE, NODE, Layout
from k8s.images import image_build
from tests.support import waiting
from tests.support.kube import Kube

NAME: Final = "fleet-node-2"
TAINT: Final = {"key": "fleet-test/second", "effect": "NoSchedule"}
TOLERATION: Final = {**TAINT, "operator": "Exists"}
_LINK: Final = "node-2"
"""Its interface on the first node."""
_PARTS: Final = ("containerd", "kubelet", "kube-proxy")


class SecondNode:
    """The node, with power or without."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        state = kube.cluster._load()
        assert state is not None
        assert state.outer is not None
        self._first, self._host = state.outer, state.layout
        # Its cgroups stand below those of the cluster, and go with them.
        self._layout = Layout(
            folder=self._host.folder / "second",
            name=f"{self._host.name}/second",
            network=self._host.network,
        )
        self._address, self._gateway = (f"{self._host.network}.0.{n}" for n in (6, 5))
        self._pods = f"{self._host.network}.2.0/24"
        self._spawned: ProcessId | None = None
        self._outer: ProcessId | None = None
        self._write_files()

    # --- power ------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch it on, and wait until pods can run on it."""
        reaper = [sys.executable, "-I", "-S", "-c", boundary._REAP]
        reaper.append(boundary._mark(self._layout.folder))
        unshare = [programs.path("unshare"), "--fork", "--kill-child=SIGKILL", "--pid"]
        unshare += ["--mount-proc", "--mount", "--net", *reaper]
        self._spawned = processes.spawn(
            boundary.enter(self._first, *unshare),
            log=self._layout.log("boundary"),
            cwd=Path("/"),
        )
        self._outer = waiting.until(self._unshared, "the namespaces of the second node")
        for tree in boundary._cgroup_trees():
            boundary._make_cgroup(tree, self._layout.name)
        boundary.run(self._outer, "sh", "-euc", boundary._mounts(), "sh", str(self._layout.folder))
        self._link()
        for name, argv in components.arguments(self._layout, programs.path).items():
            if name in _PARTS:
                processes.spawn(
                    boundary.enter(self._outer, *map(self._renamed, argv)),
                    log=self._layout.log(name),
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run"},
                    cwd=Path("/"),
                )
        waiting.until(self._has_pause, "its containerd", picture=self._last_words)
        waiting.until(self.is_ready, "the second node to be ready", picture=self._last_words)

    def cut_power(self) -> None:
        """Kubelet, shims and containers are killed at once."""
        if self._spawned is not None:
            processes.signal_group(self._spawned, signal.SIGKILL)
            processes.wait_ended(self._spawned, timeout=20.0)
            self._spawned = None

    def close(self) -> None:
        """Nothing of it is left but its cgroups, which go with the cluster's."""
        self.cut_power()
        with contextlib.suppress(FleetError):
            boundary._check(["ip", "route", "delete", self._pods])
        self._kube.kubectl("delete", "node", NAME, "--ignore-not-found")

    def is_ready(self) -> bool:
        """Whether the API server says so."""
        nodes = {each.metadata.name: each for each in self._kube.core.list_node().items}
        found = nodes[NAME].status.conditions if NAME in nodes else None
        return any(each.type == "Ready" and each.status == "True" for each in found or ())

    # --- images, as of a TrialCluster -------------------------------------------------------

    def load(self, archive: IO[bytes]) -> list[str]:
        """Import an image archive."""
        return lifecycle.load(self._running(), archive)

    def contents(self) -> set[str]:
        """Digests of image blobs that need not be brought again."""
        return lifecycle.contents(self._running())

    # --- parts ------------------------------------------------------------------------------

    def _running(self) -> ProcessId:
        assert self._outer is not None
        return self._outer

    def _unshared(self) -> ProcessId | None:
        """The child of nsenter, once it has a child of its own: process 1 of the namespaces."""
        assert self._spawned is not None
        for pid in _children(self._spawned.pid):
            found = processes.identify(pid)
            if found is not None and _children(pid):
                return found
        return None

    def _link(self) -> None:
        outer = self._running()
        pid = str(boundary._first(outer))
        inside = ("nsenter", f"--target={boundary._first(self._first)}", "--net", "--", "ip")
        with contextlib.suppress(FleetError):  # of the last start, where it is still there
            boundary._check([*inside, "link", "delete", _LINK])
        peer = ["type", "veth", "peer", "name", "uplink", "netns", pid]
        for words in (
            ["link", "add", _LINK, *peer],
            ["address", "add", f"{self._gateway}/30", "dev", _LINK],
            ["link", "set", _LINK, "up"],
            ["route", "replace", self._pods, "via", self._address],
        ):
            boundary._check([*inside, *words])
        for words in (
            ["link", "set", "lo", "up"],
            ["address", "add", f"{self._address}/30", "dev", "uplink"],
            ["link", "set", "uplink", "up"],
            ["route", "add", f"{self._host.network}.0.0/16", "via", self._gateway],
        ):
            boundary.run(outer, "ip", *words)
        boundary.run(outer, "sh", "-euc", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        boundary._check(["ip", "route", "replace", self._pods, "via", self._host.node_address])

    def _write_files(self) -> None:
        host, layout = self._host, self._layout
        components._sign(host.pki, "second", f"/CN=system:node:{NAME}", [f"IP:{self._address}"])
        components._sign(host.pki, "second-client", f"/O=system:nodes/CN=system:node:{NAME}", [])
        for name, source in {
            "ca.crt": "ca.crt",
            "kubelet.crt": "second.crt", "kubelet.key": "second.key",
            "client.crt": "second-client.crt", "client.key": "second-client.key",
        }.items():  # fmt: skip
            write_whole(layout.pki / name, (host.pki / source).read_text())
        for name, text in components.files(layout).items():
            write_whole(layout.configs / name, text.replace(host.pods, self._pods))
        kubelet: dict[str, Any] = yaml.safe_load((layout.configs / "kubelet.yaml").read_text())
        kubelet["registerWithTaints"] = [TAINT]
        write_whole(layout.configs / "kubelet.yaml", yaml.safe_dump(kubelet))
        proxy = (host.configs / "kube-proxy.kubeconfig").read_text()
        write_whole(layout.configs / "kube-proxy.kubeconfig", proxy)
        config = yaml.safe_load(proxy)
        files = {f"client-{kind}": f"{INSIDE}/pki/client.{end}"
                 for kind, end in (("certificate", "crt"), ("key", "key"))}  # fmt: skip
        config["users"][0]["user"] = files
        write_whole(layout.configs / "kubelet.kubeconfig", yaml.safe_dump(config))

    def _renamed(self, word: str) -> str:
        word = word.replace(f"--node-ip={self._host.node_address}", f"--node-ip={self._address}")
        return word.replace(NODE, NAME).replace(self._host.pods, self._pods)

    def _has_pause(self) -> bool:
        try:
            lifecycle.load_pause(self._running())
        except FleetError:
            return False
        return True

    def _last_words(self) -> str:
        return "\n".join(lifecycle._last_words(self._layout, part) for part in _PARTS)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def second_node(kube: Kube, *images: str) -> Iterator[SecondNode]:
    """The node with these images; at the end it is gone."""
    node = SecondNode(kube)
    try:
        node.start()
        image_build.load(list(images), node)  # type: ignore[arg-type]
        yield node
    finally:
        node.close()
