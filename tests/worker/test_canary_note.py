"""Whether a revision may be called well, over the lives of a pod's processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.slots import Gate, Handover, Phase, Slot, WorkerReport
from fleet.slots.sqlite import SqliteStore
from fleet.slots.transitions import (
    alone,
    doubt,
    is_failed_canary,
    is_good_canary,
    missing_canary,
    waits_for_canary,
)
from fleet.worker.slot.reporting import Canary
from fleet.worker.slot.slot_lease import SlotWatcher
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.slot_records import report_of

FAILED = "the entrypoint fails for every partition"
HELD = Slot(group="g", number=0, holder="n1", revision="r2", phase=Phase.ACTIVE, token=3)
FREED = replace(HELD, holder=None, phase=Phase.FREE, error=FAILED)
REPORT = report_of("n1", revision="r2", phase="starting", error=FAILED)


def canary(home: Path | None) -> Canary:
    """A worker's process that finds this home."""
    return Canary(worker_context(), home=home)


def test_a_failure_is_remembered_by_the_next_process(tmp_path: Path):
    """Raised, or killed before the first commit; a batch ends it, a hand-over says nothing."""
    first = canary(tmp_path)
    assert first.error is None
    first.start()
    assert "ended before its first batch" in str(canary(tmp_path).error)
    first.fail(FAILED)
    second = canary(tmp_path)
    assert second.error == FAILED
    second.start()
    second.end()
    assert canary(tmp_path).error == FAILED
    second.start()
    assert second.running
    second.succeed()
    assert (second.running, second.error, canary(tmp_path).error) == (False, None, None)
    second.fail("later, as a good one")
    assert canary(tmp_path).error is None


def test_a_tenure_without_a_verdict_leaves_nothing(tmp_path: Path):
    """Taken and handed over before a record came."""
    it = canary(tmp_path)
    it.start()
    it.end()
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_cannot_be_written_ends_nobody(tmp_path: Path):
    """A full disk, or one that is only read: what this process has seen holds, and it is told."""
    said: list[str] = []
    it = canary(tmp_path / "home")
    it._context.events.log = said.append
    (tmp_path / "home").write_text("no folder")
    it.start()
    it.fail(FAILED)
    assert (it.running, it.error) == (True, FAILED)
    it.succeed()
    assert (it.running, it.error) == (False, None)
    assert len(said) == 2, "each failure is told once"
    assert said[0].startswith(f"the note {tmp_path}/home/canary.json cannot be written: ")


def test_elsewhere_than_in_a_pod_nothing_is_noted():
    """No home, no note."""
    it = canary(None)
    it.start()
    it.fail(FAILED)
    assert (it.running, it.error) == (False, None)


@pytest.mark.parametrize(
    ("report", "slots", "doubted"),
    [
        pytest.param(REPORT, [], True, id="another one fails"),
        pytest.param(REPORT, [HELD], False, id="a third is a good canary"),
        pytest.param(REPORT, [FREED], True, id="failed and gone"),
        pytest.param(replace(REPORT, error=None), [], False, id="it is well"),
        pytest.param(replace(REPORT, revision="r1"), [], False, id="another revision"),
        pytest.param(replace(REPORT, worker="me"), [], False, id="ourselves"),
        pytest.param(replace(REPORT, batches=4), [], False, id="one partition is stopped"),
    ],
)
def test_what_others_report(report: WorkerReport, slots: list[Slot], doubted: bool):
    """A living worker of the same revision that fails, and no good canary."""
    told = doubt([report], slots, worker="me", revision="r2")
    assert told == (f"n1 of the same revision fails: {FAILED}" if doubted else None)


OLD = replace(HELD, number=1, holder="o1", revision="r1")
OPEN = Gate(group="g", version=1, open=frozenset({0, 1}))
PINNED = replace(OPEN, handover={0: Handover(revision="r2", token=3)})


@pytest.mark.parametrize(
    ("gate", "slots", "waits"),
    [
        pytest.param(OPEN, [OLD], None, id="no slot for it: it is as ready as can be"),
        pytest.param(OPEN, [replace(HELD, phase=Phase.JOINING), OLD], 0, id="one tries it"),
        pytest.param(OPEN, [HELD, OLD], None, id="a good canary"),
        pytest.param(OPEN, [FREED, OLD], 0, id="it failed, and may again"),
        pytest.param(OPEN, [replace(OLD, phase=Phase.DRAINING)], 1, id="will be free in a moment"),
        pytest.param(OPEN, [replace(OLD, holder=None, phase=Phase.FREE)], 1, id="free"),
        pytest.param(replace(OPEN, open=frozenset({1})), [FREED, OLD], None, id="not open"),
        pytest.param(replace(OPEN, leaving=frozenset({0})), [FREED, OLD], None, id="leaves"),
        pytest.param(PINNED, [FREED, OLD], None, id="a manager rolls"),
    ],
)
def test_one_shows_for_all_that_a_revision_works(gate: Gate, slots: list[Slot], waits: int | None):
    """Warm pods beside the first of a new revision are not ready before its verdict."""
    told = missing_canary(gate, slots, "r2")
    assert told == (
        None if waits is None else f"slot {waits} has to show first that this revision works"
    )


def test_the_dead_are_not_believed(tmp_path: Path):
    """A report that does not move for a lease is a dead pod's."""
    clock = ManualClock()
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=clock)
    store.report(REPORT)
    spec = group_spec("g", runtime={"kind": "local", "lease": 12.0})
    context = worker_context(settings_of(spec, revision="r2"), name="me", clock=clock)
    looking = Canary(context)
    watcher = SlotWatcher(store, group="g", lease=12.0, clock=clock)
    told = []
    for second in range(20):
        clock.sleep(1.0)
        if second < 4:
            store.report(replace(REPORT, counter=second + 2))
        looking.look(watcher)
        told.append(looking.doubt is not None)
    assert told == [True] * 16 + [False] * 4


def test_a_failed_revision_keeps_its_one_slot_after_it_is_freed():
    """Its next process may have that slot, none of another revision [22]."""
    other = Slot(group="g", number=1, revision="r1")
    assert is_failed_canary(FREED)
    assert not is_good_canary(FREED)
    assert waits_for_canary([FREED, other], other, "r2")
    assert not waits_for_canary([FREED, other], FREED, "r2")
    assert not waits_for_canary([replace(FREED, batches=3), other], other, "r2"), "it worked once"


FREE = Slot(group="g", number=0)


@pytest.mark.parametrize(
    ("slots", "former", "waits"),
    [
        pytest.param([], FREE, True, id="the first of all"),
        pytest.param(
            [replace(HELD, number=5)], replace(OLD, number=2), True, id="a good canary elsewhere"
        ),
        pytest.param([OLD], FREE, False, id="others run another one"),
        pytest.param([], replace(OLD, number=0), False, id="it took another one's slot"),
        pytest.param([], FREED, False, id="it failed on this slot before"),
        pytest.param([], replace(FREED, batches=3), True, id="it worked on this slot before"),
    ],
)
def test_who_may_wait_for_better_weather(slots: list[Slot], former: Slot, waits: bool):
    """A canary ends at its first failure, so that another one may have its slot."""
    mine = replace(HELD, phase=Phase.JOINING)
    assert alone([mine, *slots], former, "r2") is waits


@pytest.mark.parametrize(
    ("slot", "well"),
    [
        (HELD, True),
        (replace(HELD, error="no"), False),
        (replace(HELD, error="no", batches=1), True),
        (replace(HELD, holder=None), False),
        (replace(HELD, phase=Phase.JOINING), False),
    ],
)
def test_what_is_a_good_canary(slot, well):
    """A batch, or nothing to read without an error; never an error alone."""
    assert is_good_canary(slot) is well


@pytest.mark.parametrize(
    ("error", "batches", "bad"), [(None, 0, False), ("no", 0, True), ("no", 1, False)]
)
def test_what_spoils_a_slot(error, batches, bad):
    """A failure before the first batch: one that comes after it is of a record, not of the code."""
    assert is_failed_canary(replace(HELD, error=error, batches=batches)) is bad
