"""Schedules that scale a group at times of day, of fleet.yaml or of a team's own Python.

A run plans and rolls out the size like any other, and pins it for `pin`, so that the policy leaves
it alone for that time. The group's mode, pauses and lease apply as to every change.
"""

import hashlib
import re

from dagster import (
    DagsterInvalidDefinitionError,
    DefaultScheduleStatus,
    RunRequest,
    ScheduleDefinition,
    schedule,
)

from fleet.config.spec import ScaleAt
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource
from fleet.errors import ConfigError
from fleet.text import duration, plural


def scale_at(
    fleet: FleetResource,
    group: str,
    *,
    wanted: int,
    cron: str,
    timezone: str = "UTC",
    pin: str | float = "1h",
) -> ScheduleDefinition:
    """Defines a schedule that scales a group; it runs by default.

    Args:
        fleet (FleetResource): The fleet.yaml that declares the group with a worker.
        group (str): The consumer group.
        wanted (int): The number of slots.
        cron (str): When, as five fields of cron.
        timezone (str): The time zone of `cron`, such as Europe/Berlin.
        pin (str | float): How long the policy keeps that number, such as `2h` or seconds.

    Returns:
        ScheduleDefinition: Raises ConfigError if the group has no worker or a value is wrong.

    Examples:
        .. code-block:: python

            scale_at(fleet, "orders-enrichment", wanted=12, cron="0 7 * * 1-5", pin="2h")
    """
    cluster, name = fleet.spec.cluster.name, asset_keys.name_of(group)
    if name not in asset_keys.managed_groups(fleet.spec):
        raise ConfigError(
            f"scale_at of group {group}: fleet.yaml of cluster {cluster} declares no such group "
            "with a worker; declare it, or name another group"
        )
    try:
        at = ScaleAt.model_validate(
            {"cron": cron, "timezone": timezone, "wanted": wanted, "pin": pin}
        )
    except ValueError as error:
        raise ConfigError(f"scale_at of group {group}: {error}") from error
    op = asset_keys.plan_key(cluster).to_python_identifier()
    config = {"wanted": at.wanted, "pin": f"{at.pin:g}s"}
    mark = hashlib.sha256(f"{group}\0{at!r}".encode()).hexdigest()[:6]
    readable = re.sub(r"\W", "_", name, flags=re.ASCII)
    try:

        @schedule(
            name=asset_keys.definition_name(cluster, f"scale_{readable}_to_{at.wanted}_{mark}"),
            job_name=asset_keys.definition_name(cluster, asset_keys.CHANGE_JOB),
            cron_schedule=at.cron,
            execution_timezone=at.timezone,
            default_status=DefaultScheduleStatus.RUNNING,
            description=f"Scales {group} to {plural(at.wanted, 'slot')} for {duration(at.pin)}.",
        )
        def scale() -> RunRequest:
            return RunRequest(
                partition_key=name,
                run_config={"ops": {op: {"config": config}}},
                tags={asset_keys.CLUSTER_TAG: cluster},
            )

    except DagsterInvalidDefinitionError as error:
        raise ConfigError(f"scale_at of group {group}: {error}") from error
    return scale


def build_scale_schedules(fleet: FleetResource) -> list[ScheduleDefinition]:
    """Defines a schedule for each `scale_at` of fleet.yaml.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[ScheduleDefinition]: They run by default; see `scale_at`.
    """
    return [
        scale_at(
            fleet,
            each.group,
            wanted=at.wanted,
            cron=at.cron,
            timezone=at.timezone,
            pin=at.pin,
        )
        for each in asset_keys.managed_groups(fleet.spec).values()
        for at in dict.fromkeys(each.scale_at)  # an entry that is written twice is one
    ]
