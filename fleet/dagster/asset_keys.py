"""Defines asset keys, tags and check names in one place.

Problem: a group id may hold any character; an asset key or a partition may not. People search for
`orders.v1` under that name. Choice: Dagster uses the Kafka name of a group, topic or pattern if it
allows it (`fleet.decide.slugs.plain_name`), else a readable part and a hash. The metadata holds the
id. The cluster is the first part of every key and name, so that one code location can hold several.
Plans and rollouts are two assets with a partition per group: a run's partition names the group that
it may change.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from dagster import AssetKey, DagsterRun

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.decide.slugs import plain_name

T = TypeVar("T")

LAG = "lag"
FRESHNESS = "freshness"
STORM = "storm"
RECEIPT = "receipt"
CHECKS = (LAG, FRESHNESS, STORM, RECEIPT)

CHANGE_JOB = "change_group"
"""The job of plans and rollouts; `definition_name` gives it the cluster."""
PARTITION_TAG = "dagster/partition"
"""Dagster's own run tag: the name of the group that the run may change."""
AIM_TAG = "fleet/aim"
"""Run tag: the run's target (slots and revision), by which failures are counted."""
PLAN_TAG = "fleet/plan"
CLUSTER_TAG = "fleet/cluster"
MACHINE_TAG = "fleet/machine"
"""Run tag: host, boot and PID namespace of the code server whose tick requested the run."""
SERVER_TAG = ".dagster/grpc_info"
"""Dagster's own run tag: the address of the code server that started the run's process."""
MODE_TAG = "fleet/mode"
"""Asset tag: observe, plan or act."""
MAX_RUNTIME_TAG = "dagster/max_runtime"
_PLAN, _ROLLOUT = "plan", "rollout"

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""An address that Dagster accepts; definitions with another one do not load."""


def name_of(group: str) -> str:
    """Returns the name of a group in keys and partitions."""
    return plain_name(group)


def definition_name(cluster: str, kind: str) -> str:
    """Returns the name of a job, schedule, sensor or op of a cluster: `main_reconcile`."""
    return f"{AssetKey([cluster]).to_python_identifier()}_{kind}"


def split_into_ops(items: Iterable[tuple[AssetKey, int, T]]) -> list[list[T]]:
    """Returns what each op holds: items of one depth (`fleet.dagster.sink_assets`).

    Dagster names an op's outputs with [A-Za-z0-9_] and drops one of two equal names, so a second
    op holds `orders-v1` beside `orders.v1`.
    """
    ops: dict[tuple[int, int], list[T]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for key, depth, item in items:
        name = depth, key.to_python_identifier()
        ops.setdefault((depth, seen[name]), []).append(item)
        seen[name] += 1
    return [ops[each] for each in sorted(ops)]


def managed_groups(spec: FleetSpec) -> dict[str, GroupSpec]:
    """Returns the groups with Fleet workers by name: the groups that a run may change."""
    return {name_of(fleet.group): fleet for fleet in spec.fleets if fleet.worker is not None}


def topic_key(cluster: str, topic: str) -> AssetKey:
    """Returns the key of a topic's external asset (or of a `^pattern` of topics).

    Args:
        cluster (str): The name of the cluster in fleet.yaml.
        topic (str): The topic or `^pattern`, as fleet.yaml names it.

    Returns:
        AssetKey: To name as a dependency.
    """
    return AssetKey([cluster, "topics", plain_name(topic)])


def group_key(cluster: str, group: str) -> AssetKey:
    """Returns the key of a declared group's external asset.

    Args:
        cluster (str): The name of the cluster in fleet.yaml.
        group (str): The consumer group.

    Returns:
        AssetKey: To name as a dependency.
    """
    return AssetKey([cluster, "groups", name_of(group)])


def partitions_key(cluster: str) -> AssetKey:
    """Returns the key of the topics' partition counts, a partition per topic."""
    return AssetKey([cluster, "topic_partitions"])


def plan_key(cluster: str) -> AssetKey:
    """Returns the key of the groups' last plans, a partition per group.

    Args:
        cluster (str): The name of the cluster in fleet.yaml.

    Returns:
        AssetKey: To name as a dependency.
    """
    return AssetKey([cluster, _PLAN])


def rollout_key(cluster: str) -> AssetKey:
    """Returns the key of the groups' last changes, a partition per group.

    Args:
        cluster (str): The name of the cluster in fleet.yaml.

    Returns:
        AssetKey: To name as a dependency.
    """
    return AssetKey([cluster, _ROLLOUT])


def discovered_key(cluster: str) -> AssetKey:
    """Returns the key of all groups that fleet.yaml does not name, a partition per group."""
    return AssetKey([cluster, "discovered_groups"])


def history_key(cluster: str, table: str) -> AssetKey:
    """Returns the key of one history table.

    Args:
        cluster (str): The name of the cluster in fleet.yaml.
        table (str): `commits`, `events`, `rebalances`, `memberships` or `lag`.

    Returns:
        AssetKey: To name as a dependency.
    """
    return AssetKey([cluster, "history", table])


def version_tags(version: str) -> dict[str, str]:
    """Returns the tags of an observation with this data version."""
    return {"dagster/data_version": version}


def actor(run_id: str) -> str:
    """Returns the actor of a change that a Dagster run makes."""
    return f"dagster run {run_id}"


def asset_group(spec: GroupSpec) -> str:
    """Returns the asset group: the owner in characters that Dagster allows."""
    return re.sub(r"\W", "_", spec.owner, flags=re.ASCII) or "unowned"


def owners(spec: GroupSpec) -> list[str]:
    """Returns the owner in Dagster's form: an address, or anything else as a team."""
    if not spec.owner:
        return []
    return [spec.owner if _EMAIL.fullmatch(spec.owner) else f"team:{spec.owner}"]


def group_of_run(run: DagsterRun, cluster: str) -> str | None:
    """Returns the name of the cluster's group that a run may change: its partition."""
    chosen, job = run.asset_selection, definition_name(cluster, CHANGE_JOB)
    acts = run.job_name == job if chosen is None else rollout_key(cluster) in chosen
    return run.tags.get(PARTITION_TAG) if acts else None


def makes_other_assets(run: DagsterRun, cluster: str) -> bool:
    """Returns whether a run also makes other assets, such as a team's own after the rollout."""
    return not {*(run.asset_selection or ())} <= {plan_key(cluster), rollout_key(cluster)}


def rollout_step(cluster: str) -> str:
    """Returns the step in which a run changes its group."""
    return rollout_key(cluster).to_python_identifier()
