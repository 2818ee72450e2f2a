"""kill -9 of each part, in the middle of a change: nothing lost, the change completed.

Duplicates may be the batch in hand of a killed worker, no more; no process is left over and
no slot is held by the dead. The broker of these tests is their own, since it is killed too.
"""

import contextlib
import time
from pathlib import Path

import pytest

from fleet.model import ReceiptResult
from fleet.slots import ChangeState, Phase
from fleet.system.processes import ProcessId, alive
from tests.faults.six_fleets import LEASE, FaultShop, biggest, disk_of_its_own, is_unclean
from tests.support import needs
from tests.support.brokers import running_broker
from tests.support.kafka_tools import rebalances
from tests.support.manager_process import spawn_manager, watch_and_kill
from tests.support.workshop import Workshop, ending, kill

MEGABYTES = 96
"""Of the home, where this user may mount: far more than it needs."""
UNCLEAN = 4
"""Ends in these tests that may repeat a batch: one worker, and each of two at a server's death."""

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory):
    """A broker that may be killed, and that waits for nobody when the first joins."""
    waits = {"group.initial.rebalance.delay.ms": "0"}
    with running_broker(tmp_path_factory.mktemp("broker"), overrides=waits) as made:
        yield made.broker


@pytest.fixture(scope="module")
def shop(own_broker, tmp_path_factory):
    """A running fleet of two static workers and a standby, under a steady stream.

    One for all tests. What was lost or done twice over all of them is judged at the end.
    """
    bootstrap = own_broker.status().bootstrap_servers
    place = tmp_path_factory.mktemp("kills")
    with contextlib.ExitStack() as stack:
        if needs.missing("mounts") is None:
            stack.enter_context(disk_of_its_own(place / "home", MEGABYTES))
        # What waits after an outage goes inline, too: the way by ranges starts Python in Spark.
        terms = {"batch": {"inline": 1000, "max_wait": "1200ms"}}
        shop = FaultShop(place / "home", place, bootstrap, "kills", **terms)
        shop.create_topic(4)
        shop.create_another("letters", 1)
        stack.enter_context(ending(shop))
        with shop.stream(rate=100):
            opened = shop.apply()
            assert [step.slots for step in opened.plan.steps] == [(0,), (1,)]
            assert {receipt.result for receipt in opened.receipts} == {ReceiptResult.EQUAL}
            yield shop
        lost, twice = shop.lost_and_duplicates()
        assert lost == 0
        assert twice <= UNCLEAN * biggest(shop.entries()), "more than the batches in hand"


@pytest.fixture
def two(shop):
    """Begin with two active slots."""
    begin_with(shop, 2)
    return shop


def begin_with(shop: Workshop, slots: int) -> None:
    """Have this many active slots; nothing to do where the last test left them."""
    shop.apply(slots)
    shop.until(lambda: shop.all_active(slots), f"{slots} active slots to begin with")


def test_worker_and_supervisor(two, own_broker):
    """A killed worker's slot passes to the standby with no rebalance, supervisor dead or not."""
    shop = two
    before = rebalances(own_broker, shop.group)
    with shop.fleet() as fleet:
        victim = next(s for s in fleet.slots(shop.group) if s.phase is Phase.ACTIVE)
        pids = {w.name: w.pid for w in fleet.workers(shop.group)}
        kill(supervisor(shop))
        kill(pids[victim.owner])
        shop.until(lambda: owner(shop, victim.number) not in {None, victim.owner}, "a failover")
        shop.until(lambda: shop.all_active(2), "the new owner to be active")
        assert rebalances(own_broker, shop.group) == before, (
            "a killed static worker costs no generation"
        )
        fleet.runtime.ensure()
        shop.until(lambda: len([w for w in fleet.workers(shop.group) if w.running]) == 3, "restart")
        assert len({w.pid for w in fleet.workers(shop.group)}) == 3


def owner(shop: Workshop, number: int) -> str | None:
    """Who holds the slot."""
    with shop.fleet() as fleet:
        return next(s.owner for s in fleet.slots(shop.group) if s.number == number)


def supervisor(shop: Workshop) -> int:
    """The supervisor's pid."""
    with shop.fleet() as fleet:
        pid = fleet.runtime.supervisor()
        assert isinstance(pid, ProcessId)
        assert alive(pid)
        return pid.pid


def test_spark_server(two, own_broker):
    """Workers survive the death of the shared Spark server and go on with the one after it."""
    shop = two
    before = rebalances(own_broker, shop.group)
    done = len(shop.entries())
    from fleet.act.spark_server import process

    kill(process(shop.home).pid)
    shop.until(lambda: len(shop.entries()) > done + 5, "batches after the Spark server's death")
    shop.until(lambda: shop.all_active(2), "all slots active again")
    assert rebalances(own_broker, shop.group) == before


def test_broker(two, own_broker):
    """The coordinator's death and return within the session costs no generation."""
    shop = two
    before = rebalances(own_broker, shop.group)
    own_broker.kill()
    time.sleep(3)
    own_broker.start()
    done = len(shop.entries())
    shop.until(lambda: len(shop.entries()) > done + 5, "batches after the broker's return")
    shop.until(lambda: shop.all_active(2), "all slots active again")
    assert rebalances(own_broker, shop.group) == before


@pytest.mark.mounts
def test_a_full_disk(two, own_broker):
    """The fleet's own, for three leases: nobody ends, and no slot changes hands."""
    shop = two
    before, events, held = rebalances(own_broker, shop.group), len(shop.events()), tokens(shop)
    fill_disk(shop.home, 3 * LEASE)
    shop.until(
        lambda: shop.all_active(2) and shop.has_standby(), "the fleet after its disk was full"
    )
    done = len(shop.entries())
    shop.until(lambda: len(shop.entries()) > done + 5, "batches after the disk was full")
    assert [e for e in shop.events()[events:] if is_unclean(e)] == []
    assert tokens(shop) == held, "slots were taken from the living"
    assert rebalances(own_broker, shop.group) == before


def fill_disk(home: Path, seconds: float) -> None:
    """Nothing can be written under the home for a while: store and logs alike."""
    filler = home / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass
        time.sleep(seconds)
    finally:
        filler.unlink()


def tokens(shop: Workshop) -> dict[int, int]:
    """Active slot → the token of its take."""
    with shop.fleet() as fleet:
        return {s.number: s.token for s in fleet.slots(shop.group) if s.phase is Phase.ACTIVE}


STEPS = {
    "open": (2, 4, lambda output: "opened slot" in output),
    "leave": (4, 2, lambda output: "draining slot" in output),
    "roll": (2, None, lambda output: "canary" in output),
    "open, while warming": (2, 3, lambda output: "warming" in output),
}
"""Name → (slots before, slots wanted or None for new code, the moment in the manager's log)."""


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_manager_in_mid_change(name, shop, own_broker):
    """A killed manager's change is completed by the next with the same totals.

    make test kills an operator (tests/kubernetes/test_killed_operator.py); tests/acting adopts
    every step in memory.
    """
    start, wanted, moment = STEPS[name]
    begin_with(shop, start)
    if name == "roll":
        shop.new_code()
    before = rebalances(own_broker, shop.group)
    manager = spawn_manager(shop, wanted)
    watch_and_kill(shop, manager, moment)
    with shop.fleet() as fleet:
        left = fleet.store.change(shop.group)
        assert left.state is ChangeState.RUNNING, "the kill came too late to prove anything"
    shop.apply(wanted)
    slots = wanted or start
    shop.until(lambda: shop.all_active(slots), f"{slots} active slots")
    cost = rebalances(own_broker, shop.group) - before
    assert cost == 0 if name == "roll" else 1 <= cost <= 2
