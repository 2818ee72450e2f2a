"""Brokers of other releases than Fleet's own: the same promises, by the same counts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet.model import ReceiptResult, StepKind
from tests.support.brokers import RunningBroker, running_broker
from tests.support.kafka_tools import rebalances
from tests.support.other_kafka import libs_of
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

RELEASES = ("3.9.2", "4.4.0")
LIFE = ((StepKind.OPEN, 2), (StepKind.OPEN, 4), (StepKind.ROLL, 4), (StepKind.LEAVE, 2))
"""Steps, and how many slots there are to be after each."""


@pytest.fixture(scope="module", params=RELEASES)
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RunningBroker]]:
    """A release, and a broker of it."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # not for the tool that counts
            patch.setenv("FLEET_KAFKA_LIBS", str(libs_of(request.param)))
            made = stack.enter_context(running_broker(tmp_path_factory.mktemp("other")))
        yield request.param, made


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_life(
    protocol: str,
    other: tuple[str, RunningBroker],
    spark_address: str,
    unique: str,
    tmp_path: Path,
):
    """Up, more, new code, fewer: receipts as Kafka's own tool counts, nothing lost or twice."""
    release, broker = other
    if protocol == "consumer" and release.startswith("3."):
        pytest.skip("KIP-848 is there from Kafka 4.0 on")
    how = {"protocol": protocol, "spark": spark_address}
    shop = Workshop(tmp_path, broker.bootstrap_servers, f"life-{unique}", **how)
    shop.create_topic(6)
    with ending(shop):
        with shop.stream(rate=100):
            for kind, wanted in LIFE:
                if kind is StepKind.ROLL:
                    shop.new_code()
                before = rebalances(broker.broker, shop.group)
                done = shop.apply(wanted)
                assert [each.kind for each in done.receipts] == [kind]
                (receipt,) = done.receipts
                assert receipt.result is ReceiptResult.EQUAL, receipt.sentences
                assert receipt.ours == rebalances(broker.broker, shop.group) - before
                assert receipt.ours == 0 or kind is not StepKind.ROLL
        assert shop.lost_and_duplicates() == (0, 0)
