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

from fleet.settings import WorkerSettings
from fleet.slots import Gate, Slot
from fleet.slots.sqlite import SqliteStore
from fleet.spec import Cluster, GroupSpec
from fleet.worker.entrypoint import Entrypoint
from fleet.worker.events import Events
from fleet.worker.executor import BatchDone, BatchRunner, Identity
from fleet.worker.holding import Looker
from fleet.worker.leaving import Completer
from fleet.worker.protocols import protocol_of
from fleet.worker.reporting import Reporter
from fleet.worker.takeover import Takeover
from fleet.worker.tenure import Tenure, Tools
from fleet.worker.trial import Trial
from tests.support.spark_stand_in import Link
from tests.worker.flow import SYSTEM
from tests.worker.test_failures import batch

pytestmark = pytest.mark.timeout(60)

GROUP = "g"


class CuringLink(Link):
    """Ends other sessions when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_end = threading.Event()

    def cure(self, foreign_session: str) -> str | None:
        """Takes its time."""
        self.asked.append(foreign_session)
        assert self.may_end.wait(20)
        return None


class Shop:
    """One worker's parts over a store of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=SYSTEM)
        events = Events(worker="w2", clock=SYSTEM, environ={})
        spec = GroupSpec.model_validate(
            {
                "group": GROUP,
                "topics": ["t"],
                "worker": {"protocol": "classic", "entrypoint": "job:process"},
                "runtime": {"kind": "local", "lease": 2.0},
            }
        )
        settings = WorkerSettings(
            cluster=Cluster(bootstrap_servers=bootstrap),
            bootstrap_servers=bootstrap,
            group=spec,
            revision="r1",
        )
        self.link = CuringLink()
        self.link.connect(timeout=1.0, given_up=lambda: False)
        self.link.session_id = "ours"
        self.runner = BatchRunner(
            link=self.link,
            entrypoint=Entrypoint(
                name="job:process", function=lambda *_: None, setup=None, takes_batch_id=False
            ),
            identity=Identity(cluster="main", group=GROUP, worker="w2", revision="r1"),
            batch_timeout=60.0,
            still_ours=lambda: True,
            ending=lambda: False,
            clock=SYSTEM,
            events=events,
        )
        self.reporter = Reporter(settings, name="w2", clock=SYSTEM, events=events)

        def leave(*_: Any) -> str | None:
            return None

        self.tools = Tools(
            settings=settings,
            name="w2",
            store=self.store,
            looker=Looker(self.store, group=GROUP, lease=2.0, clock=SYSTEM),
            completer=Completer(
                self.store,
                group=GROUP,
                static=True,
                lease=2.0,
                leave=leave,
                clock=SYSTEM,
                events=events,
            ),
            leave=leave,
            takeover=Takeover(group=GROUP, leave=leave, holder_of=lambda _: None, events=events),
            protocol=protocol_of(settings),
            runner=self.runner,
            reporter=self.reporter,
            trial=Trial(None),
            stop=threading.Event(),
            clock=SYSTEM,
            events=events,
        )
        self.store.write_gate(Gate(group=GROUP, open=frozenset({0})))

    @property
    def slot(self) -> Slot:
        """As stored."""
        return self.store.slots(GROUP)[0]

    def close(self) -> None:
        """Let everything go."""
        self.link.may_end.set()
        self.tools.stop.set()
        self.runner.stop()
        self.reporter.close()


@pytest.fixture
def shop(tmp_path: Path, mock_broker: str) -> Iterator[Shop]:
    made = Shop(tmp_path, mock_broker)
    yield made
    made.close()


def dead_holder(shop: Shop) -> Slot:
    """A slot whose holder ended with a Spark session that runs on."""
    free = Slot(group=GROUP, number=0)
    held = shop.store.take(free, worker="w1", revision="r1", spark_session="theirs")
    assert held is not None
    return held


def test_the_cure_holds_up_batches_but_not_the_join(shop: Shop):
    """Interrupted and released before a batch of ours runs [3]; the gate waits for nobody [19]."""
    tenure = Tenure.take(shop.tools, dead_holder(shop))  # returns while the cure goes on
    assert tenure is not None
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(tenure.serve()))
    member.start()
    while shop.slot.member_id is None and shop.slot.counter < 3:
        SYSTEM.sleep(0.02)
    assert shop.link.asked == ["theirs"]
    assert done.empty()
    assert shop.slot.spark_session == "theirs", "whoever takes it now has to end it as well"
    shop.link.may_end.set()
    assert done.get(timeout=10).fatal is None
    while shop.slot.spark_session != "ours":
        SYSTEM.sleep(0.02)
    shop.tools.stop.set()
    member.join(15)
    assert ended == [None]
    assert shop.slot.clean


def test_a_slot_given_up_before_the_cure_ended_is_not_clean(shop: Shop):
    """Its next taker does it again."""
    tenure = Tenure.take(shop.tools, dead_holder(shop))
    assert tenure is not None
    shop.tools.stop.set()
    assert tenure.serve() is None
    assert (shop.slot.holder, shop.slot.clean) == (None, False)
    assert shop.slot.spark_session == "theirs"


def test_a_slot_that_is_somebody_elses_is_left_at_once(shop: Shop):
    """Nobody asks us to go: the store shows another holder, so nothing of ours goes on [12]."""
    tenure = Tenure.take(shop.tools, Slot(group=GROUP, number=0))
    assert tenure is not None
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(tenure.serve()), daemon=True)
    member.start()
    while shop.slot.counter < 2:
        SYSTEM.sleep(0.02)
    taken = None
    while taken is None:
        taken = shop.store.take(shop.slot, worker="w3", revision="r1", spark_session=None)
    member.join(10)
    assert ended == [(1, "slot 0 has another holder or token: stopped, batch void")]
    assert shop.slot == replace(taken, counter=shop.slot.counter)


def test_a_tenure_leaves_nothing_open(shop: Shop):
    """250 handovers in one process: clients, their threads and pipes, the store's connections.

    Python's own search for cycles comes when it comes, and is off here.
    """
    figures: list[int] = []
    threads: list[int] = []
    gc.disable()
    try:
        for number in range(6):
            seen = shop.slot if number else Slot(group=GROUP, number=0)
            tenure = Tenure.take(shop.tools, seen)
            assert tenure is not None
            end = threading.Timer(0.15, shop.tools.stop.set)
            end.start()
            assert tenure.serve() is None
            end.join()
            shop.tools.stop.clear()
            figures.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            threads.append(sum(1 for _ in Path("/proc/self/task").iterdir()))
    finally:
        gc.enable()
    assert min(figures[3:]) <= max(figures[:2]), figures
    assert min(threads[3:]) <= max(threads[:2]), threads
