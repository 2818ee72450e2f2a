"""The faults of the matrix: what is done, and how many rebalances may come of it.

Expected costs are at most what the coordinator's rules say of plain members
(docs/contributing/protocol.md 2.2 to 2.5), and less where a standby takes a static member's slot,
which is what Fleet promises (docs/concepts/cost.md).
"""

import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from fleet.clock import SystemClock
from fleet.errors import FleetError, Refused
from fleet.model import GroupState
from fleet.observe.admin import Observer
from fleet.slots import ChangeState, Phase
from tests.faults.cut_off import cut_off
from tests.faults.matrix import DRAIN, LEASE, POLL_INTERVAL, SESSION, SLOTS, Fault, Ground, Target
from tests.support import waiting
from tests.support.manager_process import await_said, end, spawn_manager, watch_and_kill
from tests.support.workshop import kill

OFFSETS = "__consumer_offsets"
LONGEST_SESSION = 60.0
"""group.max.session.timeout.ms"""


# --- what one worker meets ---------------------------------------------------------------------


def killed(target: Target) -> None:
    """An owner dies by kill -9."""
    victim = target.victim()
    kill(victim.pid)
    target.until(lambda: victim not in target.owners(), "its death to be seen")


def stopped(seconds: float) -> Callable[[Target], None]:
    """SIGSTOP of an owner, SIGCONT so much later."""

    def act(target: Target) -> None:
        pid = target.victim().pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return act


def slow_batch(target: Target) -> None:
    """One batch takes longer than max.poll.interval.ms."""
    worker = _slowed(target)
    target.until(lambda: not _waits(target, worker), "a batch of it to begin")
    time.sleep(1.2 * POLL_INTERVAL)


def slow_revoke(target: Target) -> None:
    """A member joins, and later leaves, while another's batch takes longer than a drain may."""
    worker = _slowed(target)
    target.until(lambda: not _waits(target, worker), "a batch of it to begin")
    _apply(target, SLOTS + 1)
    one_less(target)


def _slowed(target: Target) -> str:
    worker = target.victim().worker
    (target.place / f"slow-{worker}").write_text(f"{1.2 * POLL_INTERVAL:g}")
    return worker


def _waits(target: Target, worker: str) -> bool:
    return (target.place / f"slow-{worker}").exists()


def ended_while_it_joins(target: Target) -> None:
    """SIGTERM to the worker that takes a third slot, before its slot is active."""
    with _attempted(target, SLOTS + 1):
        worker = target.until(lambda: _joining(target), "somebody to join")
        with target.fleet() as fleet:
            pids = {w.name: w.pid for w in fleet.workers(target.group) if w.running}
        if worker in pids:
            os.kill(pids[worker], signal.SIGTERM)
    one_less(target)


def _joining(target: Target) -> str | None:
    found = [s for s in target.slots() if s.number >= SLOTS and s.phase is Phase.JOINING]
    return found[0].owner if found else None


def no_way_to_the_brokers(target: Target) -> None:
    """An owner's packets to and from the brokers vanish for longer than its session."""
    with cut_off(target.victim().pid, _ports(target)):
        time.sleep(1.25 * SESSION)


def no_answers(target: Target) -> None:
    """What it sends arrives, no answer does."""
    with cut_off(target.victim().pid, _ports(target), answers_only=True):
        time.sleep(1.25 * SESSION)


def _ports(target: Target) -> list[int]:
    return [int(n.host_port.rpartition(":")[2]) for n in target.brokers.status().nodes]


def sink_full(target: Target) -> None:
    """No byte more can be written where the entrypoint writes to."""
    filler = target.place / "sink" / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        time.sleep(12)
    finally:
        filler.unlink()


# --- other people's members ----------------------------------------------------------------------


def twin(target: Target) -> None:
    """Another process joins with an owner's instance id, and goes."""
    options: dict[str, Any] = {"group.instance.id": f"{target.group}-{target.victim().slot}"}
    if not target.is_consumer:
        options["session.timeout.ms"] = int(SESSION * 1000)
        options["partition.assignment.strategy"] = _assignor(target)
    _stranger(target, options)


def strange_assignor(target: Target) -> None:
    """Somebody wants to join with an assignor that the group does not have."""
    if target.is_consumer:
        _stranger(target, {"group.remote.assignor": "nosuch"})
    else:
        _stranger(target, {"partition.assignment.strategy": "roundrobin"})


def _assignor(target: Target) -> str:
    return "cooperative-sticky" if target.way.startswith("cooperative") else "range"


def _stranger(target: Target, options: dict[str, Any]) -> None:
    """A plain consumer that reads nothing on, for eight seconds."""
    protocol = {"group.protocol": "consumer"} if target.is_consumer else {}
    common = {"group.id": target.group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**target.client(), **common, **protocol, **options})
    try:
        consumer.subscribe([target.topic])
        since = time.monotonic()
        while time.monotonic() - since < 8:
            message = consumer.poll(0.2)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                break
    finally:
        consumer.close()


# --- what brokers do ----------------------------------------------------------------------------


def coordinator_killed(ground: Ground) -> None:
    """The broker that coordinates all groups dies by kill -9; it is back 3 s later."""
    ground.brokers.kill(coordinator(ground))
    time.sleep(3)
    ground.brokers.start(wait=300)


def coordinator_moved(ground: Ground) -> None:
    """Another broker becomes the leader of the groups' partition; nobody fails."""
    admin = _admin(ground)
    before = coordinator(ground)

    def moved() -> bool:
        asked = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(OFFSETS, 0)])
        asked.result(60)
        return coordinator(ground) != before

    waiting.until(moved, "the groups' partition to be led by its preferred broker", every=1.0)


def brokers_away(seconds: float) -> Callable[[Ground], None]:
    """All brokers are killed, and started again so much later."""

    def act(ground: Ground) -> None:
        since = time.monotonic()
        ground.brokers.kill()
        time.sleep(seconds)
        ground.brokers.start(wait=300)
        print(f"the brokers were away for {time.monotonic() - since:.1f} s", flush=True)

    return act


def coordinator_killed_in_a_round(ground: Ground) -> None:
    """A third worker joins each group; the coordinator dies in the midst of it."""
    names = {way: target.group for way, target in ground.targets.items()}
    servers = {"bootstrap.servers": ground.brokers.status().bootstrap_servers}
    observer = Observer(cluster="test", config=servers, clock=SystemClock(), timeout=5.0)
    rounds = {GroupState.PREPARING, GroupState.COMPLETING, GroupState.REBALANCING}
    with contextlib.ExitStack() as stack:
        for target in ground.targets.values():
            stack.enter_context(_attempted(target, SLOTS + 1))

        def found() -> dict[str, GroupState]:
            states = {way: observer.state(name) for way, name in names.items()}
            return {way: state for way, state in states.items() if state in rounds}

        seen = waiting.until(found, "a group to be in a round", every=0.0)
        print(f"killed while {seen}", flush=True)
        coordinator_killed(ground)


def coordinator(ground: Ground) -> int:
    """The broker that leads the one partition of all groups."""

    def led() -> int | None:
        running = {node.id for node in ground.brokers.status().nodes if node.pid is not None}
        topic = _admin(ground).list_topics(OFFSETS, timeout=60).topics[OFFSETS]
        leader = topic.partitions[0].leader if topic.partitions else -1
        return leader if leader in running else None

    found = waiting.until(led, f"a leader of {OFFSETS}-0", every=0.5)
    assert found is not None
    return found


def _admin(ground: Ground) -> AdminClient:
    servers = ground.brokers.status().bootstrap_servers
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def clock_set(seconds: float) -> Callable[[Ground], None]:
    """The wall clock of brokers, supervisor, Spark and workers is so much ahead of ours."""

    def act(ground: Ground) -> None:
        with ground.clock.open("r+b", buffering=0) as file:  # they have mapped it
            file.write(struct.pack("<q", int(seconds * 1e9)))
        time.sleep(4 * LEASE)

    return act


# --- topics, plans, managers ----------------------------------------------------------------------


def partitions_added(target: Target) -> None:
    """Two more partitions while a roll is under way."""
    target.new_code()
    manager = spawn_manager(target, SLOTS)
    try:
        await_said(target, lambda output: "canary" in output, "the roll to begin")
        admin = AdminClient(target.client())
        wanted = target.partitions + 2
        admin.create_partitions([NewPartitions(target.topic, wanted)])[target.topic].result(120)
        target.partitions = wanted
        manager.join(300)
    finally:
        end(target, manager)
    target.apply(SLOTS)


def manager_killed(target: Target) -> None:
    """The manager of a roll dies by kill -9; the next one goes on."""
    target.new_code()
    watch_and_kill(target, spawn_manager(target, SLOTS), lambda output: "canary" in output)
    target.apply(SLOTS)


def roll_aborted(target: Target) -> None:
    """The manager of a roll dies, and somebody gives its change up; it is rolled out later."""
    target.new_code()
    _abandon(target)
    # It stands where it stood: of a rolling batch of dynamic members the first has come, and none
    # left.
    target.until(target.owned, f"{target.group} to be at work where its roll was given up")
    _apply(target, SLOTS)


def bad_roll_aborted(target: Target) -> None:
    """The same of code that fails for every record; the former code is declared again."""
    good = target.code.read_text()
    target.write_code(good.replace("    write_journal(", '    raise ValueError("bad code")\n    ('))
    _abandon(target)
    target.write_code(good)
    _apply(target, SLOTS)


def _abandon(target: Target) -> None:
    """A manager is killed once a slot has been taken for the new code, and its change aborted."""
    before = {slot.revision for slot in target.slots()}
    manager = spawn_manager(target, SLOTS)
    try:
        waiting.until(
            lambda: bool({slot.revision for slot in target.slots() if slot.owner} - before),
            f"a slot of {target.group} with new code",
            every=0.05,
        )
    finally:
        end(target, manager)
    with target.fleet() as fleet:
        change = fleet.abort_change(target.group, actor="somebody")
    assert change.state is ChangeState.ABORTED


def session_out_of_bounds(target: Target) -> None:
    """A longer session than the brokers allow is declared: the plan is refused."""
    too_long = f"{1.5 * LONGEST_SESSION:g}s"
    target.declare(worker={"session_timeout": too_long, "max_poll_interval": "3m"})
    try:
        target.apply(SLOTS)
    except FleetError as error:
        target.say(f"{target.group}: refused: {error}")
    else:
        raise AssertionError("a session that no broker allows was rolled out")
    finally:
        terms = {"session_timeout": f"{SESSION:g}s", "max_poll_interval": f"{POLL_INTERVAL:g}s"}
        target.declare(worker=terms)
    one_less(target)


def topic_made_again(target: Target) -> None:
    """The topic is deleted, and recreated under its name."""
    target.await_drained()
    admin = AdminClient(target.client())
    admin.delete_topics([target.topic])[target.topic].result(120)
    target.until(lambda: target.topic not in admin.list_topics(timeout=20).topics, "it to be gone")
    time.sleep(2)
    target.since = time.time()
    target.create_topic(target.partitions)


# --- parts --------------------------------------------------------------------------------------


def _apply(target: Target, wanted: int) -> None:
    """Once it may be: nothing is changed while a slot is about to be active again."""

    def applied() -> bool:
        try:
            target.apply(wanted)
        except Refused as refusal:
            target.say(f"{target.group}: {refusal}")
            return False
        return True

    waiting.until(applied, f"{wanted} slots of {target.group}", every=1.0)


def one_less(target: Target) -> None:
    """As many as before."""
    _apply(target, SLOTS)


@contextlib.contextmanager
def _attempted(target: Target, wanted: int) -> Iterator[None]:
    """A change that something is done to meanwhile; it may fail, with a sentence."""

    def run() -> None:
        try:
            target.apply(wanted)
        except FleetError as error:
            target.say(f"{target.group}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


_NONE = (0, 0, 0)
_TAKEN = (0, 0, 2)
"""A static member is replaced; under KIP-848 the dead one has to leave before the next joins."""
_REPLACED = (2, 4, 2)
"""A dynamic member leaves, another joins: two changes, each of two rounds with KIP-429."""
_BACK = (4, 8, 4)
"""It leaves, another joins, and it joins anew and leaves."""
_TWO = (2, 4, 2)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="a worker is killed (-9)", alone=killed, killed=1,
            static=_TAKEN, dynamic=_REPLACED, source="2.3",
        ),
        Fault(
            name=f"stopped for longer than its session ({1.2 * SESSION:g} s)",
            alone=stopped(1.2 * SESSION), killed=1,
            static=_TAKEN, dynamic=_BACK, source="it may be back before it hears that it is out",
        ),
        Fault(
            name=f"stopped for less than its lease ({LEASE / 2:g} s)",
            alone=stopped(LEASE / 2), clean=True,
            static=_NONE, dynamic=_NONE, source="1.2",
        ),
        Fault(
            name="a batch longer than max.poll.interval.ms", alone=slow_batch, killed=1,
            static=_TAKEN, dynamic=_REPLACED, source="the worker ends by itself before [5]",
        ),
        Fault(
            name=f"a batch longer than a drain may be ({DRAIN:g} s), while a member joins",
            alone=slow_revoke, killed=1,
            static=(2, 4, 5), dynamic=(4, 8, 5), source="+1, -1, and the one that did not drain",
        ),
        Fault(
            name="SIGTERM to one that joins", alone=ended_while_it_joins,
            static=(3, 6, 5), dynamic=(4, 8, 5), source="+1, -1, and one more: 2.2",
        ),
        Fault(
            name="no way to the brokers for longer than its session",
            alone=no_way_to_the_brokers, killed=1,
            static=_TWO, dynamic=_TWO, source="leaves, and is back",
        ),
        Fault(
            name="no answers from the brokers for as long",
            alone=no_answers, killed=1,
            static=_TWO, dynamic=_TWO, source="leaves, and is back",
        ),
        Fault(
            name="a stranger with its instance id", alone=twin, killed=1,
            static=_TAKEN, dynamic=(None, None, None), source="2.3, 2.5",
        ),
        Fault(
            name="a stranger with another assignor", alone=strange_assignor, clean=True,
            static=_NONE, dynamic=_NONE, source="1.12: 23, 112",
        ),
        Fault(
            name="its sink's disk is full", alone=sink_full, clean=True,
            static=_NONE, dynamic=_NONE, source="nobody ends",
        ),
        Fault(
            name="the coordinator is killed (-9), and back", shared=coordinator_killed,
            static=_NONE, dynamic=_NONE, source="2.2",
        ),
        Fault(
            name="another broker becomes the coordinator", shared=coordinator_moved, clean=True,
            static=_NONE, dynamic=_NONE, source="2.2",
        ),
        Fault(
            name="all brokers killed, and back at once", shared=brokers_away(0), quiet=True,
            static=_NONE, dynamic=_NONE, source="2.2",
        ),
        Fault(
            name="all brokers away for longer than a session",
            shared=brokers_away(SESSION + 5), quiet=True,
            static=_NONE, dynamic=_TWO, source="1.2: R21",
        ),
        Fault(
            name="all brokers away for longer than max.poll.interval.ms",
            shared=brokers_away(POLL_INTERVAL + 5), quiet=True,
            static=_NONE, dynamic=(2, 4, 4), source="each leaves and is back, as plain ones do",
        ),
        Fault(
            name="the coordinator is killed in a rebalance",
            shared=coordinator_killed_in_a_round, alone=one_less,
            static=(3, 6, 5), dynamic=(3, 6, 5), source="+1, -1, and a round that begins again",
        ),
        # After leaders have changed: members need new consumers then.
        Fault(
            name="the topic is deleted and recreated", alone=topic_made_again, quiet=True,
            static=(4, 8, 4), dynamic=(8, 16, 8),
            source="2.4: two changes of the topic; a dynamic member leaves and joins again",
        ),
        Fault(
            name="the manager is killed in a roll", alone=manager_killed,
            static=_NONE, dynamic=(4, 6, 6), source="a rolling batch for each of two members",
        ),
        Fault(
            name="the manager is killed in a roll, which is aborted", alone=roll_aborted,
            static=_NONE, dynamic=(6, 9, 8),
            source="a rolling batch for each of two; what came first leaves, unless it is proven",
        ),
        Fault(
            name="the manager is killed in a roll of bad code, which is aborted",
            alone=bad_roll_aborted,
            static=_NONE, dynamic=_TWO, source="what has come for the canary leaves again",
        ),
        Fault(
            name="partitions are added in a roll", alone=partitions_added,
            static=_TWO, dynamic=(6, 10, 8), source="2.4: each member when it notices",
        ),
        Fault(
            name="a session that the brokers do not allow", alone=session_out_of_bounds,
            clean=True,
            static=(0, 0, None), dynamic=(0, 0, None), source="refused before anybody leaves",
        ),
        Fault(
            name="the machine's clock jumps an hour ahead", shared=clock_set(3600), clean=True,
            static=_NONE, dynamic=_NONE, source="timers are monotonic",
        ),
        Fault(
            name="the machine's clock is set back an hour", shared=clock_set(0), clean=True,
            static=_NONE, dynamic=_NONE, source="timers are monotonic",
        ),
    )
}  # fmt: skip
