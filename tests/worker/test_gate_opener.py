"""The first opening of a gate where no manager does it [22]."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.slots import FirstOpening, Gate
from fleet.slots.sqlite import SqliteStore
from fleet.worker.slot.process import AHEAD, GateOpener, first_gate
from tests.support.batch_parts import events_of
from tests.support.slot_records import report_of

ASKED = FirstOpening(slots=3, after=60.0)


class Asked(SqliteStore):
    """A store that was made by manifests: nobody has written the gate, three slots are wanted."""

    unmanaged = True

    def first(self, group: str) -> FirstOpening | None:
        """Asked for one group."""
        return ASKED if group == "g" else None

    def since(self, group: str, template_hash: str, now: float) -> float:
        del group, template_hash
        return now


@pytest.mark.parametrize(
    ("gate", "asked", "warm", "waited", "due"),
    [
        pytest.param(Gate(group="g"), ASKED, 3, 0.0, True, id="all warm"),
        pytest.param(Gate(group="g"), ASKED, 4, 0.0, True, id="more than wanted"),
        pytest.param(Gate(group="g"), ASKED, 2, 59.9, False, id="too few, too early"),
        pytest.param(Gate(group="g"), ASKED, 1, 60.0, True, id="too few for too long"),
        pytest.param(Gate(group="g"), ASKED, 0, 99.0, False, id="nobody"),
        pytest.param(Gate(group="g"), None, 9, 99.0, False, id="not asked for"),
        pytest.param(Gate(group="g", version=1), ASKED, 9, 99.0, False, id="written before"),
        pytest.param(
            Gate(group="g"), FirstOpening(slots=0, after=60.0), 9, 99.0, False, id="no slots"
        ),
    ],
)
def test_when_it_is_due(
    gate: Gate, asked: FirstOpening | None, warm: int, waited: float, due: bool
):
    """As many standbys as slots, or the time is over; never for a gate that was written."""
    wanted = first_gate(gate, asked, warm=warm, waited=waited, now=1000.0)
    assert (wanted is not None) is due
    if wanted is not None:
        assert wanted == Gate(group="g", open=frozenset({0, 1, 2}), open_at=1000.0 + AHEAD)


class Standbys:
    """Standbys on one store, each with its opener; the clock is the test's."""

    def __init__(self, home: Path, store: type[SqliteStore] = Asked) -> None:
        self.clock = ManualClock()
        self.store = store(home / "fleet.db", cluster="main", clock=self.clock)
        self.openers: dict[str, GateOpener] = {}
        self.counter = 0

    def add(self, name: str) -> None:
        """One more warm worker."""
        self.openers[name] = GateOpener(
            self.store, group="g", lease=10.0, clock=self.clock, events=events_of(name, self.clock)
        )

    def step(self, *, alive: set[str] | None = None) -> list[str]:
        """All report and look; who opened."""
        self.clock.sleep(1.0)
        self.counter += 1
        for name in self.openers:
            if alive is None or name in alive:
                self.store.report(report_of(name, counter=self.counter))
        gate = self.store.gate("g")
        return [
            name
            for name, opener in self.openers.items()
            if (alive is None or name in alive) and opener.step(gate)
        ]


def test_one_of_them_opens_all_at_once(tmp_path: Path):
    """Compare-and-set: three are warm, one writes the gate, once."""
    crew = Standbys(tmp_path)
    for name in ("w1", "w2"):
        crew.add(name)
        assert crew.step() == []
    assert crew.openers["w1"].waits_for == "the first opening: 2 of 3 standbys are warm"
    crew.add("w3")
    assert len(crew.step()) == 1
    gate = crew.store.gate("g")
    assert (gate.version, gate.open) == (1, frozenset({0, 1, 2}))
    assert crew.step() == []
    assert crew.openers["w1"].waits_for is None
    crew.store.write_gate(replace(gate, open=frozenset()))
    assert crew.step() == [], "a manager closed it: it stays closed"


def test_the_dead_do_not_count_and_patience_ends(tmp_path: Path):
    """Two of three die; after 60 s the one that lives opens all three."""
    crew = Standbys(tmp_path)
    for name in ("w1", "w2"):
        crew.add(name)
        crew.step()
    crew.add("w3")
    crew.openers.pop("w2")
    for _ in range(11):
        crew.step(alive={"w1"})
    assert crew.store.gate("g").version == 0
    assert crew.openers["w1"].waits_for == "the first opening: 1 of 3 standbys are warm"
    opened = [at for at in range(13, 70) if crew.step(alive={"w1"})]
    assert opened == [60]


def test_a_store_for_managers_is_left_to_them(tmp_path: Path):
    """Locally nothing opens by itself."""
    crew = Standbys(tmp_path, SqliteStore)
    for name in ("w1", "w2", "w3"):
        crew.add(name)
    assert [crew.step() for _ in range(70)] == [[]] * 70
    assert crew.store.gate("g").version == 0
