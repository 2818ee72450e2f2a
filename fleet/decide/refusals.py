"""Lists why a plan may not be carried out now; each sentence also says what to do.

Problem: a change during a rebalance, a storm or another change, or while a static member is away,
costs more than expected. It may cost minutes of standstill, since a missing static member blocks
the join phase until its session ends. Choice: all reasons are collected, so that none hides
another. Reasons against membership changes do not block a roll or standbys. Cost: a long list in a
bad state.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fleet.config.spec import CONSUMER_SESSION, ClassicWorker, GroupSpec
from fleet.decide.scaling import missing_topics, unmatched_entries
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import BrokerLimits, GroupState, Plan, Step, StepKind
from fleet.slots import Change, ChangeState, Pause
from fleet.text import duration, plural

# Brokers refuse members with a wrong session timeout (error 26) or in a full group (error 81).
# Fleet reports that before it starts, since the old members would have left by then. If this login
# may not read the brokers' bounds, the first worker shows the error.


_JOINS: Final = frozenset({StepKind.OPEN, StepKind.ROLL})


def broker_limit_refusals(
    state: StateSnapshot, plan: Plan, limits: BrokerLimits
) -> tuple[str, ...]:
    """Returns why brokers would refuse the plan's new members; empty if unknown or none."""
    if not adds_members(plan):
        return ()
    return tuple(filter(None, (_session(state, limits), _size(state, plan, limits))))


def adds_members(plan: Plan) -> bool:
    """Tells whether a plan adds members, so that the brokers' limits matter."""
    return any(step.kind in _JOINS for step in plan.steps)


def _session(state: StateSnapshot, limits: BrokerLimits) -> str:
    worker = state.spec.worker
    if not isinstance(worker, ClassicWorker):  # under KIP-848 it is the group's own setting
        return ""
    least, longest = limits.least_session or 0.0, limits.longest_session or float("inf")
    if least <= worker.session_timeout <= longest:
        return ""
    name, bound, word = (
        ("group.min.session.timeout.ms", least, "at least")
        if worker.session_timeout < least
        else ("group.max.session.timeout.ms", longest, "at most")
    )
    return (
        f"worker.session_timeout of {state.spec.group} is {duration(worker.session_timeout)}, but "
        f"the brokers allow {word} {duration(bound)} ({name}) and would refuse every member "
        "(error 26); change it in fleet.yaml"
    )


def _size(state: StateSnapshot, plan: Plan, limits: BrokerLimits) -> str:
    classic = isinstance(state.spec.worker, ClassicWorker)
    most = limits.classic_members if classic else limits.consumer_members
    members = _most_members(state, plan)
    if most is None or members <= most:
        return ""
    name = "group.max.size" if classic else "group.consumer.max.size"
    return (
        f"group {state.spec.group} would have {plural(members, 'member')}, but the brokers allow "
        f"{most} ({name}) and would refuse the others (error 81); lower the number of workers, or "
        f"raise {name} on the brokers"
    )


def _most_members(state: StateSnapshot, plan: Plan) -> int:
    """Returns the most members that the group has during the steps, external ones included."""
    held = set(state.open_slots())
    most = 0
    for step in plan.steps:
        if step.kind in _JOINS:  # a rolling batch's successors join before the others leave
            most = max(most, len(held | set(step.slots)))
        if step.kind is StepKind.OPEN:
            held |= set(step.slots)
        elif step.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
            held -= set(step.slots)
        elif step.kind is StepKind.ROLL:
            held = _after_rolling_batch(held, step.slots)
    return most + len(state.external_members())


def _after_rolling_batch(held: set[int], slots: tuple[int, ...]) -> set[int]:
    """Returns the open slots after a roll; a rolling batch names old and new slots."""
    fresh = set(slots) - held
    return (held - set(slots)) | fresh if fresh else held


STALE_AFTER = 60.0
"""Seconds after which a snapshot is too old to act on."""
_UNSETTLED = {
    GroupState.PREPARING,
    GroupState.COMPLETING,
    GroupState.REBALANCING,
    GroupState.UNKNOWN,
}
_MEMBERSHIP = {StepKind.OPEN, StepKind.LEAVE, StepKind.REJOIN, StepKind.STOP_ALL}


def mode_refusal(spec: GroupSpec, mode: str) -> str | None:
    """Returns why the mode forbids acting, None if it allows it; any mode allows plans."""
    group = spec.group
    if not spec.is_changeable:
        return (
            f"group {group} declares no worker, so Fleet only observes it; declare a worker in "
            "fleet.yaml to manage it"
        )
    if mode == "observe":
        return (
            f"group {group} is in mode observe; write mode: act in fleet.yaml to let Fleet change "
            "it"
        )
    if mode == "plan":
        return (
            f"group {group} is in mode plan, which only shows plans; write mode: act in fleet.yaml "
            "to let Fleet change it"
        )
    return None


def refusals(
    state: StateSnapshot,
    now: float,
    *,
    steps: Sequence[Step] = (),
    forced: bool = False,
) -> tuple[str, ...]:
    """Returns the reasons against carrying out `steps` now; empty if there are none.

    forced: a person asked for this roll, even of a revision that was rolled back, or in a storm
    (new code may end it).
    Without steps, only pause, running change and stale snapshot are checked.
    """
    kinds = {step.kind for step in steps}
    reasons = [
        pause_refusal(state.pauses, state.spec.group),
        _changing(state, now),
        _stale(state, now),
    ]
    if kinds - {StepKind.WARM}:
        reasons += [
            _unsettled(state),
            _wrong_type(state, kinds),
            _wrong_assignor(state),
            "" if forced else _storm(state, steps),
            _no_topic(state, kinds),
            "" if forced else _rolled_back(state, kinds),
        ]
    if kinds & _MEMBERSHIP:
        reasons += [_away(state, steps), _joining(state), _doubled(state)]
    reasons.append(_quarantined(state, steps))
    return tuple(reason for reason in reasons if reason)


def pause_refusal(pauses: Iterable[Pause], group: str) -> str:
    """Returns the message for a group that is paused, by itself or with all; empty if not."""
    mine = [each for each in pauses if each.group in {None, group}]
    pause = min(mine, key=lambda each: each.group is None, default=None)
    if pause is None:
        return ""
    if pause.is_unmanaged:
        return f"{pause.by} unmanaged group {group}; run `fleet manage {group}` to take it back"
    what = "every group is" if pause.group is None else f"group {pause.group} is"
    lift = "--all" if pause.group is None else pause.group
    return (
        f"{what} paused by {pause.by} ({pause.reason or 'no reason given'}); run "
        f"`fleet resume {lift}` to lift the pause"
    )


def budget_refusal(changing: Sequence[str], most: int | None) -> str:
    """Returns the message for a cluster with `most` groups in change; empty if it has fewer."""
    if most is None or len(changing) < most:
        return ""
    names = f"{', '.join(changing[:3])}{' and others' if len(changing) > 3 else ''}"
    be = "is" if len(changing) == 1 else "are"
    return (
        f"{plural(len(changing), 'group')} {be} in change ({names}) and max_groups_in_change is "
        f"{most}; retry when one has ended. If its actor stopped, run `fleet apply {changing[0]} "
        "--continue`"
    )


def _changing(state: StateSnapshot, now: float) -> str:
    change = state.change
    if change is None or change.state is not ChangeState.RUNNING:
        return ""
    total = len(change.plan.steps)
    since = duration(max(0.0, now - change.started_at))
    step = f"step {min(change.step + 1, total)} of {total}"
    if state.change_alive:
        return (
            f"{change.actor} is carrying out change {change.plan.id} ({step}, for {since}); wait "
            f"for its end, which `fleet status {state.spec.group}` shows"
        )
    if state.change_alive is None:
        return (
            f"change {change.plan.id} by {change.actor} may still be running ({step}); retry in "
            f"{state.spec.runtime.lease:g} s, or run `fleet apply {state.spec.group} --continue`, "
            "which waits"
        )
    return (
        f"{change.actor} left change {change.plan.id} unfinished ({step}); run "
        f"`fleet apply {state.spec.group} --continue` to finish it, or "
        f"`fleet apply {state.spec.group} --abort` to end it"
    )


def _stale(state: StateSnapshot, now: float) -> str:
    age = now - state.snapshot_at
    if age <= STALE_AFTER:
        return ""
    return (
        f"the snapshot is {duration(age)} old, more than {duration(STALE_AFTER)}; retry, and check "
        "that the brokers answer"
    )


def _unsettled(state: StateSnapshot) -> str:
    group = state.group
    if group is None or not group.exists or group.state not in _UNSETTLED:
        return ""
    if group.state is GroupState.UNKNOWN and group.type not in {"classic", "consumer"}:
        return f"the state of group {group.group} is unknown; retry"
    return (
        f"group {group.group} is rebalancing ({group.state}); wait until it is Stable, at most for "
        "the largest max_poll_interval of its members"
    )


def _wrong_type(state: StateSnapshot, kinds: set[StepKind]) -> str:
    group, worker = state.group, state.spec.worker
    if group is None or not group.exists or worker is None:
        return ""
    if group.type not in {"classic", "consumer", "unknown"}:
        return (
            f"{group.group} is a {group.type} group, but Fleet's workers join only classic and "
            "consumer groups; choose another group id"
        )
    stopped_first = StepKind.STOP_ALL in kinds and not state.external_members()
    if group.type in {"unknown", worker.protocol} or state.is_empty() or stopped_first:
        return ""
    return (
        f"{group.group} has {len(group.members)} members of the {group.type} protocol, but "
        f"worker.protocol is {worker.protocol}; stop these members first, or write "
        f"protocol: {group.type}"
    )


def _wrong_assignor(state: StateSnapshot) -> str:
    """Refuses to join a group of external members with another assignor (Connect)."""
    group, worker = state.group, state.spec.worker
    if group is None or state.is_empty() or not isinstance(worker, ClassicWorker):
        return ""
    others_only = len(state.external_members()) == len(group.members)
    if not others_only or group.type == "consumer" or group.assignor in {None, "", worker.assignor}:
        return ""
    return (
        f"the {len(group.members)} members of group {group.group} are external and use assignor "
        f"{group.assignor!r}, so that the coordinator would refuse a worker with "
        f"{worker.assignor} (error 23); stop them first, or choose another group id"
    )


def _storm(state: StateSnapshot, steps: Sequence[Step]) -> str:
    """Refuses changes during a storm, except one that removes its top offender."""
    storm = state.storm
    if storm is None:
        return ""
    leaving = {n for s in steps if s.kind in {StepKind.LEAVE, StepKind.STOP_ALL} for n in s.slots}
    if storm.top_offender in {f"{state.spec.group}-{n}" for n in leaving}:
        return ""
    return (
        f"{storm.sentence}; changes are blocked until the window holds at most half of the budget "
        f"for {state.spec.storm.cooldown:g} s. Run `fleet rebalances --group {state.spec.group}` "
        "to see the rebalances; the runbook group-storm has the next steps"
    )


def _no_topic(state: StateSnapshot, kinds: set[StepKind]) -> str:
    """Refuses new members without a topic, since librdkafka does not join then."""
    if not kinds - {StepKind.WARM, StepKind.LEAVE}:
        return ""
    missing = missing_topics(state.topics, state.spec)
    nothing = unmatched_entries(state.topics, state.spec)
    if nothing and not missing:
        return (
            f"no topic matches {' or '.join(nothing)} of group {state.spec.group} yet, and a "
            "member without a topic does not join; create a topic, then plan again"
        )
    return missing_topic(state)


def missing_topic(state: StateSnapshot) -> str:
    """Returns the message for missing topics that Fleet does not create; empty if none."""
    missing = missing_topics(state.topics, state.spec)
    if not missing or state.spec.create is not None:
        return ""
    names = ", ".join(missing)
    word = "topic" if len(missing) == 1 else "topics"
    return (
        f"{word} {names} of group {state.spec.group} {'does' if len(missing) == 1 else 'do'} not "
        "exist; create it, or write create: {partitions: 12} under the fleet"
    )


def _rolled_back(state: StateSnapshot, kinds: set[StepKind]) -> str:
    """Refuses a revision that was rolled back, which every cycle would otherwise retry.

    It protects running workers. A leave brings no code, and without open slots there is nothing to
    protect (and `fleet roll` would have no slot to roll).
    """
    change = state.change
    if change is None or change.state is not ChangeState.ROLLED_BACK:
        return ""
    if change.plan.revision != state.revision or not kinds - {StepKind.WARM, StepKind.LEAVE}:
        return ""
    if not state.open_slots():
        return ""
    return (
        f"revision {state.revision} of {state.spec.group} was rolled back: "
        f"{change.sentence or 'no reason is stored'}; correct the code, or run "
        f"`fleet roll {state.spec.group}` to retry"
    )


def _away(state: StateSnapshot, steps: Sequence[Step]) -> str:
    """Refuses while a static member is away, unless the step itself removes it."""
    worker = state.spec.worker
    if worker is None or worker.membership == "dynamic":
        return ""
    away = set(state.away())
    first = next(step for step in steps if step.kind in _MEMBERSHIP)
    if first.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
        away -= set(first.slots)
    if not away:
        return ""
    if isinstance(worker, ClassicWorker):
        wait, why = worker.session_timeout, "would block the rebalance"
    else:  # nothing waits for it under KIP-848
        wait, why = CONSUMER_SESSION, "would cost one more assignment when it expires"
    here = {n for n in away if n in state.open_slots() or state.slot(n).token}
    reasons = []
    if here:
        names = ", ".join(f"{state.spec.group}-{n}" for n in sorted(here))
        reasons.append(
            f"static member {names} is away (no worker owns its slot) and {why}; wait until a "
            f"worker takes the slot, or {wait:g} s after its last heartbeat"
        )
    if away - here:
        names = ", ".join(f"{state.spec.group}-{n}" for n in sorted(away - here))
        reasons.append(
            f"{names} is a member, but its slot never had an owner in this store. If you changed "
            "cluster.name, runtime.kind, runtime.namespace or the state directory, the old workers "
            "still run; run `fleet down` with the old fleet.yaml. A dead member expires "
            f"{wait:g} s after its last heartbeat"
        )
    return "; ".join(reasons)


def _joining(state: StateSnapshot) -> str:
    joining = state.joining()
    if not joining:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in joining)
    return f"{names} is joining; wait for its worker's first commit or empty poll"


def _doubled(state: StateSnapshot) -> str:
    """Refuses while an external process uses one of the group's instance ids [15]."""
    held = sorted(
        number
        for number in map(state.number_of, state.members())
        if number is not None and number in state.targets.quarantined
    )
    if not held:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in held)
    return (
        f"an external process is a member as {names}; stop it (perhaps a second fleet with another "
        f"store manages this group), then run `fleet slot reopen {state.spec.group} {held[0]}`"
    )


def _quarantined(state: StateSnapshot, steps: Sequence[Step]) -> str:
    touched = sorted({n for step in steps for n in step.slots} & state.targets.quarantined)
    if not touched:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in touched)
    return (
        f"slot {names} is quarantined, since another process uses its instance id; stop that first"
    )


# Decides when a schedule or the operator tries a failed change again.
#
# Problem: a change that failed fails again, and each try costs standbys and a canary. Choice: after
# failures in a row with the same target the next try waits 5, 10, 20, ... 60 minutes. Another
# target is tried at once. Cost: a cause that went away by itself is found late.


_FIRST_WAIT: Final = 300.0
_LONGEST_WAIT: Final = 3600.0
_FAILED: Final = frozenset({ChangeState.FAILED, ChangeState.ROLLED_BACK})


def wait_after(failures: int) -> float:
    """Returns the wait after failures with the same target: it doubles, up to an hour."""
    return 0.0 if failures == 0 else min(_FIRST_WAIT * 2.0 ** (failures - 1), _LONGEST_WAIT)


def aim_of(plan: Plan) -> str:
    """Returns the plan's target, stable between checks: slots, revision and kinds of steps."""
    kinds = "+".join(step.kind.value.replace(" ", "-") for step in plan.steps)
    return f"{plan.wanted}:{plan.revision}:{kinds}"


def wait_left(plan: Plan, changes: Sequence[Change], now: float) -> float:
    """Returns the seconds until a plan may be tried; changes: the group's, latest first."""
    failures, ended_at = 0, 0.0
    for change in changes:
        if change.state not in _FAILED or aim_of(change.plan) != aim_of(plan):
            break
        failures += 1
        ended_at = max(ended_at, change.ended_at or change.started_at)
    waited = now - ended_at
    # Negative: the clock was set, and the end is no evidence.
    return max(0.0, wait_after(failures) - waited) if waited >= 0 else 0.0
