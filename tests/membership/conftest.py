"""Fleets of one home (one Spark server, one supervisor), and what a change of theirs cost."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.model import ReceiptResult, StepKind
from fleet.slots import Change
from tests.support.kafka_tools import rebalances
from tests.support.workshop import Workshop, ending

OpenShop = Callable[..., Workshop]


class Counting:
    """Applies changes, and compares every receipt with Kafka's own DumpLogSegments [33]."""

    def __init__(self, broker: Any, shop: Workshop) -> None:
        self.broker = broker
        self.shop = shop

    def recorded(self) -> int:
        """By Kafka's own tool."""
        return rebalances(self.broker.broker, self.shop.group)

    def apply(self, wanted: int | None = None, *, roll: bool = False) -> dict[StepKind, list[int]]:
        """Carry out what is declared; what each kind of step cost, in order."""
        before = self.recorded()
        change = self.shop.apply(wanted, roll=roll)
        self.check(change, self.recorded() - before)
        costs: dict[StepKind, list[int]] = {}
        for receipt in change.receipts:
            costs.setdefault(receipt.kind, []).append(receipt.rebalances)
        return costs

    def check(self, change: Change, recorded: int) -> None:
        """Every receipt equal to its expected cost, all of them together what was recorded."""
        said = [sentence for receipt in change.receipts for sentence in receipt.sentences]
        assert [r.result for r in change.receipts] == [ReceiptResult.EQUAL] * len(
            change.receipts
        ), said
        assert sum(r.rebalances for r in change.receipts) == recorded, said
        assert sum(r.external_rebalances for r in change.receipts) == 0, said


@pytest.fixture(scope="module")
def open_shop(
    broker: Any, spark_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenShop]:
    """Makes workshops of one home; at the end nothing of it runs."""
    home = tmp_path_factory.mktemp("home")
    with ending() as made:

        def new(group: str, **worker: Any) -> Workshop:
            told = {"spark": spark_address, **worker}
            made.append(Workshop(home, broker.bootstrap_servers, group, **told))
            return made[-1]

        yield new


@pytest.fixture
def counting(broker: Any) -> Callable[[Workshop], Counting]:
    """A Counting for a workshop."""
    return lambda shop: Counting(broker, shop)
