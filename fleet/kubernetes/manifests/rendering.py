"""fleet.yaml as the objects that a cluster needs for it: what `fleet render manifests` prints.

The same functions make what a manager applies, with the same revision, so that a manager which
comes later finds nothing to roll. No Secret is rendered; those that are expected are named.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from fleet.act.runtime import ManifestOptions, Manifests
from fleet.config.settings import WorkerSettings, revision_of
from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.kubernetes.client.api import Api
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.manifests.deployment_objects import fleet_objects
from fleet.kubernetes.manifests.part_objects import (
    config,
    exporter,
    kubernetes,
    manager,
    monitoring,
    namespace,
    policies,
)
from fleet.kubernetes.manifests.pod_template import Object, runtime_of, token_key
from fleet.kubernetes.manifests.spark_objects import spark_objects, spark_servers
from fleet.system.code import packed_code

_BESIDE: Final[Mapping[str, Callable[[FleetSpec, str], list[Object]]]] = {
    "exporter": lambda spec, image: exporter(spec, image=image),
    "manager": lambda spec, image: manager(spec, image=image),
    "network": lambda spec, _: policies(spec),
    "monitoring": lambda spec, _: monitoring(spec),
}


def manifests(spec: FleetSpec, options: ManifestOptions) -> Manifests:
    """The objects of a options in the order in which they are applied.

    Raises ConfigError where workers cannot be rendered, naming the group and what to write.
    """
    objects: list[Object] = []
    if "workers" in options.parts:
        objects += [*namespace(spec), *spark_objects(spec)]
        for fleet in _chosen(spec, options.groups):
            objects += of_fleet(spec, fleet)
    if {"exporter", "manager"} & options.parts:
        objects.append(config(spec, options.text))
    image = options.image or kubernetes(spec).image
    if image is None and {"exporter", "manager"} & options.parts:
        raise ConfigError(
            "the manager and the exporter need an image; write runtime.image, or --image "
            "REPOSITORY:TAG or REPOSITORY@sha256:DIGEST"
        )
    for part in _BESIDE:
        if part in options.parts:
            objects += _BESIDE[part](spec, image or "")
    return Manifests(objects=tuple(objects), secrets=_secrets(spec, options.parts))


def settings_of(spec: FleetSpec, fleet: GroupSpec) -> tuple[WorkerSettings, bytes | None]:
    """What the fleet's wanted revision starts from, and the code that goes with it.

    Without a time: when a revision was first wanted is known where it runs [22].
    """
    if spec.cluster.bootstrap_servers == "embedded":
        raise ConfigError(
            "cluster.bootstrap_servers is embedded, which pods cannot reach: write host:port"
        )
    digest, code = packed_code(fleet)
    settings = WorkerSettings(
        cluster=spec.cluster,
        bootstrap_servers=spec.cluster.bootstrap_servers,
        group=fleet,
        revision=revision_of(fleet, digest),
        code_digest=digest,
    )
    return settings, code


def of_fleet(spec: FleetSpec, fleet: GroupSpec) -> list[Object]:
    """One fleet's objects."""
    runtime_of(fleet)
    settings, code = settings_of(spec, fleet)
    return fleet_objects(settings, code=code)


def _chosen(spec: FleetSpec, groups: Collection[str]) -> list[GroupSpec]:
    for group in groups:
        found = spec.fleet(group)
        if found is None:
            known = ", ".join(f.group for f in spec.fleets) or "none"
            raise ConfigError(f"group {group!r} is not declared; declared: {known}")
        if found.worker is None:
            raise ConfigError(
                f"group {group} declares no worker; its consumers are external, so that Fleet has "
                "no manifests for them"
            )
    return [f for f in spec.fleets if f.worker is not None and (not groups or f.group in groups)]


def _secrets(spec: FleetSpec, parts: Collection[str]) -> tuple[str, ...]:
    """Names of Secrets that pods of these parts refer to, with the key where it matters."""
    found: dict[str, str] = {}
    runtimes = [f.runtime for f in spec.fleets if isinstance(f.runtime, KubernetesRuntimeSpec)]
    if set(parts) - {"network"}:
        taken = [name for runtime in runtimes for name in runtime.env_from]
        taken += [name for runtime in runtimes for name in runtime.mounts]
        found |= {name: name for name in taken}
    if "workers" in parts and (servers := spark_servers(spec)):
        keys = ", ".join(map(token_key, servers))
        found[SPARK] = f"{SPARK} ({'key' if len(servers) == 1 else 'keys'} {keys})"
    for runtime in runtimes:
        found |= {name: name for name in runtime.pull_secrets}
    return tuple(found.values())


def validate_objects(api: Api, objects: Sequence[Object]) -> tuple[str, ...]:
    """Validates each object on the server without storing it; returns a sentence for each.

    Raises Refused with all refusals, or if the namespace does not exist.
    """
    results: list[str] = []
    refused: list[str] = []
    if _namespace_is_missing(api):
        raise Refused(
            f"namespace {api.namespace} does not exist; run kubectl create namespace "
            f"{api.namespace}"
        )
    for each in objects:
        name = f"{each['kind'].lower()}/{each['metadata']['name']}"
        try:
            before = api.get(each["kind"], each["metadata"]["name"])
            after = api.apply(each, trial=True)
        except Unreachable:
            raise
        except FleetError as error:
            refused.append(f"{name}: {error}")
            continue
        results.append(f"{name} {_difference(before, after)} (server dry run)")
    if refused:
        raise Refused("; ".join(refused))
    return tuple(results)


def _namespace_is_missing(api: Api) -> bool:
    try:
        return api.get("Namespace", api.namespace) is None
    except Unreachable:
        raise
    except FleetError:  # who may work in a namespace need not be allowed to look at it
        return False


def _difference(before: Object | None, after: Object) -> str:
    if before is None:
        return "created"
    parts = ("spec", "data", "binaryData", "rules", "subjects", "roleRef")
    same = all(before.get(part) == after.get(part) for part in parts)
    kept = ("labels", "annotations")
    same = same and all(before["metadata"].get(k) == after["metadata"].get(k) for k in kept)
    return "unchanged" if same else "configured"
