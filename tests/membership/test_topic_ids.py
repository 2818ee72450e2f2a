"""A topic's id: asked for while the topic is read."""

from concurrent.futures import Future
from types import SimpleNamespace

from confluent_kafka import KafkaError, KafkaException

from fleet.clock import ManualClock
from fleet.worker.offsets.assigning import DescribedTopic, TopicWatch


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
