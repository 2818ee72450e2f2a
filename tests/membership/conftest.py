"""Fleets of one home (one Spark server, one supervisor), and what a change of theirs cost."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.act.local.local_runtime import find_orphans
from fleet.model import StepKind, Verdict
from fleet.slots import Change, ChangeState
from tests.support.kafka_tools import generations
from tests.support.workshop import Workshop

OpenShop = Callable[..., Workshop]


class Counting:
    """Applies changes, and compares every receipt with Kafka's own DumpLogSegments [33]."""

    def __init__(self, broker: Any, shop: Workshop) -> None:
        self.broker = broker
        self.shop = shop

    def recorded(self) -> int:
        """Completed generations of the group: the distinct numbers above 0 in its records."""
        return len({g for g in generations(self.broker.broker, self.shop.group) if g > 0})

    def apply(self, wanted: int | None = None, *, roll: bool = False) -> dict[StepKind, list[int]]:
        """Carry out what is declared; what each kind of step cost, in order."""
        before = self.recorded()
        with self.shop.fleet() as fleet:
            change = fleet.apply(
                self.shop.group, wanted=wanted, roll=roll, actor="test", progress=self.shop.say
            )
        self.check(change, self.recorded() - before)
        costs: dict[StepKind, list[int]] = {}
        for receipt in change.receipts:
            costs.setdefault(receipt.kind, []).append(receipt.ours)
        return costs

    def check(self, change: Change, recorded: int) -> None:
        """Done, every receipt equal to its price, all of them together what was recorded."""
        assert change.state is ChangeState.DONE, change.sentence
        said = [sentence for receipt in change.receipts for sentence in receipt.sentences]
        assert [r.verdict for r in change.receipts] == [Verdict.EQUAL] * len(change.receipts), said
        assert sum(r.ours for r in change.receipts) == recorded, said
        assert sum(r.others for r in change.receipts) == 0, said


@pytest.fixture(scope="module")
def open_shop(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenShop]:
    """Makes workshops of one home; at the end nothing of it runs."""
    home = tmp_path_factory.mktemp("home")
    made: list[Workshop] = []

    def new(group: str, **worker: Any) -> Workshop:
        shop = Workshop(home, broker.bootstrap_servers, group, **worker)
        made.append(shop)
        return shop

    yield new
    for shop in made:
        with shop.fleet() as fleet:
            fleet.down()
    assert not list(find_orphans(home))


@pytest.fixture
def counting(broker: Any) -> Callable[[Workshop], Counting]:
    """A Counting for a workshop."""
    return lambda shop: Counting(broker, shop)
