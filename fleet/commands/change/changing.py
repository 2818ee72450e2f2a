"""`fleet apply`, `scale`, `roll` and `drain`: show the plan, carry it out, show its receipts.

Problem: a person wants the expected cost before the change, a script wants to know whether the
recorded cost equals it. Choice: each command prints the plan, asks on a terminal, carries the plan
out with progress on stderr and prints the receipts. It exits 3 if the change was refused, and 1 if
it failed, was rolled back, or cost something else. A change that a dead process left unfinished is
finished first, since its slots may be half open. Cost: that change is not shown before it goes on.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.change.batches import BatchedChanges, roll_start
from fleet.commands.change.session import ChangeSession, GroupOutcome, change_all, change_one
from fleet.commands.invocation import (
    Invocation,
    Meant,
    changing_options,
    common,
    group_argument,
    groups_option,
    is_acting,
    output_option,
    slot_numbers,
)
from fleet.config.spec import seconds
from fleet.slots import ChangeState

if TYPE_CHECKING:
    from fleet.slots import Change


class PinTime(click.ParamType[float]):
    """Reads `2h`, `90m` or seconds, from a second to thirty days."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Converts the text to seconds."""
        try:
            pinned = float(seconds(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if not 1.0 <= pinned <= 30 * 86_400.0:
            self.fail(f"{value!r} is not between 1s and 30d", param, ctx)
        return pinned


plan_option = click.option(
    "--plan",
    "approved",
    metavar="ID",
    help="Carry out only the plan of this id, and do not ask; refused if the group has changed.",
)
batch_option = click.option(
    "--batch",
    type=click.IntRange(min=1, max=100),
    metavar="N",
    help="Change N groups at once; the next batch begins if all receipts are as expected.",
)


@click.command(epilog="Example:  fleet scale orders-enrichment 6 --dry-run")
@group_argument
@click.argument("n", type=click.IntRange(min=0, max=10_000), metavar="N")
@click.option(
    "--pin",
    type=PinTime(),
    metavar="TIME",
    help="Keep N slots for this long (2h, 90m); the policy changes nothing until then.",
)
@plan_option
@changing_options
@output_option
@common
def scale(
    invocation: Invocation,
    group: str,
    n: int,
    *,
    pin: float | None,
    approved: str | None,
    **options: Any,
) -> None:
    """Give a group N slots.

    To add slots, standbys warm up first, then all new slots open at once. To remove slots, the
    last ones drain and leave together. The next manager applies the policy of fleet.yaml again,
    unless --pin keeps N; the plan says what the policy will do. Scaling without --pin ends a pin.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, approved=approved, **options)
        done = change_one(
            session,
            group,
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
    epilog="Examples:  fleet roll orders-enrichment  |  fleet roll --select team=pay --batch 10"
)
@groups_option(must=True, all_means="Roll every declared group with mode: act.")
@batch_option
@plan_option
@changing_options
@output_option
@common
def roll(
    invocation: Invocation,
    *,
    meant: Meant,
    batch: int | None,
    approved: str | None,
    **options: Any,
) -> None:
    """Replace all workers with workers of the new code.

    Slot by slot a warm standby takes over; static members cost no rebalance. The first slot is the
    canary. If it fails, its slot goes back and the change is rolled back. A roll keeps the number
    of slots, and also runs when the code is unchanged. Groups roll one after the other, or --batch
    N at once. The command stops at the first group whose recorded cost differs from the expected
    cost. After a stop or a kill, the same command with --batch continues within a day.
    """
    if approved is not None and (batch or len(meant.named) != 1):
        raise click.UsageError("--plan names the plan of one GROUP: name that group only")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, approved=approved, **options)
        names = _acting(session, meant)
        if batch is not None:
            _roll_in_batches(session, names, meant.words(), batch)
            return
        results = change_all(
            session,
            names,
            make=lambda name, snapshot: fleet.plan(
                name, wanted=fleet.open_slots(name), roll=True, snapshot=snapshot
            ),
            act=lambda name, progress: fleet.apply(
                name,
                wanted=fleet.open_slots(name),
                roll=True,
                approved=approved,
                actor=session.actor,
                progress=progress,
            ),
        )
        session.end(results, one=len(meant.named) == 1)


def _roll_in_batches(
    session: ChangeSession, names: Sequence[str], selection: str, size: int
) -> None:
    command = f"fleet roll {selection} --batch {size}"
    batches = BatchedChanges(session, names, size=size, command=command)
    if names:
        start = roll_start(session, names, selection)
        batches.run(
            make=lambda name, snapshot: session.fleet.plan(
                name,
                wanted=session.fleet.open_slots(name),
                roll=not start.has_rolled(session.fleet, name),
                snapshot=snapshot,
            ),
            act=lambda fleet, name: fleet.apply(
                name, wanted=fleet.open_slots(name), roll=True, actor=session.actor
            ),
            begin=lambda: start.keep(session),
        )
        if batches.is_complete and not session.dry_run:
            start.forget(session)
    batches.end()


def _acting(session: ChangeSession, meant: Meant) -> tuple[str, ...]:
    names = meant.chosen(session.fleet, among=is_acting(session.fleet))
    if not names:
        session.say("nothing to do: none of the selected groups has mode: act")
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
@changing_options
@output_option
@common
def drain(invocation: Invocation, group: str, slots: tuple[int, ...], **options: Any) -> None:
    """Take slots out of a group together.

    Their workers stop reading, finish the current batch, commit, and leave in one request. The
    policy of fleet.yaml may open the slots again at the next `fleet apply`.
    """
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, **options)
        done = change_one(
            session,
            group,
            make=lambda: fleet.drain_plan(group, slots),
            act=lambda progress: fleet.drain(group, slots, actor=session.actor, progress=progress),
        )
        session.end([done], one=True)


@click.command(epilog="Examples:  fleet apply orders-enrichment  |  fleet apply --all --yes")
@groups_option(must=True, all_means="Carry out the plan of every declared group with mode: act.")
@batch_option
@click.option(
    "--continue",
    "how",
    flag_value="continue",
    help="Finish an unfinished change, and start no new one.",
)
@click.option(
    "--abort", "how", flag_value="abort", help="Abort an unfinished change, and start no new one."
)
@plan_option
@changing_options
@output_option
@common
def apply(
    invocation: Invocation,
    *,
    meant: Meant,
    batch: int | None,
    how: str | None,
    approved: str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Carry out the plans of groups.

    An unfinished change whose process died is finished first. Groups change one after the other, or
    --batch N at once. The command stops at the first group whose recorded cost differs from the
    expected cost. A refused group does not stop the others. After a stop or a kill, the same
    command continues.
    """
    if approved is not None and (batch or how or len(meant.named) != 1):
        raise click.UsageError("--plan starts a change of one GROUP: name that group only")
    if batch and how:
        raise click.UsageError(f"--{how} starts no change: leave --batch out")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, approved=approved, dry_run=dry_run, **options)
        names = _acting(session, meant)
        if how:
            results = _settle_all(session, names, how)
        elif batch is not None:
            command = f"fleet apply {meant.words()} --batch {batch}"
            batches = BatchedChanges(session, names, size=batch, command=command)
            batches.run(
                make=lambda name, snapshot: fleet.plan(name, snapshot=snapshot),
                act=lambda each, name: each.apply(name, actor=session.actor),
            )
            batches.end()
            return
        else:
            results = change_all(
                session,
                names,
                make=lambda name, snapshot: fleet.plan(name, snapshot=snapshot),
                act=lambda name, progress: fleet.apply(
                    name, approved=approved, actor=session.actor, progress=progress
                ),
            )
        session.end(results, one=False)


def _settle_all(session: ChangeSession, names: Sequence[str], how: str) -> list[GroupOutcome]:
    """Finishes or aborts the unfinished changes of groups, after it has shown them and asked."""
    unfinished = [
        (name, change)
        for name in names
        if (change := session.fleet.change(name)) and change.state is ChangeState.RUNNING
    ]
    for name, change in unfinished:
        at = f"step {min(change.step + 1, len(change.plan.steps))} of {len(change.plan.steps)}"
        session.say(f"{how} the change of group {name} by {change.actor}: {at}")
        session.show(change.plan)
    session.ask(change.plan for _, change in unfinished)
    if session.dry_run:
        return [GroupOutcome(name, plan=change.plan) for name, change in unfinished]
    return [_settle(session, name, how) for name in names]


def _settle(session: ChangeSession, group: str, how: str) -> GroupOutcome:
    """Finishes or aborts the unfinished change of one group."""
    before = session.fleet.change(group)
    if before is None or before.state is not ChangeState.RUNNING:
        session.say(f"group {group}: no unfinished change")
        return GroupOutcome(group)

    def settle(progress: Callable[[str], None]) -> "Change":
        if how == "continue":
            done = session.fleet.resume_change(group, actor=session.actor, progress=progress)
        else:
            progress(f"checking whether {before.actor} is still running")
            done = session.fleet.abort_change(group, actor=session.actor)
        return done or session.fleet.change(group) or before

    result = session.act(group, None, settle)
    result.aborting = how == "abort"
    return result
