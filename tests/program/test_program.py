"""Programs that Fleet did not write hold slots: what each change costs on a real broker."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

import pytest

from benchmarks.client_programs import confluent, go, java
from fleet.model import StepKind
from fleet.slots import ChangeState, Phase, Slot
from fleet.system.processes import carrying, pids

pytestmark = pytest.mark.broker
STUBBORN = """
import runpy, signal, sys
really = signal.signal
signal.signal = lambda number, _: really(number, signal.SIG_IGN)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
QUICK = {"heartbeat_interval": "500ms"}


def slot_of(shop: Any, number: int = 0) -> Slot:
    """A slot as stored."""
    with shop.fleet() as fleet:
        return next(s for s in fleet.slots(shop.group) if s.number == number)


def pid_of(shop: Any, worker: str | None) -> int:
    """The pid of a worker's process."""
    with shop.fleet() as fleet:
        return next(w.pid for w in fleet.workers(shop.group) if w.name == worker)


def await_new_owner(shop: Any, before: Slot) -> None:
    """Until the slot has another owner, which works."""

    def taken() -> bool:
        now = slot_of(shop, before.number)
        return now.token > before.token and now.phase is Phase.ACTIVE

    shop.until(taken, f"slot {before.number} to have a new owner")


@pytest.mark.parametrize(
    ("program", "more", "worker"),
    [
        pytest.param(confluent, ("heartbeat.interval.ms=500",), QUICK, id="confluent-kafka"),
        pytest.param(java, (), {}, id="java", marks=pytest.mark.long),
        pytest.param(go, (), {}, id="franz-go", marks=pytest.mark.long),
    ],
)
def test_a_program_is_scaled_rolled_and_killed(program, more, worker, shop, count):
    """Opened, a kill and a roll at 0, three more at most 2, three fewer 1: as planned."""
    shop.run_program(*more, program=program, **worker)
    with shop.stream(rate=100):
        assert count.apply()[StepKind.OPEN][0] <= 2
        before, recorded = slot_of(shop), count.recorded()
        os.kill(pid_of(shop, before.owner), signal.SIGKILL)
        await_new_owner(shop, before)
        assert count.recorded() == recorded
        shop.run_program(*more, program=program, **worker, max_poll_interval="299s")
        assert count.apply() == {StepKind.ROLL: [0]}
        assert count.apply(5)[StepKind.OPEN][0] <= 2
        assert count.apply(2) == {StepKind.LEAVE: [1]}
    if program is confluent:
        assert shop.lost_and_duplicates()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("program", [confluent, java])
def test_a_program_of_the_new_protocol(program, shop, count):
    """KIP-848: a roll costs 0, since the next program joins once the one before has left with -2;
    after a kill its member is removed, which is one assignment of its own.
    """
    option = "group.protocol=consumer"
    more = (option,) if program is confluent else ("--command-property", option)
    shop.run_program(*more, program=program, protocol="consumer")
    with shop.stream(rate=100):
        count.apply()
        recorded = count.recorded()
        shop.run_program(*more, program=program, protocol="consumer", max_poll_interval="299s")
        shop.apply()
        assert count.recorded() == recorded
        before = slot_of(shop)
        for each in carrying("GROUP_INSTANCE_ID", before.instance_id()):
            os.kill(each.pid, signal.SIGKILL)
        await_new_owner(shop, before)


@pytest.mark.long
def test_a_worker_that_stands_still_does_not_own_on(shop, count):
    """SIGSTOP past the lease: its program is dead before a standby takes the slot, at 0."""
    shop.run_program(**QUICK)
    with shop.stream(rate=100):
        count.apply()
        before, recorded = slot_of(shop), count.recorded()
        owner = pid_of(shop, before.owner)
        os.kill(owner, signal.SIGSTOP)
        try:
            shop.until(
                lambda: {p.pid for p in carrying("FLEET_WORKER", before.owner)} == {owner},
                "its program to end",
            )
            assert slot_of(shop).token == before.token
            await_new_owner(shop, before)
        finally:
            os.kill(owner, signal.SIGCONT)
        assert count.recorded() == recorded


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "-c", "exit 3"], "exit code 3"),
        (["sleep", "1000"], "has not joined the group"),
    ],
)
def test_a_program_that_does_not_work_is_rolled_back(command, said, shop, count):
    """One that exits at once, and one that never joins: its canary's slot goes back."""
    shop.run_program(**QUICK)
    with shop.stream(rate=100):
        count.apply()
        old, recorded = slot_of(shop).revision, count.recorded()
        shop.declare(worker={"command": command})
        with shop.fleet() as fleet:
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
        assert change.state is ChangeState.ROLLED_BACK
        assert said in change.sentence
        assert {slot_of(shop, n).revision for n in (0, 1)} == {old}
        assert count.recorded() == recorded


@pytest.mark.long
def test_a_program_that_ignores_sigterm(shop, count):
    """It is killed after drain_timeout; a roll waits for it and still costs 0."""
    argv = confluent(shop.bootstrap, shop.group, shop.topic)
    argv[0:2] = [argv[0], "-c", STUBBORN, argv[1]]
    shop.run_program(program=lambda *_: argv, **QUICK)
    shop.declare(rollout={"canary_batches": 1, "bake": "2s", "drain_timeout": "2s"})
    with shop.stream(rate=100):
        count.apply()
        shop.run_program(**QUICK)
        assert count.apply() == {StepKind.ROLL: [0]}
    assert shop.lost_and_duplicates()[0] == 0


@pytest.mark.long
def test_a_warm_program(shop, count):
    """It runs before it has a slot, subscribes when its file is there, and is rolled at 0."""
    shop.run_program("heartbeat.interval.ms=500", warm=True, **QUICK)
    with shop.stream(rate=100):
        count.apply()
        shop.run_program("heartbeat.interval.ms=500", warm=True, **QUICK, max_poll_interval="299s")
        assert count.apply() == {StepKind.ROLL: [0]}
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("part", ["worker", "guard", "program", "worker and guard"])
def test_each_process_is_killed(part, shop, count):
    """Nothing of its program is left, and the slot has another owner, at 0 rebalances."""
    shop.run_program(**QUICK)
    with shop.stream(rate=100):
        count.apply()
        before, recorded = slot_of(shop), count.recorded()
        found = carrying("GROUP_INSTANCE_ID", before.instance_id())
        worker = pid_of(shop, before.owner)
        guards = {each.pid for each in carrying("FLEET_WORKER", before.owner or "")}
        guards -= {worker} | {each.pid for each in found if os.getpgid(each.pid) != each.pid}
        programs = {each.pid for each in found} - guards
        assert (len(guards), len(programs)) == (1, 1)
        for pid in {"worker": [worker], "guard": guards, "program": programs}.get(
            part, [worker, *guards]
        ):
            os.kill(pid, signal.SIGKILL)
        await_new_owner(shop, before)
        assert not {each.pid for each in found} & set(pids())
        assert count.recorded() == recorded
    assert shop.lost_and_duplicates()[0] == 0


@pytest.mark.long
def test_a_silent_store_ends_no_program(shop, count):
    """Three leases without a write: the same program reads on, and nobody takes its slot [12]."""
    shop.run_program(**QUICK)
    with shop.stream(rate=100):
        count.apply()
        before, recorded = slot_of(shop), count.recorded()
        found = carrying("GROUP_INSTANCE_ID", before.instance_id())
        with closing(sqlite3.connect(shop.home / "fleet.db", timeout=30)) as database:
            database.execute("BEGIN IMMEDIATE")
            time.sleep(15)
            database.rollback()
        time.sleep(6)
        assert carrying("GROUP_INSTANCE_ID", before.instance_id()) == found
        assert (slot_of(shop).token, count.recorded()) == (before.token, recorded)
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.long
def test_fleet_exec_by_hand(shop, count):
    """It waits as a standby, takes a slot that is freed, and frees it on SIGTERM."""
    shop.run_program(**QUICK)
    argv = confluent(shop.bootstrap, shop.group, shop.topic)
    with shop.stream(rate=100):
        count.apply(1)
        before, recorded = slot_of(shop), count.recorded()
        exec_ = subprocess.Popen(
            [
                *(sys.executable, "-m", "fleet", "exec", "-c", str(shop.config)),
                *("--group", shop.group, "--name", "by-hand", "--", *argv),
            ],
            env={**os.environ, "FLEET_HOME": str(shop.home), "FLEET_JOURNAL": str(shop.journal)},
        )
        try:
            with shop.fleet() as fleet:
                fleet.runtime.remove([w.name for w in fleet.workers(shop.group)], grace=20.0)
            shop.until(lambda: slot_of(shop).owner == "by-hand", "it to own the slot")
            await_new_owner(shop, before)
            exec_.send_signal(signal.SIGTERM)
            assert exec_.wait(60) == 0
        finally:
            exec_.kill()
            exec_.wait()
        assert slot_of(shop).owner is None
        assert not carrying("GROUP_INSTANCE_ID", before.instance_id())
        assert count.recorded() == recorded
