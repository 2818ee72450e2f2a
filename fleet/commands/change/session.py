"""One changing command: shows plans, asks, acts on groups and keeps what came of each.

Problem: a person, a script and a test want the same plan, question and receipts from each command
that changes groups. Choice: one `ChangeSession` per command; a refusal of one group is a result,
not an exception. Cost: the exit code is known only at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from fleet.commands.answers import (
    as_answer,
    change_answer,
    good,
    outcome,
    print_change,
    print_json,
    print_plan,
    stdout,
)
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, actor, confirm
from fleet.commands.screen import Progress
from fleet.decide.adopted import approval_mismatch
from fleet.errors import FleetError, Refused
from fleet.slots import ChangeState
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.lag.snapshot import Snapshot
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan
    from fleet.slots import Change

    Act = Callable[[Callable[[str], None]], Change]


@dataclass(slots=True)
class GroupOutcome:
    """Keeps what a command did to one group."""

    group: str
    plan: "Plan | None" = None
    change: "Change | None" = None
    refused: str | None = None
    failed: str | None = None
    """Why the change could not be followed to its end; it may be unfinished."""
    aborting: bool = False
    """The user asked to abort, so an aborted change is a success."""

    def trouble(self) -> str | None:
        """Returns why this is not what was asked for; None if it is."""
        if self.refused is not None or self.failed is not None:
            return self.refused or self.failed
        if self.change is None or good(self.change):
            return None
        if self.aborting and self.change.state.value == "aborted":
            return None
        return f"group {self.group}: {outcome(self.change)}"

    def carried_out(self, plan: str | None) -> bool:
        """Tells whether the plan of that id was carried out."""
        return self.change is not None and self.change.plan.id == plan

    def as_json(self) -> dict[str, Any]:
        """Returns the plan (the performed one, if any) and the change, as docs/reference/json.md
        has them.
        """
        plan = self.change.plan if self.change else self.plan
        change = self.change and change_answer(self.change)
        return {
            "group": self.group,
            "plan": plan and as_answer(plan),
            "change": change,
            "refused": self.refused,
            "failed": self.failed,
        }


class ChangeSession:
    """Carries out one changing command: shows plans, asks, acts and prints the result."""

    def __init__(
        self,
        invocation: Invocation,
        fleet: "Fleet",
        *,
        output: str,
        yes: bool = False,
        dry_run: bool = False,
        approved: str | None = None,
    ) -> None:
        self._invocation = invocation
        self._console = stdout()
        self._table = output == "table"
        self._yes = yes or not self._table or approved is not None
        self.fleet = fleet
        self.actor = actor()
        self.dry_run = dry_run
        self.approved = approved
        """Id of the only plan to carry out; None: any."""

    def ask(self, plans: "Iterable[Plan]") -> None:
        """Asks on a terminal, if there is anything to do. Raises Refused if the answer is no."""
        if any(plan.steps and not plan.refusals for plan in plans):
            confirm("Carry this out?", yes=self._yes or self.dry_run)

    def show(self, plan: "Plan") -> None:
        """Prints a plan, but not in JSON."""
        if self._table:
            print_plan(self._console, plan)

    def say(self, sentence: str) -> None:
        """Prints a sentence, but not in JSON."""
        if self._table:
            click.echo(visible(sentence))

    def print(self, table: RenderableType) -> None:
        """Prints a table, but not in JSON."""
        if self._table:
            self._console.print(table)

    def print_change(self, change: "Change") -> None:
        """Prints receipts and end of a change, but not in JSON."""
        if self._table:
            print_change(self._console, change)

    def changing(self, groups: Sequence[str]) -> None:
        """Records whose changes Ctrl-C would leave unfinished."""
        self._invocation.changing = " ".join(groups) or None

    def act(
        self,
        group: str,
        shown: "Plan | None",
        act: "Act",
        *,
        empty: bool = False,
    ) -> GroupOutcome:
        """Carries out a change and prints its receipts; a refusal is a result.

        Nothing starts in a dry run, or if the plan shown is refused or not the approved one. An
        empty plan starts only if `empty`: then there is more to do than its steps.
        """
        if self.approved is not None and shown is not None:
            why = approval_mismatch(self.approved, shown)
            if why is not None:
                return GroupOutcome(group, plan=shown, refused=why)
        refused = " ".join(shown.refusals) if shown is not None else ""
        if self.dry_run or refused or (shown is not None and shown.empty and not empty):
            if not self.dry_run and not refused and shown is not None:
                self._keep_current(shown)
            return GroupOutcome(group, plan=shown, refused=refused or None)
        self.changing([group])
        try:
            with Progress(f"changing {group}") as progress:
                change = act(progress)
        except Refused as error:
            self.changing([])
            return GroupOutcome(group, plan=shown, refused=str(error))
        self.changing([])
        if shown is not None and change.plan.id != shown.id and _other(change.plan, shown):
            self.say(f"group {group} changed meanwhile and was planned again:")
            self.show(change.plan)
        self.print_change(change)
        return GroupOutcome(group, plan=shown, change=change)

    def _keep_current(self, plan: "Plan") -> None:
        from fleet.manager.cycle import current_settings_notice

        if self.fleet.keep_current(plan):
            self.say(current_settings_notice(plan.group))

    def left_change(self, group: str) -> "Change | None":
        """Returns an unfinished change that this command may finish."""
        left = self.fleet.change(group)
        if left is None or left.state is not ChangeState.RUNNING:
            return None
        return left if self.fleet.spec.mode_of(self.fleet.group(group)) == "act" else None

    def finish_left(self, group: str) -> GroupOutcome | None:
        """Finishes what a dead process left, before a plan is shown; None if nothing was left."""
        left = self.left_change(group)
        if left is None:
            return None

        def finish(progress: Callable[[str], None]) -> "Change":
            done = self.fleet.resume_change(group, actor=self.actor, progress=progress)
            return done or left

        return self.act(group, None, finish)

    def end(
        self, results: Iterable[GroupOutcome], *, one: bool, in_part: bool = False, **more: Any
    ) -> None:
        """Prints JSON if asked for. Raises Refused if every trouble is a refusal, or FleetError.

        in_part: another group was changed, or would be, so that refusals are no error.
        """
        found = list(results)
        if not self._table:
            answers = [result.as_json() for result in found]
            body = answers[0] if one else {"results": answers}
            print_json({"schema_version": SCHEMA_VERSION, **body, **more})
        bad = {trouble: result for result in found if (trouble := result.trouble())}
        if bad:
            refused = all(result.refused is not None for result in bad.values())
            if refused and in_part:
                return
            raise (Refused if refused else FleetError)("\nfleet: ".join(bad))


def _other(one: "Plan", two: "Plan") -> bool:
    return [(s.kind, s.slots) for s in one.steps] != [(s.kind, s.slots) for s in two.steps]


def change_one(
    session: ChangeSession,
    group: str,
    *,
    make: "Callable[[], Plan]",
    act: "Act",
    empty: bool = False,
) -> GroupOutcome:
    """Plans, shows, asks and acts on one group."""
    left = None if session.dry_run else session.finish_left(group)
    if left is not None and (left.trouble() or left.carried_out(session.approved)):
        return left
    plan = make()
    session.show(plan)
    session.ask([plan])
    return session.act(group, plan, act, empty=empty)


def change_all(
    session: ChangeSession,
    names: Sequence[str],
    *,
    make: "Callable[[str, Snapshot], Plan]",
    act: "Callable[[str, Callable[[str], None]], Change]",
) -> list[GroupOutcome]:
    """Finishes what was left, plans and shows all, asks once, and acts on one after the other."""
    if not names:
        return []
    for name in () if session.dry_run else names:
        left = session.finish_left(name)
        if left is not None and (left.trouble() or left.carried_out(session.approved)):
            return [left]
    snapshot = session.fleet.snapshot(names)
    plans = {name: make(name, snapshot) for name in names}
    for plan in plans.values():
        session.show(plan)
    session.ask(plans.values())
    return in_turn(session, names, lambda name: session.act(name, plans[name], partial(act, name)))


def in_turn(
    session: ChangeSession, names: Sequence[str], do: Callable[[str], GroupOutcome]
) -> list[GroupOutcome]:
    """Changes one group after the other, until one is not as planned; a refusal stops no other."""
    results: list[GroupOutcome] = []
    for position, name in enumerate(names, 1):
        results.append(do(name))
        if results[-1].change is not None and results[-1].trouble() and names[position:]:
            session.say(f"stopped here; not changed: {', '.join(names[position:])}")
            break
    return results
