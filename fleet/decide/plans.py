"""Plans the few steps from the state to what is wanted, each with one membership change at most.

Problem: a deploy member by member costs two rebalances for each. Choice: a plan combines all that
one rebalance can do. Code rolls slot by slot without a rebalance, and slots open or leave together.
Members cannot roll into another assignor, protocol, session timeout or membership. Such a change
stops all and opens again, with two rebalances and a standstill, which the plan states [23]. A
change of topics rolls, and then one rebalance assigns the new topics, by an OPEN, a LEAVE or a
REJOIN. Cost: a plan only describes; refusals say why it must wait.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fleet.config.settings import membership_part
from fleet.config.spec import ClassicWorker, ConsumerWorker
from fleet.decide.adopted import plan_id
from fleet.decide.refusals import missing_topic, refusals
from fleet.decide.scaling import (
    expected_topics,
    missing_topics,
    most_owners,
    most_owners_reason,
    subscribed_topics,
    unmatched_entries,
)
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import ExpectedCost, GroupSnapshot, Plan, Step, StepKind, TopicPartition
from fleet.slots import ChangeState, Phase, WorkerProcess
from fleet.text import count_of, few, numbers_of, plural, slots_of

# The bounds of a step's cost.
#
# They count coordinator records: generations (classic) or assignment epochs (KIP-848), by the cost
# table of the group protocol (2.4 to 2.6; [19, 21, 23, 28]). Moved partitions are exact
# for static members under range, and a lower bound for sticky assignors. The bounds are guaranteed;
# if they are not one number, they are a range with its reason. `fleet.decide.expected_costs`
# estimates the cost within them.


# Range is computed exactly as in librdkafka (`rd_kafka_group_member_cmp`): per topic, members are
# ordered by group.instance.id as bytes (-10 before -2), and the first ones get one more. Racks
# (KIP-881) are not modelled. Sticky assignors have only the lower bound that balance needs.


def range_owners(members: Sequence[str], topics: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Assigns every partition under range to members, named by instance id."""
    order = sorted(members, key=lambda name: name.encode())
    owners: dict[TopicPartition, str] = {}
    if not order:
        return owners
    for topic, count in topics.items():
        each, extra = divmod(count, len(order))
        for index, member in enumerate(order):
            start = each * index + min(index, extra)
            for partition in range(start, start + each + (1 if index < extra else 0)):
                owners[TopicPartition(topic, partition)] = member
    return owners


def owners_now(group: GroupSnapshot) -> dict[TopicPartition, str]:
    """Returns the owner of each owned partition, by instance id, else by member id."""
    return {tp: m.instance_id or m.member_id for m in group.members for tp in m.partitions}


def count_moved(before: Mapping[TopicPartition, str], after: Mapping[TopicPartition, str]) -> int:
    """Counts partitions that change from one owner to another owner."""
    return sum(1 for tp, owner in after.items() if before.get(tp, owner) != owner)


def count_least_moved(
    owned: Sequence[int], *, leavers: Sequence[int], joiners: int, total: int
) -> int:
    """Counts the fewest partitions that change owner until counts differ by at most one.

    `owned` are counts of the members that stay, `leavers` of those that leave. Partitions of
    leavers always move, if a member stays.
    """
    members = len(owned) + joiners
    if members == 0:
        return 0
    each, extra = divmod(total, members)
    # The members that own most get the larger shares, which moves the fewest partitions.
    shares = [each + 1] * extra + [each] * (members - extra)
    largest = sorted(owned, reverse=True)
    surplus = sum(max(0, have - share) for have, share in zip(largest, shares, strict=False))
    return surplus + sum(leavers)


_COOPERATIVE = "2 if the assignor moves partitions between the members that stay"
_STICKY_LEAVE = (
    "2 if the assignor also moves partitions of members that stay (librdkafka issue #3306)"
)
_JOINS_WITHIN = 1.0
"""Seconds within which the members of a synchronized join arrive, on a busy machine too."""
_APART = "programs do not subscribe at one moment: the last ones may need a second rebalance"
_EPOCHS = "new assignments; an empty group assigns its first member before the others join"


@dataclass(frozen=True, slots=True)
class Pricing:
    """Bounds the cost of steps for one group; `emptied` after a step that stopped all slots."""

    state: StateSnapshot
    emptied: bool = False

    # --- the six kinds of step -------------------------------------------------------------

    def open(self, numbers: Sequence[int], *, beside: Sequence[int]) -> ExpectedCost:
        """Bounds opening slots together while the slots `beside` have owners."""
        worker = self.state.spec.worker
        apart = worker is not None and bool(worker.command) and len(numbers) > 1
        if self._is_first(beside):
            many = (self._consumer or apart) and len(numbers) > 1
            fewest, all_of_them = self._moved_from_empty(numbers)
            return ExpectedCost(
                rebalances_min=1,
                rebalances_max=2 if many else 1,
                moved_min=fewest,
                moved_max=all_of_them,
                note=_APART if apart else _EPOCHS if many else "",
            )
        least, most = self._moved(beside, joining=numbers)
        return ExpectedCost(
            rebalances_min=1,
            rebalances_max=1 if self._range and not apart else 2,
            moved_min=least,
            moved_max=None if apart else most,
            note=_APART if apart else self._open_note(),
        )

    def first_is_alone(self, beside: Sequence[int]) -> bool:
        """Tells whether the first of several joining members is assigned alone."""
        delay = self.state.initial_delay
        late = delay is not None and delay < _JOINS_WITHIN
        return late and not self._consumer and self._is_first(beside)

    def _is_first(self, beside: Sequence[int]) -> bool:
        """Tells whether the group is empty when a slot opens beside these."""
        emptied = self.emptied and not self.state.external_members()
        return not beside and (emptied or self.state.is_empty())

    def leave(self, numbers: Sequence[int], *, staying: Sequence[int]) -> ExpectedCost:
        """Bounds one batched leave of slots; of all of them if none stays."""
        if not staying and not self.state.external_members():
            return self.stop_all()
        least, most = self._moved(staying, leaving=numbers)
        sticky = not self._range and not self._consumer
        return ExpectedCost(
            rebalances_min=0 if self.state.is_empty() else 1,
            rebalances_max=2 if sticky else 1,
            moved_min=least,
            moved_max=most,
            note=_STICKY_LEAVE if sticky else "",
        )

    def stop_all(self) -> ExpectedCost:
        """Bounds the leave of every slot, by the generation that makes the group Empty."""
        if self.state.external_members():
            return ExpectedCost(
                rebalances_min=1,
                rebalances_max=1 if self._range or self._consumer else 2,
                note="external members take over the partitions",
            )
        note = ""
        if self._consumer_now:
            note = "an empty KIP-848 group raises its epoch, and may skip the empty assignment"
        elif self.state.is_empty():
            note = "the group is empty; 1 if a member joins before"
        return ExpectedCost(
            rebalances_min=0 if note else 1, rebalances_max=1, moved_min=0, moved_max=0, note=note
        )

    def roll(self, numbers: Sequence[int], *, subscription_changed: bool = False) -> ExpectedCost:
        """Bounds handing over slots of static members, which costs no rebalance."""
        count = len(numbers)
        if subscription_changed and self._consumer:
            return ExpectedCost(
                rebalances_min=1,
                rebalances_max=max(1, count),
                note="under KIP-848 each member's new subscription is one assignment",
            )
        return ExpectedCost(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    def rolling_batch(self, index: int, rolling_batches: int, *, width: int) -> ExpectedCost:
        """Bounds a batch: `width` dynamic members join, then those that they replace leave."""
        return ExpectedCost(
            rebalances_min=2,
            rebalances_max=2 if self._range else 3,
            note=(
                f"rolling batch {index} of {rolling_batches}: one join of "
                f"{plural(width, 'dynamic member')}, "
                "then one batched leave of as many; static members roll with 0 rebalances"
            ),
        )

    def rejoin(self, *, members: int) -> ExpectedCost:
        """Bounds the leave and return of one owner, which assigns a new subscription."""
        if members <= 1:
            note = "the only member: one generation to Empty and one back"
            return ExpectedCost(rebalances_min=2, rebalances_max=2, note=note)
        return ExpectedCost(
            rebalances_min=1,
            rebalances_max=1 if self._range else 2,
            note="" if self._range else _COOPERATIVE,
        )

    @staticmethod
    def warm() -> ExpectedCost:
        """Bounds the start of standbys, which are not members."""
        return ExpectedCost(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    # --- inputs -------------------------------------------------------------

    @property
    def _range(self) -> bool:
        worker = self.state.spec.worker
        return isinstance(worker, ClassicWorker) and worker.assignor == "range"

    @property
    def _consumer(self) -> bool:
        return isinstance(self.state.spec.worker, ConsumerWorker)

    @property
    def _consumer_now(self) -> bool:
        """Tells whether the running members use KIP-848, whatever runs next."""
        group = self.state.group
        if group is not None and group.exists and group.type in {"classic", "consumer"}:
            return group.type == "consumer"
        return self._consumer

    def _open_note(self) -> str:
        if self._range:
            return "range stops every member during the rebalance"
        if self._consumer:
            return "new assignments, merged by the group's assignment interval"
        return "2 if partitions move: one generation revokes them, the next assigns them"

    def _moved_from_empty(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Bounds moves in an empty group; a partition may get another owner than its last."""
        group = self.state.group
        if group is None or not group.exists:
            return 0, 0
        topics = self._topics()
        before = owners_now(group)
        if self._range and before:
            names = [self.state.slot(n).instance_id() for n in numbers]
            exact = count_moved(before, range_owners(names, topics))
            return exact, exact
        return 0, sum(topics.values())

    def _topics(self) -> dict[str, int]:
        state = self.state
        return subscribed_topics(expected_topics(state.topics, state.spec), state.spec)

    def _moved(
        self, held: Sequence[int], *, joining: Sequence[int] = (), leaving: Sequence[int] = ()
    ) -> tuple[int | None, int | None]:
        """Returns the least and most partitions that change owner; None if unknown."""
        state, worker = self.state, self.state.spec.worker
        if state.external_members() or worker is None:
            return None, None  # their subscriptions are not known
        topics = self._topics()
        name = {n: state.slot(n).instance_id() for n in (*held, *joining, *leaving)}
        group = None if self.emptied else state.group
        before = {} if group is None else owners_now(group)
        if self._range:
            if worker.membership == "dynamic":
                return None, None  # ordered by member ids that do not exist yet
            before = before or range_owners([name[n] for n in (*held, *leaving)], topics)
            after = range_owners([name[n] for n in (*held, *joining)], topics)
            exact = count_moved(before, after)
            return exact, exact
        if before and worker.membership == "static":
            counts = {n: sum(1 for owner in before.values() if owner == name[n]) for n in name}
        else:
            counts = _even((*held, *leaving), sum(topics.values()))
        least = count_least_moved(
            [counts.get(n, 0) for n in held],
            leavers=[counts.get(n, 0) for n in leaving],
            joiners=len(joining),
            total=sum(topics.values()),
        )
        return least, None


def _even(numbers: Sequence[int], total: int) -> dict[int, int]:
    """Returns the counts of a balanced group."""
    if not numbers:
        return {}
    each, extra = divmod(total, len(numbers))
    return {n: each + (1 if i < extra else 0) for i, n in enumerate(numbers)}


# Notes: caps, and guarantees that do not hold here. They do not block a plan, unlike refusals.


def cap_wanted(state: StateSnapshot, wanted: int) -> tuple[int, tuple[str, ...]]:
    """Caps the wanted slots at replicas.max and at what can own a partition, with the reason."""
    topics = expected_topics(state.topics, state.spec)
    cap, highest = most_owners(topics, state.spec), state.spec.replicas.max
    quarantined = _without_successor(state)
    most = highest - len(quarantined)
    if wanted > most and most <= (cap or most):
        be = "is" if len(quarantined) == 1 else "are"
        also = f", and {slots_of(quarantined)} {be} quarantined" if quarantined else ""
        why = f"replicas.max is {highest}{also}"
        return most, (f"{wanted} slots wanted, capped at {most}: {why}",)
    if cap and wanted > cap:
        why = most_owners_reason(topics, state.spec)
        return cap, (
            f"{wanted} slots wanted, capped at {cap}: {why}, so that one more would be idle",
        )
    return max(0, wanted), ()


def _without_successor(state: StateSnapshot) -> list[int]:
    """Lists quarantined slots that no other number replaces: on Kubernetes only numbers below
    `replicas.max` have a Lease.
    """
    if state.spec.runtime.kind != "kubernetes":
        return []
    return sorted(n for n in state.targets.quarantined if n < state.spec.replicas.max)


def guarantee_notes(state: StateSnapshot, steps: tuple[Step, ...], wanted: int) -> tuple[str, ...]:
    """Lists guarantees that do not hold here, for the user."""
    spec, notes = state.spec, []
    changing = any(step.kind is not StepKind.WARM for step in steps)
    if spec.replicas.standby == 0 and wanted > 0:
        notes.append(
            "replicas.standby is 0: after a crash and in a roll, a worker must start first. "
            "Failovers may rebalance, and partitions have longer downtime"
        )
    if spec.worker is not None and spec.worker.membership == "dynamic" and changing:
        notes += _dynamic_notes(steps)
    if spec.worker is not None and spec.worker.command and changing:
        notes.append(
            f"the workers run {spec.worker.command[0]}: each handover lasts as long as its start, "
            "and what it has not committed when it stops is processed again"
        )
    notes += _external_member_notes(state)
    missing = missing_topics(state.topics, spec)
    if missing and spec.create is not None and steps:
        notes.append(f"Fleet creates {', '.join(missing)} with {spec.create.partitions} partitions")
    for number in sorted(state.targets.quarantined):
        notes.append(f"slot {number} is quarantined: another process uses {spec.group}-{number}")
    for mark in state.stopped_partitions:
        notes.append(
            f"partition {mark.tp} is stopped at offset {mark.offset}"
            f"{'' if mark.is_log_cause else f' after {mark.attempts} attempts'}: {mark.error}"
        )
    if changing and not state.readable_log:
        notes.append("__consumer_offsets is not readable, so that the receipt will be unverified")
    return tuple(notes)


def _dynamic_notes(steps: tuple[Step, ...]) -> list[str]:
    notes = [
        "membership is dynamic: rolls and crashes rebalance; with static membership they do not"
    ]
    rolling_batches = [step for step in steps if step.kind is StepKind.ROLL]
    if rolling_batches:
        least = sum(step.expected_cost.rebalances_min for step in rolling_batches)
        most = sum(step.expected_cost.rebalances_max for step in rolling_batches)
        notes.append(
            f"the roll takes {len(rolling_batches)} rolling batches of up to "
            f"{plural(len(rolling_batches[0].slots) // 2, 'member')} (rollout.max_parallel), "
            f"{least if least == most else f'{least} to {most}'} rebalances; each batch needs room "
            "for as many more workers"
        )
    return notes


def _external_member_notes(state: StateSnapshot) -> list[str]:
    external_members = state.external_members()
    named = sorted(m.instance_id for m in external_members if m.instance_id is not None)
    dynamic = sorted(f"{m.client_id}@{m.host}" for m in external_members if m.instance_id is None)
    notes = []
    if named:
        notes.append(
            f"{plural(len(named), 'external static member')} in the group ({few(named)}): Fleet "
            "counts their rebalances separately and cannot predict moved partitions"
        )
    if dynamic:
        notes.append(
            f"{plural(len(dynamic), 'member')} without an instance id in the group "
            f"({few(dynamic)}): they are external, and their restarts rebalance"
        )
    return notes


def explain_empty_plan(state: StateSnapshot, wanted: int) -> tuple[str, ...]:
    """Returns why a plan has no steps."""
    if state.spec.worker is None:
        return ()
    if missing_topics(state.topics, state.spec) and state.spec.create is None:
        return ()  # which is a refusal
    nothing = unmatched_entries(state.topics, state.spec)
    if nothing:
        return (f"nothing to do: no topic matches {' or '.join(nothing)} yet; Fleet waits for one",)
    be = "is" if wanted == 1 else "are"
    what = f"{plural(wanted, 'slot')} of revision {state.revision}"
    return (f"nothing to do: {what} {be} wanted and open",)


# Which slots stay if fewer are wanted.
#
# Problem: an aborted rolling batch of dynamic members leaves one member too many. It has the new
# code and may be the only one that need not roll. Closing it as the highest number would cost two
# more rebalances. Choice: the lowest numbers stay, but a good canary of the wanted revision comes
# before slots that would have to roll. Cost: the numbers of dynamic members may have gaps.


def select_staying(
    held: tuple[int, ...], wanted: int, *, old: Collection[int], canaries: Collection[int]
) -> tuple[int, ...]:
    """Selects at most `wanted` of the open slots, in order.

    old: slots that would have to roll. canaries: see `good_canaries`.
    """
    first = {n for n in canaries if n not in old} if old else set()
    return tuple(sorted(sorted(held, key=lambda n: (n not in first, n))[:wanted]))


def good_canaries(state: StateSnapshot) -> tuple[int, ...]:
    """Lists slots whose owners have committed a canary's batches without an error.

    Any other member could take partitions and then fail.
    """
    needs = state.spec.rollout.canary_batches
    slots = [state.slot(n) for n in state.open_slots()]
    return tuple(
        slot.number
        for slot in slots
        if slot.phase is Phase.ACTIVE and slot.batches >= needs and slot.error is None
    )


def make_plan(
    state: StateSnapshot,
    *,
    wanted: int,
    now: float,
    force_roll: bool = False,
    why: str = "",
) -> Plan:
    """Plans the way of a group to `wanted` slots of `state.revision`.

    `wanted` is capped at what can own a partition and at replicas.max, with a note; it may be below
    replicas.min (0 closes all). force_roll also rolls slots that already run the revision, and
    retries a revision that was rolled back. `why` is the reason for `wanted`, the first note.
    Never raises for any state: problems become refusals or notes.
    """
    reason = (why,) if why else ()
    if state.spec.worker is None:
        unmanaged = f"group {state.spec.group} declares no worker, so Fleet only observes it"
        return _plan(state, (), wanted=max(0, wanted), now=now, notes=(*reason, unmanaged))
    most, cap_notes = cap_wanted(state, wanted)
    steps, step_notes = _Planning(state=state, wanted=most, force_roll=force_roll).steps()
    nothing = () if steps else explain_empty_plan(state, most)
    return _plan(
        state,
        steps,
        wanted=most,
        now=now,
        notes=(*reason, *nothing, *cap_notes, *step_notes, *guarantee_notes(state, steps, most)),
        forced=force_roll,
    )


def make_drain_plan(
    state: StateSnapshot,
    *,
    slots: Sequence[int],
    now: float,
) -> Plan:
    """Plans the leave of exactly these slots, together.

    A note names slots that are not open. The scaling policy may open slots again (the lowest free
    numbers), unless the group is paused.
    """
    held = state.open_slots()
    leaving = tuple(n for n in held if n in set(slots))
    absent = sorted(set(slots) - set(leaving))
    notes = [f"nothing to do for {slots_of(absent)}: not open"] if absent else []
    steps: tuple[Step, ...] = ()
    if leaving and state.spec.worker is not None:
        staying = tuple(n for n in held if n not in leaving)
        planning = _Planning(state=state, wanted=len(staying), force_roll=False)
        steps = (planning.leave_step(leaving, staying),)
        notes.append("the scaling policy may open slots again; run `fleet pause` to prevent that")
    left = len(held) - len(leaving)
    return _plan(
        state,
        steps,
        wanted=left,
        now=now,
        notes=(*notes, *guarantee_notes(state, steps, left)),
    )


def _plan(
    state: StateSnapshot,
    steps: tuple[Step, ...],
    *,
    wanted: int,
    now: float,
    notes: tuple[str, ...],
    forced: bool = False,
) -> Plan:
    """Builds the plan; an empty plan has no refusals, except for a missing topic."""
    missing = missing_topic(state) if state.spec.worker is not None else ""
    against: tuple[str, ...] = (missing,) if missing else ()
    if steps:
        against = refusals(state, now, steps=steps, forced=forced)
    return Plan(
        id=plan_id(
            state.cluster,
            state.spec.group,
            now=now,
            seen=plan_inputs(state),
            wanted=wanted,
            steps=steps,
        ),
        cluster=state.cluster,
        group=state.spec.group,
        created_at=now,
        snapshot_at=state.snapshot_at,
        wanted=wanted,
        revision=state.revision,
        steps=steps,
        refusals=against,
        notes=notes,
    )


def plan_inputs(state: StateSnapshot) -> tuple[object, ...]:
    """Returns the inputs that a plan depends on.

    Owners, lag and the age of the snapshot are left out, so that a failover or one more record
    does not invalidate an approved plan.
    """
    group, targets = state.group, state.targets
    return (
        state.revision,
        sorted((s.number, s.revision or "", s.owner is None) for s in state.slots),
        [sorted(each) for each in (targets.open, targets.leaving, targets.quarantined)],
        sorted(m.instance_id or "" for m in state.members()),
        group.state.value if group is not None else None,
        sorted(state.topics.items()),
        sorted(str(mark.tp) for mark in state.stopped_partitions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planning:
    state: StateSnapshot
    wanted: int
    force_roll: bool

    def steps(self) -> tuple[tuple[Step, ...], tuple[str, ...]]:
        """Returns the steps, and notes with their reasons."""
        held = self.state.open_slots()
        differing, unknown = self._membership_difference(held)
        old = tuple(n for n in held if self._runs_other(n))
        notes: list[str] = []
        if unknown and old:
            notes.append(
                f"this release cannot read the settings of revision {', '.join(unknown)}; if the "
                "assignor, protocol or session timeout differs, the first slot fails and Fleet "
                "rolls back"
            )
        if held and differing - {"topics"} and self.wanted > 0:
            steps = self._stop_and_open(held, differing)
        else:
            steps = self._in_place(held, old, topics_differ="topics" in differing)
        if self._must_repair(steps, held):
            later = ", ".join(step.kind for step in steps)
            notes.append(f"some slots have no worker; {later} follows when they have one")
            steps = [self._warm_step(held)]
        elif not steps and self._standbys_differ(held):
            steps = [self._warm_step(held)]
        if sum(step.kind is StepKind.OPEN for step in steps) > 1:
            delay = round((self.state.initial_delay or 0) * 1000)
            notes.append(
                "one slot opens before the others, since brokers assign an empty group to its "
                f"first member (group.initial.rebalance.delay.ms is {delay}); with Kafka's default "
                "of 3000, all would join in one rebalance"
            )
        return tuple(steps), tuple(notes)

    # --- orders of steps -------------------------------------------------------------------

    def _stop_and_open(self, held: tuple[int, ...], differing: set[str]) -> list[Step]:
        fresh = self._free_numbers(self.wanted, taken=())
        what = ", ".join(sorted(differing)).replace("_", " ")
        stop = self._step(
            StepKind.STOP_ALL,
            held,
            Pricing(self.state).stop_all(),
            f"when new workers are warm, {count_of(held, 'slot')} drain and leave in one request, "
            f"since members with another {what} cannot share a generation; the group stands still "
            "until the next step; if that fails, Fleet restores the old workers",
        )
        return [stop, *self._open_steps(fresh, beside=(), emptied=True)]

    def _in_place(
        self, held: tuple[int, ...], old: tuple[int, ...], *, topics_differ: bool
    ) -> list[Step]:
        steps: list[Step] = []
        may_stay = self._worker_is_dynamic() and not self.force_roll
        canaries = good_canaries(self.state) if may_stay else ()
        staying = select_staying(held, self.wanted, old=old, canaries=canaries)
        leaving = tuple(n for n in held if n not in staying)
        rolling = tuple(n for n in staying if self.force_roll or n in old)
        # Members need the new subscription before the rebalance that assigns its topics.
        roll_first = topics_differ or not leaving
        if leaving and not roll_first:
            steps.append(self.leave_step(leaving, staying))
            held = staying
        if rolling and self._worker_is_dynamic():
            rolling_batches, held = self._rolling_batch_steps(rolling, held)
            steps += rolling_batches
            staying = tuple(n for n in held if n not in leaving)
        elif rolling:
            steps.append(self._roll_step(rolling, subscription_changed=topics_differ))
        if leaving and roll_first:
            steps.append(self.leave_step(leaving, staying))
        fresh = self._free_numbers(self.wanted - len(held), taken=held)
        if fresh:
            steps += self._open_steps(fresh, beside=held)
        owed = (rolling and topics_differ) or self._rejoin_was_left_out() or self._reads_removed()
        idle = self.state.owners_of_nothing()
        if (owed or idle) and not leaving and not fresh and held and self._needs_rejoin():
            steps.append(self._rejoin_step((idle or rolling or held)[0], members=len(held)))
        return steps

    # --- steps -----------------------------------------------------------------------------

    def _step(
        self, kind: StepKind, slots: tuple[int, ...], expected_cost: ExpectedCost, sentence: str
    ) -> Step:
        revision = self.state.revision
        return Step(
            kind=kind,
            slots=slots,
            revision=revision,
            expected_cost=expected_cost,
            sentence=sentence,
        )

    def _open_steps(
        self, fresh: tuple[int, ...], *, beside: tuple[int, ...], emptied: bool = False
    ) -> list[Step]:
        """Returns one step, or two if the first member to join would be assigned alone."""
        pricing = Pricing(self.state, emptied=emptied)
        if len(fresh) == 1 or not pricing.first_is_alone(beside):
            return [self._open_step(fresh, beside=beside, pricing=pricing)]
        first, others = fresh[:1], fresh[1:]
        return [
            self._open_step(first, beside=(), pricing=pricing),
            self._open_step(others, beside=first, pricing=pricing),
        ]

    def _open_step(
        self, fresh: tuple[int, ...], *, beside: tuple[int, ...], pricing: Pricing
    ) -> Step:
        return self._step(
            StepKind.OPEN,
            fresh,
            pricing.open(fresh, beside=beside),
            f"{count_of(fresh, 'warm worker')} "
            f"{'joins' if len(fresh) == 1 else 'join together'} as {slots_of(fresh)}"
            + (f", beside {count_of(beside, 'slot')}" if beside else ""),
        )

    def leave_step(self, leaving: tuple[int, ...], staying: tuple[int, ...]) -> Step:
        return self._step(
            StepKind.LEAVE,
            leaving,
            Pricing(self.state).leave(leaving, staying=staying),
            f"{count_of(leaving, 'slot')} ({numbers_of(leaving)}) "
            f"{'drains, closes and leaves' if len(leaving) == 1 else 'drain, close together'}"
            f"{'' if len(leaving) == 1 else ' and leave in one request'}; "
            + (f"{len(staying)} stay" if staying else "none stays; Kafka keeps the offsets"),
        )

    def _roll_step(self, rolling: tuple[int, ...], *, subscription_changed: bool) -> Step:
        width = self.state.spec.rollout.max_parallel
        how = "one by one" if width == 1 else f"up to {width} at once"
        return self._step(
            StepKind.ROLL,
            rolling,
            Pricing(self.state).roll(rolling, subscription_changed=subscription_changed),
            f"{count_of(rolling, 'slot')} ({numbers_of(rolling)}) handed over to warm workers of "
            f"revision {self.state.revision}, {how}, slot {rolling[0]} first as the canary",
        )

    def _rolling_batch_steps(
        self, rolling: tuple[int, ...], held: tuple[int, ...]
    ) -> tuple[list[Step], tuple[int, ...]]:
        """Returns a step for each rolling batch, and the slots that are open after them.

        New members of a batch take the lowest free numbers, which the batch before has left.
        """
        width = self.state.spec.rollout.max_parallel
        rolling_batches = [rolling[at : at + width] for at in range(0, len(rolling), width)]
        steps: list[Step] = []
        for index, old in enumerate(rolling_batches, start=1):
            fresh = self._free_numbers(len(old), taken=held)
            expected_cost = Pricing(self.state).rolling_batch(
                index, len(rolling_batches), width=len(old)
            )
            first = " (the canary)" if index == 1 else ""
            sentence = (
                f"rolling batch {index} of {len(rolling_batches)}{first} of "
                f"{count_of(old, 'dynamic member')}: {numbers_of(fresh)} of "
                f"revision {self.state.revision} "
                f"{'joins' if len(old) == 1 else 'join together'}, then {numbers_of(old)} "
                f"{'drains and leaves' if len(old) == 1 else 'drain and leave in one request'}"
            )
            steps.append(self._step(StepKind.ROLL, (*old, *fresh), expected_cost, sentence))
            held = tuple(sorted({*held, *fresh} - set(old)))
        return steps, held

    def _rejoin_step(self, number: int, *, members: int) -> Step:
        return self._step(
            StepKind.REJOIN,
            (number,),
            Pricing(self.state).rejoin(members=members),
            f"slot {number} leaves and joins again once, so that the coordinator assigns the "
            "changed topics: a static member's restart alone does not rebalance",
        )

    def _warm_step(self, held: tuple[int, ...]) -> Step:
        good, bad = self._workers(held)
        standby = self.state.spec.replicas.standby
        need = len(held) + standby
        parts = [f"{plural(len(bad), 'worker')} replaced, stopped or stale"] if bad else []
        if good < need:
            parts.append(f"{plural(need - good, 'worker')} started")
        elif good > need:
            parts.append(f"{plural(good - need, 'standby')} removed")
        return self._step(
            StepKind.WARM,
            (),
            Pricing.warm(),
            f"{', '.join(parts) or 'workers checked'}, for {count_of(held, 'slot')} "
            f"and {plural(standby, 'standby')}; membership does not change",
        )

    # --- facts -----------------------------------------------------------------------------

    def _worker_is_dynamic(self) -> bool:
        worker = self.state.spec.worker
        return worker is not None and worker.membership == "dynamic"

    def _needs_rejoin(self) -> bool:
        """Tells whether new topics need a rejoin: only static classic members do."""
        worker = self.state.spec.worker
        return worker is not None and worker.protocol == "classic" and not self._worker_is_dynamic()

    def _rejoin_was_left_out(self) -> bool:
        """Tells whether the last change rolled to this revision, but ended before its REJOIN."""
        change = self.state.change
        if change is None or change.plan.revision != self.state.revision:
            return False
        if change.state not in {ChangeState.FAILED, ChangeState.ABORTED}:
            return False
        return any(step.kind is StepKind.REJOIN for step in change.plan.steps[change.step :])

    def _reads_removed(self) -> bool:
        """Tells whether members own partitions of topics that none of them subscribes to.

        A change that rolled to fewer topics ended before its rejoin, and other changes followed.
        """
        spec, state = self.state.spec, self.state
        if any(self._runs_other(n) for n in state.open_slots()):
            return False  # a member that still subscribes would get them again
        external = state.external_members()
        owned = {tp.topic for m in state.members() if m not in external for tp in m.partitions}
        return bool(owned - subscribed_topics(dict.fromkeys(owned, 1), spec).keys())

    def _runs_other(self, number: int) -> bool:
        return self.state.slot(number).revision not in {None, self.state.revision}

    def _membership_difference(self, held: tuple[int, ...]) -> tuple[set[str], list[str]]:
        """Returns the differing keys of the membership part, and revisions that are unknown."""
        wanted = membership_part(self.state.spec)
        running = {self.state.slot(n).revision for n in held} - {None, self.state.revision}
        keys: set[str] = set()
        unknown: list[str] = []
        for revision in sorted(r for r in running if r is not None):
            settings = self.state.published.get(revision)
            if settings is None or settings.group.worker is None:
                unknown.append(revision)
                continue
            part = membership_part(settings.group)
            keys |= {k for k in {*part, *wanted} if part.get(k) != wanted.get(k)}
        return keys, unknown

    def _free_numbers(self, count: int, *, taken: Sequence[int]) -> tuple[int, ...]:
        """Returns the lowest numbers that are neither taken nor quarantined."""
        found: list[int] = []
        number, closed = 0, {*taken, *self.state.targets.quarantined}
        while len(found) < count:
            if number not in closed:
                found.append(number)
            number += 1
        return tuple(found)

    def _workers(self, held: tuple[int, ...]) -> tuple[int, list[WorkerProcess]]:
        """Returns the number of good workers, and the wanted ones that stopped often or are stale.

        The supervisor restarts a worker that stopped once or twice, so that it still counts.
        """
        owners = {self.state.slot(n).owner for n in held}
        wanted = [p for p in self.state.processes if p.wanted]
        good = [
            p
            for p in wanted
            if p.name in owners
            or (p.revision == self.state.revision and (p.running or not p.is_unhealthy))
        ]
        return len(good), [p for p in wanted if p not in good]

    def _standbys_differ(self, held: tuple[int, ...]) -> bool:
        """Tells whether standbys differ; not while a slot waits for an owner, which may be one."""
        if not held or any(self.state.slot(n).owner is None for n in held):
            return False
        good, bad = self._workers(held)
        return good != len(held) + self.state.spec.replicas.standby or bool(bad)

    def _must_repair(self, steps: list[Step], held: tuple[int, ...]) -> bool:
        """Tells whether a slot has no worker, and no worker could take it: one must start first.

        The missing member would otherwise block the change for ever.
        """
        unowned = [n for n in held if self.state.slot(n).owner is None]
        if not unowned or sum(1 for p in self.state.processes if p.wanted) >= len(held):
            return False
        blocked = [s for s in steps if s.kind in {StepKind.OPEN, StepKind.LEAVE, StepKind.REJOIN}]
        return bool(blocked) and not set(unowned) <= {n for s in blocked for n in s.slots}
