"""What new pods for four workers cost: the ordinary way, by `fleet roll`, and through Dagster.

One managed fleet lives through all tests of this file, in their order; the ordinary Deployment
stands beside it: the same topic, size, assignor, work, broker and node.
"""

import uuid
from collections.abc import Iterator

import pytest

from benchmarks.figures import ratio
from fleet.dagster import asset_keys
from fleet.slots import ChangeState
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.ordinary_pods import OrdinaryPods
from tests.support.pod_ground import SLOTS, Cost, Ground, opened
from tests.support.through_dagster import ran

SPARK = '    df.selectExpr("count(*) AS n").collect()\n'
PLAIN = "    # the journal is all its work, as in the ordinary consumer\n"

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def ground(
    kube: Kube, kube_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """Four workers and a standby at work."""
    home = tmp_path_factory.mktemp("beside")
    group = f"beside-{uuid.uuid4().hex[:8]}"
    with opened(kube, kube_broker, home, group=group, edited=(SPARK, PLAIN)) as made:
        yield made


def test_beside_the_ordinary_way(ground: Ground) -> None:
    """`fleet roll` beside `kubectl rollout restart` of as many dynamic members; the same work."""
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
    _print("four workers get new pods", {"ordinary": theirs, "fleet": ours})
    print(f"the ordinary way: {lost} records lost, {twice} twice")
    assert ours.rebalances == 0
    assert {n: slot.token for n, slot in ground.slots().items()} == {
        n: token + 1 for n, token in tokens.items()
    }, "each slot passed on once: who is drained takes no other"
    assert theirs.rebalances >= 2, "two of them at a time, at most"
    assert ours.pauses is not None
    assert theirs.pauses is not None
    assert ground.account() == (0, 0)


def test_rolled_through_dagster(ground: Ground) -> None:
    """New code of four workers: 0 rebalances, nothing lost, nothing twice, the receipt equal."""
    old = set(ground.pods())
    ground.shop.edit_job(PLAIN, SPARK)
    with ground.costs() as cost:
        result = ran(ground.shop)
    assert result.success, [e for e in result.all_events if e.is_step_failure]
    (receipt,) = result.get_asset_check_evaluations()
    assert (receipt.check_name, receipt.passed) == (asset_keys.RECEIPT, True)
    with ground.shop.fleet() as fleet:
        change = fleet.changes(ground.shop.group, limit=1)[0]
    assert change.state is ChangeState.DONE
    assert [r.result.value for r in change.receipts] == ["equal"]
    assert (cost.rebalances, cost.moved) == (0, 0)
    ground.serve()
    assert not old & set(ground.pods())
    assert ground.account() == (0, 0)
    _print("a roll through Dagster, to code with Spark", {"fleet": cost})


def _print(title: str, costs: dict[str, Cost]) -> None:
    print(
        f"\n{title}\n| | rebalances | partitions handed over | paused partition-seconds | longest |"
    )
    for name, cost in costs.items():
        pauses = cost.pauses
        shown = "- | -" if pauses is None else f"{pauses.total:.1f} s | {pauses.max:.1f} s"
        number = 0 if pauses is None else pauses.measured
        print(f"| {name} | {cost.rebalances} | {number} | {shown} |")
    if {"ordinary", "fleet"} <= costs.keys():
        theirs, ours = costs["ordinary"].pauses, costs["fleet"].pauses
        times = ratio(theirs and theirs.total, ours and ours.total)
        print(f"paused partition-seconds, ordinary to fleet: {times}")
