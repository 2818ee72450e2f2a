"""What new pods for four workers cost: the ordinary way, and by `fleet roll`.

The ordinary Deployment stands beside the fleet: the same topic, size, assignor, work, broker and
node.
"""

from pathlib import Path

import pytest

from benchmarks.figures import ratio
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.ordinary_pods import OrdinaryPods
from tests.support.pod_ground import SLOTS, Cost, opened

SPARK = '    df.selectExpr("count(*) AS n").collect()\n'
PLAIN = "    # the journal is all its work, as in the ordinary consumer\n"

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]


def test_beside_the_ordinary_way(
    kube: Kube, kube_broker: RunningBroker, tmp_path: Path, unique: str
) -> None:
    """`fleet roll` beside `kubectl rollout restart` of as many dynamic members; the same work."""
    group = f"beside-{unique}"
    with opened(kube, kube_broker, tmp_path, group=group, edited=(SPARK, PLAIN)) as ground:
        ordinary = OrdinaryPods(ground.kube, ground.shop, replicas=SLOTS, assignor="range")
        ordinary.apply()
        ordinary.settle()
        ground.serve()
        tokens = {n: slot.token for n, slot in ground.slots().items()}
        with ground.costs(ordinary.group) as theirs:
            ordinary.restart()
        with ground.costs() as ours:
            ground.ended(ground.manager("roll", ground.shop.group))
        lost, twice = ground.account(ordinary.group)
        ordinary.delete()
        _print({"ordinary": theirs, "fleet": ours})
        print(f"the ordinary way: {lost} records lost, {twice} twice")
        assert ours.rebalances == 0
        assert {n: slot.token for n, slot in ground.slots().items()} == {
            n: token + 1 for n, token in tokens.items()
        }, "each slot passed on once: who is drained takes no other"
        assert theirs.rebalances >= 2, "two of them at a time, at most"
        assert ours.pauses is not None
        assert theirs.pauses is not None
        assert ground.account() == (0, 0)


def _print(costs: dict[str, Cost]) -> None:
    print("\nfour workers get new pods")
    print("| | rebalances | partitions handed over | paused partition-seconds | longest |")
    for name, cost in costs.items():
        pauses = cost.pauses
        shown = "- | -" if pauses is None else f"{pauses.total:.1f} s | {pauses.max:.1f} s"
        number = 0 if pauses is None else pauses.measured
        print(f"| {name} | {cost.rebalances} | {number} | {shown} |")
    theirs, ours = costs["ordinary"].pauses, costs["fleet"].pauses
    times = ratio(theirs and theirs.total, ours and ours.total)
    print(f"paused partition-seconds, ordinary to fleet: {times}")
