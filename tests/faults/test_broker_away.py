"""A cluster goes away and comes back with its data: shorter and longer than the session [32]."""

import time

import pytest

from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.log.readers.group_log import GroupLog
from fleet.model import GroupState
from fleet.observe.admin import Observer
from fleet.slots import Phase
from tests.support.brokers import running_broker
from tests.support.kafka_tools import dump_group_records, generations
from tests.support.waiting import until
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SESSION = 9.0


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory):
    """A broker that may be killed."""
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made.broker


@pytest.fixture
def away(spark_home, own_broker, unique, tmp_path):
    """A group on it."""
    made = Group(spark_home, own_broker.status().bootstrap_servers, f"away-{unique}", tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.long
def test_an_observer_of_before_sees_groups_after(own_broker: Broker, unique: str):
    """It was idle meanwhile: at most one of its looks after the return is in vain."""
    config = {"bootstrap.servers": own_broker.status().bootstrap_servers}
    observer = Observer(cluster="test", config=config, clock=SystemClock(), timeout=5.0)
    assert observer.snapshot([unique]).groups[unique].exists is False
    # The first question makes the topic of offsets.
    until(lambda: observer.state(unique) is GroupState.DEAD, "the group to be described")
    log = GroupLog(config, clock=SystemClock(), timeout=2.0)
    until(lambda: log.partition_of(unique) is not None, "the topic of offsets")
    position = log.position(unique)
    own_broker.kill()
    for _ in range(3):
        with pytest.raises(Unreachable):
            log.position(unique)
    time.sleep(6)
    own_broker.start(wait=300)
    assert log.position(unique) >= position
    log.close()
    until(lambda: observer.state(unique) is GroupState.DEAD, "the group to be described", still=20)


@pytest.mark.long
@pytest.mark.parametrize(
    "down", [pytest.param(2.0, id="shorter"), pytest.param(SESSION + 4, id="longer")]
)
def test_the_group_goes_on(away: Group, own_broker: Broker, down: float):
    """Nothing lost, the batch in hand at most twice, and no rebalance: the broker was down, too."""
    group = away
    for name in ("w1", "w2"):
        group.start(
            name,
            env={"SECONDS_EACH": "0.3"},
            session_timeout=f"{SESSION:g}s",
            heartbeat_interval="2s",
            max_poll_interval="30s",
            batch={"max_wait": "300ms", "inline": 50},
        )
    group.warm("w1", "w2")
    group.open(0, 1)
    group.produce(80)
    group.drained()
    before = max(generations(own_broker, group.name))
    group.produce(400)
    group.until(lambda: len(group.events("batch")) > 3, "batches to be in hand")
    own_broker.kill()
    killed = time.monotonic()
    time.sleep(down)
    own_broker.start(wait=300)
    print(f"away for {time.monotonic() - killed:.1f} s")
    group.produce(80)
    back = time.monotonic()
    group.drained()
    print(f"all committed {time.monotonic() - back:.1f} s after the return")
    group.until(
        lambda: all(group.slot(n).phase is Phase.ACTIVE for n in (0, 1)), "both slots active"
    )
    called = group.times_called()
    due = {(p, at) for p, n in group.produced.items() for at in range(n)}
    assert set(called) == due, "nothing lost"
    biggest = max(
        sum(end - start for _, _, start, end, _ in line["ranges"]) for line in group.journal()
    )
    twice = sum(count - 1 for count in called.values())
    print(f"twice: {twice}, biggest batch {biggest}")
    assert twice <= 2 * biggest, "at most each worker's batch in hand"
    assert max(generations(own_broker, group.name)) == before
    by_partition: dict[int, list[int]] = {}
    for record in dump_group_records(own_broker, group.name):
        if record.type in {0, 1} and record.value is not None:
            by_partition.setdefault(record.key["partition"], []).append(record.value["offset"])
    assert all(each == sorted(each) for each in by_partition.values()), "no commit went back"
    assert all(process.poll() is None for process in group.processes.values()), "nobody ended"
