"""What waits behind a position is read again once the log's end has moved, and not before."""

from typing import Any

import numpy as np
from confluent_kafka import Producer
from kafka.protocol.consumer import FetchRequest

from fleet.model import LagCase
from tests.observe.test_snapshot import commit, config, observer, topic_of

__all__ = ["config", "topic_of"]


def transaction(config: dict[str, str], name: str, topic: str) -> Producer:
    """Twenty records in a transaction that is open."""
    producer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(20):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(120) == 0
    return producer


def test_a_position_is_read_again_once_the_end_moves(config, topic_of, unique, monkeypatch):
    """Held, then aborted, then a record behind: each is told when it is so, by one reading each."""
    topic, group = topic_of("t", 1, 5), f"stands-{unique}"
    commit(config, group, topic, 5)
    look, fetches = observer(config), []
    before = FetchRequest.__init__
    monkeypatch.setattr(
        FetchRequest, "__init__", lambda *args, **kw: (fetches.append(1), before(*args, **kw))[1]
    )

    def told() -> tuple[LagCase, int | None, float | None, str, int]:
        fetches.clear()
        seen: Any = look.snapshot([group])
        seen = look.read_on(seen, np.array([0]))
        (part,) = seen.groups[group].partitions
        return part.case, part.lag, part.lag_seconds, "".join(seen.held.values()), len(fetches)

    producer = transaction(config, f"x-{unique}", topic)
    case, lag, _, held, _ = told()
    assert (case, lag) == (LagCase.HELD, 20)
    assert f"(transactional.id x-{unique}) since " in held
    assert told()[-1] == 0
    producer.abort_transaction(60)
    case, lag, seconds, held, read = told()
    assert (case, lag, seconds, held) == (LagCase.NOTHING, 21, 0.0, "")
    assert read > 0
    assert told()[-1] == 0
    plain = Producer(config)
    plain.produce(topic, b"x", partition=0)
    assert plain.flush(120) == 0
    case, lag, *_ = told()
    assert (case, lag) == (LagCase.OK, 22)
    plain.produce(topic, b"x", partition=0)
    assert plain.flush(120) == 0
    assert (told()[0], told()[-1]) == (LagCase.OK, 0)
    look.close()
