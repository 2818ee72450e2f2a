"""What is decided about patterns, growing topics and changes of protocol, without a broker."""

from dataclasses import replace

from fleet.decide.plans import make_drain_plan, make_plan
from fleet.model import StepKind
from tests.decide.worlds import NOW, member, spec, state_snapshot

EVERY = {"topics": [r"^orders\..*"]}


def test_every_topic_that_matches_counts():
    """Capacity is that of all matching topics; one that appears later counts from then on."""
    fleet = spec(**EVERY)
    some = {"orders.eu": 2, "returns": 9}
    plan = make_plan(state_snapshot(fleet, topics=some), wanted=9, now=NOW)
    assert plan.wanted == 2
    more = {**some, "orders.us": 3}
    assert make_plan(state_snapshot(fleet, topics=more), wanted=9, now=NOW).wanted == 5


def test_nothing_matches_yet():
    """Nothing is opened into a subscription of nothing; those who are there may leave."""
    fleet = spec(**EVERY)
    plan = make_plan(state_snapshot(fleet, topics={"returns": 9}), wanted=2, now=NOW)
    assert [step.kind for step in plan.steps] == [StepKind.OPEN]
    assert len(plan.refusals) == 1
    assert r"no topic matches ^orders\..* of group orders yet" in plan.refusals[0]
    held = state_snapshot(fleet, held=2, topics={"returns": 9})
    assert make_drain_plan(held, slots=(0, 1), now=NOW).refusals == ()
    idle = make_plan(state_snapshot(fleet, topics={}), wanted=0, now=NOW)
    assert (idle.empty, idle.refusals) == (True, ())
    assert any("Fleet waits for one" in note for note in idle.notes)


def test_another_protocol_is_refused_unless_stopped():
    """An upgrade in place happens to nobody."""
    new = spec(worker={"protocol": "consumer"})
    seen = state_snapshot(new, held=3, runs=(spec(), "code"))
    plan = make_plan(seen, wanted=3, now=NOW)
    assert [step.kind for step in plan.steps] == [StepKind.STOP_ALL, StepKind.OPEN]
    assert plan.refusals == ()
    theirs = member("x", member_id="consumer-9", instance_id=None, client_id="sarama")
    group = replace(seen.group, members=(*seen.group.members, theirs))
    refused = make_plan(replace(seen, group=group), wanted=3, now=NOW).refusals
    assert any("4 members of the classic protocol" in reason for reason in refused)
    one_more = make_plan(
        replace(state_snapshot(new, held=3), group=replace(seen.group, type="classic")),
        wanted=4,
        now=NOW,
    )
    assert any("stop these members first" in reason for reason in one_more.refusals)
