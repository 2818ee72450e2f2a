"""What a person asks for by hand: one plan and no other, a size that the policy leaves alone."""

import pytest
from dagster import AssetKey, DagsterInstance

from fleet.dagster import asset_keys, build_definitions
from fleet.dagster.change_assets import execute_rollout
from fleet.dagster.definitions import cluster_definitions
from fleet.decide.scaling import NOTE, Pin
from fleet.errors import Refused
from fleet.slots.codec import as_json

pytestmark = pytest.mark.broker


@pytest.fixture
def fleet(scene):
    """The scene's fleet, whose managed group has no slots yet; its policy wants two."""
    with scene.resource.open() as opened:
        yield opened


def test_a_hold_is_obeyed_by_every_plan_and_ends_by_itself(scene, fleet):
    """The policy is told, not asked; a hold whose time is over is none."""
    now = fleet.clock.now()
    hold = Pin(wanted=1, until=now + 3600, by="ann@host")
    fleet.store.put_manager_state(scene.managed, NOTE, as_json(hold))
    with scene.resource.open() as another:
        plan = another.plan(scene.managed)
    assert plan.wanted == 1
    assert "1 slot pinned by ann@host for" in plan.notes[0]
    assert "the policy alone: fixed at 2: 2 slots" in plan.notes[0]

    over = Pin(wanted=1, until=now - 1, by="ann@host")
    fleet.store.put_manager_state(scene.managed, NOTE, as_json(over))
    assert fleet.pin(scene.managed) is None
    assert fleet.plan(scene.managed).wanted == 2


def test_scaling_by_hand_says_what_the_policy_will_make_of_it(scene, fleet):
    """Not where the policy wants just that, and not where it is held."""
    (undone, *_) = fleet.plan(scene.managed, wanted=4).notes
    assert "will undo this at its next check: fixed at 2" in undone
    assert f"`fleet scale {scene.managed} 4 --pin 2h`" in undone
    assert not any("undo" in note for note in fleet.plan(scene.managed, wanted=2).notes)
    held = fleet.plan(scene.managed, wanted=4, pin=7200.0).notes
    assert held[0] == "pinned for 2 h: the policy does not change it until then"
    assert not any("undo" in note for note in held)


def test_a_hold_begins_with_its_change_and_ends_with_the_next(scene, fleet):
    """A refused change leaves no hold; scaling again without one ends it."""
    fleet.pause(scene.managed, reason="freeze", by="ann")
    with pytest.raises(Refused, match="freeze"):
        fleet.apply(scene.managed, wanted=3, pin=7200.0, actor="bob")
    assert fleet.pin(scene.managed) is None
    fleet.unpause(scene.managed)

    fleet.apply(scene.managed, wanted=0, pin=7200.0, actor="bob")  # nothing to do, but to hold
    hold = fleet.pin(scene.managed)
    assert (hold.wanted, hold.by) == (0, "bob")
    assert fleet.plan(scene.managed).empty
    fleet.apply(scene.managed, wanted=0, actor="bob")
    assert fleet.pin(scene.managed) is None
    assert not fleet.plan(scene.managed).empty


@pytest.fixture
def run(scene):
    """Runs assets of the managed group in one Dagster; returns metadata, or why it failed."""
    name = asset_keys.definition_name("main", asset_keys.CHANGE_JOB)
    with DagsterInstance.ephemeral() as instance:

        def ran(*assets, execute=execute_rollout, **config):
            job = cluster_definitions(scene.resource, execute=execute).resolve_job_def(name)
            done = job.execute_in_process(
                instance=instance,
                partition_key=asset_keys.name_of(scene.managed),
                asset_selection=[AssetKey(["main", asset]) for asset in assets],
                run_config={"ops": {f"main__{assets[0]}": {"config": config}}},
                raise_on_error=False,
            )
            for event in done.all_events:
                if event.is_step_failure:
                    return str(event.step_failure_data.user_failure_data.description)
            made = done.asset_materializations_for_node(f"main__{assets[-1]}")
            return {key: value.value for key, value in made[-1].metadata.items()}

        yield ran


def test_a_rollout_carries_out_the_plan_that_was_materialized(run, scene, fleet):
    """With what was asked for; the policy alone wants two slots, and would start workers."""
    planned = run("plan", wanted=0, pin="2h")
    assert planned["request"] == {"wanted": 0, "roll": False, "pin": 7200.0}
    made = run("rollout")
    assert made["sentence"].startswith("Nothing to do")
    assert fleet.pin(scene.managed).wanted == 0
    assert run("rollout", plan=planned["plan id"])["slots"] == 0


def test_a_rollout_says_that_the_world_has_changed(run, scene, fleet):
    """Also if the plan had nothing to do; and without any plan it says what to do first."""
    assert "holds no plan of partition" in run("rollout")
    planned = run("plan", wanted=0)
    text = scene.config.read_text()
    scene.config.write_text(text.replace("entrypoint: ", "env: {A: b}, entrypoint: "))
    why = run("rollout")
    assert f"has changed since plan {planned['plan id']}, so nothing was done" in why
    assert fleet.store.change(scene.managed) is None


def test_a_run_of_both_carries_out_what_it_stores_last(run, scene):
    """The group may change between the two; nobody has approved the first plan."""

    def changed_before(*given):
        text = scene.config.read_text()
        scene.config.write_text(text.replace("entrypoint: ", "env: {A: b}, entrypoint: "))
        return execute_rollout(*given)

    made = run("plan", "rollout", wanted=0, execute=changed_before)
    assert made["sentence"].startswith("Nothing to do")
    assert run("rollout")["plan id"].rpartition("-")[2] == made["plan id"].rpartition("-")[2]


@pytest.mark.parametrize(
    ("config", "said"),
    [({"pin": "2h"}, "set wanted too"), ({"wanted": 1, "pin": "soon"}, "write one such as 2h")],
)
def test_a_wrong_pin_is_one_sentence(run, config, said):
    """Before anything is planned."""
    assert said in run("plan", **config)


def test_only_the_approved_plan_is_carried_out(scene, fleet):
    """By Dagster's run config as by the command: another world is refused, and nothing begun."""
    approved = fleet.plan(scene.managed).id
    text = scene.config.read_text()
    scene.config.write_text(text.replace("workers: 2", "workers: 3"))
    name = asset_keys.definition_name("main", asset_keys.CHANGE_JOB)
    job = build_definitions(scene.resource).resolve_job_def(name)
    with DagsterInstance.ephemeral() as instance:
        ran = job.execute_in_process(
            instance=instance,
            partition_key=asset_keys.name_of(scene.managed),
            run_config={"ops": {"main__rollout": {"config": {"plan": approved}}}},
            raise_on_error=False,
        )
    (failed,) = [e for e in ran.all_events if e.is_step_failure]
    why = failed.step_failure_data.user_failure_data.description
    assert f"has changed since plan {approved}, so nothing was done" in why
    assert "3 warm workers join together" in why
    assert fleet.store.change(scene.managed) is None
