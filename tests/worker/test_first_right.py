"""Who comes first to a free slot, and what a slot tells of its last holder's revision [22]."""

from dataclasses import replace

import pytest

from fleet.slots import Gate, Handover, Phase, Slot, WorkerReport, proven, spoiled
from fleet.worker.slot.eligibility import candidates, outranked

HELD = Slot(group="g", number=0, holder="w", token=1, phase=Phase.ACTIVE, revision="r1")
STANDBY = WorkerReport(
    worker="w9", group="g", revision="r2", phase="standby", slot=None, counter=1, http_port=None
)


@pytest.mark.parametrize(
    ("since", "outranks"), [(None, False), (99.0, False), (100.0, False), (101.0, True)]
)
def test_a_later_revision_has_the_first_right(since, outranks):
    """Of two that were published at one moment neither: both would wait for the other."""
    found = outranked([replace(STANDBY, since=since)], revision="r1", since=100.0)
    assert (found is not None) is outranks


def test_a_pin_holds_however_long_the_slot_is_free():
    """It ends with its plan, not with a lease."""
    gate = Gate(group="g", open=frozenset({0}), handover={0: Handover(token=1, revision="r2")})
    free = replace(HELD, holder=None, phase=Phase.FREE)

    def may(revision: str) -> bool:
        return bool(
            candidates(
                gate, [free], worker="w", revision=revision, dead=frozenset(),
                waited=frozenset({0}), newest=True,
            )
        )  # fmt: skip

    assert not may("r1")
    assert may("r2")


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
def test_what_proves_a_revision(slot, well):
    """A batch, or nothing to read without an error; never an error alone."""
    assert proven(slot) is well


@pytest.mark.parametrize(("error", "batches", "bad"), [(None, 0, False), ("no", 0, True),
                                                       ("no", 1, False)])  # fmt: skip
def test_what_spoils_a_slot(error, batches, bad):
    """A failure before the first batch: one that comes after it is of a record, not of the code."""
    assert spoiled(replace(HELD, error=error, batches=batches)) is bad
