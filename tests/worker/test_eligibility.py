"""Which slot a standby may take, who opens the first slot targets [22], and what a revision has
shown.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.slots import STAYS, FirstOpening, Handover, Phase, Slot, SlotTargets, WorkerReport
from fleet.slots.sqlite import SqliteStore
from fleet.slots.transitions import (
    describe_doubt,
    describe_missing_canary,
    is_alone,
    is_failed_canary,
    is_good_canary,
    waits_for_canary,
)
from fleet.worker.slot.process import AHEAD, SlotTargetsOpener, first_targets
from fleet.worker.slot.reporting import Canary
from fleet.worker.slot.slot_lease import SlotWatcher, candidates, find_newer_standby
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.slot_records import report_of

TARGETS = SlotTargets(group="g", version=1, open=frozenset({0, 1}))
FREE = [Slot(group="g", number=0), Slot(group="g", number=1)]


def held(number: int, revision: str = "r1", phase: Phase = Phase.ACTIVE) -> Slot:
    return Slot(
        group="g", number=number, owner="w9", token=1, phase=phase, revision=revision, clean=False
    )


def numbers(
    targets: SlotTargets,
    slots: list[Slot],
    *,
    revision: str = "r1",
    dead: set[int] | None = None,
    waited: set[int] | None = None,
    newest: bool = True,
    handed: set[int] | None = None,
    void: set[int] | None = None,
) -> set[int]:
    found = candidates(
        targets,
        slots,
        worker="w1",
        revision=revision,
        dead=frozenset(dead or ()),
        waited=frozenset(waited or ()),
        newest=newest,
        handed=frozenset(handed or ()),
        void=void or (),
    )
    return {slot.number for slot in found}


def free(revision: str | None) -> Slot:
    return replace(held(0), owner=None, revision=revision)


FREED = [free("r1"), held(1)]
SPOILED = [replace(held(0, "r2"), owner=None, error="the entrypoint fails")]
ONE = replace(TARGETS, open=frozenset({0}))
R1, R2, OLDER = {"revision": "r1"}, {"revision": "r2"}, {"revision": "r1", "newest": False}
OTHERS = {"revision": "r3", "void": {0}}


def pinned(number: int, revision: str) -> SlotTargets:
    return replace(TARGETS, handover={number: Handover(token=1, revision=revision)})


@pytest.mark.parametrize(
    ("targets", "slots", "how", "expected"),
    [
        pytest.param(TARGETS, FREE, R1, {0, 1}, id="free and open: anybody's"),
        pytest.param(TARGETS, [], R1, {0, 1}, id="not seen by the store yet"),
        pytest.param(replace(TARGETS, open=frozenset({1})), FREE, R1, {1}, id="closed"),
        pytest.param(replace(TARGETS, leaving=frozenset({0})), FREE, R1, {1}, id="leaving"),
        pytest.param(replace(TARGETS, quarantined=frozenset({0})), FREE, R1, {1}, id="quarantined"),
        pytest.param(pinned(0, "r2"), FREE, R1, {1}, id="pinned to another"),
        pytest.param(TARGETS, [held(0), held(1)], R1, set(), id="held"),
        pytest.param(TARGETS, [held(0), held(1)], {"dead": {1}}, {1}, id="held by the dead"),
        # A managed roll: at once to the pinned revision; a pin ends with its plan, not a lease.
        pytest.param(pinned(0, "r2"), FREED, R2, {0}, id="pinned to it"),
        pytest.param(pinned(0, "r2"), FREED, {"waited": {0}}, set(), id="pinned, a lease later"),
        # A roll of unchanged code pins the former owner's revision: it leaves the slot to others.
        pytest.param(pinned(0, "r1"), FREED, R1, {0}, id="handed over by another"),
        pytest.param(pinned(0, "r1"), FREED, {"handed": {0}}, set(), id="handed over by it"),
        pytest.param(
            pinned(0, "r1"), FREED, {"handed": {0}, "waited": {0}}, {0}, id="handed, a lease later"
        ),
        # While slot 1 is pinned to r2, a crash on slot 0 is r1's to mend; r2 is not proven yet.
        pytest.param(pinned(1, "r2"), FREED, OLDER, {0}, id="a managed roll's other slot"),
        pytest.param(pinned(1, "r2"), FREED, R2, set(), id="the roll's revision"),
        pytest.param(pinned(1, "r2"), FREED, {**R2, "waited": {0}}, {0}, id="after a lease"),
        # Who failed on a slot waits for a lease, whether it is the newest or not.
        pytest.param(ONE, SPOILED, OLDER, {0}, id="spoiled: another's at once"),
        pytest.param(ONE, SPOILED, R2, set(), id="spoiled by it"),
        pytest.param(ONE, SPOILED, {**R2, "waited": {0}}, {0}, id="spoiled by it, a lease later"),
        # A pin that has ended is none: any warm standby takes the slot, an old one after a lease.
        pytest.param(pinned(0, "r2"), FREED, {"void": {0}}, {0}, id="a pin that has ended"),
        pytest.param(pinned(0, "r2"), FREED, OTHERS, {0}, id="for the newest"),
        pytest.param(
            pinned(0, "r2"), FREED, {**OTHERS, "newest": False}, set(), id="for an older one"
        ),
        pytest.param(
            pinned(0, "r2"),
            FREED,
            {**OTHERS, "newest": False, "waited": {0}},
            {0},
            id="for an older one after a lease",
        ),
        # Unpinned, a free slot is the newest revision's at once, an older one's after one lease.
        *(
            pytest.param(TARGETS, [free(was), held(1)], how, {0} if takes else set(), id=name)
            for was in ("r1", "r2", None)
            for name, how, takes in (
                (f"newest after {was}", R2, True),
                (f"older after {was}", OLDER, False),
                (f"older after {was}, a lease later", {**OLDER, "waited": {0}}, True),
            )
        ),
        # A bad revision takes one slot, not all [22].
        *(
            pytest.param(
                TARGETS,
                [free("r1"), held(1, "r2", phase)],
                {**R2, "waited": {0}},
                takes,
                id=f"a second slot, the first {phase.value}",
            )
            for phase, takes in ((Phase.JOINING, set()), (Phase.ACTIVE, {0}))
        ),
    ],
)
def test_who_may_take_what(
    targets: SlotTargets, slots: list[Slot], how: dict[str, Any], expected: set[int]
):
    """By slot targets, owner, revision, pin, and how long it was waited."""
    assert numbers(targets, slots, **how) == expected


def test_who_is_newest_is_told_by_the_standbys_reports():
    """Owners do not count, nor standbys of ours, nor of a revision that is no later."""
    report = report_of("w2", revision="r2", since=20.0)
    mine = {"revision": "r1", "since": 10.0}
    assert find_newer_standby([report], **mine) is report
    assert find_newer_standby([replace(report, phase="active", slot=0)], **mine) is None
    assert find_newer_standby([replace(report, revision="r1")], **mine) is None
    assert find_newer_standby([replace(report, since=5.0)], **mine) is None
    assert find_newer_standby([replace(report, since=10.0)], **mine) is None, (
        "both would wait for the other"
    )
    assert find_newer_standby([replace(report, since=None)], **mine) is None


def test_racers_begin_at_different_slots():
    """Standbys that race for many slots do not all reach for the same one first."""
    targets = replace(TARGETS, open=frozenset(range(8)))
    usual = {"revision": "r1", "dead": frozenset(), "waited": frozenset(), "newest": True}
    firsts = [candidates(targets, [], worker=f"w{n}", **usual)[0].number for n in range(20)]
    assert len(set(firsts)) > 3


# --- the first opening of the slot targets where no manager does it [22]
# --------------------------------


ASKED = FirstOpening(slots=3, after=60.0)


class Asked(SqliteStore):
    """A store that was made by manifests: nobody has written the slot targets, three slots are
    wanted.
    """

    unmanaged = True

    def first_opening(self, group: str) -> FirstOpening | None:
        """Asked for one group."""
        return ASKED if group == "g" else None

    def since(self, group: str, template_hash: str, now: float) -> float:
        del group, template_hash
        return now


@pytest.mark.parametrize(
    ("targets", "asked", "warm", "waited", "due"),
    [
        pytest.param(SlotTargets(group="g"), ASKED, 3, 0.0, True, id="all warm"),
        pytest.param(SlotTargets(group="g"), ASKED, 4, 0.0, True, id="more than wanted"),
        pytest.param(SlotTargets(group="g"), ASKED, 2, 59.9, False, id="too few, too early"),
        pytest.param(SlotTargets(group="g"), ASKED, 1, 60.0, True, id="too few for too long"),
        pytest.param(SlotTargets(group="g"), ASKED, 0, 99.0, False, id="nobody"),
        pytest.param(SlotTargets(group="g"), None, 9, 99.0, False, id="not asked for"),
        pytest.param(SlotTargets(group="g", version=1), ASKED, 9, 99.0, False, id="written before"),
        pytest.param(
            SlotTargets(group="g"), FirstOpening(slots=0, after=60.0), 9, 99.0, False, id="no slots"
        ),
    ],
)
def test_when_it_is_due(
    targets: SlotTargets, asked: FirstOpening | None, warm: int, waited: float, due: bool
):
    """As many standbys as slots, or the time is over; never for the slot targets that was
    written.
    """
    wanted = first_targets(targets, asked, warm=warm, waited=waited, now=1000.0)
    assert (wanted is not None) is due
    if wanted is not None:
        assert wanted == SlotTargets(group="g", open=frozenset({0, 1, 2}), open_at=1000.0 + AHEAD)


class Standbys:
    """Standbys on one store, each with its opener; the clock is the test's."""

    def __init__(self, home: Path, store: type[SqliteStore] = Asked) -> None:
        self.clock = ManualClock()
        self.store = store(home / "fleet.db", cluster="main", clock=self.clock)
        self.openers: dict[str, SlotTargetsOpener] = {}
        self.counter = 0

    def add(self, name: str) -> None:
        """One more warm worker."""
        context = worker_context(name=name, clock=self.clock)
        self.openers[name] = SlotTargetsOpener(context, self.store)

    def step(self, *, alive: set[str] | None = None) -> list[str]:
        """All report and look; who opened."""
        self.clock.sleep(1.0)
        self.counter += 1
        for name in self.openers:
            if alive is None or name in alive:
                self.store.report(report_of(name, counter=self.counter))
        targets = self.store.targets("g")
        return [
            name
            for name, opener in self.openers.items()
            if (alive is None or name in alive) and opener.step(targets)
        ]


def test_one_of_them_opens_all_at_once(tmp_path: Path):
    """Compare-and-set: three are warm, one writes the slot targets, once; the dead do not count."""
    reports = Standbys(tmp_path)
    for name in ("w1", "w2"):
        reports.add(name)
        assert reports.step() == []
    for _ in range(11):
        reports.step(alive={"w1"})
    assert reports.openers["w1"].waits_for == "the first opening: 1 of 3 standbys are warm"
    reports.step()
    reports.add("w3")
    assert len(reports.step()) == 1
    targets = reports.store.targets("g")
    assert (targets.version, targets.open) == (1, frozenset({0, 1, 2}))
    assert reports.openers["w1"].waits_for is None
    reports.store.write_targets(replace(targets, open=frozenset()))
    assert reports.step() == [], "a manager closed it: it stays closed"


@pytest.mark.parametrize(("store", "opened"), [(Asked, [60]), (SqliteStore, [])])
def test_grace_ends_but_a_store_for_managers_is_left_to_them(
    tmp_path: Path, store: type[SqliteStore], opened: list[int]
):
    """One of three that lives opens all after 60 s; locally nothing opens by itself."""
    reports = Standbys(tmp_path, store)
    reports.add("w1")
    assert [at for at in range(70) if reports.step()] == opened


# --- whether a revision may be called well, over the lives of a pod's processes ---------------


FAILED = "the entrypoint fails for every partition"
HELD = Slot(group="g", number=0, owner="n1", revision="r2", phase=Phase.ACTIVE, token=3)
FAILED_SLOT = replace(HELD, owner=None, phase=Phase.FREE, error=FAILED)
REPORT = report_of("n1", revision="r2", phase="starting", error=FAILED)


def canary(home: Path | None) -> Canary:
    """A worker's process that finds this home."""
    return Canary(worker_context(), home=home)


def test_a_failure_is_remembered_by_the_next_process(tmp_path: Path):
    """Raised, or killed before the first commit; a batch ends it, a hand-over says nothing."""
    first = canary(tmp_path)
    first.start()
    first.end()
    assert list(tmp_path.iterdir()) == []
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
    assert said[0].startswith(f"the file {tmp_path}/home/canary.json cannot be written: ")


@pytest.mark.parametrize(
    ("report", "slots", "doubted"),
    [
        pytest.param(REPORT, [], True, id="another one fails"),
        pytest.param(REPORT, [HELD], False, id="a third is a good canary"),
        pytest.param(REPORT, [FAILED_SLOT], True, id="failed and gone"),
        pytest.param(replace(REPORT, error=None), [], False, id="it is well"),
        pytest.param(replace(REPORT, revision="r1"), [], False, id="another revision"),
        pytest.param(replace(REPORT, worker="me"), [], False, id="ourselves"),
        pytest.param(replace(REPORT, batches=4), [], False, id="one partition is stopped"),
    ],
)
def test_what_others_report(report: WorkerReport, slots: list[Slot], doubted: bool):
    """A living worker of the same revision that fails, and no good canary."""
    told = describe_doubt([report], slots, worker="me", revision="r2")
    assert told == (f"n1 of the same revision fails: {FAILED}" if doubted else None)


OLD = replace(HELD, number=1, owner="o1", revision="r1")
OPEN = SlotTargets(group="g", version=1, open=frozenset({0, 1}))
PINNED = replace(OPEN, handover={0: Handover(revision="r2", token=3)})


@pytest.mark.parametrize(
    ("targets", "slots", "waits"),
    [
        pytest.param(OPEN, [OLD], None, id="no slot for it: it is as ready as can be"),
        pytest.param(OPEN, [replace(HELD, phase=Phase.JOINING), OLD], 0, id="one tries it"),
        pytest.param(OPEN, [HELD, OLD], None, id="a good canary"),
        pytest.param(OPEN, [FAILED_SLOT, OLD], 0, id="it failed, and may again"),
        pytest.param(OPEN, [replace(OLD, phase=Phase.DRAINING)], 1, id="will be free in a moment"),
        pytest.param(OPEN, [replace(OLD, owner=None, phase=Phase.FREE)], 1, id="free"),
        pytest.param(replace(OPEN, open=frozenset({1})), [FAILED_SLOT, OLD], None, id="not open"),
        pytest.param(replace(OPEN, leaving=frozenset({0})), [FAILED_SLOT, OLD], None, id="leaves"),
        pytest.param(PINNED, [FAILED_SLOT, OLD], 0, id="a manager rolls"),
    ],
)
def test_one_shows_for_all_that_a_revision_works(
    targets: SlotTargets, slots: list[Slot], waits: int | None
):
    """Warm pods beside the first of a new revision are not ready before its verdict."""
    told = describe_missing_canary(targets, slots, "r2")
    assert told == (
        None
        if waits is None
        else f"waits for the owner of slot {waits} to show that this revision works"
    )


@pytest.mark.parametrize(
    ("pin", "targets", "waits"),
    [
        pytest.param(Handover(revision="r1", token=STAYS), OPEN, True, id="kept"),
        pytest.param(Handover(revision="r2", token=STAYS), OPEN, False, id="kept for it"),
        pytest.param(Handover(revision="r1", token=3), OPEN, False, id="handed back"),
        pytest.param(
            Handover(revision="r1", token=STAYS),
            replace(OPEN, leaving=frozenset({1})),
            False,
            id="leaves",
        ),
    ],
)
def test_a_revision_is_on_trial_while_slots_are_kept_from_it(
    pin: Handover, targets: SlotTargets, waits: bool
):
    """A Deployment then deletes no owner before its rolling batch has left."""
    told = describe_missing_canary(replace(targets, handover={1: pin}), [HELD, OLD], "r2")
    assert told == ("waits while slots stay with revision r1" if waits else None)


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
        looking.observe(watcher)
        told.append(looking.doubt is not None)
    assert told == [True] * 16 + [False] * 4


def test_a_failed_revision_keeps_its_one_slot_after_it_is_freed():
    """Its next process may have that slot, none of another revision [22]."""
    other = Slot(group="g", number=1, revision="r1")
    assert is_failed_canary(FAILED_SLOT)
    assert not is_good_canary(FAILED_SLOT)
    assert waits_for_canary([FAILED_SLOT, other], other, "r2")
    assert not waits_for_canary([FAILED_SLOT, other], FAILED_SLOT, "r2")
    assert not waits_for_canary([replace(FAILED_SLOT, batches=3), other], other, "r2"), (
        "it worked once"
    )


FREE_SLOT = Slot(group="g", number=0)


@pytest.mark.parametrize(
    ("slots", "former", "waits"),
    [
        pytest.param([], FREE_SLOT, True, id="the first of all"),
        *(
            pytest.param(
                [replace(HELD, number=5, **shows)], replace(OLD, number=2), good, id=f"{shows}"
            )
            for shows, good in (
                ({"error": "no"}, False),
                ({"error": "no", "batches": 1}, True),
                ({"owner": None}, False),
                ({"phase": Phase.JOINING}, False),
            )
        ),
        pytest.param(
            [replace(HELD, number=5)], replace(OLD, number=2), True, id="a good canary elsewhere"
        ),
        pytest.param([OLD], FREE_SLOT, False, id="others run another one"),
        pytest.param([], replace(OLD, number=0), False, id="it took another one's slot"),
        pytest.param([], FAILED_SLOT, False, id="it failed on this slot before"),
        pytest.param([], replace(FAILED_SLOT, batches=3), True, id="it worked on this slot before"),
    ],
)
def test_who_may_wait_for_better_weather(slots: list[Slot], former: Slot, waits: bool):
    """A canary ends at its first failure, so that another one may have its slot."""
    mine = replace(HELD, phase=Phase.JOINING)
    assert is_alone([mine, *slots], former, "r2") is waits
