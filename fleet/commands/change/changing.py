"""`fleet apply`, `scale`, `roll` and `drain`: show the plan, carry it out, show its receipts.

Problem: a person wants the expected cost before the change, a script wants to know whether the
recorded cost equals it. Choice: each command prints the plan, asks on a terminal, carries the plan
out with progress on stderr and prints the receipts. It exits 3 if the change was refused, and 1 if
it failed, was rolled back, or cost something else. A change that a dead process left unfinished is
finished first, since its slots may be half open. Cost: that change is not shown before it goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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
    actor,
    changing_options,
    common,
    confirm,
    group_argument,
    groups_option,
    is_acting,
    output_option,
    slot_numbers,
)
from fleet.commands.screen import Progress
from fleet.config.spec import seconds
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
    aborting: bool = False
    """The user asked to abort, so an aborted change is a success."""

    def trouble(self) -> str | None:
        """Returns why this is not what was asked for; None if it is."""
        if self.refused is not None:
            return self.refused
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
                self.say(f"group {group} changed meanwhile and was planned again:")
                self.show(change.plan)
            print_change(self._console, change)
        return GroupOutcome(group, plan=shown, change=change)

    def _keep_current(self, plan: "Plan") -> None:
        from fleet.manager.cycle import current_settings_notice

        if self.fleet.keep_current(plan):
            self.say(current_settings_notice(plan.group))

    def finish_left(self, group: str) -> GroupOutcome | None:
        """Finishes what a dead process left, before a plan is shown; None if nothing was left."""
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
        """Prints JSON if asked for. Raises Refused if every trouble is a refusal, or FleetError."""
        found = list(results)
        if not self._table:
            answers = [result.as_json() for result in found]
            body = answers[0] if one else {"results": answers}
            print_json({"schema_version": SCHEMA_VERSION, **body})
        bad = {trouble: result for result in found if (trouble := result.trouble())}
        if bad:
            refused = all(result.refused is not None for result in bad.values())
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
    epilog="Examples:  fleet roll orders-enrichment  |  fleet roll --select team=pay --dry-run"
)
@groups_option(must=True, all_means="Roll every declared group with mode: act.")
@plan_option
@changing_options
@output_option
@common
def roll(invocation: Invocation, *, meant: Meant, approved: str | None, **options: Any) -> None:
    """Replace all workers with workers of the new code.

    Slot by slot a warm standby takes over; static members cost no rebalance. The first slot is the
    canary. If it fails, its slot goes back and the change is rolled back. A roll keeps the number
    of slots, and also runs when the code is unchanged. Groups roll one after the other. The command
    stops at the first group whose recorded cost differs from the expected cost.
    """
    if approved is not None and len(meant.named) != 1:
        raise click.UsageError("--plan names the plan of one GROUP: name that group only")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, approved=approved, **options)
        results = change_all(
            session,
            _acting(session, meant),
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
    how: str | None,
    approved: str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Carry out the plans of groups.

    An unfinished change whose process died is finished first. The command stops at the first group
    whose recorded cost differs from the expected cost. A refused group does not stop the others.
    """
    if approved is not None and (how or len(meant.named) != 1):
        raise click.UsageError("--plan starts a change of one GROUP: name that group only")
    with invocation.open() as fleet:
        session = ChangeSession(invocation, fleet, approved=approved, dry_run=dry_run, **options)
        names = _acting(session, meant)
        if how:
            results = _settle_all(session, names, how)
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
