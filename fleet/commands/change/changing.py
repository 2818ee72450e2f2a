"""`fleet apply`, `scale`, `roll` and `drain`: the plan first, then the change, then its receipt.

Problem: a person has to see the price before it is paid, and a script has to know whether it
was what was said. Choice: every command prints the plan, carries it out with its progress on
stderr, prints the receipts, and ends with exit code 1 and one sentence where a change was
refused, failed, was rolled back, or cost something else than stated. A change whose actor died
is finished first: its slots may stand half open.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    actor,
    common,
    dry_run_option,
    output_option,
)
from fleet.errors import FleetError, Refused

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
            click.echo(sentence)

    def act(self, group: str, shown: "Plan | None", act: "Act | None") -> GroupOutcome:
        """Carry out a change and print its receipts; a refusal is a result.

        Without `act`, or where the plan shown is empty or refused, nothing is begun.
        """
        from fleet.commands.answers import print_change
        from fleet.commands.progress import Progress

        refused = " ".join(shown.refusals) if shown is not None else ""
        if act is None or refused or (shown is not None and shown.empty):
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


def _change_one(
    session: ChangeSession, group: str, *, dry_run: bool, make: "Callable[[], Plan]", act: "Act"
) -> None:
    """Plan, show, act on one group."""
    left = None if dry_run else session.finish_left(group)
    if left is not None and left.trouble():
        session.end([left], one=True)
        return
    plan = make()
    session.show(plan)
    session.end([session.act(group, plan, None if dry_run else act)], one=True)


@click.command(epilog="Example:  fleet scale orders-enrichment 6 --dry-run")
@click.argument("group")
@click.argument("n", type=click.IntRange(min=0, max=10_000), metavar="N")
@dry_run_option
@output_option
@common
def scale(invocation: Invocation, group: str, n: int, *, dry_run: bool, output: str) -> None:
    """Give a group N slots.

    More: standbys warm up first, then all new slots open at once. Fewer: the last slots drain
    and leave together. The policy in fleet.yaml decides again at the next `fleet apply`.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        _change_one(
            session,
            group,
            dry_run=dry_run,
            make=lambda: fleet.plan(group, wanted=n),
            act=lambda progress: fleet.apply(
                group, wanted=n, actor=session.actor, progress=progress
            ),
        )


@click.command(epilog="Example:  fleet roll orders-enrichment")
@click.argument("group")
@dry_run_option
@output_option
@common
def roll(invocation: Invocation, group: str, *, dry_run: bool, output: str) -> None:
    """Replace all workers by workers of the new code.

    Slot by slot a warm standby takes over, the first one as a canary; no rebalance for static
    members. Where the canary fails, its slot goes back and the change ends `rolled back`.
    Rolls even where the code is the same. Keeps the number of slots.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)

        def slots() -> int:
            return len(fleet.gate(group).open)

        _change_one(
            session,
            group,
            dry_run=dry_run,
            make=lambda: fleet.plan(group, wanted=slots(), roll=True),
            act=lambda progress: fleet.apply(
                group, wanted=slots(), roll=True, actor=session.actor, progress=progress
            ),
        )


@click.command(epilog="Example:  fleet drain orders-enrichment 2 5")
@click.argument("group")
@click.argument(
    "slots", type=click.IntRange(min=0, max=9_999), nargs=-1, required=True, metavar="SLOT..."
)
@dry_run_option
@output_option
@common
def drain(
    invocation: Invocation, group: str, slots: tuple[int, ...], *, dry_run: bool, output: str
) -> None:
    """Take slots out of a group together.

    They stop reading, finish the batch in hand, commit, and leave in one request. The policy
    in fleet.yaml may open them again at the next `fleet apply`.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        _change_one(
            session,
            group,
            dry_run=dry_run,
            make=lambda: fleet.drain_plan(group, slots),
            act=lambda progress: fleet.drain(group, slots, actor=session.actor, progress=progress),
        )


@click.command(epilog="Examples:  fleet apply orders-enrichment  |  fleet apply --all --yes")
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option(
    "--all", "everything", is_flag=True, help="Apply to every declared group with mode: act."
)
@click.option(
    "--resume", "how", flag_value="resume", help="Finish an unfinished change and start no new one."
)
@click.option(
    "--abort", "how", flag_value="abort", help="Give up an unfinished change and start no new one."
)
@click.option("--yes", is_flag=True, help="Skip the confirmation that a terminal asks for.")
@dry_run_option
@output_option
@common
def apply(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    everything: bool,
    how: str | None,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Carry out the plans of groups.

    An unfinished change of somebody who died is finished first. Stops at the first group whose
    receipt differs from its price; a refused group does not stop the others.
    """
    if bool(groups) == everything:
        raise click.UsageError("name one GROUP or more, or --all for those with mode: act")
    if how and dry_run:
        raise click.UsageError("--dry-run shows a plan; --resume and --abort make none")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        names = groups or _acting(fleet)
        for name in names:
            fleet.group(name)
        if how:
            session.end([_settle(session, name, how) for name in names], one=False)
        else:
            ask = not yes and output == "table" and sys.stdin.isatty()
            session.end(_apply(session, names, dry_run=dry_run, ask=ask), one=False)


def _acting(fleet: "Fleet") -> tuple[str, ...]:
    return tuple(f.group for f in fleet.spec.fleets if fleet.spec.mode_of(f) == "act")


def _settle(session: ChangeSession, group: str, how: str) -> GroupOutcome:
    """`--resume` and `--abort` of one group."""
    from fleet.slots import ChangeState

    last = session.fleet.changes(group, limit=1)
    if not last or last[0].state is not ChangeState.RUNNING:
        held = session.fleet.let_go(group) if how == "abort" else None
        told = "no unfinished change" if held is None else f"let go of what it held: {held}"
        session.say(f"group {group}: {told}")
        return GroupOutcome(group)
    before = last[0]

    def settle(progress: Callable[[str], None]) -> "Change":
        if how == "resume":
            done = session.fleet.resume_change(group, actor=session.actor, progress=progress)
        else:
            progress(f"waiting whether {before.actor} is gone")
            done = session.fleet.abort_change(group, actor=session.actor)
        return done or session.fleet.changes(group, limit=1)[0]

    result = session.act(group, None, settle)
    result.aborting = how == "abort"
    return result


def _apply(
    session: ChangeSession, names: tuple[str, ...], *, dry_run: bool, ask: bool
) -> list[GroupOutcome]:
    """Finish, plan and show all; ask once; act one by one."""
    results: list[GroupOutcome] = []
    if not names:
        session.say("no declared group has mode: act, so there is nothing to apply")
        return results
    if not dry_run:
        for name in names:
            left = session.finish_left(name)
            if left is not None and left.trouble():
                return [left]
    snapshot = session.fleet.snapshot(names)
    plans = {name: session.fleet.plan(name, snapshot=snapshot) for name in names}
    for plan in plans.values():
        session.show(plan)
    if dry_run:
        return [session.act(name, plan, None) for name, plan in plans.items()]
    if ask and any(plan.steps and not plan.refusals for plan in plans.values()):
        _confirm("Carry this out?")
    for position, (name, plan) in enumerate(plans.items()):
        result = _apply_one(session, name, plan)
        results.append(result)
        rest = list(plans)[position + 1 :]
        if result.change is not None and result.trouble() and rest:
            session.say(f"stopped here; not reached: {', '.join(rest)}")
            break
    return results


def _confirm(question: str) -> None:
    if not click.confirm(question):
        raise Refused("not confirmed, so nothing was done")


def _apply_one(session: ChangeSession, name: str, plan: "Plan") -> GroupOutcome:
    def act(progress: Callable[[str], None]) -> "Change":
        return session.fleet.apply(name, actor=session.actor, progress=progress)

    return session.act(name, plan, act)
