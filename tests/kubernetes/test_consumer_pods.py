"""KIP-848 on pods: `protocol: consumer` keeps docs/concepts/cost.md on a real cluster [17, 23].

Assignments are counted by Kafka's own DumpLogSegments (distinct assignment epochs); lost and twice
come from what the pods were really called with [34].
"""

import time
from pathlib import Path

import pytest

from fleet.model import ReceiptResult, StepKind
from fleet.slots import Change
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.pod_fleet import kill_inside
from tests.support.pod_ground import RATE, SLOTS, Ground, opened
from tests.support.workshop import until

pytestmark = [pytest.mark.broker, pytest.mark.kubernetes, pytest.mark.long]
MOST_OPENING = 2
MOST_OF_A_DEATH = 2


def dies(ground: Ground, how: str, *, before: int = 0) -> int:
    """An owner is gone: its slot goes to a living process, and a batch may come twice.

    before: records that came twice already; with those of this death they are the answer.
    """
    slot = ground.slots()[0]
    with ground.costs() as cost:
        began = time.monotonic()
        if how == "killed":  # the coordinator knows it for 45 s, its successor frees it
            kill_inside(str(slot.owner))
        else:  # the kubelet gives its process a second or two
            name = ("-n", ground.shop.namespace, "delete", "pod", str(slot.owner))
            ground.kube.kubectl(*name, "--force", "--grace-period=0")
        until(lambda: ground.slots()[0].token > slot.token, 60, "a standby to take the slot")
        took = time.monotonic() - began
        ground.serve()
    assert ground.slots()[0].owner != slot.owner
    lost, twice = ground.account()
    print(f"{how}: slot taken after {took:.1f} s; {cost}; {lost} lost, {twice} twice")
    assert cost.rebalances <= MOST_OF_A_DEATH
    assert lost == 0
    assert twice - before <= RATE, "the batch in hand, a second's records at most"
    return twice


def as_planned(change: Change, kind: StepKind) -> None:
    """The receipt counted what the plan had said."""
    (step,) = [s for s in change.plan.steps if s.kind is kind]
    assert all(r.result is ReceiptResult.EQUAL for r in change.receipts), change.receipts
    recorded, expected = change.receipts[-1].rebalances, step.expected_cost.rebalances_max
    print(f"{step.sentence}: {recorded} where {expected}")


def test_opening_roll_down_up_and_deaths(
    kube: Kube, kube_broker: RunningBroker, tmp_path: Path, unique: str
) -> None:
    """A roll of 4 costs nothing, -3 one assignment and just the drained pods, +3 two at most, and
    so do 4 from nothing and a death.
    """
    group = f"epochs-{unique}"
    with opened(kube, kube_broker, tmp_path, group=group, protocol="consumer") as ground:
        assert 1 <= ground.recorded() <= MOST_OPENING, "from nothing, all together"
        print(f"from nothing to {SLOTS}: {ground.recorded()} assignment(s)")
        old = set(ground.pods())
        ground.shop.new_code()
        with ground.costs() as cost:
            as_planned(ground.apply(), StepKind.ROLL)
            ground.serve()
        print(f"roll of {SLOTS}: {cost}")
        assert cost.rebalances == 0
        assert not old & set(ground.pods())

        held, there = {n: s.owner for n, s in ground.slots().items()}, set(ground.pods())
        with ground.costs() as cost:
            left = ground.apply(1)
            as_planned(left, StepKind.LEAVE)
            ground.serve(slots=1)
        print(f"{SLOTS} to 1: {cost}")
        assert cost.rebalances == 1
        gone = {held[n] for s in left.plan.steps if s.kind is StepKind.LEAVE for n in s.slots}
        assert there - set(ground.pods()) == gone, "exactly the drained pods"

        with ground.costs() as cost:
            as_planned(ground.apply(SLOTS), StepKind.OPEN)
            ground.serve()
        print(f"1 to {SLOTS}: {cost}")
        assert 1 <= cost.rebalances <= MOST_OPENING
        assert ground.account() == (0, 0)
        twice = dies(ground, "deleted by force")
        dies(ground, "killed", before=twice)
