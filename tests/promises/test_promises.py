"""docs/concepts/cost.md on a real broker: what a change costs, counted by Kafka's own tool [33].

Our receipts are compared with DumpLogSegments, never only with themselves; lost and twice come
from the journal of what the entrypoint was called with [34].
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.ground import terms
from fleet.model import ReceiptResult, StepKind
from fleet.slots import Change
from tests.support.kafka_tools import rebalances
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MOST = {
    "range": {"first": 1, "up": 1, "down": 1},
    "cooperative-sticky": {"first": 1, "up": 2, "down": 2},
    "consumer": {"first": 2, "up": 2, "down": 1},
}
"""Assignor of the classic protocol, or KIP-848 → most rebalances that a change may cost."""
COUNTED: dict[str, int] = {}
"""Group → rebalances recorded up to the last change."""


@pytest.fixture(scope="module")
def open_shop(broker, spark_address, tmp_path_factory) -> Iterator[Callable[..., Workshop]]:
    """Makes workshops of one home (one supervisor); at the end nothing of it runs."""
    home = tmp_path_factory.mktemp("home")
    with ending() as made:

        def new(group: str, **worker: Any) -> Workshop:
            settings = {"spark": spark_address, **worker}
            made.append(Workshop(home, broker.bootstrap_servers, group, **settings))
            return made[-1]

        yield new


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "consumer" else pytest.mark.long) for k in MOST]
)
def test_up_roll_down(kind, broker, unique, open_shop):
    """Growing is one episode, a roll costs nothing, shrinking is one; nothing lost or twice.

    In the short form range is shown by tests/kubernetes/test_runtime_promises.py, as pods, and
    cooperative-sticky by the demo.
    """
    shop = open_shop(f"promise-{unique}", **terms(kind))
    shop.create_topic(8)
    with shop.stream(rate=200):
        assert 1 <= _apply(shop, broker) <= MOST[kind]["first"], "from nothing, all together"

        shop.declare(scaling={"policy": "fixed", "workers": 4})
        grown = _apply(shop, broker)
        assert 1 <= grown <= MOST[kind]["up"]

        shop.new_code()
        assert _apply(shop, broker) == 0

        shop.declare(scaling={"policy": "fixed", "workers": 2, "down_after": "0s"})
        shrunk = _apply(shop, broker, wanted=2)  # the policy shrinks on agreement
        assert 1 <= shrunk <= MOST[kind]["down"]
    assert shop.lost_and_duplicates() == (0, 0)
    assert {e.revision for e in shop.entries()} == _revisions(shop)


def _revisions(shop: Workshop) -> set[str]:
    with shop.fleet() as fleet:
        return {change.plan.revision for change in fleet.changes(shop.group)}


def _apply(shop: Workshop, broker, wanted: int | None = None) -> int:
    """Apply what fleet.yaml says; what was recorded since the last one, by DumpLogSegments."""
    change = shop.apply(wanted)
    recorded = rebalances(broker.broker, shop.group)
    cost = recorded - COUNTED.get(shop.group, 0)
    COUNTED[shop.group] = recorded
    _check_receipts(change, cost)
    return cost


def _check_receipts(change: Change, recorded: int) -> None:
    assert [r.result for r in change.receipts] == [ReceiptResult.EQUAL] * len(change.receipts)
    assert sum(r.rebalances + r.external_rebalances for r in change.receipts) == recorded
    for receipt in change.receipts:
        if receipt.kind is StepKind.ROLL:
            assert receipt.rebalances == 0
            # A drain's time: nobody was waited for in vain. Seconds are for benchmarks.
            assert receipt.longest_downtime_s < 30
        else:
            assert receipt.settled_s < 30
