"""Reports of a crew, on a server in memory and a clock that is set: who writes, and what goes.

A server takes 1 MiB of one ConfigMap. Reports that are made here stand for hundreds of workers.
"""

from dataclasses import replace
from functools import partial

import pytest

from fleet.clock import ManualClock
from fleet.kubernetes.client.calls import CONFIG_MAP, Calls
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.lease_backend import LeaseBackend
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import WorkerReport
from tests.support.memory_server import MemoryServer
from tests.support.slot_records import report_of

GROUP = "orders"
NAMES = ObjectNames("main", GROUP)
report = partial(report_of, group=GROUP)


class Crew:
    """A group's reports, as a manager writes and reads them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        api = self.server.api(self.clock)
        self.manager = LeaseStore.for_manager(api, cluster="main", clock=self.clock, lease=30.0)
        self.manager.report(report("first"))

    def there(self, *reports: WorkerReport, at: float) -> None:
        """These are stored, written at that wall time."""
        crew = self.server.get(CONFIG_MAP, NAMES.crew)
        crew["data"].update({told.worker: objects.report_text(told, now=at) for told in reports})
        self.server.put(crew)

    def worker(self) -> LeaseStore:
        """The store of a worker without watches, which reads and writes nothing but its Role's."""
        api = self.server.api(self.clock)
        calls = Calls(api.connection, namespace=api.namespace, clock=self.clock)
        backend = LeaseBackend(calls, cluster="main", clock=self.clock, lease=30.0, worker="r1")
        return LeaseStore(backend, clock=self.clock)

    def told(self) -> dict[str, WorkerReport]:
        """By worker."""
        return {each.worker: each for each in self.manager.reports(GROUP)}


@pytest.fixture
def crew() -> Crew:
    return Crew()


def test_who_reads_sees_all_workers_and_writes_nothing(crew):
    """However many they are: warm standbys are counted, and a reader's Role writes nothing."""
    crew.there(*(report(f"w{n:03}") for n in range(301)), at=crew.clock.now())
    crew.server.requests.clear()
    assert len(crew.told()) == 302
    assert {method for method, _ in crew.server.requests} == {"GET"}


def test_room_is_made_of_the_gone_first(crew):
    """Whoever has not written for an hour has no pod; nobody living loses a word for that."""
    now, long = crew.clock.now(), "t" * 4000
    crew.there(*(report(f"gone{n:03}", traceback=long) for n in range(150)), at=now - 4000)
    crew.there(*(report(f"live{n:03}", traceback=long) for n in range(95)), at=now - 20)
    crew.manager.report(report("new", traceback=long))
    told = crew.told()
    assert [w for w in told if w.startswith("live")] == [f"live{n:03}" for n in range(95)]
    assert all(told[w].traceback == long for w in told if w.startswith("live"))
    assert told["new"].traceback == long
    gone = [worker for worker in told if worker.startswith("gone")]
    assert 0 < len(gone) < 100, "no more of them than is needed for a while"


def test_where_all_live_the_oldest_tracebacks_go(crew):
    """Every worker is still seen, the one that writes with all that it says."""
    now, long = crew.clock.now(), "t" * 4000
    sick = report("x", error="e" * 1500, traceback=long)
    crew.there(*(replace(sick, worker=f"w{n:03}") for n in range(180)), at=now - 20)
    crew.there(*(replace(sick, worker=f"late{n}") for n in range(3)), at=now - 1)
    crew.manager.report(replace(sick, worker="new"))
    told = crew.told()
    assert len(told) == 185
    assert told["w000"].traceback is None
    assert str(told["w000"].error).startswith("eee")
    assert (told["new"], told["late2"].traceback) == (replace(sick, worker="new"), long)


def test_what_is_written_while_room_is_made_stays(crew):
    """A report that came since the look is not put back to what it was."""
    now, long = crew.clock.now(), "t" * 4000
    crew.there(*(report(f"w{n:03}", traceback=long) for n in range(250)), at=now - 20)
    looks = []

    def meanwhile(method, kind, name):
        if method == "PATCH" and not looks and crew.server.refused_as_too_large:
            looks.append(name)
            crew.there(report("w000", batches=7, traceback=long), at=now)

    crew.server.before = meanwhile
    crew.manager.report(report("new", traceback=long))
    assert looks
    assert crew.told()["w000"].batches == 7
    assert crew.told()["new"].traceback == long


# --- the gone, where nobody manages ---------------------------------------------------------

DAY = 86400.0


def test_who_writes_drops_what_is_a_day_old(crew):
    """Nodes and pods come and go for months; the ages of templates are no reports."""
    now = crew.clock.now()
    crew.manager.since(GROUP, "abc", now - 9 * DAY)
    crew.there(report("gone"), report("gone-too"), at=now - DAY - 1)
    crew.there(report("lately"), at=now - DAY + 60)
    crew.worker().report(report("w"))
    assert crew.told().keys() == {"first", "lately", "w"}
    assert crew.manager.since(GROUP, "abc", now) == now - 9 * DAY


def test_they_are_looked_for_once_an_hour(crew):
    """A report is one request; finding them decodes all."""
    worker = crew.worker()
    worker.report(report("w"))
    crew.there(report("gone"), at=crew.clock.now() - 2 * DAY)
    crew.server.requests.clear()
    worker.report(report("w"))
    assert crew.server.requests == [("PATCH", f"ConfigMap/{NAMES.crew}")]
    assert "gone" in crew.told()
    crew.clock.sleep(3600.0)
    crew.there(report("first"), at=crew.clock.now())
    worker.report(report("w"))
    assert "gone" not in crew.told()


def test_whose_clock_is_wrong_drops_nobody(crew):
    """By the other reports too they have to be old: a day ahead, all the living look so."""
    now = crew.clock.now()
    crew.there(report("living"), at=now - 3 * DAY)
    crew.there(report("first"), at=now - 3 * DAY + 20)
    crew.worker().report(report("ahead"))
    assert crew.told().keys() == {"living", "first", "ahead"}
    crew.there(report("ahead"), at=now + 9 * DAY)
    crew.there(report("living"), report("first"), at=now - 20)
    crew.worker().report(report("w"))
    assert crew.told().keys() == {"living", "first", "ahead", "w"}


def test_who_comes_back_meanwhile_stays(crew):
    """It is another's word by then; what is left is found with a later report."""
    now = crew.clock.now()
    crew.there(report("gone"), report("back"), at=now - 2 * DAY)

    def meanwhile(method, found):
        crew.server.after = lambda method, found: None
        crew.there(report("back", batches=7), at=now)

    worker, crew.server.after = crew.worker(), meanwhile
    worker.report(report("w"))
    assert crew.told()["back"].batches == 7
    worker.report(report("w"))
    assert crew.told().keys() == {"first", "back", "w"}
