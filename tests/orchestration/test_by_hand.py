"""What a person asks for by hand: one plan and no other, a size that the policy leaves alone."""

import pytest
from dagster import DagsterInstance

from fleet.dagster import asset_keys, build_definitions
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
    assert "the policy will undo this at its next check: fixed at 2" in undone
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
