"""Numbers of slots by the clock, of fleet.yaml and of a team's own Python."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from dagster import DefaultScheduleStatus, build_schedule_context, validate_run_config

from fleet.config.spec import FleetSpec
from fleet.dagster import FleetResource, build_definitions, scale_at
from fleet.dagster.asset_keys import CHANGE_JOB, definition_name
from fleet.errors import ConfigError

MORNING = {"cron": "0 7 * * 1-5", "timezone": "Europe/Berlin", "wanted": 12, "pin": "2h"}
EVENING = {"cron": "0 20 * * *", "wanted": 2}


def declared(*scale_at: object) -> FleetResource:
    """A group with a worker and these entries."""
    worker = {"entrypoint": "job:process", "protocol": "classic"}
    fleet = {"group": "orders.v1", "topics": ["orders"], "worker": worker, "scale_at": scale_at}
    return FleetResource.of(FleetSpec.model_validate({"fleets": [fleet]}))


def test_an_entry_of_the_file_is_a_schedule():
    """It plans that size, and pins it; the time is that of the named place."""
    definitions = build_definitions(declared(MORNING, EVENING, EVENING))
    repository = definitions.get_repository_def()
    made = [s for s in definitions.schedules or () if "_scale_" in s.name]
    assert [each.default_status for each in made] == [DefaultScheduleStatus.RUNNING] * 2
    morning = made[0]
    assert (morning.cron_schedule, morning.execution_timezone) == (MORNING["cron"], "Europe/Berlin")
    at = datetime(2026, 3, 2, 7, tzinfo=ZoneInfo("Europe/Berlin"))
    with build_schedule_context(scheduled_execution_time=at, repository_def=repository) as context:
        (asked,) = morning.evaluate_tick(context).run_requests or ()
    job = definitions.resolve_job_def(definition_name("main", CHANGE_JOB))
    assert validate_run_config(job, asked.run_config)
    assert asked.run_config["ops"]["main__plan"]["config"] == {"wanted": 12, "pin": "7200s"}
    assert asked.partition_key == "orders.v1"


def test_python_and_file_make_the_same_schedule():
    """Also the same name, so that both of one entry are refused by Dagster."""
    (of_file,) = [
        s for s in build_definitions(declared(MORNING)).schedules or () if "_sc" in s.name
    ]
    assert scale_at(declared(), "orders.v1", **MORNING).name == of_file.name


@pytest.mark.parametrize(
    ("group", "asked", "said"),
    [
        ("orders-v1", MORNING, "declares no such group with a worker"),
        ("orders.v1", {**MORNING, "cron": "0 25 * * *"}, "cron"),
        ("orders.v1", {**MORNING, "cron": "@daily"}, "cron"),
        ("orders.v1", {**MORNING, "timezone": "Berlin"}, "write one such as Europe/Berlin"),
        ("orders.v1", {**MORNING, "pin": "60d"}, "pin"),
        ("orders.v1", {**MORNING, "wanted": -1}, "wanted"),
    ],
)
def test_a_wrong_value_is_one_error_with_the_group(group, asked, said):
    """When the definitions are loaded, not at seven in the morning."""
    with pytest.raises(ConfigError, match=f"scale_at of group {group}") as error:
        scale_at(declared(), group, **asked)
    assert said in str(error.value)
