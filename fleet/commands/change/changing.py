"""`fleet apply`, `scale`, `roll` and `drain`: the plan first, then the change, then its receipt.

Problem: a person has to see the expected cost before it is paid, and a script has to know whether
it was what was said. Choice: every command prints the plan, carries it out with its progress on
stderr, prints the receipts, and ends with exit code 1 and one sentence where a change was refused,
failed, was rolled back, or cost something else than stated. A change whose actor died is finished
first: its slots may stand half open.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

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
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    Meant,
    acting,
    actor,
    common,
    confirmed,
    dry_run_option,
    group_argument,
    groups_option,
    output_option,
    person,
    slot_numbers,
)
from fleet.commands.screen import Progress
from fleet.config.spec import seconds
from fleet.decide.adopted import not_as_approved
from fleet.errors import FleetError, Refused
from fleet.slots import ChangeState
from fleet.text import plural, visible

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
        plan = self.change.plan if self.change else self.plan
        change = self.change and change_answer(self.change)
        return {
            "group": self.group,
            "plan": plan and as_answer(plan),
            "change": change,
            "refused": self.refused,
        }


class ChangeSession:
    """One changing command: shows, acts and remembers what came of it."""

    def __init__(self, invocation: Invocation, fleet: "Fleet", *, output: str) -> None:
        self._invocation = invocation
        self._console = stdout()
        self._table = output == "table"
        self.fleet = fleet
        self.actor = actor()

    def show(self, plan: "Plan") -> None:
        """Print a plan."""
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
        spec = self.fleet.group(group)
        left = self.fleet.change(group)
        if self.fleet.spec.mode_of(spec) != "act" or left is None:
            return None
        if left.state is not ChangeState.RUNNING:
            return None

        def finish(progress: Callable[[str], None]) -> "Change":
            done = self.fleet.resume_change(group, actor=self.actor, progress=progress)
            return done or left

        return self.act(group, None, finish)

    def end(self, results: Iterable[GroupOutcome], *, one: bool) -> None:
        """Print JSON where asked for, and fail where something is not as asked for."""
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


# A pause is kept beside the slots, so everything that acts obeys it: this command, Dagster's
# runs, a second shell. Handovers that workers do among themselves go on.


@click.command(
    epilog="Examples:  fleet pause orders-enrichment --reason 'incident 4711'  |  "
    "fleet pause --select team=pay --reason freeze"
)
@groups_option(must=True, all_means="Hold the changes of every group of the cluster.")
@click.option("--reason", required=True, help="Reason, shown to whoever is refused.")
@common
def pause(
    invocation: Invocation,
    *,
    meant: Meant,
    reason: str,
) -> None:
    """Hold all changes of groups, or of all.

    Workers go on; no plan is carried out until `fleet resume`. A pause of --all holds groups that
    are declared later, too.
    """
    if not reason.strip():
        raise click.BadParameter("is empty: say why, for whoever is refused", param_hint="--reason")
    with invocation.open() as fleet:
        names = (None,) if meant.everything else meant.chosen(fleet)
        for name in names:
            fleet.pause(name, reason=reason.strip(), by=person())
            what = f"group {name} is" if name else "all groups are"
            undo = name or "--all"
            click.echo(f"{what} paused: {reason.strip()}. Lift it with `fleet resume {undo}`.")


@click.command(
    epilog="Examples:  fleet resume orders-enrichment  |  fleet resume orders-enrichment --slot 2"
)
@groups_option(must=True, all_means="Lift the pause of --all.")
@click.option(
    "--slot",
    type=int,
    metavar="N",
    shell_complete=slot_numbers,
    help="Reopen this slot of one GROUP, which a foreign owner shut.",
)
@common
def resume(
    invocation: Invocation,
    *,
    meant: Meant,
    slot: int | None,
) -> None:
    """Lift a pause, or open a slot that was shut.

    A pause of --all and a group's own are two pauses; each is lifted by its own command.
    """
    if slot is not None:
        if len(meant.named) != 1:
            raise click.UsageError("--slot needs the GROUP whose slot it is")
        _reopen(invocation, meant.named[0], slot)
        return
    with invocation.open() as fleet:
        names = (None,) if meant.everything else meant.chosen(fleet)
        for name in names:
            lifted = fleet.unpause(name)
            what = f"group {name}" if name else "all groups"
            click.echo(
                f"the pause of {what} is lifted" if lifted else f"{what}: there was no pause"
            )
        for held in fleet.pauses() if not meant.everything else ():
            if held.group is None:
                said = visible(f"{held.reason} ({held.by})")
                click.echo(f"still held by the pause of all groups: {said}")


@click.command(epilog="Example:  fleet release orders-enrichment")
@groups_option(must=True)
@common
def release(invocation: Invocation, *, meant: Meant) -> None:
    """Stop managing groups; their workers go on.

    Nothing acts on them from here on: slots, failovers and rolls are their workers' own business,
    as without a manager. `fleet resume GROUP` manages it again, `fleet down` ends its workers.
    """
    with invocation.open() as fleet:
        for group in meant.chosen(fleet):
            left = fleet.release(group, by=person())
            goes = "goes" if left == 1 else "go"
            click.echo(f"group {group} is not managed any more; {plural(left, 'worker')} {goes} on")
            click.echo(f"Manage it again with `fleet resume {group}`, or take it out of the file.")


def _reopen(invocation: Invocation, group: str, slot: int) -> None:
    with invocation.open() as fleet:
        fleet.group(group)
        shut = fleet.reopen(group, slot)
    if shut:
        click.echo(f"slot {slot} of {group} may be taken again")
    else:
        click.echo(f"slot {slot} of {group} was not shut by a foreign owner")


class PinTime(click.ParamType[float]):
    """`2h`, `90m` or seconds, from a second to thirty days."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        try:
            held = float(seconds(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if not 1.0 <= held <= 30 * 86_400.0:
            self.fail(f"{value!r} is not between 1s and 30d", param, ctx)
        return held


plan_option = click.option(
    "--plan",
    "approved",
    metavar="ID",
    help="Carry out the plan of this id only; refused where the group has changed since.",
)


@click.command(epilog="Example:  fleet scale orders-enrichment 6 --dry-run")
@group_argument
@click.argument("n", type=click.IntRange(min=0, max=10_000), metavar="N")
@click.option(
    "--pin",
    type=PinTime(),
    metavar="TIME",
    help="Keep N slots for this long (2h, 90m): no manager asks the policy until then.",
)
@plan_option
@dry_run_option
@output_option
@common
def scale(
    invocation: Invocation,
    group: str,
    n: int,
    *,
    pin: float | None,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Give a group N slots.

    More: standbys warm up first, then all new slots open at once. Fewer: the last slots drain
    and leave together. The policy in fleet.yaml decides again at the next look of any manager,
    unless N is held; the plan says what it will do. Scaling again without --pin ends a pin.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        done = change_one(
            session,
            group,
            dry_run=dry_run,
            approved=approved,
            empty=pin is not None or fleet.pin(group) is not None,
            make=lambda: fleet.plan(group, wanted=n, pin=pin),
            act=lambda progress: fleet.apply(
                group,
                wanted=n,
                approved=approved,
                pin=pin,
                actor=session.actor,
                progress=progress,
            ),
        )
        session.end([done], one=True)


@click.command(
    epilog="Examples:  fleet roll orders-enrichment  |  fleet roll --select team=pay --dry-run"
)
@groups_option(must=True, all_means="Roll every declared group with mode: act.")
@plan_option
@dry_run_option
@output_option
@common
def roll(
    invocation: Invocation,
    *,
    meant: Meant,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Replace all workers by workers of the new code.

    Slot by slot a warm standby takes over, the first one as a canary; no rebalance for static
    members. Where the canary fails, its slot goes back and the change ends `rolled back`.
    Rolls even where the code is the same. Keeps the number of slots. Of many groups, one after the
    other; stops at the first whose receipt differs from its expected cost.
    """
    if approved is not None and len(meant.named) != 1:
        raise click.UsageError("--plan names the plan of one GROUP")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        names = _acting(session, meant)

        def one(name: str) -> GroupOutcome:
            return change_one(
                session,
                name,
                dry_run=dry_run,
                approved=approved,
                make=lambda: fleet.plan(name, wanted=fleet.open_slots(name), roll=True),
                act=lambda progress: fleet.apply(
                    name,
                    wanted=fleet.open_slots(name),
                    roll=True,
                    approved=approved,
                    actor=session.actor,
                    progress=progress,
                ),
            )

        session.end(in_turn(session, names, one), one=len(meant.named) == 1)


def _acting(session: ChangeSession, meant: Meant) -> tuple[str, ...]:
    names = meant.chosen(session.fleet, among=acting(session.fleet))
    if not names:
        session.say("no group that is meant has mode: act, so there is nothing to do")
    return names


@click.command(epilog="Example:  fleet drain orders-enrichment 2 5")
@group_argument
@click.argument(
    "slots",
    type=click.IntRange(min=0, max=9_999),
    nargs=-1,
    required=True,
    metavar="SLOT...",
    shell_complete=slot_numbers,
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
        done = change_one(
            session,
            group,
            dry_run=dry_run,
            make=lambda: fleet.drain_plan(group, slots),
            act=lambda progress: fleet.drain(group, slots, actor=session.actor, progress=progress),
        )
        session.end([done], one=True)


@click.command(epilog="Examples:  fleet apply orders-enrichment  |  fleet apply --all --yes")
@groups_option(must=True, all_means="Carry out the plan of every declared group with mode: act.")
@click.option(
    "--resume", "how", flag_value="resume", help="Finish an unfinished change and start no new one."
)
@click.option(
    "--abort", "how", flag_value="abort", help="Give up an unfinished change and start no new one."
)
@click.option("--yes", is_flag=True, help="Skip the confirmation that a terminal asks for.")
@plan_option
@dry_run_option
@output_option
@common
def apply(
    invocation: Invocation,
    *,
    meant: Meant,
    how: str | None,
    yes: bool,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Carry out the plans of groups.

    An unfinished change of somebody who died is finished first. Stops at the first group whose
    receipt differs from its expected cost; a refused group does not stop the others.
    """
    if approved is not None and (how or len(meant.named) != 1):
        raise click.UsageError("--plan names the plan of one GROUP, and starts a change")
    if how and dry_run:
        raise click.UsageError("--dry-run shows a plan; --resume and --abort make none")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        names = _acting(session, meant)
        if how:
            session.end([_settle(session, name, how) for name in names], one=False)
        else:
            ask = not yes and not approved and output == "table" and sys.stdin.isatty()
            results = _apply(session, names, approved=approved, dry_run=dry_run, ask=ask)
            session.end(results, one=False)


def _settle(session: ChangeSession, group: str, how: str) -> GroupOutcome:
    """`--resume` and `--abort` of one group."""
    before = session.fleet.change(group)
    if before is None or before.state is not ChangeState.RUNNING:
        held = session.fleet.let_go(group) if how == "abort" else None
        told = "no unfinished change" if held is None else f"let go of what it held: {held}"
        session.say(f"group {group}: {told}")
        return GroupOutcome(group)

    def settle(progress: Callable[[str], None]) -> "Change":
        if how == "resume":
            done = session.fleet.resume_change(group, actor=session.actor, progress=progress)
        else:
            progress(f"waiting whether {before.actor} is gone")
            done = session.fleet.abort_change(group, actor=session.actor)
        return done or session.fleet.change(group) or before

    result = session.act(group, None, settle)
    result.aborting = how == "abort"
    return result


def _apply(
    session: ChangeSession,
    names: tuple[str, ...],
    *,
    approved: str | None,
    dry_run: bool,
    ask: bool,
) -> list[GroupOutcome]:
    """Finish, plan and show all; ask once; act one by one."""
    if not names:
        return []
    if not dry_run:
        for name in names:
            left = session.finish_left(name)
            if left is not None and (left.trouble() or left.carried_out(approved)):
                return [left]
    snapshot = session.fleet.snapshot(names)
    plans = {name: session.fleet.plan(name, snapshot=snapshot) for name in names}
    for plan in plans.values():
        session.show(plan)
    if dry_run:
        return [session.act(name, plan, None, approved=approved) for name, plan in plans.items()]
    if ask and any(plan.steps and not plan.refusals for plan in plans.values()):
        confirmed("Carry this out?")

    def one(name: str) -> GroupOutcome:
        def act(progress: Callable[[str], None]) -> "Change":
            return session.fleet.apply(
                name, approved=approved, actor=session.actor, progress=progress
            )

        return session.act(name, plans[name], act, approved=approved)

    return in_turn(session, names, one)
