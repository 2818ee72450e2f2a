"""Dead letters are acknowledged before the batch may be committed."""

from confluent_kafka import Consumer, TopicPartition

from fleet.worker.batch.dead_letters import DeadLetters
from fleet.worker.batch.poison_search import PoisonRecord
from tests.support.batch_parts import events_of
from tests.worker.test_failures import batch


def letters(bootstrap: str, topic: str, seconds: float) -> DeadLetters:
    return DeadLetters(
        topic=topic,
        group="g",
        revision="r1",
        options={"bootstrap.servers": bootstrap},
        events=events_of(),
        seconds=seconds,
    )


def letter(offset: int) -> PoisonRecord:
    whole = batch(0)
    (each,) = whole.ranges
    part = whole.part(each.tp, offset, offset + 1)
    return PoisonRecord(tp=each.tp, offset=offset, part=part, error="E", attempts=4)


def test_what_is_sent_is_there(mock_broker: str, unique: str):
    """Once `send` returns, for whoever reads then."""
    sent = letters(mock_broker, f"dead-{unique}", 20.0)
    assert sent.send([letter(2), letter(5)], None) is None
    reader = Consumer(
        {
            "bootstrap.servers": mock_broker,
            "group.id": unique,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    parts = reader.list_topics(f"dead-{unique}", timeout=10).topics[f"dead-{unique}"].partitions
    ends = [
        reader.get_watermark_offsets(TopicPartition(f"dead-{unique}", number), timeout=10)[1]
        for number in parts
    ]
    reader.close()
    assert sum(ends) == 2


def test_what_nobody_acknowledges_is_not_passed_over():
    """No broker: why, so that the partition is stopped instead."""
    why = letters("127.0.0.1:1", "dead", 0.2).send([letter(2)], None)
    assert why is not None
    assert why.startswith("the dead-letter topic dead cannot be written: ")
