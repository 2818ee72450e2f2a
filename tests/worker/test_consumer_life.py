"""Workers of a KIP-848 group on a real broker and Spark: death, handover, leave, a foreign holder.

Assignments are counted by Kafka's own tool in `__consumer_offsets` (type 6).
"""

import signal
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from confluent_kafka import Consumer

from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import OffsetCommit
from fleet.log.replay.counting import count
from fleet.slots import Phase
from fleet.worker.member.protocols import ConsumerGroup
from tests.conftest import RunningBroker
from tests.support.kafka_tools import assignment_epochs, group_epochs
from tests.worker.conftest import LEASE, SESSION, Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def start(group: Group, *names: str, revision: str = "r1") -> None:
    """Workers that take 0.3 s for a batch, so that a kill may find one in hand."""
    env = {"SECONDS_EACH": "0.3"}
    group.standbys(*names, revision=revision, env=env, protocol="consumer")


def partitions_of(group: Group, worker: str) -> set[str]:
    """What this worker has: assignments come as increments, an empty one too."""
    has: set[str] = set()
    told = [e for kind in ("assigned", "revoked", "lost") for e in group.events(kind)]
    for event in sorted((e for e in told if e["worker"] == worker), key=lambda e: e["at"]):
        if event["event"] == "assigned":
            has |= set(event["partitions"])
        else:
            has -= set(event["partitions"])
    return has


def _assigned_up_to_date(group: Group, node: Broker) -> bool:
    return assignment_epochs(node, group.name)[-1] == group_epochs(node, group.name)[-1]


def test_death_handover_and_leave(group: Group, broker: RunningBroker):
    """Kill -9: at most 2 assignments, within lease + 2 s; a roll: 0; two leave: 1 [17, 21]."""
    start(group, "w1", "w2", "w3")
    group.open(0, 1)
    group.produce(200)
    group.drained()
    group.until(lambda: len(partitions_of(group, group.slot(1).holder)) == 2, "an even share")

    before = assignment_epochs(broker.broker, group.name)
    victim = group.slot(0).holder
    theirs = partitions_of(group, victim)
    assert len(theirs) == 2, "two members share four partitions"
    group.produce(80)
    group.until(lambda: len(group.journal()) > 0, "batches")
    group.processes[victim].kill()
    killed = time.monotonic()
    mark = len(group.events("committed"))
    group.produce(80)
    group.until(
        lambda: theirs <= {tp for e in group.events("committed")[mark:] for tp in e["offsets"]},
        "the dead one's partitions to be processed",
    )
    took = time.monotonic() - killed
    print(f"processed again {took:.2f} s after the kill (lease {LEASE:g} s)")
    assert took < SESSION, "by its lease, not by the end of its session"
    group.drained()
    # The joiner's assignment follows the leaver's after the group's interval (1 s, KIP-1263).
    group.until(lambda: _assigned_up_to_date(group, broker.broker), "the last epoch's assignment")
    after = assignment_epochs(broker.broker, group.name)
    print(f"a death cost {len(after) - len(before)} assignment(s)")
    assert 0 <= len(after) - len(before) <= 2
    assert max(group.times_called().values()) <= 2

    start(group, "n1", revision="r2")
    epochs = group_epochs(broker.broker, group.name)
    group.hand_over(0, "r2")
    group.produce(80)
    group.drained()
    assert assignment_epochs(broker.broker, group.name) == after
    assert group_epochs(broker.broker, group.name) == epochs

    group.change_gate(lambda gate: replace(gate, leaving=frozenset({1}), plan_id="p"))
    group.until(lambda: not group.store.gate(group.name).leaving, "the leave to be completed")
    group.produce(80)
    group.drained()
    assert len(assignment_epochs(broker.broker, group.name)) == len(after) + 1
    assert sum(n - 1 for n in group.times_called().values()) <= 80, "the batch in hand, no more"
    with GroupLog({"bootstrap.servers": group.bootstrap}, clock=SystemClock()) as log:
        counted = count(log.read(group.name, 0))
    assert counted.rebalances == len(after) + 1, "our count of all this is Kafka's"


@pytest.mark.long
def test_a_member_without_partitions_is_ready_once_it_has_waited(group: Group):
    """KIP-848 tells nobody that they get nothing: the second member of one partition waits 15 s."""
    narrow = f"{group.name}-narrow"
    group.make(narrow, 1)
    group.standbys("w1", "w2", protocol="consumer", topics=[narrow])
    group.open(0, 1)
    (owner,) = {w for w in ("w1", "w2") if partitions_of(group, w)}
    idle = ({"w1", "w2"} - {owner}).pop()
    active = {e["worker"]: e["at"] for e in group.events("phase") if e["phase"] == "active"}
    joined = {r.worker: r.joined_at for r in group.store.reports(group.name)}
    took = {w: active[w] - joined[w] for w in (owner, idle)}
    print({w: f"ready {seconds:.1f} s after its join" for w, seconds in took.items()})
    assert took[owner] < ConsumerGroup.idle_after <= took[idle] < 2 * ConsumerGroup.idle_after
    assert not group.events("exit")


def test_a_stopped_holder_is_out(group: Group):
    """SIGSTOP beyond the lease, SIGCONT: no offset goes back, the stopped one ends [2, 16]."""
    start(group, "w1")
    group.open(0)
    start(group, "w2")
    group.produce(80)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    group.processes["w1"].send_signal(signal.SIGSTOP)
    group.until(lambda: group.slot(0).holder == "w2", "the standby to take the slot")
    group.produce(200)
    group.drained()
    group.processes["w1"].send_signal(signal.SIGCONT)
    assert group.processes["w1"].wait(300) == 1
    group.produce(40)
    group.drained()
    offsets = committed_in_order(group)
    assert all(a <= b for of in offsets.values() for a, b in pairwise(of)), offsets


def committed_in_order(group: Group) -> dict[str, list[int]]:
    """Partition → every offset that was committed for it, by the coordinator's own records."""
    found: dict[str, list[int]] = {}
    with GroupLog({"bootstrap.servers": group.bootstrap}, clock=SystemClock()) as log:
        for record in log.read(group.name, 0):
            if isinstance(record, OffsetCommit):
                found.setdefault(str(record.tp), []).append(record.committed)
    return found


def test_a_foreign_holder_is_not_evicted(group: Group):
    """Somebody else's live process has our id: the slot is closed, the worker ends and says so."""
    theirs = Consumer(
        {
            "bootstrap.servers": group.bootstrap,
            "group.id": group.name,
            "group.instance.id": f"{group.name}-0",
            "group.protocol": "consumer",
            "client.id": "somebody-else",
            "enable.auto.commit": False,
        }
    )
    try:
        theirs.subscribe([group.topic])
        end = time.monotonic() + 120
        while not theirs.assignment() and time.monotonic() < end:
            theirs.poll(0.1)
        start(group, "w1")
        group.change_gate(lambda gate: replace(gate, open=frozenset({0})))
        group.until(lambda: 0 in group.store.gate(group.name).quarantined, "the slot to be closed")
        assert group.processes["w1"].wait(300) == 1
        assert "somebody-else" in group.logs()
        for _ in range(70):  # longer than a heartbeat: it was left alone
            theirs.poll(0.1)
        assert len(theirs.assignment()) == group.partitions
        assert group.slot(0).phase is not Phase.ACTIVE
    finally:
        theirs.close()
