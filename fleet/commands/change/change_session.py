"""One changing command from its plan to its exit code: what is shown, done and told.

A refused, failed or rolled back change, and one that cost something else than stated, is an outcome
with a trouble: all of them end the command with exit code 1 and a sentence each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import SCHEMA_VERSION, Invocation, actor
from fleet.errors import FleetError, Refused
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan
    from fleet.slots import Change

    Act = Callable[[Callable[[str], None]], Change]


@dataclass(slots=True)
class GroupOutcome:
    """What became of one group."""

    group: str
    plan: "Plan | None" = None
    change: "Change | None" = None
    refused: str | None = None
    aborting: bool = False
    """An aborted change is what was asked for."""

    def trouble(self) -> str | None:
        """Why this is not what was asked for; None where it is."""
        from fleet.commands.answers import good, outcome

        if self.refused is not None:
            return self.refused
        if self.change is None or good(self.change):
            return None
        if self.aborting and self.change.state.value == "aborted":
            return None
        return f"group {self.group}: {outcome(self.change)}"

    def carried_out(self, plan: str | None) -> bool:
        """Whether this is what came of the plan of that id."""
        return self.change is not None and self.change.plan.id == plan

    def as_json(self) -> dict[str, Any]:
        """The plan (the performed one, where one was) and the change."""
        from fleet.commands.answers import change_answer, plan_answer

        plan = self.change.plan if self.change else self.plan
        return {
            "group": self.group,
            "plan": plan_answer(plan) if plan else None,
            "change": change_answer(self.change) if self.change else None,
            "refused": self.refused,
        }


class ChangeSession:
    """One changing command: shows, acts and remembers what came of it."""

    def __init__(self, invocation: Invocation, fleet: "Fleet", *, output: str) -> None:
        from fleet.commands.answers import stdout

        self._invocation = invocation
        self._console = stdout()
        self._table = output == "table"
        self.fleet = fleet
        self.actor = actor()

    def show(self, plan: "Plan") -> None:
        """Print a plan."""
        from fleet.commands.answers import print_plan

        if self._table:
            print_plan(self._console, plan)

    def say(self, sentence: str) -> None:
        """Print a sentence of the answer; none in JSON."""
        if self._table:
            click.echo(visible(sentence))

    def act(
        self,
        group: str,
        shown: "Plan | None",
        act: "Act | None",
        *,
        approved: str | None = None,
        empty: bool = False,
    ) -> GroupOutcome:
        """Carry out a change and print its receipts; a refusal is a result.

        Without `act`, or where the plan shown is refused, empty (unless `empty`: there is more to
        do than its steps) or not the approved one, nothing is begun.
        """
        from fleet.commands.answers import print_change
        from fleet.commands.progress import Progress
        from fleet.decide.plan_ids import not_as_approved

        if approved is not None and shown is not None:
            why = not_as_approved(approved, shown)
            if why is not None:
                return GroupOutcome(group, plan=shown, refused=why)
        refused = " ".join(shown.refusals) if shown is not None else ""
        if act is None or refused or (shown is not None and shown.empty and not empty):
            if act is not None and not refused and shown is not None:
                self._keep_current(shown)
            return GroupOutcome(group, plan=shown, refused=refused or None)
        self._invocation.changing = group
        try:
            with Progress(f"changing {group}") as progress:
                change = act(progress)
        except Refused as error:
            self._invocation.changing = None
            return GroupOutcome(group, plan=shown, refused=str(error))
        self._invocation.changing = None
        if self._table:
            if shown is not None and change.plan.id != shown.id and _other(change.plan, shown):
                self.say(f"group {group} had moved on and was planned again:")
                self.show(change.plan)
            print_change(self._console, change)
        return GroupOutcome(group, plan=shown, change=change)

    def _keep_current(self, plan: "Plan") -> None:
        from fleet.manager.cycle import brought_up_to_date

        if self.fleet.keep_current(plan):
            self.say(brought_up_to_date(plan.group))

    def finish_left(self, group: str) -> GroupOutcome | None:
        """Finish what a dead actor left, before a plan is shown; None where nothing was left."""
        from fleet.slots import ChangeState

        spec = self.fleet.group(group)
        last = self.fleet.changes(group, limit=1)
        if self.fleet.spec.mode_of(spec) != "act" or not last:
            return None
        left = last[0]
        if left.state is not ChangeState.RUNNING:
            return None

        def finish(progress: Callable[[str], None]) -> "Change":
            done = self.fleet.resume_change(group, actor=self.actor, progress=progress)
            return done or left

        return self.act(group, None, finish)

    def end(self, results: Iterable[GroupOutcome], *, one: bool) -> None:
        """Print JSON where asked for, and fail where something is not as asked for."""
        from fleet.commands.answers import print_json

        found = list(results)
        if not self._table:
            answers = [result.as_json() for result in found]
            body = answers[0] if one else {"results": answers}
            print_json({"schema_version": SCHEMA_VERSION, **body})
        troubles = [trouble for result in found if (trouble := result.trouble())]
        if troubles:
            raise FleetError("\nfleet: ".join(troubles))


def _other(one: "Plan", two: "Plan") -> bool:
    return [(s.kind, s.slots) for s in one.steps] != [(s.kind, s.slots) for s in two.steps]


def change_one(
    session: ChangeSession,
    group: str,
    *,
    dry_run: bool,
    make: "Callable[[], Plan]",
    act: "Act",
    approved: str | None = None,
    empty: bool = False,
) -> GroupOutcome:
    """Plan, show, act on one group."""
    left = None if dry_run else session.finish_left(group)
    if left is not None and (left.trouble() or left.carried_out(approved)):
        return left
    plan = make()
    session.show(plan)
    return session.act(group, plan, None if dry_run else act, approved=approved, empty=empty)


def in_turn(
    session: ChangeSession, names: Sequence[str], do: Callable[[str], GroupOutcome]
) -> list[GroupOutcome]:
    """One group after the other, until a change is not as planned; a refusal stops nobody else."""
    results: list[GroupOutcome] = []
    for position, name in enumerate(names, 1):
        results.append(do(name))
        if results[-1].change is not None and results[-1].trouble() and names[position:]:
            session.say(f"stopped here; not reached: {', '.join(names[position:])}")
            break
    return results
