"""`fleet apply`, `scale`, `roll` and `drain`: the plan first, then the change, then its receipt.

Problem: a person has to see the price before it is paid, and a script has to know whether it
was what was said. Choice: every command prints the plan, carries it out with its progress on
stderr, prints the receipts, and ends with exit code 1 and one sentence where a change was
refused, failed, was rolled back, or cost something else than stated. A change whose actor died
is finished first: its slots may stand half open.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.change.change_session import ChangeSession, GroupOutcome, change_one, in_turn
from fleet.commands.completing import slot_numbers
from fleet.commands.invocation import Invocation, common, dry_run_option, output_option
from fleet.commands.targets import (
    Pair,
    acting,
    all_option,
    chosen,
    group_argument,
    groups_argument,
    required,
    select_option,
)
from fleet.config.spec import seconds
from fleet.errors import Refused

if TYPE_CHECKING:
    from fleet.model import Plan
    from fleet.slots import Change


class HoldTime(click.ParamType[float]):
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
    "--hold",
    type=HoldTime(),
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
    hold: float | None,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Give a group N slots.

    More: standbys warm up first, then all new slots open at once. Fewer: the last slots drain
    and leave together. The policy in fleet.yaml decides again at the next look of any manager,
    unless N is held; the plan says what it will do. Scaling again without --hold ends a hold.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        done = change_one(
            session,
            group,
            dry_run=dry_run,
            approved=approved,
            empty=hold is not None or fleet.hold(group) is not None,
            make=lambda: fleet.plan(group, wanted=n, hold=hold),
            act=lambda progress: fleet.apply(
                group,
                wanted=n,
                approved=approved,
                hold=hold,
                actor=session.actor,
                progress=progress,
            ),
        )
        session.end([done], one=True)


@click.command(
    epilog="Examples:  fleet roll orders-enrichment  |  fleet roll --select team=pay --dry-run"
)
@groups_argument
@select_option
@all_option("Roll every declared group with mode: act.")
@plan_option
@dry_run_option
@output_option
@common
def roll(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    select: tuple[Pair, ...],
    everything: bool,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Replace all workers by workers of the new code.

    Slot by slot a warm standby takes over, the first one as a canary; no rebalance for static
    members. Where the canary fails, its slot goes back and the change ends `rolled back`.
    Rolls even where the code is the same. Keeps the number of slots. Of many groups, one after the
    other; stops at the first whose receipt differs from its price.
    """
    required(groups, select, everything=everything)
    if approved is not None and len(groups) != 1:
        raise click.UsageError("--plan names the plan of one GROUP")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        names = _meant(session, groups, select)

        def one(name: str) -> GroupOutcome:
            return _roll_one(session, name, dry_run=dry_run, approved=approved)

        session.end(in_turn(session, names, one), one=len(groups) == 1)


def _meant(
    session: ChangeSession, groups: tuple[str, ...], select: tuple[Pair, ...]
) -> tuple[str, ...]:
    names = chosen(session.fleet, groups, select, among=acting(session.fleet))
    if not names:
        session.say("no group that is meant has mode: act, so there is nothing to do")
    return names


def _roll_one(
    session: ChangeSession, group: str, *, dry_run: bool, approved: str | None
) -> GroupOutcome:
    fleet = session.fleet
    return change_one(
        session,
        group,
        dry_run=dry_run,
        approved=approved,
        make=lambda: fleet.plan(group, wanted=fleet.open_slots(group), roll=True),
        act=lambda progress: fleet.apply(
            group,
            wanted=fleet.open_slots(group),
            roll=True,
            approved=approved,
            actor=session.actor,
            progress=progress,
        ),
    )


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
@groups_argument
@select_option
@all_option("Carry out the plan of every declared group with mode: act.")
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
    groups: tuple[str, ...],
    *,
    select: tuple[Pair, ...],
    everything: bool,
    how: str | None,
    yes: bool,
    approved: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Carry out the plans of groups.

    An unfinished change of somebody who died is finished first. Stops at the first group whose
    receipt differs from its price; a refused group does not stop the others.
    """
    required(groups, select, everything=everything)
    if approved is not None and (how or len(groups) != 1):
        raise click.UsageError("--plan names the plan of one GROUP, and starts a change")
    if how and dry_run:
        raise click.UsageError("--dry-run shows a plan; --resume and --abort make none")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, output=output)
        names = _meant(session, groups, select)
        if how:
            session.end([_settle(session, name, how) for name in names], one=False)
        else:
            ask = not yes and not approved and output == "table" and sys.stdin.isatty()
            results = _apply(session, names, approved=approved, dry_run=dry_run, ask=ask)
            session.end(results, one=False)


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
        _confirm("Carry this out?")
    return in_turn(session, names, lambda name: _apply_one(session, name, plans[name], approved))


def _confirm(question: str) -> None:
    if not click.confirm(question):
        raise Refused("not confirmed, so nothing was done")


def _apply_one(
    session: ChangeSession, name: str, plan: "Plan", approved: str | None
) -> GroupOutcome:
    def act(progress: Callable[[str], None]) -> "Change":
        return session.fleet.apply(name, approved=approved, actor=session.actor, progress=progress)

    return session.act(name, plan, act, approved=approved)
