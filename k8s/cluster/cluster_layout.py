"""Where a cluster's files are and which addresses it has. Pure but for the choice of a network.

One /16 a cluster: the uplink between the machine and the cluster's network namespace, and the
pods. The namespace has no default route, so nothing in the cluster reaches beyond the machine.
"""

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.errors import FleetError

INSIDE: Final = Path("/run/fleet")
"""What the cluster's own mount namespace calls the cluster's folder: short, as sockets need it."""
NODE: Final = "fleet-node"
SERVICES: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
API_PORT: Final = 6443
DOMAIN: Final = "cluster.local"
CONTAINERD: Final = "/run/containerd/containerd.sock"
PAUSE: Final = "localhost/fleet-pause:1"
_CANDIDATES: Final = (*(f"10.{n}" for n in range(100, 255)), *(f"172.{n}" for n in range(20, 32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One cluster's names, addresses and files."""

    folder: Path
    name: str
    """Of its interface on the machine and of its cgroups: at most 15 characters."""
    network: str
    """The first two bytes of its addresses: `10.100`."""

    @property
    def host_address(self) -> str:
        """The machine, as pods reach it: where a broker for them listens."""
        return f"{self.network}.0.1"

    @property
    def node_address(self) -> str:
        """The node, its API server and its name server, as the machine and pods reach them."""
        return f"{self.network}.0.2"

    @property
    def pods(self) -> str:
        """The network of the pods; the machine has a route to it."""
        return f"{self.network}.1.0/24"

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self.node_address}:{API_PORT}"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster's administrator."""
        return self.folder / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Keys, certificates, tokens."""
        return self.folder / "pki"

    @property
    def configs(self) -> Path:
        """What the components are started with."""
        return self.folder / "config"

    def log(self, component: str) -> Path:
        """What a component says."""
        return self.folder / "logs" / f"{component}.log"


def free_network(wanted: str | None = None) -> str:
    """Two bytes that begin no address or route of this machine; `wanted` where it is free."""
    taken = [*_networks(_ip("address")), *_networks(_ip("route", "show", "table", "all"))]
    candidates = _CANDIDATES if wanted is None else (wanted, *_CANDIDATES)
    found = next((each for each in candidates if not _overlaps(each, taken)), None)
    if found is None:
        raise FleetError(
            "found no free private network for a cluster; remove a route of this machine"
        )
    return found


def _overlaps(candidate: str, taken: Iterable[ipaddress.IPv4Network]) -> bool:
    network = ipaddress.IPv4Network(f"{candidate}.0.0/16")
    return any(network.overlaps(each) for each in taken)


def _networks(entries: list[dict[str, object]]) -> Iterator[ipaddress.IPv4Network]:
    for entry in entries:
        for each in [entry, *_dicts(entry.get("addr_info"))]:
            for text in (each.get("dst"), each.get("local")):
                if isinstance(text, str) and text != "default" and ":" not in text:
                    yield ipaddress.IPv4Network(text, strict=False)


def _dicts(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []


def _ip(*words: str) -> list[dict[str, object]]:
    done = subprocess.run(
        ["ip", "-json", "-4", *words], capture_output=True, text=True, check=True
    ).stdout
    found: list[dict[str, object]] = json.loads(done or "[]")
    return found
