"""What the consumer thread waits for: a batch that runs, not a poll that its end does not end."""

from typing import Any

import pytest

from fleet.model import TopicPartition
from tests.support.memory_kafka import MemoryConsumer
from tests.worker.driving import Drive

P0 = TopicPartition("t", 0)


def test_no_poll_waits_while_a_batch_runs(kafka: Any, drive: Drive, monkeypatch):
    """Fault: a batch that is done waits until the poll is over that was begun meanwhile."""
    polls: list[tuple[bool, float]] = []
    """(a batch runs, how long the poll may wait) of each."""
    consume = MemoryConsumer.consume

    def noted(consumer: MemoryConsumer, count: int, timeout: float) -> Any:
        polls.append((driven.began() and not driven.rows, timeout))
        return consume(consumer, count, timeout)

    driven = drive(P0)
    driven.until(lambda: kafka.committed(P0)[-1:] == [3], "what is there")
    driven.rows.clear()
    driven.contexts.clear()
    driven.may_end.clear()
    monkeypatch.setattr(MemoryConsumer, "consume", noted)
    kafka.produce(P0, b"one")
    driven.until(driven.began, "a batch")
    driven.turns(1)  # the poll that was begun before the batch was
    polls.clear()
    driven.turns(10)
    while_running = list(polls)
    assert while_running
    assert all(running and timeout == 0 for running, timeout in while_running)
    driven.may_end.set()
    driven.until(lambda: kafka.committed(P0)[-1] == 4, "its commit")
    polls.clear()
    driven.turns(10)
    assert max(timeout for _, timeout in polls) == pytest.approx(0.02), "idle, it waits for records"
