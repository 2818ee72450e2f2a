"""Plans go by what is there: what runs now leaves, what is quarantined is not."""

from dataclasses import replace

from fleet.decide.plans import make_plan
from fleet.model import StepKind
from tests.decide.worlds import NOW, spec, world

CONSUMER = spec(worker={"protocol": "consumer"})
CLASSIC = spec()


def test_what_leaves_is_priced_as_what_it_is():
    """An empty KIP-848 group may leave an assignment out; a classic one never."""
    for now, then, least in ((CONSUMER, CLASSIC, 0), (CLASSIC, CONSUMER, 1)):
        here = world(then, held=3, runs=(now, "code"))
        settings = {here.slots[0].revision: replace_settings(now)}
        plan = make_plan(replace(here, published=settings), wanted=3, now=NOW)
        stop = plan.steps[0]
        assert stop.kind is StepKind.STOP_ALL
        assert (stop.price.rebalances_min, stop.price.rebalances_max) == (least, 1)


def replace_settings(fleet):
    """What was published for the slots that run."""
    from tests.decide.worlds import settings

    return settings(fleet)


def test_a_quarantined_slot_is_not_one_of_ours():
    """It is open in the gate, and closed: somebody else uses its id."""
    here = world(held=3)
    closed = replace(here, gate=replace(here.gate, quarantined=frozenset({1})))
    assert closed.open_slots() == (0, 2)
    plan = make_plan(closed, wanted=3, now=NOW)
    opened = [step for step in plan.steps if step.kind is StepKind.OPEN]
    assert [step.slots for step in opened] == [(3,)]
