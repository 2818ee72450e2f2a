"""Another process with one of our instance ids, a real consumer of somebody else's [15].

Two processes of one instance id fence each other for ever without a single generation: nothing
but 82 tells of it. Once may be the client library fencing itself, so it is cured once.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, KafkaException

from fleet.commands.groups.group_status import Managed
from fleet.slots import Phase
from fleet.worker.member.protocols import fatal_of
from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@dataclass
class Foreigner:
    """Joins with the instance id, and again whenever it is fenced, at most `times` times."""

    options: dict[str, object]
    topic: str
    times: int
    joined: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def live(self) -> None:
        """Until stopped or out of times."""
        for _ in range(self.times):
            consumer = Consumer(self.options)
            try:
                consumer.subscribe([self.topic], on_assign=self._on_assign)
                while not self.stop.is_set():
                    message = consumer.poll(0.1)
                    error = message.error() if message is not None else None
                    if error is not None and fatal_of(error) is not None:
                        break
            except KafkaException:
                pass
            finally:
                consumer.close()
            if self.stop.is_set():
                return

    def _on_assign(self, consumer: Consumer, partitions: object) -> None:
        self.joined += 1


@contextmanager
def foreigner(broker: RunningBroker, group: Group, *, times: int) -> Iterator[Foreigner]:
    """Beside our worker of slot 0."""
    made = Foreigner(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group.name,
            "group.instance.id": f"{group.name}-0",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 30000,
            "enable.auto.commit": False,
            "error_cb": lambda _: None,
        },
        group.topic,
        times,
    )
    thread = threading.Thread(target=made.live)
    thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        thread.join(20)


def test_once_is_cured_and_twice_shuts_the_slot(group: Group, broker: RunningBroker):
    """One 82: the same slot is joined again, nothing lost; a second one: shut, with a sentence."""
    group.standbys("w1")
    group.open(0)
    group.produce(40)
    group.drained()
    before = max(generations(broker.broker, group.name))
    with foreigner(broker, group, times=1) as other:
        log = group.folder / "w1.log"
        cure = "fenced (82) while this worker owns slot 0"
        group.until(lambda: cure in log.read_text(), "the cure")
        group.until(lambda: group.slot(0).phase is Phase.ACTIVE, "to be a member again")
        group.produce(40)
        group.drained()
    assert other.joined == 1
    assert group.slot(0).owner == "w1"
    assert not group.store.targets(group.name).quarantined
    assert max(generations(broker.broker, group.name)) == before, "invisible in generations"
    assert set(group.times_called().values()) == {1}
    began = time.monotonic()
    with foreigner(broker, group, times=5):
        group.until(lambda: group.processes["w1"].poll() is not None, "the second 82")
    print(f"shut after {time.monotonic() - began:.1f} s")
    assert group.processes["w1"].returncode == 1
    assert group.store.targets(group.name).quarantined == {0}
    (end,) = group.events("exit")
    assert f"another process uses the instance id {group.name}-0 (82 twice" in end["reason"]
    assert "another process uses the instance id" in (group.slot(0).error or "")
    assert group.slot(0).owner is None
    group.standbys("w2")
    time.sleep(2)
    assert group.slot(0).owner is None, "nobody takes a shut slot"
    assert shown(group) == ["external owner"]


def shown(group: Group) -> list[str]:
    """What `fleet status` prints of it."""
    import io

    from rich.console import Console

    from fleet.commands.groups.group_status import GroupStatus
    from fleet.commands.groups.reading import print_status
    from tests.support.snapshots import snapshot_of

    out = io.StringIO()
    status = GroupStatus(
        group=group.name,
        seen=None,
        managed=Managed(
            mode="act",
            owner="",
            has_worker=True,
            targets=group.store.targets(group.name),
            slots=group.store.slots(group.name),
            workers=(),
            reports=group.store.reports(group.name),
            change=None,
        ),
        pauses=(),
    )
    print_status(Console(file=out, width=300), snapshot_of(), [status], now=0.0, detail=False)
    lines = [line for line in out.getvalue().splitlines() if "another process" in line]
    assert f"fleet slot reopen {group.name} 0" in lines[0]
    return [line.partition(":")[0] for line in lines]
