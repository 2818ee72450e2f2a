"""Asset keys, tags and check names, each spelled once.

Problem: a group id may hold any character, an asset key may not (`/` and `:` do not load),
and `orders.v1`, `orders-v1` and `orders_v1` would share one op name. Choice: every part that
comes from Kafka goes through `slug` (a readable part and a hash); the raw id is metadata.
"""

import re

from dagster import AssetKey, DagsterRun

from fleet.config.spec import GroupSpec
from fleet.decide.slugs import slug

LAG = "lag"
STORM = "storm"
RECEIPT = "receipt"

GROUP_TAG = "fleet/group"
"""Run tag: slug of the group whose membership the run may change."""
AIM_TAG = "fleet/aim"
"""Run tag: what the run is after (slots and revision); failures are counted by it."""
PLAN_TAG = "fleet/plan"
MAX_RUNTIME_TAG = "dagster/max_runtime"

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def topic_key(cluster: str, topic: str) -> AssetKey:
    """External asset of a topic (or of a `^pattern` of topics)."""
    return AssetKey([cluster, "topics", slug(cluster, topic)])


def group_key(cluster: str, group: str) -> AssetKey:
    """External asset of a declared group."""
    return AssetKey([cluster, "groups", slug(cluster, group)])


def plan_key(cluster: str, group: str) -> AssetKey:
    """Asset of a group's last plan."""
    return AssetKey([cluster, "plan", slug(cluster, group)])


def rollout_key(cluster: str, group: str) -> AssetKey:
    """Asset of a group's last change, with its receipt."""
    return AssetKey([cluster, "rollout", slug(cluster, group)])


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


def groups_of_run(run: DagsterRun) -> set[str]:
    """Slugs of the groups that a run may change: by its tag, else by the rollouts it selects."""
    tagged = run.tags.get(GROUP_TAG)
    if tagged:
        return {tagged}
    return {key.path[2] for key in run.asset_selection or () if key.path[1:2] == ["rollout"]}
