"""`fleet roll|apply --select … --batch N`: many groups, N at once, until one is not as expected.

Faults: the command is killed by kill -9 in the middle; one group rebalances meanwhile; one is
paused; the cluster has a smaller budget of changes.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from functools import partial

import pytest
from confluent_kafka import Consumer

from fleet.manager.cycle import Fleet
from fleet.slots import ChangeState
from fleet.text import plural
from tests.acting.simulated_groups import SimulatedGroups
from tests.support import waiting
from tests.support.command import answer, said
from tests.support.needs import repository
from tests.support.sampling import LONG

GROUPS, BATCH, LEASE = (300, 25, 60.0) if LONG else (30, 10, 2.0)
"""Of the test with the kill."""


@pytest.fixture
def groups(broker, unique, tmp_path):
    """Makes so many."""

    def made(count: int, lease: float = 2.0) -> SimulatedGroups:
        names = [f"pay-{unique}-{number:03}" for number in range(count)]
        return SimulatedGroups(tmp_path, broker.bootstrap_servers, names, lease=lease)

    return made


def begun(shop: SimulatedGroups, *words: str) -> "subprocess.Popen[str]":
    """`fleet WORDS` in a process of its own."""
    environ = {"PYTHONPATH": str(repository()), "FLEET_HOME": str(shop.home)}
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", "-c", str(shop.config), *words],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    """What it said on both streams."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, out + err
    return out, err


def rolls(fleet: Fleet, name: str) -> list[ChangeState]:
    """How each roll of a group ended."""
    return [change.state for change in fleet.changes(name)]


def joining(shop: SimulatedGroups, fleet: Fleet, name: str) -> AbstractContextManager[None]:
    """A process with the instance id of the group's first slot joins once the group is rolled."""

    def join(over: threading.Event) -> None:
        while not rolls(fleet, name) and not over.is_set():
            time.sleep(0.05)
        client = {"bootstrap.servers": shop.bootstrap, "group.id": name}
        consumer = Consumer({**client, "group.instance.id": f"{name}-0"})
        consumer.subscribe([shop.topic])
        while not over.is_set():
            consumer.poll(0.1)
        consumer.close()

    return waiting.meanwhile(join)


def test_killed_in_the_middle_the_same_command_goes_on(groups):
    """Every group is rolled exactly once; those in change at the kill are finished first."""
    shop = groups(GROUPS, LEASE)
    command = ("roll", "--select", "team=pay", "--batch", str(BATCH), "--yes")
    second = shop.names[BATCH : 2 * BATCH]
    with shop.running() as fleet:
        first = begun(shop, *command)

        waiting.until(
            lambda: any(map(partial(rolls, fleet), second)) or first.poll() is not None,
            "the second batch to begin",
        )
        first.kill()  # if it has ended by itself, its words are in the assertion
        print(*ended(first, -signal.SIGKILL))
        left = [n for n in shop.names if rolls(fleet, n) == [ChangeState.RUNNING]]
        assert left, "it was killed in a batch"
        rest = [n for n in shop.names if not rolls(fleet, n)]
        print(f"killed: {len(left)} groups in change, {len(rest)} not begun")
        out, err = ended(begun(shop, *command))
        print(out, err)
        assert {tuple(rolls(fleet, name)) for name in shop.names} == {(ChangeState.DONE,)}
        assert all(token >= 2 for name in shop.names for token in shop.owners(fleet, name))
        assert f"batch 1 of 1: {plural(len(left), 'group')} as expected" in err
        assert "continuing the roll that" in out
        assert f"{plural(len(rest), 'group')}, at most {BATCH} at once" in out
        assert all(len(line) <= 100 for line in err.splitlines())


@pytest.fixture
def five(groups, monkeypatch):
    """Five groups whose workers run, and their fleet; commands are in this process."""
    shop = groups(5)
    monkeypatch.setenv("FLEET_HOME", str(shop.home))
    monkeypatch.setenv("FLEET_CONFIG", str(shop.config))
    with shop.running() as fleet:
        yield shop, fleet


ROLL = ("roll", "--select", "team=pay", "--batch", "2")


def test_it_stops_after_the_batch_with_a_receipt_that_differs(five, capsys):
    """Its other group ends, the next batch does not begin, and the same command continues."""
    shop, fleet = five
    paused, disturbed, beside, *rest = shop.names
    said(capsys, "pause", paused, "--reason", "freeze")
    with joining(shop, fleet, disturbed):
        out, err = said(capsys, *ROLL, code=1)
    out = " ".join(out.split())
    assert f"{paused}: not changed: group {paused} is paused by" in out
    assert f"batch 1 of 2: 1 group as expected, {disturbed} not as expected, " in err
    assert "DIFFERS" in out
    assert f"stopped: 2 groups changed, 2 groups not begun ({', '.join(rest)})" in out
    assert "fix the cause, then continue with: fleet roll --select team=pay --batch 2" in out
    assert [rolls(fleet, name) for name in rest] == [[], []]
    assert rolls(fleet, beside) == [ChangeState.DONE]

    found = answer(capsys, *ROLL)
    assert (found["not_begun"], found["next_command"]) == ([], " ".join(("fleet", *ROLL)))
    refused = {each["group"]: each["refused"] for each in found["results"] if each["refused"]}
    assert list(refused) == [paused], "which is no error, since others were changed"
    said(capsys, *ROLL, code=3)

    said(capsys, "resume", paused)
    found = answer(capsys, *ROLL)
    assert found["next_command"] is None
    assert {name: rolls(fleet, name) for name in shop.names} == {
        name: [ChangeState.DONE] for name in shop.names
    }, "each is rolled once, by one of four commands"


def test_a_batch_is_no_larger_than_the_budget_of_the_cluster(five, capsys):
    """Nor is anything done in a dry run; the next roll of the same groups is a new one."""
    shop, fleet = five
    shop.declare(max_groups_in_change=1)
    out, _ = said(capsys, *ROLL, "--dry-run")
    assert "max_groups_in_change is 1: at most 1 group at once" in out
    assert [line.split()[:2] for line in out.splitlines() if "roll 0-1" in line] == [
        [str(number), name] for number, name in enumerate(shop.names, 1)
    ]
    assert not any(rolls(fleet, name) for name in shop.names)
    out, _ = said(capsys, "apply", "--all", "--batch", "3")
    assert "nothing to do in any of the selected groups" in out
    for wrong in (("--continue", "--batch", "3"), ("--plan", "x", "--batch", "3")):
        said(capsys, "apply", "--all", *wrong, code=2)
