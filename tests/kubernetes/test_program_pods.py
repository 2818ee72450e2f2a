"""Programs that Fleet did not write, in pods of a real cluster: each change costs what it does
on one machine.

Rebalances are counted by Kafka's own DumpLogSegments [33]; lost and twice come from the journal
that the program itself writes [34].
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fleet.model import ReceiptResult, StepKind
from fleet.slots import Change, Phase, Slot
from fleet.system.processes import carrying
from tests.support.kafka_tools import rebalances
from tests.support.pod_fleet import kill_inside
from tests.support.pod_shop import PodShop
from tests.support.workshop import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.broker, pytest.mark.long]

PROGRAM = """
import json, os, signal, sys, time
from confluent_kafka import Consumer, KafkaException, Producer

servers, group, topic, journal = sys.argv[1:]
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
consumer = Consumer({
    "bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest",
    "group.instance.id": os.environ["GROUP_INSTANCE_ID"], "enable.auto.commit": False,
    "heartbeat.interval.ms": 500,
})
consumer.subscribe([topic])
while not ended:
    parts = {}
    for record in consumer.consume(1000, timeout=0.2):
        if record.error() is None:
            parts.setdefault(record.partition(), []).append(record)
    for partition, part in parts.items():
        producer.produce(journal, json.dumps({
            "group": group, "tp": {"topic": topic, "partition": partition},
            "first": part[0].offset(), "last": part[-1].offset(),
            "rows": [[int(record.value()), 1, 1] for record in part],
            "worker": os.environ["GROUP_INSTANCE_ID"], "attempt": 1,
            "revision": os.environ.get("VERSION", "1"), "at": time.time()}))
    assert producer.flush(60) == 0
    if parts:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            print(error, flush=True)
consumer.close()
"""


@pytest.fixture
def shop(pod_shop: Callable[..., PodShop], unique: str) -> PodShop:
    """Three slots and a standby of the worker's image, which has a Kafka client."""
    made = pod_shop(f"program-{unique}")
    made.create_topic(6)
    run_version(made, "1")
    made.declare(scaling={"policy": "fixed", "workers": 3})
    return made


def run_version(shop: PodShop, version: str) -> None:
    """Declare the program with another environment, which is another revision."""
    command = ["/opt/fleet/bin/python", "-c", PROGRAM]
    command += [shop.bootstrap, shop.group, shop.topic, shop.journal_topic]
    shop._worker = {
        "command": command,
        "env": {"VERSION": version},
        "heartbeat_interval": "500ms",
    }
    shop.declare()


def applied(shop: PodShop, wanted: int | None = None) -> Change:
    """Done, with receipts that are equal."""
    change = shop.apply(wanted)
    assert {each.result for each in change.receipts} == {ReceiptResult.EQUAL}, change.receipts
    return change


def slot_of(shop: PodShop, number: int) -> Slot:
    with shop.fleet() as fleet:
        return next(slot for slot in fleet.slots(shop.group) if slot.number == number)


def await_new_owner(shop: PodShop, before: Slot) -> None:
    """Until the slot has been taken again, and its program works."""

    def taken() -> bool:
        now = slot_of(shop, before.number)
        return now.token > before.token and now.phase is Phase.ACTIVE

    until(taken, 90, f"slot {before.number} to have a new owner")


def test_a_program_in_pods_is_rolled_scaled_and_killed(shop: PodShop, pod_broker: Any) -> None:
    """A roll and both kills cost 0, two more at most 2, two fewer 1; nothing is lost."""

    def recorded() -> int:
        return rebalances(pod_broker, shop.group)

    with shop.stream(rate=100):
        applied(shop)
        shop.rest(4)
        before = recorded()
        run_version(shop, "2")
        assert [step.kind for step in applied(shop).plan.steps] == [StepKind.ROLL]
        shop.rest(4)
        assert recorded() == before, "a roll"

        owned = slot_of(shop, 0)
        for process in carrying("GROUP_INSTANCE_ID", owned.instance_id()):
            os.kill(process.pid, signal.SIGKILL)
        await_new_owner(shop, owned)
        shop.rest(4)
        owned = slot_of(shop, 1)
        kill_inside(str(owned.owner))
        await_new_owner(shop, owned)
        shop.rest(4)
        assert recorded() == before, "a killed program, and a killed worker"

        applied(shop, 5)
        shop.rest(6)
        grown = recorded()
        assert 1 <= grown - before <= 2
        applied(shop, 3)
        shop.rest(4)
        assert recorded() - grown == 1
    assert shop.lost_and_duplicates()[0] == 0
    assert {each.revision for each in shop.entries()} == {"1", "2"}
