"""What `--batch N` does with groups, whose plans and changes are in memory here.

On a real store and broker, with a kill: tests/acting/test_batches.py. Faults: a receipt that
differs, a store that is silent, a refusal, a smaller budget of the cluster, Ctrl-C.
"""

import dataclasses
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.commands.change.batches import BatchedChanges
from fleet.commands.change.session import ChangeSession
from fleet.commands.invocation import Invocation
from fleet.errors import FleetError, Refused, Unreachable
from fleet.model import Plan, ReceiptResult, StepKind
from fleet.slots import Change, ChangeState
from tests.cli.test_answers import CHANGE, RECEIPT
from tests.support.plans import plan_of, step_of

NAMES = [f"g{number}" for number in range(7)]
EMPTY, PAUSED, LEFT = "g0", "g1", "g2"


class Groups:
    """What batches ask of a Fleet. Not all at once: the most that changed together is kept."""

    def __init__(self, most: int | None = None) -> None:
        self.spec = SimpleNamespace(max_groups_in_change=most, mode_of=lambda _: "act")
        self.clock = SystemClock()
        self.changes: dict[str, Change] = {}
        self.begun: list[str] = []
        self.together = 0
        self._now: set[str] = set()
        self._all_here = threading.Condition()

    def group(self, name: str) -> str:
        return name

    def another(self) -> "Groups":
        return self

    def close(self) -> None:
        """Nothing is open."""

    def snapshot(self, names: object) -> None:
        """Plans here need none."""

    def keep_current(self, _: Plan) -> bool:
        return False

    def change(self, name: str) -> Change | None:
        return self.changes.get(name)

    def resume_change(self, name: str, *, actor: str) -> Change:
        self.begun.append(f"{name} finished")
        self.changes[name] = changed(name)
        return self.changes[name]

    def plan(self, name: str) -> Plan:
        if name == EMPTY:
            return plan_of(group=name)
        why = ("it is paused",) if name == PAUSED else ()
        return plan_of(step_of(StepKind.ROLL, (0, 1)), group=name, refusals=why)

    def apply(self, name: str, *, of: int) -> Change:
        """Ends when `of` groups have changed at once, or after a while."""
        with self._all_here:
            self.begun.append(name)
            self._now.add(name)
            self.together = max(self.together, len(self._now))
            self._all_here.notify_all()
            self._all_here.wait_for(lambda: self.together >= of, timeout=0.2)
            self._now.discard(name)
        return changed(name)


def changed(name: str, **fields: Any) -> Change:
    return dataclasses.replace(CHANGE, group=name, receipts=(), **fields)


def run(fleet: Any, size: int = 2, *, act: Any = None, **options: Any) -> Invocation:
    """Change all groups in batches; an error of `end` is raised."""
    invocation = Invocation()
    session = ChangeSession(invocation, fleet, **{"output": "table", "yes": True, **options})
    batches = BatchedChanges(session, NAMES, size=size, command="fleet apply --all --batch 2")
    fleet.invocation = invocation
    batches.run(
        make=lambda name, _: fleet.plan(name),
        act=act or (lambda each, name: each.apply(name, of=size)),
    )
    batches.end()
    return invocation


def test_so_many_change_at_once(capsys):
    """In order; those with nothing to do, or refused, are in no batch."""
    fleet = Groups()
    run(fleet)
    assert (sorted(fleet.begun), fleet.together) == (NAMES[2:], 2)
    assert set(fleet.begun[:2]) == set(NAMES[2:4])
    out, err = capsys.readouterr()
    assert f"{PAUSED}: not changed: it is paused" in out
    assert "continue later with: fleet apply --all --batch 2" in out
    assert [line.split(",")[0] for line in err.splitlines()] == [
        "  batch 1 of 3: 2 groups as expected",
        "  batch 2 of 3: 2 groups as expected",
        "  batch 3 of 3: 1 group as expected",
    ]


def test_no_batch_is_larger_than_the_budget_of_the_cluster():
    fleet = Groups(most=1)
    run(fleet, 3)
    assert (fleet.begun, fleet.together) == (NAMES[2:], 1)


def test_what_a_dead_process_left_is_finished_first():
    """And is planned like the others then."""
    fleet = Groups()
    fleet.changes[LEFT] = changed(LEFT, state=ChangeState.RUNNING)
    run(fleet)
    assert fleet.begun[0] == f"{LEFT} finished"
    assert sorted(fleet.begun[1:]) == NAMES[2:]


def differs(name: str) -> Change:
    bad = dataclasses.replace(RECEIPT, result=ReceiptResult.DIFFERS)
    return dataclasses.replace(changed(name), receipts=(bad,))


def silent(name: str) -> Change:
    raise Unreachable(f"no answer for {name}")


@pytest.mark.parametrize("ends", [differs, silent])
def test_after_one_that_is_not_as_expected_no_batch_begins(ends, capsys):
    """The other group of its batch ends; the command says what is left."""
    fleet = Groups()

    def act(each: Groups, name: str) -> Change:
        return ends(name) if name == "g3" else each.apply(name, of=1)

    with pytest.raises(FleetError, match="g3"):
        run(fleet, act=act)
    assert fleet.begun == [LEFT]
    out = " ".join(capsys.readouterr().out.split())
    assert "3 groups not begun (g4, g5, g6)" in out
    assert "fix the cause, then continue with: fleet apply --all --batch 2" in out


def test_only_refusals_are_an_error():
    """A refusal beside a change is none."""

    def act(_: Groups, name: str) -> Change:
        raise Refused(f"{name} is paused since")

    with pytest.raises(Refused, match="g6 is paused since"):
        run(Groups(), act=act)


def test_nothing_begins_in_a_dry_run(capsys):
    fleet = Groups()
    fleet.changes[LEFT] = changed(LEFT, state=ChangeState.RUNNING)
    run(fleet, dry_run=True)
    assert fleet.begun == []
    assert "5 groups, at most 2 at once" in capsys.readouterr().out


def test_ctrl_c_ends_at_once_and_names_the_groups_in_change():
    """Their changes are left to the next command; nothing is waited for."""
    fleet, over = Groups(), threading.Event()

    def act(_: Groups, name: str) -> Change:
        if name == "g3":
            signal.raise_signal(signal.SIGINT)  # for the main thread
        over.wait(60)
        return changed(name)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(fleet, act=act)
    finally:
        signal.signal(signal.SIGINT, before)
        over.set()
    assert fleet.invocation.interrupted().startswith("interrupted; the change of g2 g3")
