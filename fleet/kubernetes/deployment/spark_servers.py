"""The Spark server that fleets share: made, and what a change does to it, told with its plan.

Problem: another heap, master or image of one fleet replaces the server under all that share it,
and fleets that say different things of it can have none: found out once a change has begun, that
leaves it unfinished. Choice: both are looked at with the plan. Cost: one read of its Deployment;
only image, heap, master and Secrets are compared, which an API server keeps as they were
written.
"""

import secrets
from typing import Final

from fleet.config.spec import FleetSpec
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.manifests.pod_template import TOKEN_KEY
from fleet.kubernetes.manifests.spark_objects import LABELS, beside_what_serves, spark_objects

_ENV: Final = {"FLEET_SPARK_MEMORY": "memory", "FLEET_SPARK_MASTER": "master"}


def spark_concerns(spec: FleetSpec, api: Api) -> Vetoes:
    """Returns a refusal if fleets disagree on the server, a note if it will be replaced."""
    try:
        wanted = spark_objects(spec)
    except ConfigError as error:
        return Vetoes(refusals=(str(error),))
    if not wanted:
        return NO_CONCERNS
    try:
        found = api.get("Deployment", SPARK)
    except Unreachable:
        raise
    except FleetError:  # this login may only look at less
        return NO_CONCERNS
    if found is None:
        return NO_CONCERNS
    now, then = _of(found), _of(beside_what_serves(wanted[-1], found, spec))
    differing = [key for key in then if now.get(key) != then[key]]
    if not differing:
        return NO_CONCERNS
    what = ", ".join(f"{key} {then[key]}, now {now.get(key, 'none')}" for key in differing)
    note = (
        f"Fleet replaces the shared Spark server (Deployment {SPARK}) before the first step "
        f"({what}). Batches of all its groups wait until it is ready again; no group rebalances"
    )
    return Vetoes(notes=(note,))


def ensure_spark(spec: FleetSpec, api: Api) -> None:
    """Creates the server and a token, if fleets share one."""
    wanted = spark_objects(spec)
    if not wanted:
        return
    ensure_token(api)
    found = api.get("Deployment", SPARK)
    for each in wanted:
        api.apply(beside_what_serves(each, found, spec))


def ensure_token(api: Api) -> None:
    """Creates the Secret, unless a person has created it."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SPARK, "namespace": api.namespace, "labels": dict(LABELS)},
        "stringData": {TOKEN_KEY: secrets.token_hex(32)},
    }
    if api.get("Secret", SPARK) is None:
        api.create(secret)


def purge_token(spec: FleetSpec, api: Api) -> tuple[str, ...]:
    """Deletes the Secret if no server is left; reports one that Fleet did not create."""
    if not spark_objects(spec) or api.get("Deployment", SPARK) is not None:
        return ()
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
    taken = [each["secretRef"]["name"] for each in container.get("envFrom") or ()]
    mounts = [m for m in container.get("volumeMounts") or () if m["name"].startswith("secret-")]
    return {
        "image": str(container.get("image")),
        **{key: env[name] for name, key in _ENV.items() if name in env},
        "env_from": " ".join(taken) or "none",
        "mounts": " ".join(m["mountPath"] for m in mounts) or "none",
    }
