"""Reads a ConsumerFleet as the fleet.yaml that it stands for.

Problem: a resource and fleet.yaml must mean the same, and a person who may write resources must
not read the operator's files, variables or logins. Choice: `spec.fleet` is one entry of `fleets:`,
read by the loader of fleet.yaml below the file of its cluster, which the operator's pod mounts.
Nothing of the resource is expanded, and what would reach into the operator's pod is overwritten:
namespace, kubeconfig and folders of code. Cost: an error in the cluster's file is reported by every
resource that names it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fleet.config.load import load
from fleet.config.settings import WorkerSettings, revision_of
from fleet.config.spec import FleetSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.manifests.deployment_objects import fleet_objects
from fleet.kubernetes.manifests.spark_objects import spark_objects
from fleet.system.code import packed_code

GROUP: Final = "fleet-for-kafka.io"
VERSION: Final = "v1alpha1"
KIND: Final = "ConsumerFleet"
PLURAL: Final = "consumerfleets"
FINALIZER: Final = f"{GROUP}/drain"
DEFAULT_CLUSTER: Final = "main"
EXTERNAL: Final = "external"
ORPHAN: Final = "Orphan"
_MAPPINGS: Final = ("spec.fleet.runtime", "spec.podTemplate", "spec.clusterRef", "spec.scaling")
_OPERATORS_OWN: Final = ("authorization_env", "authorization_file", "ca_file")
"""Keys of the policy external that name a variable or a file of the process that asks."""


class DeclaredFleet:
    """One version of a ConsumerFleet."""

    def __init__(self, found: Object) -> None:
        self.found = found
        self.meta: Object = found["metadata"]
        self.spec: Object = found.get("spec") or {}
        self.status: Object = found.get("status") or {}
        self.name = str(self.meta["name"])
        self.generation = int(self.meta.get("generation") or 0)
        """Grows with every change of the spec."""
        self.age = str(self.meta.get("creationTimestamp") or ""), str(self.meta.get("uid") or "")
        """Sorts the oldest resource first."""
        self.group = str((self.spec.get("fleet") or {}).get("group") or "")
        self.cluster = str((self.spec.get("clusterRef") or {}).get("name") or DEFAULT_CLUSTER)
        """Names the file of its cluster."""
        self.is_deleted = bool(self.meta.get("deletionTimestamp"))
        self.is_orphaning = self.spec.get("deletionPolicy") == ORPHAN
        """Whether its workers go on after its deletion."""
        self.is_external = (self.spec.get("scaling") or {}).get("policy") == EXTERNAL
        """Whether `spec.replicas` is the number of slots."""

    @property
    def replicas(self) -> int | None:
        """Returns the wanted slots that others write; None: nobody has written them."""
        wanted = self.spec.get("replicas")
        return None if wanted is None else int(wanted)

    def identity(self) -> Object:
        """Returns what references to it say, such as an ownerReference."""
        version = f"{GROUP}/{VERSION}"
        return {"apiVersion": version, "kind": KIND, "name": self.name, "uid": self.meta["uid"]}


def objects_of(found: Mapping[str, Any], clusters: Path) -> tuple[Object, ...]:
    """Returns what the operator makes of a resource from a file. Raises ConfigError."""
    meta = found.get("metadata")
    if found.get("kind") != KIND or not isinstance(meta, Mapping) or "name" not in meta:
        raise ConfigError(f"this is no {KIND} with a metadata.name: {str(found)[:100]}")
    _check_mappings(found)
    declared = DeclaredFleet(dict(found))
    text = cluster_text(clusters, declared.cluster)
    spec = spec_of(declared, text, namespace=str(meta.get("namespace") or "default"))
    (fleet,) = spec.fleets
    digest, code = packed_code(fleet)
    settings = WorkerSettings(
        cluster=spec.cluster,
        bootstrap_servers=spec.cluster.bootstrap_servers,
        group=fleet,
        revision=revision_of(fleet, digest),
        code_digest=digest,
    )
    return (*spark_objects(spec), *fleet_objects(settings, code=code))


def _check_mappings(found: Mapping[str, Any]) -> None:
    """Checks what the API server checks before the operator sees a resource."""
    for mapping in _MAPPINGS:
        value: Any = found
        steps = mapping.split(".")
        for depth, step in enumerate(steps, start=1):
            value = value.get(step)
            if value is not None and not isinstance(value, Mapping):
                path = ".".join(steps[:depth])
                raise ConfigError(f"{path} is not a mapping: {str(value)[:100]!r}")
            value = value or {}


def cluster_text(folder: Path, name: str) -> str:
    """Returns the file of a cluster. Raises ConfigError with the known clusters."""
    file = folder / f"{name}.yaml"
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) or not file.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml"))) or "none"
        raise ConfigError(
            f"spec.clusterRef.name: the operator has no cluster {name!r}; known: {known}; add it "
            "to the chart's `clusters`"
        )
    return file.read_text(encoding="utf-8")


def spec_of(declared: DeclaredFleet, cluster: str, *, namespace: str) -> FleetSpec:
    """Returns the file with one fleet that a resource stands for; cluster: its cluster's file.

    Raises ConfigError with every problem by its key.
    """
    text = f"{cluster.rstrip()}\nfleets:\n  - {json.dumps(_entry(declared, namespace))}\n"
    path = Path(f"cluster {declared.cluster}")
    try:
        spec = load(path, {}, text=text)
    except ConfigError as error:
        last = text.count("\n")
        inside = re.compile(rf"^{re.escape(str(path))}:{last}: fleets\[0\]\.?", re.MULTILINE)
        raise ConfigError(inside.sub("spec.fleet.", str(error))) from error
    if spec.fleets[0].worker is None:
        raise ConfigError(
            "spec.fleet.worker is missing: write at least worker.entrypoint or worker.command"
        )
    for key in _OPERATORS_OWN:
        if getattr(spec.fleets[0].scaling, key, None):
            raise ConfigError(
                f"spec.fleet.scaling.{key}: the operator would read it in its own pod and send it "
                "to an address of the resource; serve the number without a login, or remove "
                "spec.fleet.scaling and let another program write spec.replicas"
            )
    if spec.cluster.bootstrap_servers == "embedded":
        raise ConfigError(
            f"cluster {declared.cluster} has no bootstrap_servers: write host:port in the chart's "
            "`clusters`"
        )
    # A resource is there to be carried out; its cluster's file or the fleet may say otherwise.
    return spec.model_copy(update={"mode": spec.mode or "act"})


def _entry(declared: DeclaredFleet, namespace: str) -> Object:
    entry: Object = dict(declared.spec.get("fleet") or {})
    runtime: dict[str, Any] = dict(entry.get("runtime") or {})
    entry["runtime"] = {
        **runtime,
        "kind": "kubernetes",
        "namespace": namespace,
        "context": None,
        "deployment": None,
        "pod_template": declared.spec.get("podTemplate") or {},
    }
    if isinstance(entry.get("worker"), dict):
        entry["worker"] = {**entry["worker"], "python_path": []}
    if declared.is_external and declared.replicas is not None:
        entry["scaling"] = {"policy": "fixed", "workers": declared.replicas}
    return entry
