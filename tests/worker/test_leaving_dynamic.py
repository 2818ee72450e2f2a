"""A leave of dynamic members that the workers complete: who is named, and whose slot is cleared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleet.clock import ManualClock
from fleet.slots import Gate, Phase
from fleet.slots.sqlite import SqliteStore
from fleet.worker.events import Events
from fleet.worker.slot.leave_completion import LeaveCompleter

NOBODY: frozenset[int] = frozenset()


def test_they_are_named_by_member_id_and_clear_themselves(tmp_path: Path):
    """A living one is closed, polls no more and holds its slot still: it gives that up itself."""
    clock = ManualClock()
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=clock)
    store.write_gate(Gate(group="g", open=frozenset({0, 1})))
    for number in (0, 1):
        held = store.take(
            store.slots("g")[number], worker=f"w{number}", revision="r", spark_session=None
        )
        assert held is not None
        assert store.renew(replace(held, member_id=f"m{number}", phase=Phase.CLOSED))
    store.write_gate(replace(store.gate("g"), leaving=frozenset({0, 1}), plan_id="p"))
    sent: list[tuple[str | None, str]] = []

    def leave(group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        sent.extend(members)
        return None

    completer = LeaveCompleter(
        store,
        group="g",
        static=False,
        lease=10.0,
        leave=leave,
        clock=clock,
        events=Events(worker="w0", clock=clock, environ={}),
    )
    done = False
    for _ in range(8):
        # Whoever looks is a worker, and renews meanwhile.
        assert store.renew(store.slots("g")[0])
        done = done or completer.step(store.gate("g"), store.slots("g"), frozenset({1}))
        clock.sleep(2.0)
    assert done
    assert sent == [(None, "m0"), (None, "m1")]
    living, dead = store.slots("g")
    assert (living.holder, living.member_id) == ("w0", "m0")
    assert (dead.holder, dead.member_id) == (None, None)
