"""R50 to R55 on three real brokers: the coordinator is killed in each phase of a round.

The same stories are played in the model, and everything that a member hears has to be the same.
What each phase comes to stands in tests/sim/test_failover_phases.py. A long form (make faults).
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.broker import Broker
from tests.faults.group_sides import MOVED, GroupSide, ModelGroup, RealGroup

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]
Story = Callable[[GroupSide], list[Any]]
ALL = (0, 1, 2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Three nodes, that answer a first JoinGroup at once as the model does."""
    light = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "5",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    brokers = Broker(tmp_path_factory.mktemp("three"), brokers=3, overrides=light)
    try:
        brokers.start(wait=300)
        yield brokers
    finally:
        brokers.purge()


def phase_1_a_reason_is_known(side: GroupSide) -> list[Any]:
    """R50: a session is nearly over; the next coordinator waits for a whole one, then notices."""
    side.form(2, static=False)
    side.pass_time(9, beating=[0])
    side.move()
    found: list[Any] = [side.beat(0), side.members()]
    side.pass_time(12, beating=[0])
    return [*found, side.members(), side.state()]


def phase_2_some_were_told(side: GroupSide) -> list[Any]:
    """R51: a dead member is back before anybody has joined."""
    side.form(3, static=False)
    side.pass_time(11, beating=[0, 1])
    found: list[Any] = [side.members(), side.beat(0)]
    side.move()
    return [*found, [side.beat(m) for m in ALL], side.members(), side.state()]


def phase_2_somebody_new_joins(side: GroupSide) -> list[Any]:
    """R51: who joins the next coordinator begins a round there."""
    side.form(2, static=True)
    new = side.join(2)
    found: list[Any] = [side.beat(0)]
    side.move()
    found.append(side.heard(new).code)
    side.beat(0)
    side.join(2)
    return [*found, [side.beat(m) for m in (0, 1)], side.state()]


def phase_3_the_leader_has_joined(side: GroupSide) -> list[Any]:
    """R52, R55: its next JoinGroup makes a round."""
    side.form(3, static=True)
    side.join(3)
    waiting = side.join(0)
    side.move()
    found: list[Any] = [side.heard(waiting).code, side.beat(1)]
    side.join(0)
    return [*found, [side.beat(m) for m in (1, 2)], side.state()]


def phase_3_a_follower_has_joined(side: GroupSide) -> list[Any]:
    """R52, R55: unchanged it is given the generation that there is."""
    side.form(3, static=True)
    side.join(3)
    waiting = side.join(1)
    side.move()
    found: list[Any] = [side.heard(waiting).code, side.beat(0)]
    found += [side.heard(side.join(1)), side.heard(side.sync(1, 0))]
    return [*found, [side.beat(m) for m in ALL], side.state()]


def _writing(side: GroupSide, *, kept: bool) -> list[Any]:
    side.form(2, static=True)
    joined = [side.join(m) for m in (0, 1)]  # the leader's makes a round
    found: list[Any] = [side.heard(each).generation for each in joined]
    waiting = side.sync(1, 1)
    side.move_in_writing(0, 1, kept=kept)
    heard = side.heard(waiting)
    found.append(heard.code if not kept else MOVED)  # it may have been on its way
    return [*found, [[side.beat(m, g) for m in (0, 1)] for g in (0, 1)], side.state()]


def phase_4_the_generation_was_durable(side: GroupSide) -> list[Any]:
    """R53: it counts, and who has the old one hears so."""
    return _writing(side, kept=True)


def phase_4_the_generation_was_not_durable(side: GroupSide) -> list[Any]:
    """R53: there is none of it."""
    return _writing(side, kept=False)


def phase_5_some_were_answered(side: GroupSide) -> list[Any]:
    """R54: they go on; another that joins again is given the share that was written."""
    side.form(3, static=True)
    joined = [side.join(m) for m in ALL]
    found: list[Any] = [side.heard(each).generation for each in joined]
    found.append(side.heard(side.sync(0, 1, leads=True)))
    side.move()
    found.append(side.beat(0, 1))
    found += [side.heard(side.join(2)), side.heard(side.sync(2, 1))]
    return [*found, [side.beat(m, 1) for m in ALL], side.state()]


STORIES: tuple[Story, ...] = (
    phase_1_a_reason_is_known,
    phase_2_some_were_told,
    phase_2_somebody_new_joins,
    phase_3_the_leader_has_joined,
    phase_3_a_follower_has_joined,
    phase_4_the_generation_was_durable,
    phase_4_the_generation_was_not_durable,
    phase_5_some_were_answered,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_three_brokers_do_what_the_model_says(story: Story, cluster: Broker) -> None:
    cluster.start(wait=300)  # with the one that the last story killed
    real = RealGroup(cluster, story.__name__)
    try:
        told = story(real)
    finally:
        real.close()
    assert told == story(ModelGroup())
