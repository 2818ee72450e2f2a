"""What the reconciling schedule asks for."""

import pytest
from dagster import validate_run_config

from assets.definitions import build
from fleet.dagster import asset_keys
from fleet.dagster.reconcile_schedule import (
    Said,
    aim_of,
    max_runtime,
    request_for,
    summary,
    wait_after,
)
from fleet.model import StepKind
from tests.orchestration.made import group, plan, spec, step


def test_request_selects_plan_and_rollout_of_one_group():
    """Its key is the plan's id [35], its runtime comes from the plan [36]."""
    asked = request_for(plan(step()), group())
    assert asked.run_key == "plan-1"
    assert asked.asset_selection == [
        asset_keys.plan_key("main", "orders-enrichment"),
        asset_keys.rollout_key("main", "orders-enrichment"),
    ]
    assert int(asked.tags[asset_keys.MAX_RUNTIME_TAG]) >= 120
    assert asked.tags[asset_keys.GROUP_TAG] == "main_orders_enrichment_e7b3c880"


@pytest.mark.parametrize("resume", [False, True])
def test_request_fits_the_job(resume):
    """The op's name and its config are those that Dagster knows."""
    asked = request_for(plan(step()), group(), resume=resume)
    job = build(spec()).resolve_job_def("change_group")
    subset = job.get_subset(asset_selection=set(asked.asset_selection or ()))
    assert validate_run_config(subset, asked.run_config)
    checks = subset.asset_layer.asset_graph.asset_check_keys
    assert {key.name for key in checks} == {asset_keys.RECEIPT}


def test_runtime_grows_with_the_steps():
    """A roll of many slots may take longer than one that is parallel."""
    slots = tuple(range(12))
    short = max_runtime(plan(step(StepKind.WARM)), group())
    long = max_runtime(plan(step(StepKind.ROLL, slots)), group())
    wide = group().model_copy(
        update={"rollout": group().rollout.model_copy(update={"max_parallel": 12})}
    )
    assert short < max_runtime(plan(step(StepKind.ROLL, slots)), wide) < long


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 300), (2, 600), (3, 1200), (9, 3600)]
)
def test_failures_are_waited_out(failures, seconds):
    """The same aim is not tried every minute for ever."""
    assert wait_after(failures) == seconds


def test_aim_ignores_the_plans_id():
    """Plans of two ticks for the same thing have one aim; another count of slots has another."""
    assert aim_of(plan(step())) == aim_of(plan(step()))
    assert aim_of(plan(step())) != aim_of(plan(step(), wanted=3))
    assert aim_of(plan(step())) != aim_of(plan(step(StepKind.LEAVE)))


def test_skipped_tick_says_why():
    """Quiet groups are counted, others named, ten at most."""
    said = [Said(group="a", sentence="as wanted")]
    said += [Said(group=f"g{n}", sentence="refused: paused") for n in range(12)]
    text = summary(said)
    assert text.startswith("1 of 13 groups are as wanted; g0: refused: paused;")
    assert text.endswith("g9: refused: paused; and 2 more.")
