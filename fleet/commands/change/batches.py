"""Changes many groups in batches: N groups at once, until one is not as expected.

Problem: hundreds of groups one after the other take hours, and bad code must not reach all of them
at once. Choice: the groups of a batch change at the same time, each in a thread with connections of
its own. The next batch begins only if all receipts of this one are as expected. The stored changes
tell what is done, so the same command continues after a kill. Cost: connections for each group of a
batch; the steps of a group are not shown while they run.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from rich.markup import escape

from fleet.commands.answers import table
from fleet.commands.change.session import ChangeSession, GroupOutcome
from fleet.commands.screen import Progress
from fleet.decide.scaling import restraint_note
from fleet.errors import ConfigError, FleetError, Refused
from fleet.model import ReceiptResult, StepKind
from fleet.report.wording import shorten_for_table
from fleet.slots import ChangeState
from fleet.text import count_of, duration, expected_within, few, numbers_of, plural

if TYPE_CHECKING:
    from fleet.lag.snapshot import Snapshot
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan
    from fleet.slots import Change

    Act = Callable[[Fleet, str], Change]
    Make = Callable[[str, Snapshot], Plan]

_PLANNED_TOGETHER: Final = 25
"""Groups planned from one snapshot; all plans of a long list take longer than a snapshot lasts."""
_REFRESH: Final = 0.5
"""Seconds between two updates of the live line."""
_ROLL_START: Final = "batched-roll"
_CONTINUES: Final = 86_400.0
"""Seconds in which the same command continues a roll; later it begins a new one."""
_ROLLED_BY: Final = frozenset({StepKind.ROLL, StepKind.STOP_ALL})


class BatchedChanges:
    """Changes groups in batches and keeps what came of each."""

    def __init__(
        self, session: ChangeSession, names: Sequence[str], *, size: int, command: str
    ) -> None:
        """command: the command line that continues these changes."""
        self._session = session
        self._names = names
        self._command = command
        self._size = size
        self._fleets: list[Fleet] = []
        """Of each thread; clients are not for several threads at once."""
        self._outcomes: dict[str, GroupOutcome] = {}
        self._stopped = False

    def run(self, *, make: "Make", act: "Act", begin: Callable[[], None] = lambda: None) -> None:
        """Finishes what was left, plans and shows all, asks once, and acts batch after batch.

        begin: called once before the first batch.
        """
        self._limit_size()
        if not self._session.dry_run and not self._finish_left():
            return
        plans = self._plan(make)
        todo = [name for name in self._names if _may_begin(plans.get(name))]
        self._show([plans[name] for name in todo])
        rest = [name for name in plans if name not in todo]
        self._keep(self._session.act(name, plans[name], lambda _: _never()) for name in rest)
        self._session.ask(plans.values())
        if self._session.dry_run:
            self._keep(GroupOutcome(name, plan=plans[name]) for name in todo)
        else:
            begin()
            self._in_batches(todo, act, plans)

    @property
    def is_complete(self) -> bool:
        """Tells whether no group is left to change."""
        return not self._stopped and not any(each.trouble() for each in self._outcomes.values())

    def end(self) -> None:
        """Says what was done and how to continue. Raises FleetError, or Refused if all refused."""
        rest = [name for name in self._names if name not in self._outcomes]
        again = not (self.is_complete or self._session.dry_run)
        changed = [each for each in self._outcomes.values() if each.change is not None]
        if rest:
            self._session.say(
                f"stopped: {count_of(changed, 'group')} changed, {count_of(rest, 'group')} not "
                f"begun ({few(rest)})"
            )
        if again:
            when = "fix the cause, then continue" if self._stopped else "continue later"
            self._session.say(f"{when} with: {self._command}")
        keys = {"not_begun": rest, "next_command": self._command if again else None}
        begun = [each for each in self._outcomes.values() if each.refused is None]
        in_part = any(each.change or _may_begin(each.plan) for each in begun)
        self._session.end(self._outcomes.values(), one=False, in_part=in_part, **keys)

    def _limit_size(self) -> None:
        most = self._session.fleet.spec.max_groups_in_change
        if most is not None and most < self._size:
            self._size = most
            self._session.say(
                f"max_groups_in_change is {most}: at most {plural(most, 'group')} at once"
            )

    def _finish_left(self) -> bool:
        """Finishes what a dead process left; tells whether other changes may begin."""
        left = [name for name in self._names if self._session.left_change(name)]

        def finish(fleet: "Fleet", name: str) -> "Change":
            done = fleet.resume_change(name, actor=self._session.actor)
            return done or fleet.change(name) or _never()

        if left:
            self._session.say(f"finishing the changes of {few(left)}, which a process left")
        return self._in_batches(left, finish, {})

    def _plan(self, make: "Make") -> "dict[str, Plan]":
        """Plans all groups that can be planned; a group that cannot is refused."""
        plans: dict[str, Plan] = {}
        refused: list[GroupOutcome] = []
        with Progress("planning") as progress:
            for chunk in _chunks(self._names, _PLANNED_TOGETHER):
                snapshot = self._session.fleet.snapshot(chunk)
                for name in chunk:
                    try:
                        plans[name] = make(name, snapshot)
                    except (Refused, ConfigError) as error:
                        refused.append(GroupOutcome(name, refused=str(error)))
                done = len(plans) + len(refused)
                progress.show(f"planned {done} of {count_of(self._names, 'group')}")
        self._keep(refused)
        return plans

    def _show(self, plans: "Sequence[Plan]") -> None:
        """Prints one row for each group that will change."""
        if not plans:
            self._session.say("nothing to do in any of the selected groups")
            return
        rows = table("BATCH", "GROUP", "STEPS", "REBALANCES", "MOVED", right=("BATCH",))
        for index, plan in enumerate(plans):
            steps = ", ".join(f"{step.kind.value} {numbers_of(step.slots)}" for step in plan.steps)
            costs = (_total(plan, "rebalances"), _total(plan, "moved"))
            rows.add_row(
                str(index // self._size + 1), escape(shorten_for_table(plan.group)), steps, *costs
            )
        self._session.print(rows)
        self._session.say(f"{count_of(plans, 'group')}, at most {self._size} at once")

    # --- acting -----------------------------------------------------------------------------

    def _in_batches(self, names: Sequence[str], act: "Act", plans: "dict[str, Plan]") -> bool:
        """Acts batch after batch; tells whether all were as expected."""
        batches, clock = list(_chunks(names, self._size)), self._session.fleet.clock
        ended: list[GroupOutcome] = []
        with Progress("changing") as progress:
            for number, batch in enumerate(batches, 1):
                where = f"batch {number} of {len(batches)}"
                began = clock.monotonic()
                found = self._batch(batch, act, plans, partial(_show_in, progress, where))
                ended += found
                progress(f"{where}: {_summary(found)}, {duration(clock.monotonic() - began)}")
                if any(each.trouble() and each.refused is None for each in found):
                    self._stopped = True
                    break
        while self._fleets:
            self._fleets.pop().close()
        self._keep(ended)  # the live line of progress would swallow sentences on stdout
        return not self._stopped

    def _keep(self, outcomes: Iterable[GroupOutcome]) -> None:
        """Keeps what came of groups, and says what was not as expected."""
        for each in outcomes:
            known = self._outcomes.get(each.group)
            if known is None or each.change is not None or each.trouble():
                self._outcomes[each.group] = each
            note = restraint_note(each.plan.notes) if each.plan and not each.plan.steps else None
            if why := each.refused or note:
                self._session.say(f"{each.group}: not changed: {why}")
            elif each.change is not None and each.trouble():
                self._session.print_change(each.change)

    def _batch(
        self,
        names: Sequence[str],
        act: "Act",
        plans: "dict[str, Plan]",
        show: Callable[[str], None],
    ) -> list[GroupOutcome]:
        """Acts on groups at once, and returns when all have ended."""
        found: dict[str, GroupOutcome | BaseException] = {}

        def change(fleet: "Fleet", name: str) -> None:
            try:
                found[name] = _outcome(name, plans.get(name), lambda: act(fleet, name))
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                found[name] = error

        while len(self._fleets) < len(names):
            self._fleets.append(self._session.fleet.another())
        threads = [
            # Not joined at Ctrl-C: a change may last for minutes, and another process finishes it.
            threading.Thread(target=change, args=(fleet, name), name=f"change {name}", daemon=True)
            for fleet, name in zip(self._fleets, names, strict=False)
        ]
        self._session.changing(names)  # before the first begins: Ctrl-C names them from here on
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                self._session.changing([name for name in names if name not in found])
                thread.join(_REFRESH)
                show(f"{len(found)} of {count_of(names, 'group')} ended")
        self._session.changing([])
        outcomes = []
        for name in names:
            each = found[name]
            if isinstance(each, BaseException):
                raise each
            outcomes.append(each)
        return outcomes


def _show_in(progress: Progress, where: str, sentence: str) -> None:
    progress.show(f"{where}: {sentence}")


def _never() -> "Change":
    raise AssertionError("nothing was to be done")


def _may_begin(plan: "Plan | None") -> bool:
    return plan is not None and bool(plan.steps) and not plan.refusals


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[at : at + size] for at in range(0, len(names), size))


def _total(plan: "Plan", what: str) -> str:
    """Formats the sum of all steps; `?` if a step's is unknown."""
    costs = [step.expected_cost for step in plan.steps]

    def added(bound: str) -> int | None:
        each = [getattr(cost, f"{what}_{bound}") for cost in costs]
        return None if None in each else sum(each)

    return expected_within(added("expected"), added("min"), added("max"))


def _outcome(name: str, plan: "Plan | None", act: "Callable[[], Change]") -> GroupOutcome:
    try:
        return GroupOutcome(name, plan=plan, change=act())
    except Refused as error:
        return GroupOutcome(name, plan=plan, refused=str(error))
    except FleetError as error:
        return GroupOutcome(name, plan=plan, failed=str(error))


def _summary(found: Sequence[GroupOutcome]) -> str:
    """Returns the line of a batch without its time."""
    good = [each for each in found if not each.trouble()]
    refused = [each.group for each in found if each.refused is not None]
    bad = [each.group for each in found if each.trouble() and each.refused is None]
    unverified = [each for each in good if _is_unverified(each)]
    parts = [f"{count_of(good, 'group')} as expected"]
    parts += [f"{len(unverified)} of them unverified"] * bool(unverified)
    parts += [f"{plural(len(refused), 'group')} refused"] * bool(refused)
    parts += [f"{few(bad)} not as expected"] * bool(bad)
    return ", ".join(parts)


def _is_unverified(outcome: GroupOutcome) -> bool:
    receipts = outcome.change.receipts if outcome.change is not None else ()
    return any(receipt.result is ReceiptResult.UNVERIFIED for receipt in receipts)


# A roll replaces workers of unchanged code too, so its plan is never empty. What an earlier run of
# the same command has rolled is therefore known by when that command began.


@dataclass(frozen=True, slots=True)
class RollStart:
    """Holds when a roll of several groups began, and the group beside whose slots it is stored."""

    group: str
    at: float
    selection: str
    """Arguments that named the groups."""

    def has_rolled(self, fleet: "Fleet", group: str) -> bool:
        """Tells whether a roll of the group that began since then is done."""
        return any(
            change.state is ChangeState.DONE
            and change.started_at >= self.at
            and any(step.kind in _ROLLED_BY for step in change.plan.steps)
            for change in fleet.readable_changes(group)
        )

    def keep(self, session: ChangeSession) -> None:
        """Stores the start, so that the same command continues this roll."""
        note = {"selection": self.selection, "at": self.at, "by": session.actor}
        session.fleet.store.put_manager_state(self.group, _ROLL_START, note)

    def forget(self, session: ChangeSession) -> None:
        """Ends the roll: the same command then begins a new one."""
        session.fleet.store.put_manager_state(self.group, _ROLL_START, None)


def roll_start(session: ChangeSession, names: Sequence[str], selection: str) -> RollStart:
    """Returns when a roll of this selection began: now, unless one within a day is unfinished."""
    fleet, now = session.fleet, session.fleet.clock.now()
    for name in names:
        kept = fleet.store.manager_state(name, _ROLL_START) or {}
        at = kept.get("at")
        if kept.get("selection") != selection or not isinstance(at, float):
            continue
        if 0 <= now - at < _CONTINUES:
            session.say(
                f"continuing the roll that {kept.get('by')} began {duration(now - at)} ago, without"
                " the groups that it has rolled; a group whose code changed since rolls again"
            )
            return RollStart(name, at, selection)
    return RollStart(min(names), now, selection)
