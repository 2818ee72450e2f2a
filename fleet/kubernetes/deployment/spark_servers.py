"""The Spark servers that fleets share: created, deleted, and what a change does to one.

Problem: another heap, master or image of one fleet replaces the server under all that share it,
and fleets that say different things of it can have none: found out once a change has begun, that
leaves it unfinished. Choice: both are looked at with the plan. Cost: one read of each Deployment;
only image, heap, master and executors are compared, which an API server keeps as they were
written.
"""

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from fleet.config.spec import FleetSpec
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.kubernetes.client.api import Api, Object, new_object
from fleet.kubernetes.client.object_names import ACCESS, SPARK
from fleet.kubernetes.manifests.pod_template import token_key
from fleet.kubernetes.manifests.spark_objects import (
    LABELS,
    image_kept,
    spark_objects,
    spark_servers,
)
from fleet.worker.pod_environment import SPARK_TOKEN

_ENV: Final = {
    "FLEET_SPARK_MEMORY": "memory",
    "FLEET_SPARK_MASTER": "master",
    "FLEET_SPARK_EXECUTORS": "executors",
}
_LABELLED: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())
_UNUSED_SECONDS: Final = 3600.0
"""Age from which a server that no pod uses is deleted: its fleet's first pods may be late."""


def spark_concerns(spec: FleetSpec, api: Api) -> Vetoes:
    """Returns a refusal if fleets disagree on a server, a note for each that will be replaced."""
    try:
        spark_objects(spec)
    except ConfigError as error:
        return Vetoes(refusals=(str(error),))
    try:
        found, wanted = _servers(spec, api)
    except Unreachable:
        raise
    except FleetError:  # this login may only look at less
        return NO_CONCERNS
    notes = []
    for each in wanted:
        name = each["metadata"]["name"]
        before = found.get(name) if each["kind"] == "Deployment" else None
        if before is None:
            continue
        now, then = _of(before), _of(each)
        what = ", ".join(
            f"{key} {then.get(key, 'none')}, now {now.get(key, 'none')}"
            for key in {**then, **now}
            if now.get(key) != then.get(key)
        )
        if what:
            notes.append(
                f"Fleet replaces the shared Spark server (Deployment {name}) before the first step "
                f"({what}). Batches of all its groups wait until it is ready again; no group "
                "rebalances"
            )
    return Vetoes(notes=tuple(notes))


def ensure_spark(spec: FleetSpec, api: Api) -> None:
    """Creates the servers and their tokens, if fleets share any.

    Raises Refused if servers need an account that this login cannot create.
    """
    servers = spark_servers(spec)
    if not servers:
        return
    _, wanted = _servers(spec, api)
    ensure_tokens(api, servers)
    for each in wanted:
        try:
            api.apply(each)
        except Unreachable:
            raise
        except FleetError as error:
            if each["kind"] not in ACCESS:
                raise
            raise Refused(
                f"Spark servers with executors need {each['kind']} {SPARK}, which this login "
                f"cannot create ({error}); install the Helm chart, which has it, or apply this "
                "plan once as a user who can"
            ) from error


def _servers(spec: FleetSpec, api: Api) -> tuple[dict[str, Object | None], list[Object]]:
    """Returns the Deployments of servers by name, and what is applied over them."""
    servers = spark_servers(spec)
    found = {name: api.get("Deployment", name) for name in servers}
    kept = {name: image_kept(found[name], sharing) for name, sharing in servers.items()}
    serving = {name: image for name, image in kept.items() if image}
    return found, spark_objects(spec, serving=serving)


def ensure_tokens(api: Api, servers: Iterable[str]) -> None:
    """Creates the Secret, and in it the keys that are missing; others stay as they are.

    A login that may not read Secrets leaves it to the person who installed Fleet.
    """
    try:
        found = api.get("Secret", SPARK)
    except Unreachable:
        raise
    except FleetError:  # this login may not read Secrets
        return
    there = set((found or {}).get("data") or {})
    missing = {k: secrets.token_hex(32) for k in map(token_key, servers) if k not in there}
    if found is not None and missing:
        api.merge("Secret", SPARK, {"stringData": missing}, seen=found)
    elif missing:
        meta = {"name": SPARK, "namespace": api.namespace, "labels": dict(LABELS)}
        api.create(new_object("Secret", meta, stringData=missing))


def delete_unused(spec: FleetSpec, api: Api, pods: Sequence[Object], *, now: float) -> None:
    """Deletes the servers of Secrets that no fleet takes and no pod uses any more."""
    used = {token_key(each) for each in spark_servers(spec)} | {
        str(each["valueFrom"]["secretKeyRef"]["key"])
        for pod in pods
        for container in pod["spec"].get("containers") or ()
        for each in container.get("env") or ()
        if each["name"] == SPARK_TOKEN and "valueFrom" in each
    }
    for each in api.find("Deployment", _LABELLED)[0]:
        meta = each["metadata"]
        if token_key(meta["name"]) not in used:
            created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
            if now - created > _UNUSED_SECONDS:
                _delete(api, meta["name"])


def delete_servers(api: Api) -> None:
    """Deletes all servers of the namespace."""
    for each in api.find("Deployment", _LABELLED)[0]:
        _delete(api, each["metadata"]["name"])


def _delete(api: Api, name: str) -> None:
    api.delete("Deployment", name)
    api.delete("Service", name)


def purge_spark(spec: FleetSpec, api: Api) -> tuple[str, ...]:
    """Deletes account and Secret if no server is left; reports one that Fleet did not create."""
    if not spark_servers(spec) or api.find("Deployment", _LABELLED)[0]:
        return ()
    for each in reversed(spark_objects(spec)):
        if each["kind"] in ACCESS:
            api.delete(each["kind"], SPARK)
    found = api.get("Secret", SPARK)
    if found is None:
        return ()
    if LABELS.items() <= (found["metadata"].get("labels") or {}).items():
        api.delete("Secret", SPARK)
        return ()
    command = f"kubectl -n {api.namespace} delete secret {SPARK}"
    return (f"Secret {SPARK} stays, since Fleet did not create it; to delete it, run `{command}`",)


def _of(deployment: Object) -> dict[str, str]:
    """Returns the keys of fleet.yaml that its container shows."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: str(e.get("value")) for e in container.get("env") or ()}
    return {
        "image": str(container.get("image")),
        **{key: env[name] for name, key in _ENV.items() if name in env},
    }
