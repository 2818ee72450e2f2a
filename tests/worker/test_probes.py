"""What a worker answers to probes, writes of itself, and says at its end."""

import json
import logging
import queue
import socket
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet.clock import ManualClock, SystemClock
from fleet.config.spec import ClusterSpec
from fleet.errors import Unreachable
from fleet.slots import Phase, WorkerReport
from fleet.slots.sqlite import SqliteStore
from fleet.worker.broker_reach import BrokerReach
from fleet.worker.member.member_state import MemberState
from fleet.worker.slot.process import WorkerMain
from fleet.worker.slot.reporting import Reporter
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of


class Probed:
    """A reporter and its HTTP."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.reporter = Reporter(worker_context(name="w1", clock=self.clock))
        self.store = SqliteStore(home / "fleet.db", cluster="main", clock=SystemClock())

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one path."""
        port = self.reporter._http.port
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()

    def probes(self) -> dict[str, int]:
        """The three answers' codes."""
        return {path: self.get(f"/{path}")[0] for path in ("startupz", "readyz", "livez")}

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/status")[1]))


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[Probed]:
    """A worker's HTTP before there is a store."""
    made = Probed(tmp_path)
    yield made
    made.reporter.close()


def test_a_start_is_allowed_and_says_what_it_waits_for(probed: Probed):
    """Up and alive without a store or Spark, but not ready."""
    probed.reporter.waits_for = "the store of its slots"
    assert probed.probes() == {"startupz": 200, "readyz": 503, "livez": 200}
    assert probed.get("/startupz")[1] == "ok: starting; waits for the store of its slots"
    assert probed.get("/readyz")[1] == "no: starting; waits for the store of its slots"
    assert probed.get("/healthz") == (404, "/startupz /livez /readyz /metrics /status")


def test_who_connects_and_says_nothing_is_let_go(probed: Probed):
    """A port scanner, a balancer whose machine is gone: each would keep a thread for good."""
    served = probed.reporter._http._server.RequestHandlerClass
    assert served.timeout == 30
    served.timeout = 0.2
    with socket.create_connection(("127.0.0.1", probed.reporter._http.port), timeout=5) as one:
        assert one.recv(1) == b""


def test_without_a_slot_is_well(probed: Probed):
    """A warm standby is ready and live, and told from an ill worker in words and by a field."""
    probed.reporter.start(probed.store)
    probed.reporter.standby()
    assert probed.probes() == {"startupz": 200, "readyz": 200, "livez": 200}
    assert probed.get("/readyz")[1] == "ok: no slot; waits for a free slot that is open"
    facts = probed.status()
    assert (facts["condition"], facts["slot"], facts["ready"]) == ("no slot", None, True)


def test_a_owner_is_ready_once_it_has_committed(probed: Probed):
    """Joining is neither ready nor ill; a failed batch is ill, a good one after it is not."""
    state = MemberState(moved_at=probed.clock.monotonic())
    probed.reporter.standby()
    probed.reporter.member(3, state)
    assert probed.get("/readyz") == (503, "no: joining (slot 3)")
    assert probed.status()["condition"] == "joining"
    state.phase = Phase.ACTIVE
    assert probed.get("/readyz") == (200, "ok: serving (slot 3)")
    state.failed, state.error = True, "orders-1 is quarantined at offset 7: ValueError: x"
    code, text = probed.get("/readyz")
    assert (code, text) == (503, f"no: unhealthy (slot 3): {state.error}")
    assert probed.get("/livez")[0] == 200, "a restart would mend nothing"
    state.failed = False  # the other partitions' next batch
    assert probed.get("/readyz") == (200, f"ok: serving (slot 3): {state.error}")
    probed.reporter.membership_ended()
    assert probed.status()["condition"] == "no slot"


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.DRAINED, Phase.CLOSED])
def test_a_drain_is_no_illness(probed: Probed, phase: Phase):
    """What is asked to go stays ready until it is gone, or a scale-down would rank it first."""
    probed.reporter.member(0, MemberState(phase=phase, moved_at=probed.clock.monotonic()))
    assert probed.get("/readyz")[0] == 200


def test_a_consumer_that_does_not_turn_is_not_live(probed: Probed):
    """30 s without a turn: ill, to be restarted."""
    state = MemberState(phase=Phase.ACTIVE, moved_at=probed.clock.monotonic())
    probed.reporter.standby()
    probed.reporter.member(0, state)
    probed.clock.sleep(31)
    assert probed.probes() == {"startupz": 200, "readyz": 503, "livez": 503}
    assert probed.status()["condition"] == "unhealthy"
    with state.waiting_for_brokers(probed.clock):
        assert probed.probes() == {"startupz": 200, "readyz": 200, "livez": 200}
        probed.clock.sleep(300)  # max_poll_interval: no wait for brokers is longer
        with state.waiting_for_brokers(
            probed.clock
        ):  # a commit inside an assignment: still one wait
            assert probed.get("/livez")[0] == 200
        probed.clock.sleep(30)
        assert probed.get("/livez")[0] == 503, "a wait that never ends is a thread that hangs"
    assert probed.get("/livez")[0] == 200
    probed.clock.sleep(30)
    assert probed.get("/livez")[0] == 503


def test_a_standby_that_no_broker_answers_is_not_ready(probed: Probed):
    """A rollout would replace every worker by such a one; it is alive, and ready once they do."""
    reach = BrokerReach(lambda: _answer(answers), bootstrap="kafka:9092")
    answers: list[bool] = [False, True, False]
    probed.reporter.cut_off = lambda: reach.trouble
    probed.reporter.standby()
    assert probed.get("/readyz")[0] == 503, "not before one was asked"
    reach.check()
    assert probed.get("/readyz") == (
        503,
        (
            "no: disconnected: no broker answers at kafka:9092 (Local: Broker transport failure); "
            "waits for a free slot that is open"
        ),
    )
    assert probed.get("/livez")[0] == 200, "a restart would mend nothing"
    reach.check()
    assert probed.get("/readyz") == (200, "ok: no slot; waits for a free slot that is open")
    reach.check()
    assert probed.status()["condition"] == "disconnected"
    probed.reporter.member(0, MemberState(phase=Phase.ACTIVE, moved_at=probed.clock.monotonic()))
    assert probed.get("/readyz")[0] == 200, "an owner works on, or says itself that it cannot"


def test_brokers_are_asked_only_while_there_is_no_slot(probed: Probed):
    """At once when it begins to wait for one, and not while it has one."""
    asked = queue.SimpleQueue[None]()
    reach = BrokerReach(lambda: asked.put(None), bootstrap="kafka:9092", every=0.001)
    reach.watch()
    asked.get(timeout=5)
    asked.get(timeout=5)
    reach.pause()
    time.sleep(0.02)
    while not asked.empty():
        asked.get()
    time.sleep(0.02)
    assert asked.empty()
    reach.watch()
    asked.get(timeout=5)
    reach.end()


def _answer(answers: list[bool]) -> None:
    if not answers.pop(0):
        raise KafkaException(KafkaError(-195))


def test_a_batch_over_its_time_is_ill_and_says_why(probed: Probed):
    """Not live [5]."""
    probed.reporter.standby()
    probed.reporter.overdue = lambda: "the batch runs for 300 s"
    assert probed.get("/livez") == (
        503,
        "no: unhealthy: the batch runs for 300 s; waits for a free slot that is open",
    )


def test_a_store_that_hangs_delays_no_answer(probed: Probed):
    """While a report waits for a locked store, probes answer at once."""
    probed.reporter.start(probed.store)
    probed.reporter.standby()
    lock = sqlite3.connect(probed.store.database.path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    writing = threading.Thread(target=probed.reporter.write)
    writing.start()
    time.sleep(0.2)
    answers = probed.probes()
    waited = writing.is_alive()
    lock.execute("ROLLBACK")
    lock.close()
    writing.join()
    assert waited, "the store hung while the probes were answered"
    assert answers == {"startupz": 200, "readyz": 200, "livez": 200}


def test_a_owner_whose_spark_is_away_says_so(probed: Probed):
    """All workers of a home share one server: nothing of them moves until it is back."""
    probed.reporter.spark_away = lambda: "Spark does not answer"
    probed.reporter.start(probed.store)
    assert probed.status()["error"] is None, "it holds nothing"
    probed.reporter.member(0, MemberState(moved_at=probed.clock.monotonic()))
    assert probed.status()["error"] == "Spark does not answer"
    (report,) = probed.store.reports("g")
    assert report.error == "Spark does not answer"


# --- how often a worker writes its report -----------------------------------------------------


class Owner:
    """A worker that serves slot 3, and renews it every third of the lease."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        settings = settings_of()
        self.third = settings.group.runtime.lease / 3
        self.reporter = Reporter(worker_context(settings, clock=self.clock))
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.state = MemberState(phase=Phase.ACTIVE, batches=500, joined_at=1.0, reading="inline")
        self.reporter.start(self.store)
        self.reporter.member(3, self.state)

    def report(self) -> WorkerReport:
        """As stored."""
        (told,) = self.store.reports(settings_of().group.group)
        return told

    def renews(self, times: int = 1) -> int:
        """A batch is committed and the slot renewed, so often; how many reports that made."""
        before = self.report().counter
        for _ in range(times):
            self.clock.sleep(self.third)
            self.state.batches += 1
            self.state.last_commit_at = self.clock.now()
            self.reporter.on_renewed()
        return self.report().counter - before


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    made.reporter.close()
    made.store.close()


def test_a_owner_that_is_well_writes_once_a_lease(owner: Owner):
    """With all that it has counted; with an error, or its first batches, with each renewal."""
    assert owner.renews(30) == 10
    assert owner.report().batches == 530
    owner.state.error = "no such table"
    assert owner.renews(6) == 6, "standbys doubt their revision only by the living"
    owner.state.error, owner.state.batches = None, 0
    assert owner.renews(9) == 9, "a canary is looked at by people"


@pytest.mark.parametrize(
    ("what", "value"),
    [("phase", Phase.DRAINING), ("joined_at", 7.0), ("reading", "ranges"), ("unclean", True)],
)
def test_news_is_written_with_the_renewal(owner: Owner, what: str, value: object):
    """A manager waits for it."""
    setattr(owner.state, what, value)
    assert owner.renews() == 1
    assert owner.renews() == 0


def test_a_first_batch_in_hand_is_news_and_a_later_one_is_not(owner: Owner):
    """A canary's is waited for; of all others nobody wants to know, a hundred times a minute."""
    owner.state.in_hand = True
    assert owner.renews() == 0
    owner.state.in_hand, owner.state.batches = False, 3
    owner.reporter.write()
    for in_hand in (True, False):
        owner.state.in_hand = in_hand
        before = owner.report().counter
        owner.reporter.on_renewed()
        owner.reporter.on_renewed()
        assert (owner.report().in_hand, owner.report().counter) == (in_hand, before + 1)


def test_a_report_that_could_not_be_written_is_tried_with_the_next_renewal(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
):
    """Its news must not wait for a whole lease."""
    owner.state.reading = "ranges"
    with monkeypatch.context() as patch:
        patch.setattr(owner.store, "report", _silent)
        assert owner.renews() == 0
    owner.renews()
    assert owner.report().reading == "ranges"


def _silent(report: WorkerReport) -> None:
    raise Unreachable(f"no store for {report.worker}")


def test_a_standby_writes_every_third(owner: Owner):
    """Nothing else tells that it lives."""
    owner.reporter.membership_ended()
    owner.reporter.standby()
    before = owner.report().counter
    for _ in range(6):
        owner.clock.sleep(owner.third)
        owner.reporter.beat()
    assert owner.report().counter - before == 6


# --- whatever ends a worker is told in a sentence ---------------------------------------------


CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """A worker makes it its own."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before


def test_what_nobody_foresaw_is_a_sentence_too(tmp_path: Path):
    """Fault: a CA file that is no certificate ends it by a traceback, and no report says so."""
    (tmp_path / "ca.pem").write_text("this is no certificate\n")
    security = {"protocol": "SSL", "tls": {"ca_file": str(tmp_path / "ca.pem")}}
    cluster = ClusterSpec.model_validate({"bootstrap_servers": "b:1", "security": security})
    settings = settings_of(group_spec("g", topics=["t"]), bootstrap="b:1", cluster=cluster)
    worker = WorkerMain(worker_context(settings, name="w1"), home=tmp_path, code=None)
    code, sentence = worker.run()
    assert code == 1
    assert "KafkaException" in sentence
    assert "ssl.ca.location failed" in sentence
    (report,) = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=CLOCK).reports("g")
    assert (report.phase, report.error) == ("failed", sentence)


def test_a_worker_is_ranked_once_per_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a standby, as an owner, as a standby again; one that ends takes no slot."""
    owner, ranks = Owner(tmp_path), []
    monkeypatch.setattr(owner.store, "rank", lambda worker, *, owns: ranks.append(owns))
    owner.reporter._owned = None
    owner.renews(3)
    owner.reporter.membership_ended()
    owner.reporter.standby()
    owner.clock.sleep(owner.third)
    owner.reporter.beat()
    assert ranks == [True, False]
    owner.reporter.ended()
    assert owner.report().phase == "ended"
    owner.reporter.close()
