"""The id of a topic that was just assigned: sinks keep offsets by it, so no luck is needed."""

import pytest
from confluent_kafka import KafkaError

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.worker.offsets.assigning import Assigner, Start
from tests.support.batch_parts import worker_context
from tests.support.memory_kafka import MemoryKafka

T0 = TopicPartition("t", 0)
TIMED_OUT = KafkaError._TIMED_OUT
PATIENCE = 180.0


class Scene:
    """One topic, and an assigner over it with a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka()
        self.kafka.make("t", 1)
        context = worker_context(clock=self.clock)
        assert context.session_timeout == PATIENCE
        self.assigner = Assigner(context, self.kafka.admin({}))

    def start(self) -> Start:
        """Of the topic's partition, as it is assigned."""
        (found,) = self.assigner.starts(self.kafka.consumer({}), [T0])
        return found


@pytest.fixture
def scene() -> Scene:
    """A new one."""
    return Scene()


@pytest.mark.parametrize(
    ("answers", "topic_id", "known"),
    [
        pytest.param([TIMED_OUT] * 3, "id-1", "id-1", id="asked for until it is told"),
        pytest.param([KafkaError.UNSUPPORTED_VERSION] * 9, "t", None, id="brokers without ids"),
        pytest.param([KafkaError._UNSUPPORTED_FEATURE] * 9, "t", None, id="a client without"),
        pytest.param([KafkaError.UNKNOWN_TOPIC_OR_PART] * 9999, "t", None, id="deleted meanwhile"),
    ],
)
def test_an_id_that_was_never_told(
    scene: Scene, answers: list[int], topic_id: str, known: str | None
):
    """The name stands in only where there is none; nobody waits long for that."""
    scene.kafka.silent.extend(answers)
    began = scene.clock.monotonic()
    start = scene.start()
    assert (start.topic_id, start.known_id) == (topic_id, known)
    assert scene.clock.monotonic() - began < 10


def test_an_id_that_nobody_tells_is_brokers_that_are_away(scene: Scene):
    """The name does not stand in: the batch in hand would be written once more under it."""
    scene.kafka.silent.extend([TIMED_OUT] * 9999)
    began = scene.clock.monotonic()
    with pytest.raises(Unreachable, match="did not tell where the assigned partitions begin"):
        scene.start()
    assert PATIENCE <= scene.clock.monotonic() - began < PATIENCE + 1


def test_a_known_id_is_not_waited_for(scene: Scene):
    """What it is now, the next look at the topic tells."""
    scene.start()
    scene.kafka.silent.append(TIMED_OUT)
    began = scene.clock.monotonic()
    assert scene.start().topic_id == "id-1"
    assert scene.clock.monotonic() == began


def test_a_topic_made_again_has_its_own_id(scene: Scene):
    """Never the former one, under which its first records would count as written."""
    former = scene.start()
    scene.kafka.make("t", 1, "id-2")
    scene.kafka.silent.append(TIMED_OUT)
    found = scene.assigner.anew(scene.kafka.consumer({}), T0, former)
    assert found.topic_id == "id-2"
