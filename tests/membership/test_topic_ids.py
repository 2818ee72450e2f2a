"""A topic's id: in the commit's metadata, and asked for while the topic is read."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet.clock import ManualClock
from fleet.worker.offsets.assigning import DescribedTopic, TopicWatch
from fleet.worker.offsets.commit_metadata import (
    decode_cluster,
    decode_parts,
    decode_plan,
    decode_topic,
    encode_plan,
)


@pytest.mark.parametrize(("end", "topic"), [(7, "a_b-c"), (None, "a_b-c"), (7, None), (None, None)])
def test_commit_metadata_names_plan_and_topic(end, topic):
    """Each is read back alone, whatever the other is."""
    text = encode_plan(end, "r1", topic)
    plan = decode_plan(text, 0)
    assert (plan and plan.end, decode_topic(text)) == (end, topic)


@pytest.mark.parametrize(("cluster", "parts"), [("c-1", 4), ("c-1", None), (None, 4), (None, None)])
def test_commit_metadata_names_cluster_and_partitions(cluster, parts):
    """Absent where nothing is known."""
    text = encode_plan(7, "r1", "a_b-c", cluster=cluster, parts=parts)
    assert (decode_cluster(text), decode_parts(text)) == (cluster, parts)
    assert ("cluster" in text, "parts" in text) == (cluster is not None, parts is not None)


@pytest.mark.parametrize("text", [None, "", "x", "[1]", '{"v":2,"topic":"a"}', '{"v":1,"topic":3}'])
def test_metadata_that_is_not_ours_names_no_topic(text):
    """An offset without a topic id is believed: other tools commit, too."""
    assert decode_topic(text) is None
    assert (decode_cluster(text), decode_parts(text)) == (None, None)


class Broker:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Future]] = []

    def ask(self, topics) -> dict[str, Future]:
        self.asked.append({topic: Future() for topic in topics})
        return self.asked[-1]


def described(topic_id: str, *partitions: int) -> SimpleNamespace:
    """As the admin client answers."""
    parts = [SimpleNamespace(id=number) for number in partitions]
    return SimpleNamespace(topic_id=topic_id, partitions=parts)


def test_ids_are_asked_for_without_waiting():
    """One question at a time, at every refresh; what cannot be answered is left out."""
    broker, clock = Broker(), ManualClock()
    watch = TopicWatch(broker.ask, every=30.0, clock=clock)
    assert watch.look({"a"}) == {}
    assert broker.asked == []
    clock.sleep(30)
    assert watch.look({"b", "a"}) == {}
    clock.sleep(30)
    assert watch.look({"b", "a"}) == {}
    assert [list(each) for each in broker.asked] == [["a", "b"]]
    broker.asked[0]["a"].set_result(described("x/y+z", 0, 2))
    broker.asked[0]["b"].set_exception(KafkaException(KafkaError(3)))
    seen = DescribedTopic(id="x_y-z", partitions=frozenset({0, 2}))
    assert watch.look({"a", "b"}) == {"a": seen}
    assert len(broker.asked) == 2, "the refresh is over by now"


def test_an_error_that_may_mean_it_asks_at_once():
    """But never more than once a second."""
    broker, clock = Broker(), ManualClock()
    watch = TopicWatch(broker.ask, every=30.0, clock=clock)
    clock.sleep(5)
    watch.soon()
    watch.look({"a"})
    assert len(broker.asked) == 1
    broker.asked[0]["a"].set_result(described("x", 0))
    watch.soon()
    watch.look({"a"})
    assert len(broker.asked) == 1
    clock.sleep(1)
    watch.look({"a"})
    assert len(broker.asked) == 2


def test_nothing_owned_nothing_asked():
    """An idle member asks nothing."""
    broker, clock = Broker(), ManualClock()
    watch = TopicWatch(broker.ask, every=1.0, clock=clock)
    clock.sleep(10)
    assert watch.look(set()) == {}
    assert broker.asked == []
