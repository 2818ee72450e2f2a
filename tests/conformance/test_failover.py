"""A coordinator moves in each of the five phases of a round: Kafka's next one is as the model's.

tests/sim/test_failover_phases.py has what is expected in words; here every answer, timer, member
and record is compared, also of what the members do with the next coordinator.
"""

from collections.abc import Iterator

import pytest

from fleet.sim.coordinator.classic_group import CoordinatorConfig
from tests.conformance.classic_acts import Act, Story, act, played
from tests.conformance.differences import find
from tests.conformance.kafka_group_manager import KafkaGroupManager

pytestmark = pytest.mark.broker

ALL = (0, 1, 2)
"""Number 1 is static."""


def each(kind: str, *who: int, **how) -> tuple[Act, ...]:
    """The same act of several."""
    return tuple(act(kind, number, **how) for number in who)


STABLE = (
    *each("join", *ALL, identity="new", version=3),
    act("advance", ms=1_000),
    act("advance", ms=1_000),
    *each("sync", *ALL),
)
REJOINED = (*STABLE, *each("join", *ALL), *each("join", *ALL))
"""The leader is among the first three: then all of them are in the next generation."""
AFTER = (
    *each("heartbeat", *ALL),
    *each("commit", *ALL),
    *each("join", *ALL),
    *each("sync", *ALL),
    *each("heartbeat", *ALL),
    act("advance", ms=10_000),
    act("advance", ms=30_000),
)
DEAD = (
    act("advance", ms=9_000),
    *each("heartbeat", 0, 1),
    act("advance", ms=1_000),
)

BEFORE = {
    "1, a session is nearly over": (*STABLE, act("advance", ms=9_000)),
    "2, some were told of a death": (*STABLE, *DEAD, act("heartbeat", 0)),
    "2, some were told of a newcomer": (
        *STABLE,
        act("join", 3, identity="new"),
        act("heartbeat", 0),
    ),
    "3, some have joined": (*STABLE, *DEAD, act("join", 0)),
    "3, a newcomer and one more": (*STABLE, act("join", 3, identity="new"), act("join", 1)),
    "4, all have joined": REJOINED,
    "4, it is being written": (*REJOINED, *each("sync", *ALL, hold=True)),
    "5, it is written and all told": (*REJOINED, *each("sync", *ALL)),
    "5, one has not asked yet": (*REJOINED, *each("sync", 0, 1)),
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaGroupManager]:
    """One JVM."""
    with KafkaGroupManager() as made:
        yield made


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("phase", BEFORE)
def test_a_move_in_each_phase(kafka: KafkaGroupManager, phase: str, kept: bool) -> None:
    """R50-R55; `kept`: what was being written is in the log."""
    acts = (*BEFORE[phase], act("failover", kept=kept), *AFTER)
    story = Story(11, acts, CoordinatorConfig(initial_rebalance_delay=1_000))
    assert (found := find(kafka, story)) is None, found


def test_the_phases_are_what_they_are_called() -> None:
    """By the states of the group before the move and after it."""
    found = {}
    for phase, acts in BEFORE.items():
        story = Story(
            11, (*acts, act("failover")), CoordinatorConfig(initial_rebalance_delay=1_000)
        )
        *_, before, after = played(story)
        found[phase[0], before.picture["g"]["state"], after.picture["g"]["state"]] = phase
    states = {key[:2] for key in found}
    assert states >= {
        ("1", "Stable"),
        ("2", "PreparingRebalance"),
        ("3", "PreparingRebalance"),
        ("4", "CompletingRebalance"),
        ("5", "Stable"),
    }
    assert {key[2] for key in found} == {"Stable"}
