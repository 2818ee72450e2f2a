"""Why nothing may be done now: each reason a sentence that also says what would lift it.

Problem: a change into a group that is not settled, during a storm, beside another change or
while a static member is away costs more than its expected cost, often minutes of standstill
(a static member that is away blocks the join phase until its session ends). Choice: all
reasons are collected, none hides another; what concerns only membership changes does not
hold a roll or standbys.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fleet.config.spec import CONSUMER_SESSION, ClassicWorker, GroupSpec
from fleet.decide.scaling import missing_topics, unmatched
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import BrokerLimits, GroupState, Plan, Step, StepKind
from fleet.slots import ChangeState, Pause
from fleet.text import duration, plural

# Members that brokers would refuse (26: session timeout, 81: group full) are told before anything
# is done: the old ones would have left by then. Bounds that nobody may read show at the first
# worker.


_JOINS: Final = frozenset({StepKind.OPEN, StepKind.ROLL})


def beyond_limits(state: StateSnapshot, plan: Plan, limits: BrokerLimits) -> tuple[str, ...]:
    """Why brokers would refuse the members that the plan brings; empty = nothing is known of it."""
    if not brings_members(plan):
        return ()
    return tuple(filter(None, (_session(state, limits), _size(state, plan, limits))))


def brings_members(plan: Plan) -> bool:
    """Whether brokers need be asked at all: who only leaves is refused nothing."""
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
        f"worker.session_timeout of {state.spec.group} is {duration(worker.session_timeout)}, and "
        f"the brokers allow {word} {duration(bound)} ({name}): every member would be refused "
        "(error 26); declare one that they allow"
    )


def _size(state: StateSnapshot, plan: Plan, limits: BrokerLimits) -> str:
    classic = isinstance(state.spec.worker, ClassicWorker)
    most = limits.classic_members if classic else limits.consumer_members
    members = _most_members(state, plan)
    if most is None or members <= most:
        return ""
    name = "group.max.size" if classic else "group.consumer.max.size"
    return (
        f"{state.spec.group} would have {plural(members, 'member')}, and the brokers allow {most} "
        f"({name}): the others would be refused (error 81); want fewer workers, or raise it on the "
        "brokers"
    )


def _most_members(state: StateSnapshot, plan: Plan) -> int:
    """Members that the group has at the fullest moment of its steps, other people's included."""
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
    """A roll of static members names slots that are held; a rolling batch those that leave and
    those that come.
    """
    fresh = set(slots) - held
    return (held - set(slots)) | fresh if fresh else held


STALE_AFTER = 60.0
"""Seconds after which a snapshot says too little about now."""
_UNSETTLED = {
    GroupState.PREPARING,
    GroupState.COMPLETING,
    GroupState.REBALANCING,
    GroupState.UNKNOWN,
}
_MEMBERSHIP = {StepKind.OPEN, StepKind.LEAVE, StepKind.REJOIN, StepKind.STOP_ALL}


def may_act(spec: GroupSpec, mode: str) -> str | None:
    """Why the mode forbids acting, None where it allows it; plans are made in any mode."""
    group = spec.group
    if not spec.is_changeable:
        return (
            f"{group} declares no worker, so it is only observed; declare one in fleet.yaml to "
            "manage it"
        )
    if mode == "observe":
        return f"{group} is observed only; write mode: plan or mode: act in fleet.yaml"
    if mode == "plan":
        return (
            f"{group} is in mode plan: plans are shown, not carried out; write mode: act in "
            "fleet.yaml to let them be"
        )
    return None


def refusals(
    state: StateSnapshot,
    now: float,
    *,
    steps: Sequence[Step] = (),
    forced: bool = False,
) -> tuple[str, ...]:
    """Reasons against carrying out `steps` now; empty = nothing is against it.

    forced = a person asked for this roll, also of a revision that was rolled back, or in a storm
    (new code may be what ends it).
    Without steps only what holds in any case is said: pause, running change, stale snapshot.
    """
    kinds = {step.kind for step in steps}
    reasons = [paused(state.pauses, state.spec.group), _changing(state, now), _stale(state, now)]
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


def paused(pauses: Iterable[Pause], group: str) -> str:
    """Which pause holds this group, its own or the one for all; empty = none."""
    mine = [each for each in pauses if each.group in {None, group}]
    pause = min(mine, key=lambda each: each.group is None, default=None)
    if pause is None:
        return ""
    if pause.is_unmanaged:
        return f"{group} is unmanaged by {pause.by}; `fleet manage {group}` takes it back"
    what = "every group is" if pause.group is None else f"{pause.group} is"
    lift = "--all" if pause.group is None else pause.group
    return (
        f"{what} paused by {pause.by} ({pause.reason or 'no reason given'}); "
        f"`fleet resume {lift}` lifts it"
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
            f"change {change.plan.id} is being carried out by {change.actor} ({step}, for {since})"
            "; `fleet status` shows it, wait for its end"
        )
    if state.change_alive is None:
        return (
            f"change {change.plan.id} of {change.actor} is not finished ({step}); whether somebody "
            f"still works on it shows within {state.spec.runtime.lease:g} s: look again, or pick "
            f"it up with `fleet apply {state.spec.group} --continue`, which waits for that"
        )
    return (
        f"change {change.plan.id} was left unfinished by {change.actor} ({step}); pick it up with "
        f"`fleet apply {state.spec.group} --continue` or give it up with `fleet apply "
        f"{state.spec.group} --abort`"
    )


def _stale(state: StateSnapshot, now: float) -> str:
    age = now - state.snapshot_at
    if age <= STALE_AFTER:
        return ""
    return (
        f"the snapshot is {duration(age)} old, more than {duration(STALE_AFTER)}; the next look at "
        "the cluster lifts it (check that the brokers answer)"
    )


def _unsettled(state: StateSnapshot) -> str:
    group = state.group
    if group is None or not group.exists or group.state not in _UNSETTLED:
        return ""
    if group.state is GroupState.UNKNOWN and group.type not in {"classic", "consumer"}:
        return f"the state of {group.group} is unknown; the next look at the cluster may tell it"
    return (
        f"{group.group} is not settled ({group.state}); wait until it is Stable, which its members "
        "decide within the largest max_poll_interval"
    )


def _wrong_type(state: StateSnapshot, kinds: set[StepKind]) -> str:
    group, worker = state.group, state.spec.worker
    if group is None or not group.exists or worker is None:
        return ""
    if group.type not in {"classic", "consumer", "unknown"}:
        return (
            f"{group.group} is a {group.type} group; Fleet's workers are members of classic and "
            "consumer groups only: give the fleet another group id"
        )
    stopped_first = StepKind.STOP_ALL in kinds and not state.external_members()
    if group.type in {"unknown", worker.protocol} or state.is_empty() or stopped_first:
        return ""
    return (
        f"{group.group} has {len(group.members)} members of the {group.type} protocol, but "
        f"worker.protocol is {worker.protocol}; stop them all first, or write "
        f"protocol: {group.type}"
    )


def _wrong_assignor(state: StateSnapshot) -> str:
    """Strangers alone in the group with another assignor, or another protocol (Connect)."""
    group, worker = state.group, state.spec.worker
    if group is None or state.is_empty() or not isinstance(worker, ClassicWorker):
        return ""
    others_only = len(state.external_members()) == len(group.members)
    if not others_only or group.type == "consumer" or group.assignor in {None, "", worker.assignor}:
        return ""
    return (
        f"the {len(group.members)} members of {group.group} are not ours and use the assignor "
        f"{group.assignor!r}; a worker with {worker.assignor} would be refused (error 23): end "
        "them first, or give the fleet another group id"
    )


def _storm(state: StateSnapshot, steps: Sequence[Step]) -> str:
    """Nothing is added to a storm; that its top offender leaves is what ends it."""
    storm = state.storm
    if storm is None:
        return ""
    leaving = {n for s in steps if s.kind in {StepKind.LEAVE, StepKind.STOP_ALL} for n in s.slots}
    if storm.top_offender in {f"{state.spec.group}-{n}" for n in leaving}:
        return ""
    return (
        f"{storm.sentence}; held until the window holds at most half of the budget for "
        f"{state.spec.storm.cooldown:g} s (`fleet rebalances --group {state.spec.group}` lists "
        "them; documentation: troubleshoot/runbooks/group-storm)"
    )


def _no_topic(state: StateSnapshot, kinds: set[StepKind]) -> str:
    """Who leaves needs no topic; who subscribes to nothing never joins (librdkafka)."""
    if not kinds - {StepKind.WARM, StepKind.LEAVE}:
        return ""
    missing = missing_topics(state.topics, state.spec)
    nothing = unmatched(state.topics, state.spec)
    if nothing and not missing:
        return (
            f"no topic matches {' or '.join(nothing)} of {state.spec.group} yet, and a member that "
            "subscribes to nothing does not join; the next plan after one is created goes on"
        )
    return missing_topic(state)


def missing_topic(state: StateSnapshot) -> str:
    """Which topics there are not, where nothing creates them; empty where all are there."""
    missing = missing_topics(state.topics, state.spec)
    if not missing or state.spec.create is not None:
        return ""
    names = ", ".join(missing)
    word = "topic" if len(missing) == 1 else "topics"
    return (
        f"the {word} {names} of {state.spec.group} {'does' if len(missing) == 1 else 'do'} not "
        "exist; create it, or write create: {partitions: 12} under the fleet"
    )


def _rolled_back(state: StateSnapshot, kinds: set[StepKind]) -> str:
    """Without this the next cycle would try the same code again, and again.

    It protects what runs: who leaves brings no code, and where nobody is there, nothing is put at
    risk (and `fleet roll` would have no slot to roll).
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
        f"{change.sentence or 'no reason is kept'}; correct the code, or try it again with "
        f"`fleet roll {state.spec.group}`"
    )


def _away(state: StateSnapshot, steps: Sequence[Step]) -> str:
    """Who is away blocks the others' join phase, unless the step's own leave removes it."""
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
        wait, why = CONSUMER_SESSION, "would be removed by an assignment of its own meanwhile"
    here = {n for n in away if n in state.open_slots() or state.slot(n).token}
    told = []
    if here:
        names = ", ".join(f"{state.spec.group}-{n}" for n in sorted(here))
        told.append(
            f"the static member {names} is away (no worker holds its slot) and {why}; it ends when "
            f"a worker takes the slot, or {wait:g} s after its last heartbeat"
        )
    if away - here:
        names = ", ".join(f"{state.spec.group}-{n}" for n in sorted(away - here))
        told.append(
            f"{names} is a member, and nobody ever held that slot here: where cluster.name, "
            "runtime.kind, runtime.namespace or the home was changed, the workers from before run "
            "on; end them with the fleet.yaml of before (`fleet down`); one that is gone ends "
            f"{wait:g} s after its last heartbeat"
        )
    return "; ".join(told)


def _joining(state: StateSnapshot) -> str:
    joining = state.joining()
    if not joining:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in joining)
    return f"{names} is joining; wait until its worker has committed a batch or polled nothing"


def _doubled(state: StateSnapshot) -> str:
    """A foreign process with one of our instance ids, still in the group [15]."""
    held = sorted(
        number
        for number in map(state.number_of, state.members())
        if number is not None and number in state.targets.quarantined
    )
    if not held:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in held)
    return (
        f"a process that is not ours is a member as {names}; end it (perhaps a second fleet "
        "with another store manages this group), then "
        f"`fleet slot reopen {state.spec.group} {held[0]}`"
    )


def _quarantined(state: StateSnapshot, steps: Sequence[Step]) -> str:
    touched = sorted({n for step in steps for n in step.slots} & state.targets.quarantined)
    if not touched:
        return ""
    names = ", ".join(f"{state.spec.group}-{n}" for n in touched)
    return f"{names} is quarantined, as another process uses its id; end that process first"
