"""`start_from: latest` on a real broker: a clean handover of an idle topic skips nothing [42].

Counted from the values of the rows that the job got.
"""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaException

from fleet.slots import Phase
from fleet.worker.offsets.commit_metadata import decode_cluster, decode_parts
from tests.worker.conftest import Group
from tests.worker.test_consumer_life import committed_in_order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

JOB = """
import json, os

def process(df, context):
    if not context.warm:
        values = [bytes(row.value).decode() for row in df.select("value").collect()]
        with open(os.environ["JOURNAL"], "a") as journal:
            journal.write(json.dumps({"values": values}) + "\\n")
"""


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param({"assignor": "range"}, id="range"),
        pytest.param({"assignor": "cooperative-sticky"}, id="cooperative", marks=pytest.mark.long),
        pytest.param({"protocol": "consumer"}, id="consumer"),
    ],
)
def test_a_clean_handover_of_an_idle_topic_skips_nothing(group: Group, worker: dict[str, Any]):
    """What was there before the group began is not read; all that came since is, once."""
    (group.folder / "worker_job.py").write_text(JOB)
    group.produce(40, b"old")
    for name, revision in (("w1", "r1"), ("w2", "r2")):
        group.start(name, revision=revision, start_from="latest", **worker)
    group.warm("w1", "w2")
    group.open(0, phase=Phase.ACTIVE)
    assert not group.journal()
    other = {"w1": "r2", "w2": "r1"}[group.slot(0).holder or ""]  # whichever was quicker
    began = {tp[-1]: of for tp, of in committed_in_order(group).items()}
    texts = metadata(group)

    stop = threading.Event()
    sent: list[str] = []

    def stream() -> None:
        while not stop.is_set():
            sent.append(f"new-{len(sent)}")
            group.produce(1, sent[-1].encode(), partition=len(sent) % group.partitions)
            time.sleep(0.005)

    streaming = threading.Thread(target=stream)
    handing = threading.Thread(target=group.hand_over, args=(0, other))
    handing.start()
    group.until(lambda: bool(group.events("closed")), "the holder to close")
    streaming.start()
    handing.join()
    stop.set()
    streaming.join(10)
    group.drained()
    values = [value for line in group.journal() for value in line["values"]]
    assert sorted(values) == sorted(sent)
    assert began == {str(number): [10] for number in range(group.partitions)}
    cluster = group.admin.list_topics(group.topic, timeout=10).cluster_id
    told = {(decode_cluster(text), decode_parts(text)) for text in texts}
    assert told == {(cluster, group.partitions)}


def test_what_came_while_kafka_had_deleted_the_commits_is_read(group: Group):
    """As after `offsets.retention.minutes` without members: log and report say where it goes on."""
    how = {"start_from": "latest", "membership": "dynamic"}
    group.standbys("w1", **how)
    group.open(0)
    group.produce(40)
    group.drained()
    assert group.end() == {"w1": 0}
    assert group.store.committed(group.name) == {group.topic}, "the store keeps it for longer"

    def deleted() -> bool:
        try:
            group.admin.delete_consumer_groups([group.name])[group.name].result(60)
        except KafkaException:  # it is left only just now
            return False
        return True

    group.until(deleted, "the group to be deleted")
    group.produce(40)
    group.start("w2", **how)
    group.drained()
    assert set(group.times_called().values()) == {1}
    expired = {e["partition"]: (e["position"], e["end"]) for e in group.events("expired")}
    assert expired == {f"{group.topic}-{n}": (10, 20) for n in range(group.partitions)}
    (told,) = (r.gap for r in group.store.reports(group.name) if r.worker == "w2")
    assert told is not None
    assert "it goes on at 10, the last that it committed, and not at the end 20" in told
    assert told.endswith(f"and {group.partitions - 1} more of its partitions alike")


def metadata(group: Group) -> list[str | None]:
    """Of what the group has committed now."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = group.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.name)])
    found = asked[group.name].result(120).topic_partitions
    return [each.metadata for each in found]
