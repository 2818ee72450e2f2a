"""A step's memory is stored as the release before stored it, and read as it wrote it."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.act.lease import ChangeLease
from fleet.act.steps.adopting import ScaleMemory
from fleet.act.steps.handover import HandoverMemory
from fleet.act.steps.leave_slots import LeaveMemory
from fleet.act.steps.rejoin import RejoinMemory
from fleet.act.steps.step_memory import StepStart
from fleet.act.steps.wave import WaveMemory
from fleet.model import StepKind
from fleet.slots import ChangeState
from fleet.slots.codec import as_json, from_json
from tests.support.plans import step_of

BEGUN = {"started_at": 99.5, "position": 42, "members": ["m-1"]}
FORMS: list[tuple[dict[str, Any], object]] = [
    (BEGUN, StepStart(started_at=99.5, position=42, members=("m-1",))),
    ({"started_at": 99.5, "members": []}, StepStart(started_at=99.5, members=())),
    (
        {"holders": {"1": "w1", "2": "w2"}, "leaving": {"1": [3, "m-1"], "2": [5, None]}},
        LeaveMemory(holders={1: "w1", 2: "w2"}, leaving={1: (3, "m-1"), 2: (5, None)}),
    ),
    ({"holders": {}}, LeaveMemory(holders={})),
    (
        {"tokens": {"0": 2, "1": 1}, "canary": 0, "old_revision": "aaa"},
        HandoverMemory(tokens={0: 2, 1: 1}, canary=0, old_revision="aaa"),
    ),
    ({"old": [0, 1], "failure": "no"}, WaveMemory(old=(0, 1), failure="no")),
    ({"asked": 0}, RejoinMemory(asked=0)),
    ({"addresses": ["10.0.0.1"]}, ScaleMemory(addresses=("10.0.0.1",))),
]


@pytest.mark.parametrize(("stored", "memory"), FORMS, ids=lambda each: type(each).__name__)
def test_the_stored_form(stored: dict[str, Any], memory: object) -> None:
    """Read and written; what nobody knows yet is not written."""
    assert from_json(type(memory), stored) == memory
    assert as_json(memory, known=True) == stored
    assert from_json(type(memory), {}) == type(memory)()


def test_what_a_step_does_not_know_stays(scene) -> None:
    """Other kinds' keys, and those of a release that knows more."""
    here = scene()
    stored = {**BEGUN, "colour": "green", "tokens": {"0": 2}}
    change = here.store.advance(replace(here.begin(step_of(StepKind.ROLL, (0,))), detail=stored))
    with ChangeLease(here.store, change, lease=1e6) as lease:
        assert lease.recall(HandoverMemory) == HandoverMemory(tokens={0: 2})
        lease.remember(HandoverMemory(canary=0))
    assert here.store.change("orders").detail == {**stored, "canary": 0}


def test_a_position_that_could_not_be_read() -> None:
    """The release before wrote null."""
    assert from_json(StepStart, {"started_at": 1.0, "position": None}) == StepStart(started_at=1.0)


def test_a_memory_in_another_form_ends_the_change(scene) -> None:
    """Of a release that is not the next one: nothing is guessed, and a person is told."""
    here = scene()
    change = replace(here.begin(step_of(StepKind.OPEN, (0,))), detail={"members": {"0": "m"}})
    done = here.performer().perform(here.store.advance(change))
    assert done.state is ChangeState.FAILED
    assert "cannot be read by this release" in done.sentence
    assert here.gate().open == frozenset()
