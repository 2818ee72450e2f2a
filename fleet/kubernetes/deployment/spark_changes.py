"""What a change does to the Spark server that fleets share, told with its plan.

Problem: another heap, master or image of one fleet replaces the server under all that share it, and
fleets that say different things of it can have none: found out once a change has begun, that leaves
it unfinished. Choice: both are looked at with the plan. Cost: one read of its Deployment; only
image, heap and master are compared, which an API server keeps as they were written.
"""

from typing import Final

from fleet.config.spec import FleetSpec
from fleet.decide.vetoes import NO_CONCERNS, Vetoes
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.manifests.spark_objects import beside_what_serves, spark_objects

_ENV: Final = {"FLEET_SPARK_MEMORY": "memory", "FLEET_SPARK_MASTER": "master"}


def spark_concerns(spec: FleetSpec, api: Api) -> Vetoes:
    """A refusal where the fleets disagree, a note where the server will be another."""
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
    told = (
        f"the shared Spark server (Deployment {SPARK}) is replaced before the first step "
        f"({what}): batches of every group that shares it stand still until it is up again; "
        "nothing rebalances"
    )
    return Vetoes(notes=(told,))


def _of(deployment: Object) -> dict[str, str]:
    """The keys of fleet.yaml that its container shows."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: str(e.get("value")) for e in container.get("env") or ()}
    return {
        "image": str(container.get("image")),
        **{key: env[name] for name, key in _ENV.items() if name in env},
    }
