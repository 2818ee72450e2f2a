"""One slot held: what its taker does first, and what it does once it is somebody else's.

Kafka is librdkafka's own mock cluster, Spark's session a stand-in.
"""

import gc
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.slots import Slot
from fleet.worker.batch.executor import BatchDone
from tests.support.batch_parts import SYSTEM, connected
from tests.support.spark_stand_in import Link
from tests.worker.holder import GROUP, Parts
from tests.worker.test_failures import batch, unavailable

pytestmark = pytest.mark.timeout(60)


class CuringLink(Link):
    """Ends other sessions when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_end = threading.Event()

    def _open(self, where: str) -> Any:
        """A server names each session."""
        made = super()._open(where)
        self.session_id = "ours" if self.connected == 1 else f"ours, {self.connected}"
        return made

    def cure(self, foreign_session: str) -> str | None:
        self.asked.append(foreign_session)
        assert self.may_end.wait(120)
        return None


class Shop(Parts):
    """A worker's parts, by the real clock; cures as long as the test lets it."""

    link: CuringLink

    def __init__(
        self, folder: Path, bootstrap: str, *, lease: float = 2.0, membership: str = "static"
    ) -> None:
        super().__init__(
            folder,
            clock=SYSTEM,
            link=CuringLink(),
            worker={"protocol": "classic", "membership": membership},
            bootstrap=bootstrap,
            lease=lease,
        )
        connected(self.link)
        self.named: list[str | None] = []
        """Which session the slot names while a batch runs, by batch and attempt."""
        self.fails = 0
        """How many attempts Spark is to fail."""
        job = replace(self.runner._entrypoint, function=self._process)
        self.runner._entrypoint = job

    def _process(self, *_: Any) -> None:
        self.named.append(self.slot().spark_session)
        if len(self.named) <= self.fails:
            raise unavailable()

    def close(self) -> None:
        self.link.may_end.set()
        self.stop.set()
        self.runner.stop()
        self.reporter.close()


@pytest.fixture
def shop(tmp_path: Path, mock_broker: str) -> Iterator[Shop]:
    made = Shop(tmp_path, mock_broker)
    yield made
    made.close()


@pytest.fixture
def slow_shop(tmp_path: Path) -> Iterator[Shop]:
    """Whose lease is hardly ever renewed by itself; there is no Kafka."""
    made = Shop(tmp_path, "127.0.0.1:1", lease=170.0)
    yield made
    made.close()


def dead_holder(shop: Shop) -> Slot:
    """A slot whose holder ended with a Spark session that runs on."""
    free = Slot(group=GROUP, number=0)
    held = shop.store.take(free, worker="w1", revision="r", spark_session="theirs")
    assert held is not None
    return held


def test_the_cure_holds_up_batches_but_not_the_join(shop: Shop):
    """Interrupted and released before a batch of ours runs [3]; the gate waits for nobody [19]."""
    holder = shop.taken(dead_holder(shop))  # returns while the cure goes on
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(holder.serve()))
    member.start()
    while shop.slot().member_id is None and shop.slot().counter < 3:
        SYSTEM.sleep(0.02)
    assert shop.link.asked == ["theirs"]
    assert done.empty()
    assert shop.slot().spark_session == "theirs", "whoever takes it now has to end it as well"
    shop.link.may_end.set()
    assert done.get(timeout=10).fatal is None
    while shop.slot().spark_session != "ours":
        SYSTEM.sleep(0.02)
    shop.stop.set()
    member.join(15)
    assert ended == [None]
    assert shop.slot().clean


def test_the_session_of_a_batch_is_named_once_the_cure_has_ended(slow_shop: Shop):
    """Fault: whoever takes the slot in the next seconds ends the former one's session again, and
    reads while ours writes [3].
    """
    shop = slow_shop
    shop.holder = shop.taken(dead_holder(shop))
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    shop.link.may_end.set()
    assert done.get(timeout=10).fatal is None
    assert shop.named == ["ours"]


def test_a_session_made_anew_is_named_before_its_batch_runs(slow_shop: Shop):
    """Fault: the server was restarted, and the batch runs in a session that no slot names [3]."""
    shop = slow_shop
    shop.fails = 1
    shop.holder = shop.taken(Slot(group=GROUP, number=0))
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    assert done.get(timeout=10).fatal is None
    assert shop.named == ["ours", "ours, 2"]


def test_a_slot_given_up_before_the_cure_ended_is_not_clean(shop: Shop):
    """Its next taker does it again."""
    holder = shop.taken(dead_holder(shop))
    shop.stop.set()
    assert holder.serve() is None
    assert (shop.slot().holder, shop.slot().clean) == (None, False)
    assert shop.slot().spark_session == "theirs"


def test_what_a_member_has_committed_is_told_to_the_store(slow_shop: Shop):
    """Once: the group is not new any more, however long Kafka keeps its offsets [53]."""
    holder = slow_shop.taken(Slot(group=GROUP, number=0))
    serving = threading.Thread(target=holder.serve)
    serving.start()
    while (member := holder._membership) is None:
        SYSTEM.sleep(0.02)
    member.state.committed = frozenset({"t"})
    while slow_shop.store.committed(GROUP) != {"t"}:
        SYSTEM.sleep(0.02)
    while holder._committed != {"t"}:
        SYSTEM.sleep(0.02)
    slow_shop.stop.set()
    serving.join(15)
    assert not serving.is_alive()


@pytest.mark.parametrize("membership", ["static", "dynamic"])
def test_a_slot_that_is_somebody_elses_is_left_at_once(
    membership: str, tmp_path: Path, mock_broker: str
):
    """Nobody asks us to go: the store shows another holder, so nothing of ours goes on [12].

    A dynamic member may have joined anew before it heard; its close alone would leave that one
    behind. A static one is its successor's by then.
    """
    shop = Shop(tmp_path, mock_broker, membership=membership)
    holder = shop.taken(Slot(group=GROUP, number=0))
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(holder.serve()), daemon=True)
    member.start()
    while shop.slot().counter < 2:
        SYSTEM.sleep(0.02)
    assert holder._membership is not None
    holder._membership.state.member_id = "ours"  # as if it had joined
    taken = None
    while taken is None:
        taken = shop.store.take(shop.slot(), worker="w3", revision="r", spark_session=None)
    member.join(10)
    assert ended == [(1, "slot 0 has another holder or token: stopped, batch void")]
    assert shop.slot() == replace(taken, counter=shop.slot().counter)
    assert shop.left == ([(None, "ours")] if membership == "dynamic" else [])
    shop.close()


def test_a_tenure_leaves_nothing_open(shop: Shop):
    """250 handovers in one process: clients, their threads and pipes, the store's connections.

    Python's own search for cycles comes when it comes, and is off here.
    """
    figures: list[int] = []
    threads: list[int] = []
    gc.disable()
    try:
        for number in range(6):
            seen = shop.slot() if number else Slot(group=GROUP, number=0)
            holder = shop.taken(seen)
            end = threading.Timer(0.15, shop.stop.set)
            end.start()
            assert holder.serve() is None
            end.join()
            shop.stop.clear()
            figures.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            threads.append(sum(1 for _ in Path("/proc/self/task").iterdir()))
    finally:
        gc.enable()
    assert min(figures[3:]) <= max(figures[:2]), figures
    assert min(threads[3:]) <= max(threads[:2]), threads
