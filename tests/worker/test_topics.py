"""Topics change under a running worker: made again, grown, new ones of a pattern, deleted."""

import signal

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import NewPartitions

from fleet.worker.offsets.assigning import id_of
from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

SOON = {"metadata_refresh": "1s", "heartbeat_interval": "1s"}


def _id(group: Group, topic: str) -> str:
    return id_of(group.admin.describe_topics(TopicCollection([topic]))[topic].result(120))


def _read(group: Group, topic: str) -> dict[int, set[int]]:
    """Offsets of the topic that is there now that the entrypoint was called for."""
    topic_id, found = _id(group, topic), {}
    for line in group.journal():
        for name, partition, start, end, range_id in line["ranges"]:
            if name == topic and topic_id in range_id:
                found.setdefault(partition, set()).update(range(start, end))
    return found


def _whole(partitions: int, each: int) -> dict[int, set[int]]:
    return {partition: set(range(each)) for partition in range(partitions)}


@pytest.mark.parametrize(
    "records", [pytest.param(4 * 250, id="longer"), pytest.param(4 * 20, id="shorter")]
)
def test_a_topic_made_again_is_read_from_its_beginning(
    records: int, group: Group, broker: RunningBroker
):
    """While the worker is stopped its topic is deleted and made again: nothing is skipped.

    The longer one has an offset where the worker would read on, without any error.
    """
    group.standbys("w1", **SOON)
    group.open(0)
    group.produce(400)
    group.drained()
    old = _id(group, group.topic)
    group.processes["w1"].send_signal(signal.SIGSTOP)
    group.admin.delete_topics([group.topic])[group.topic].result(120)
    group.make(group.topic, 4)
    group.produce(records)
    group.processes["w1"].send_signal(signal.SIGCONT)
    assert _id(group, group.topic) != old
    group.until(
        lambda: _read(group, group.topic) == _whole(4, records // 4), "the new topic to be read"
    )
    assert {e["partition"] for e in group.events("topic_made_again")} == {
        f"{group.topic}-{n}" for n in range(4)
    }
    group.produced.clear()
    group.produced.update(dict.fromkeys(range(4), records // 4))
    group.drained()
    assert group.processes["w1"].poll() is None, "no crash"
    assert group.store.quarantines(group.name) == ()
    assert group.end() == {"w1": 0}


def test_offsets_of_a_deleted_topic_are_not_believed(group: Group):
    """A batch was in hand when its topic was made again: Kafka accepts its commit for the new one.

    The holder dies before it notices; its successor finds the offset, and whose it is.
    """
    slow = {"env": {"SECONDS_EACH": "2"}, "metadata_refresh": "5m"}
    group.standbys("w1", **slow)
    group.open(0)
    group.produce(400)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    w1 = group.processes["w1"]
    w1.send_signal(signal.SIGSTOP)
    group.admin.delete_topics([group.topic])[group.topic].result(120)
    group.make(group.topic, 4)
    group.produce(4 * 150)
    w1.send_signal(signal.SIGCONT)
    group.until(lambda: bool(group.events("committed")), "the late commit")
    w1.kill()
    group.start("w2", **SOON)
    group.until(lambda: _read(group, group.topic) == _whole(4, 150), "the new topic to be read")
    assert any(e["former"] for e in group.events("topic_made_again") if e["worker"] == "w2")
    assert group.end()["w2"] == 0


def test_a_deleted_topic_stops_nothing(group: Group):
    """Of two topics one is deleted in mid-batch: the other goes on, and so does the worker."""
    other = f"{group.name}-other"
    group.make(other, 2)
    group.standbys("w1", topics=[group.topic, other], env={"SECONDS_EACH": "1"}, **SOON)
    group.open(0)
    group.produce(40)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    group.admin.delete_topics([other])[other].result(120)
    for _ in range(4):
        group.produce(40)
    group.drained()
    assert group.processes["w1"].poll() is None, "no crash"
    group.make(other, 2)
    group.until(
        lambda: any(f"{other}-0" in e["partitions"] for e in group.events("assigned")[1:]),
        "the topic made again to be assigned",
    )
    assert group.end() == {"w1": 0}


def test_new_partitions_and_topics_of_a_pattern_are_picked_up(group: Group, broker: RunningBroker):
    """Within the metadata refresh; each is one rebalance, nothing of them is left out."""
    group.standbys("w1", topics=[f"^{group.name}-.*"], start_from="latest", **SOON)
    group.open(0)
    group.produce(40)
    group.drained()
    before = max(generations(broker.broker, group.name))
    group.admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(120)
    group.until(
        lambda: len(group.admin.list_topics(group.topic).topics[group.topic].partitions) == 6,
        "the new partitions to be there",
    )
    group.partitions, group._producer = 6, Producer({"bootstrap.servers": broker.bootstrap_servers})
    group.produce(60)  # before anybody has them: start_from is no reason to leave these out
    group.until(
        lambda: any(f"{group.topic}-5" in e["partitions"] for e in group.events("assigned")),
        "the new partitions to be assigned",
    )
    group.drained()
    assert max(generations(broker.broker, group.name)) == before + 1
    late = f"{group.name}-late"
    group.make(late, 2)
    group.until(
        lambda: any(f"{late}-1" in e["partitions"] for e in group.events("assigned")),
        "the new topic to be assigned",
    )
    assert max(generations(broker.broker, group.name)) == before + 2
    assert set(group.times_called().values()) == {1}
    assert group.end() == {"w1": 0}
