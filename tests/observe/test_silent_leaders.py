"""A cluster that goes away between a look's questions: the look before it is not replaced."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.kafka_source.connections import NoAnswer
from fleet.model import TopicPartition
from fleet.observe.poll_answers import Poll
from fleet.observe.topic_questions import TopicQuestions, Topics

LOGS = [TopicPartition("t", 0), TopicPartition("t", 1)]
OF_TWO = Topics(
    partitions={"t": 2, "u": 1}, leaders={("t", 0): 1, ("t", 1): 1, ("u", 0): 2}, names={}
)
OF_ONE = Topics(partitions={"t": 2}, leaders={("t", 0): 1, ("t", 1): 1}, names={})


class Net:
    """Brokers that answer so many requests each, and then no more."""

    def __init__(self, answers: int, error: int) -> None:
        self.answers = answers
        self.part = SimpleNamespace(offset=-1 if error else 7, error_code=error)

    def ask(self, requests: Mapping[int, Any], timeout: float) -> dict[int, Any]:
        assert timeout > 0
        if not self.answers:
            return dict.fromkeys(requests, NoAnswer("no answer in time"))
        self.answers -= 1
        parts = [SimpleNamespace(partition_index=n, **vars(self.part)) for n in range(2)]
        return dict.fromkeys(
            requests, SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=parts)])
        )


def asked(answers: int, topics: Topics, *, error: int = 0) -> tuple[Any, Poll]:
    look = Poll(ManualClock(), timeout=5.0)
    return TopicQuestions(Net(answers, error)).offsets(LOGS, topics, look), look  # type: ignore[arg-type]


@pytest.mark.parametrize("answers", [0, 1])
def test_no_leader_of_the_cluster_answers(answers: int) -> None:
    """Neither about starts nor, in the second case, about ends."""
    with pytest.raises(NoAnswer, match="no broker returned the starts and ends of its logs"):
        asked(answers, OF_ONE)


def test_the_leader_that_is_asked_is_silent_and_others_may_not_be() -> None:
    """What is known of groups is told, without the logs."""
    (starts, ends), look = asked(0, OF_TWO)
    assert (starts, ends) == ({}, {})
    assert look.problems == ["2 partition(s) have unreadable offsets (no answer in time): t-0, t-1"]


def test_all_answer() -> None:
    (starts, ends), look = asked(2, OF_ONE)
    assert starts == ends == dict.fromkeys(LOGS, 7)
    assert not look.problems


def test_all_refuse() -> None:
    """They are there: what else the look found is told."""
    (starts, ends), look = asked(2, OF_ONE, error=29)
    assert (starts, ends) == ({}, {})
    assert len(look.problems) == 1
    assert "2 partition(s) have unreadable offsets" in look.problems[0]
