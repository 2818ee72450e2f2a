"""Asset keys, tags and check names, each spelled once.

Problem: a group id may hold any character, an asset key and a partition may not, and people look
for `orders.v1` under that name. Choice: a group, topic or pattern is called in Dagster as in Kafka
wherever that is allowed (`fleet.decide.slugs.plain_name`), else by a readable part and a hash; the
raw id is metadata. The cluster is the first part of every key, so that several clusters share one
Dagster. What is done for groups is two assets with a partition each for all groups, so that a
run's partition says whom it may change.
"""

import re
from collections.abc import Collection

from dagster import AssetKey, DagsterRun

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.decide.slugs import plain_name

LAG = "lag"
STORM = "storm"
RECEIPT = "receipt"

CHANGE_JOB = "change_group"
PARTITION_TAG = "dagster/partition"
"""Dagster's own run tag: the group whose membership the run may change, by its name here."""
AIM_TAG = "fleet/aim"
"""Run tag: what the run is after (slots and revision); failures are counted by it."""
PLAN_TAG = "fleet/plan"
MODE_TAG = "fleet/mode"
"""Asset tag: observe, plan or act."""
MAX_RUNTIME_TAG = "dagster/max_runtime"
_PLAN, _ROLLOUT = "plan", "rollout"

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""What Dagster takes for an address; its definitions do not load with another."""


def name_of(group: str) -> str:
    """What a group is called in keys and partitions."""
    return plain_name(group)


def managed(spec: FleetSpec) -> dict[str, GroupSpec]:
    """The groups that have workers of ours, by their names here: what a run may change."""
    return {name_of(fleet.group): fleet for fleet in spec.fleets if fleet.worker is not None}


def topic_key(cluster: str, topic: str) -> AssetKey:
    """External asset of a topic (or of a `^pattern` of topics)."""
    return AssetKey([cluster, "topics", plain_name(topic)])


def group_key(cluster: str, group: str) -> AssetKey:
    """External asset of a declared group."""
    return AssetKey([cluster, "groups", name_of(group)])


def plan_key(cluster: str) -> AssetKey:
    """Asset of the groups' last plans, a partition each."""
    return AssetKey([cluster, _PLAN])


def rollout_key(cluster: str) -> AssetKey:
    """Asset of the groups' last changes, a partition each."""
    return AssetKey([cluster, _ROLLOUT])


def discovered_key(cluster: str) -> AssetKey:
    """External asset of all groups that fleet.yaml does not name; one partition each."""
    return AssetKey([cluster, "discovered_groups"])


def history_key(cluster: str, table: str) -> AssetKey:
    """Asset of one table of the history."""
    return AssetKey([cluster, "history", table])


def actor(run_id: str) -> str:
    """How a Dagster run signs a change."""
    return f"dagster run {run_id}"


def asset_group(spec: GroupSpec) -> str:
    """The box of the asset graph: the owner, in the letters that Dagster allows there."""
    return re.sub(r"\W", "_", spec.owner, flags=re.ASCII) or "unowned"


def owners(spec: GroupSpec) -> list[str]:
    """The owner as Dagster writes it: an address as it is, anything else as a team."""
    if not spec.owner:
        return []
    return [spec.owner if _EMAIL.fullmatch(spec.owner) else f"team:{spec.owner}"]


def group_of_run(run: DagsterRun) -> str | None:
    """Name of the group that a run may change: its partition, where it carries plans out."""
    chosen = run.asset_selection
    acts = run.job_name == CHANGE_JOB if chosen is None else _carries_out(chosen)
    return run.tags.get(PARTITION_TAG) if acts else None


def does_more(run: DagsterRun) -> bool:
    """Whether a run makes other assets too, a job's own downstream of a group's rollout."""
    return any(_kind(key) not in {_PLAN, _ROLLOUT} for key in run.asset_selection or ())


def rollout_step(run: DagsterRun) -> str | None:
    """The step of a chosen selection in which a run changes its group."""
    chosen = run.asset_selection or ()
    return next((k.to_python_identifier() for k in chosen if _kind(k) == _ROLLOUT), None)


def _carries_out(chosen: Collection[AssetKey]) -> bool:
    return any(_kind(key) == _ROLLOUT for key in chosen)


def _kind(key: AssetKey) -> str | None:
    return key.path[1] if len(key.path) == 2 else None
