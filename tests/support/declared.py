"""Groups and settings as fleet.yaml declares them: a test says only what matters to it."""

from collections.abc import Mapping
from typing import Any

from fleet.config.settings import WorkerSettings
from fleet.config.spec import ClusterSpec, FleetSpec, GroupSpec

ON_KUBERNETES = {"kind": "kubernetes", "namespace": "fleets", "image": "fleet:1"}


def declaration(
    group: str = "orders", *, worker: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """A group on topic `orders` as it is written; worker: beside a classic one's entrypoint."""
    job = {"entrypoint": "job:process", "protocol": "classic"}
    return {"group": group, "topics": ["orders"], "worker": {**job, **(worker or {})}, **keys}


def group_spec(group: str = "orders", **keys: Any) -> GroupSpec:
    """The same, read."""
    return GroupSpec.model_validate(declaration(group, **keys))


def fleet_spec(*groups: Mapping[str, Any], cluster: str = "main", **keys: Any) -> FleetSpec:
    """A file with these groups as they are declared."""
    where = {"name": cluster, "bootstrap_servers": keys.pop("bootstrap", "kafka:9092")}
    return FleetSpec.model_validate({"cluster": where, "fleets": list(groups), **keys})


def settings_of(
    group: GroupSpec | None = None,
    *,
    revision: str = "r1",
    bootstrap: str = "127.0.0.1:1",
    **more: Any,
) -> WorkerSettings:
    """What a worker of that revision starts from; nothing listens at the usual address."""
    return WorkerSettings(
        **{"cluster": ClusterSpec(bootstrap_servers=bootstrap), **more},
        bootstrap_servers=bootstrap,
        group=group or group_spec(),
        revision=revision,
    )
