"""What a look at all groups reads of the store: no more than may be another than before."""

from dataclasses import replace

from fleet.clock import ManualClock
from fleet.commands.ui import changes_now
from fleet.slots import ChangeState
from fleet.slots.store import Store
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of


def test_changes_that_ended_are_read_once():
    """Those of a thousand groups took seconds of every look, though hardly one was another."""
    clock, asked = ManualClock(), []
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)

    def changes(group, limit):
        asked.append((group, limit))
        return store.changes(group, limit=limit)

    def begun(group, number):
        return store.begin_change(plan_of(group=group, id=f"p{number}"), actor="a", started_at=1.0)

    groups, known = ["cooldown", "orders"], {}
    for number in range(3):
        store.advance(replace(begun("orders", number), state=ChangeState.DONE))
    for what in ("first", "same", "begins", "moves", "ends", "is followed"):
        if what == "begins":
            change = begun("orders", 7)
        elif what == "moves":
            change = store.advance(replace(change, sentence="step 1 of 2"))
        elif what == "ends":
            change = store.advance(replace(change, state=ChangeState.DONE))
        elif what == "is followed":
            begun("orders", 8)
        asked.clear()
        known = changes_now(changes, groups, known)
        assert known == {group: store.changes(group) for group in groups}, what
        read = [group for group, limit in asked if limit > 1]
        assert read == {"first": groups, "same": []}.get(what, ["orders"])
