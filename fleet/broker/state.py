"""What the embedded broker keeps between processes: nodes, ports, who runs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.broker.node_config import HOST, NodeConfig
from fleet.broker.secrets import SCRAM_ONLY, Logins
from fleet.system import processes
from fleet.system.processes import ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """What is kept between processes."""

    cluster_id: str
    nodes: tuple[NodeConfig, ...]
    secure: bool = False
    logins: Logins = SCRAM_ONLY
    overrides: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[int, ProcessId] = field(default_factory=dict)

    def process(self, node: NodeConfig) -> ProcessId | None:
        """The node's living process."""
        known = self.processes.get(node.id)
        return known if known is not None and processes.alive(known) else None

    def with_process(self, node: NodeConfig, process: ProcessId) -> "BrokerState":
        """With that process as the node's."""
        return replace(self, processes={**self.processes, node.id: process})

    def at(self, host: str) -> "BrokerState":
        """With nodes that clients reach at `host`."""
        return replace(self, nodes=tuple(replace(node, host=host) for node in self.nodes))

    @property
    def host(self) -> str:
        """Where clients reach the nodes."""
        return self.nodes[0].host

    @property
    def bootstrap_servers(self) -> str:
        """Of all nodes, running or not."""
        return ",".join(node.address for node in self.nodes)


def as_json(state: BrokerState) -> dict[str, Any]:
    """For state.json."""
    return {
        "host": state.host,
        "cluster_id": state.cluster_id,
        "secure": state.secure,
        "jwks": state.logins.jwks,
        "client_ca": None if state.logins.client_ca is None else str(state.logins.client_ca),
        "overrides": dict(state.overrides),
        "nodes": [
            {
                "id": node.id,
                "port": node.port,
                "controller_port": node.controller_port,
                "certificate_port": node.certificate_port,
                "process": process.as_json() if (process := state.processes.get(node.id)) else None,
            }
            for node in state.nodes
        ],
    }


def from_json(kept: Mapping[str, Any], folder: Path) -> BrokerState:
    """From state.json of `folder`; KeyError, TypeError or ValueError where it is none."""
    nodes = tuple(
        NodeConfig(
            id=int(each["id"]),
            port=int(each["port"]),
            controller_port=int(each["controller_port"]),
            home=folder / f"node-{int(each['id'])}",
            host=str(kept.get("host", HOST)),
            certificate_port=each.get("certificate_port"),
        )
        for each in kept["nodes"]
    )
    return BrokerState(
        cluster_id=str(kept["cluster_id"]),
        nodes=nodes,
        secure=bool(kept.get("secure", False)),
        logins=Logins(
            jwks=kept.get("jwks"),
            client_ca=Path(kept["client_ca"]) if kept.get("client_ca") else None,
        ),
        overrides={str(key): str(value) for key, value in kept["overrides"].items()},
        processes={
            int(each["id"]): ProcessId.from_json(each["process"])
            for each in kept["nodes"]
            if each["process"] is not None
        },
    )
