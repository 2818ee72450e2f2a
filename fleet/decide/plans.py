"""From what is and what is wanted to a plan: few steps, each one membership change at most.

Problem: a deploy done member by member costs two rebalances each. Choice: everything that
can be one rebalance is one. Code rolls slot by slot at no rebalance; k slots open or leave
together; what members cannot roll into (assignor, protocol, session timeout, membership)
stops all and opens again, two rebalances and a standstill, said before [23]; a change of
topics rolls, and then one rebalance gives the new topics out: that of an OPEN or LEAVE that
comes anyway, else a REJOIN of its own. A plan only states; refusals say why it must wait.
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
    ownable,
    ownable_reason,
    subscribed,
    unmatched,
)
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import ExpectedCost, GroupSnapshot, Plan, Step, StepKind, TopicPartition
from fleet.slots import ChangeState, Phase, WorkerProcess
from fleet.text import count_of, few, numbers_of, plural, slots_of

# What a step may cost, stated before it is done.
#
# Counted in coordinator records: generations (classic) or assignment epochs (KIP-848), by the cost
# table of the group protocol (docs/contributing/protocol.md 2.4 to 2.6; [19, 21, 23, 28]). Moved
# partitions are exact for static members under range, a lower bound for the sticky assignors. A
# expected cost is a promise: where it cannot be one number, it is a range with its reason. What is
# expected within it, and how long it takes, `fleet.decide.expected_costs` plays to the
# coordinator's model.


# Range is computed exactly as librdkafka does it (`rd_kafka_group_member_cmp`): per topic, members
# ordered by group.instance.id as bytes (-10 before -2), first ones one more; racks (KIP-881) are
# not modelled. For sticky assignors only what balance demands is said, a lower bound.


def range_owners(members: Sequence[str], topics: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Owner of every partition under range, for members named by instance id."""
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
    """Owner of every owned partition, by instance id where there is one, else by member id."""
    return {tp: m.instance_id or m.member_id for m in group.members for tp in m.partitions}


def moved(before: Mapping[TopicPartition, str], after: Mapping[TopicPartition, str]) -> int:
    """Partitions that pass from one owner to another; from or to nobody is no move."""
    return sum(1 for tp, owner in after.items() if before.get(tp, owner) != owner)


def least_moved(owned: Sequence[int], *, leavers: Sequence[int], joiners: int, total: int) -> int:
    """Fewest partitions that must change owner so that counts differ by at most one.

    `owned` are counts of the members that stay, `leavers` of those that go. What leavers
    held moves in any case, if somebody is left to take it.
    """
    members = len(owned) + joiners
    if members == 0:
        return 0
    each, extra = divmod(total, members)
    # The larger shares go to those who hold most already: that moves least.
    shares = [each + 1] * extra + [each] * (members - extra)
    largest = sorted(owned, reverse=True)
    surplus = sum(max(0, have - share) for have, share in zip(largest, shares, strict=False))
    return surplus + sum(leavers)


_COOPERATIVE = "2 where partitions move between survivors, as the assignor may decide"
_STICKY_LEAVE = (
    "2 where the assignor also moves partitions of those who stay (librdkafka issue #3306)"
)
_JOINS_WITHIN = 1.0
"""Seconds within which the members of one slot targets join, on a busy machine too."""
_EPOCHS = "new assignments; the first join of an empty group is assigned before the others"


@dataclass(frozen=True, slots=True)
class Pricing:
    """Expected costs for one group's world. `emptied`: an earlier step of the plan stopped all
    slots.
    """

    state: StateSnapshot
    emptied: bool = False

    # --- the six kinds of step -------------------------------------------------------------

    def open(self, numbers: Sequence[int], *, beside: Sequence[int]) -> ExpectedCost:
        """Slots opened together while the slots `beside` are held."""
        if self._is_first(beside):
            many = self._consumer and len(numbers) > 1
            fewest, all_of_them = self._moved_from_empty(numbers)
            return ExpectedCost(
                rebalances_min=1,
                rebalances_max=2 if many else 1,
                moved_min=fewest,
                moved_max=all_of_them,
                note=_EPOCHS if many else "",
            )
        least, most = self._moved(beside, joining=numbers)
        return ExpectedCost(
            rebalances_min=1,
            rebalances_max=1 if self._range else 2,
            moved_min=least,
            moved_max=most,
            note=self._open_note(),
        )

    def first_is_alone(self, beside: Sequence[int]) -> bool:
        """Whether the first of several members that join is assigned before the others come."""
        delay = self.state.initial_delay
        late = delay is not None and delay < _JOINS_WITHIN
        return late and not self._consumer and self._is_first(beside)

    def _is_first(self, beside: Sequence[int]) -> bool:
        """Whether nobody is in the group when a slot opens beside these."""
        emptied = self.emptied and not self.state.external_members()
        return not beside and (emptied or self.state.is_empty())

    def leave(self, numbers: Sequence[int], *, staying: Sequence[int]) -> ExpectedCost:
        """Slots closed together, one batched leave; all of them where nobody stays."""
        if not staying and not self.state.external_members():
            return self.stop_all(numbers)
        least, most = self._moved(staying, leaving=numbers)
        sticky = not self._range and not self._consumer
        return ExpectedCost(
            rebalances_min=0 if self.state.is_empty() else 1,
            rebalances_max=2 if sticky else 1,
            moved_min=least,
            moved_max=most,
            note=_STICKY_LEAVE if sticky else "",
        )

    def stop_all(self, numbers: Sequence[int]) -> ExpectedCost:
        """Every slot leaves: the generation that makes the group Empty; nothing is owned after."""
        if self.state.external_members():
            return self.leave_to_external_members(numbers)
        if self._consumer_now:
            note = (
                "an empty KIP-848 group raises its epoch; an assignment for nobody may be left out"
            )
            return ExpectedCost(
                rebalances_min=0, rebalances_max=1, moved_min=0, moved_max=0, note=note
            )
        if self.state.is_empty():
            note = "nobody is in the group: 1 where somebody joins before"
            return ExpectedCost(
                rebalances_min=0, rebalances_max=1, moved_min=0, moved_max=0, note=note
            )
        return ExpectedCost(rebalances_min=1, rebalances_max=1, moved_min=0, moved_max=0)

    def leave_to_external_members(self, numbers: Sequence[int]) -> ExpectedCost:
        """All our slots leave, members that are not ours stay and take over."""
        del numbers
        sticky = not self._range and not self._consumer
        return ExpectedCost(
            rebalances_min=1,
            rebalances_max=2 if sticky else 1,
            note="members that are not ours take over the partitions",
        )

    def roll(self, numbers: Sequence[int], *, subscription_changed: bool = False) -> ExpectedCost:
        """Slots handed over one by one: no rebalance, which only static members can do."""
        count = len(numbers)
        if subscription_changed and self._consumer:
            return ExpectedCost(
                rebalances_min=1,
                rebalances_max=max(1, count),
                note="under KIP-848 each member's new subscription is an assignment of its own",
            )
        return ExpectedCost(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    def rolling_batch(self, index: int, rolling_batches: int, *, width: int) -> ExpectedCost:
        """`width` dynamic members join beside those that they replace, which then leave."""
        return ExpectedCost(
            rebalances_min=2,
            rebalances_max=2 if self._range else 3,
            note=(
                f"rolling batch {index} of {rolling_batches}: one join of "
                f"{plural(width, 'dynamic member')}, "
                "then one batched leave of as many; static members roll with 0"
            ),
        )

    def rejoin(self, number: int, *, members: int) -> ExpectedCost:
        """One owner leaves and joins again, so that a new subscription is assigned."""
        del number
        if members <= 1:
            note = "alone in the group: one generation to Empty and one back"
            return ExpectedCost(rebalances_min=2, rebalances_max=2, note=note)
        return ExpectedCost(
            rebalances_min=1,
            rebalances_max=1 if self._range else 2,
            note="" if self._range else _COOPERATIVE,
        )

    @staticmethod
    def warm() -> ExpectedCost:
        """Standbys are no members."""
        return ExpectedCost(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    # --- what they are made of -------------------------------------------------------------

    @property
    def _range(self) -> bool:
        worker = self.state.spec.worker
        return isinstance(worker, ClassicWorker) and worker.assignor == "range"

    @property
    def _consumer(self) -> bool:
        return isinstance(self.state.spec.worker, ConsumerWorker)

    @property
    def _consumer_now(self) -> bool:
        """What leaves is what runs now, whatever shall run next."""
        group = self.state.group
        if group is not None and group.exists and group.type in {"classic", "consumer"}:
            return group.type == "consumer"
        return self._consumer

    def _open_note(self) -> str:
        if self._range:
            return "range stops every member for the length of the rebalance"
        if self._consumer:
            return "new assignments, merged by the group's assignment interval"
        return "2 where partitions move: one generation takes them, the next gives them"

    def _moved_from_empty(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Nobody owns anything, but a partition may go to another than it had last."""
        group = self.state.group
        if group is None or not group.exists:
            return 0, 0
        topics = self._topics()
        before = owners_now(group)
        if self._range and before:
            names = [self.state.slot(n).instance_id() for n in numbers]
            exact = moved(before, range_owners(names, topics))
            return exact, exact
        return 0, sum(topics.values())

    def _topics(self) -> dict[str, int]:
        state = self.state
        return subscribed(expected_topics(state.topics, state.spec), state.spec)

    def _moved(
        self, held: Sequence[int], *, joining: Sequence[int] = (), leaving: Sequence[int] = ()
    ) -> tuple[int | None, int | None]:
        """Least and most partitions that change owner; None where it cannot be said."""
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
            exact = moved(before, after)
            return exact, exact
        if before and worker.membership == "static":
            counts = {n: sum(1 for owner in before.values() if owner == name[n]) for n in name}
        else:
            counts = _even((*held, *leaving), sum(topics.values()))
        least = least_moved(
            [counts.get(n, 0) for n in held],
            leavers=[counts.get(n, 0) for n in leaving],
            joiners=len(joining),
            total=sum(topics.values()),
        )
        return least, None


def _even(numbers: Sequence[int], total: int) -> dict[int, int]:
    """Counts of a balanced group."""
    if not numbers:
        return {}
    each, extra = divmod(total, len(numbers))
    return {n: each + (1 if i < extra else 0) for i, n in enumerate(numbers)}


# Notes: caps, and promises that do not hold here; they hold nothing up, unlike refusals.


def capped(state: StateSnapshot, wanted: int) -> tuple[int, tuple[str, ...]]:
    """What is wanted, within replicas.max and what can own a partition, and why it is less."""
    topics = expected_topics(state.topics, state.spec)
    cap, highest = ownable(topics, state.spec), state.spec.replicas.max
    shut = _without_successor(state)
    most = highest - len(shut)
    if wanted > most and most <= (cap or most):
        and_shut = f", and {slots_of(shut)} {'is' if len(shut) == 1 else 'are'} quarantined"
        why = f"replicas.max is {highest}{and_shut if shut else ''}"
        return most, (f"{wanted} slots asked, capped at {most}: {why}",)
    if cap and wanted > cap:
        why = ownable_reason(topics, state.spec)
        return cap, (f"{wanted} slots asked, capped at {cap}: {why}, one more would idle",)
    return max(0, wanted), ()


def _without_successor(state: StateSnapshot) -> list[int]:
    """Quarantined slots that no number can stand in for: on Kubernetes only those below
    `replicas.max` have a Lease.
    """
    if state.spec.runtime.kind != "kubernetes":
        return []
    return sorted(n for n in state.targets.quarantined if n < state.spec.replicas.max)


def promises(state: StateSnapshot, steps: tuple[Step, ...], wanted: int) -> tuple[str, ...]:
    """What a person should know of promises that do not hold here."""
    spec, notes = state.spec, []
    changing = any(step.kind is not StepKind.WARM for step in steps)
    if spec.replicas.standby == 0 and wanted > 0:
        notes.append(
            "standby is 0: a crash or a roll waits for a worker to start, so the promises of a "
            "failover without rebalance and of short pauses do not hold"
        )
    if spec.worker is not None and spec.worker.membership == "dynamic" and changing:
        notes += _dynamic_notes(steps)
    notes += _external_member_notes(state)
    missing = missing_topics(state.topics, spec)
    if missing and spec.create is not None and steps:
        notes.append(
            f"{', '.join(missing)} will be created with {spec.create.partitions} partitions"
        )
    for number in sorted(state.targets.quarantined):
        notes.append(f"slot {number} is quarantined: another process uses {spec.group}-{number}")
    for mark in state.stopped_partitions:
        notes.append(
            f"{mark.tp} is stopped at offset {mark.offset}"
            f"{'' if mark.is_log_cause else f' after {mark.attempts} attempts'}: {mark.error}"
        )
    if changing and not state.readable_log:
        notes.append(
            "__consumer_offsets is not readable: the receipt will say unverified, not equal"
        )
    return tuple(notes)


def _dynamic_notes(steps: tuple[Step, ...]) -> list[str]:
    notes = ["membership is dynamic: rolls and crashes rebalance; static members would not"]
    rolling_batches = [step for step in steps if step.kind is StepKind.ROLL]
    if rolling_batches:
        least = sum(step.expected_cost.rebalances_min for step in rolling_batches)
        most = sum(step.expected_cost.rebalances_max for step in rolling_batches)
        notes.append(
            f"the roll takes {len(rolling_batches)} rolling batches of up to "
            f"{plural(len(rolling_batches[0].slots) // 2, 'member')} (rollout.max_parallel), "
            f"{least if least == most else f'{least} to {most}'} rebalances; it needs room for as "
            "many workers more while a rolling batch lasts"
        )
    return notes


def _external_member_notes(state: StateSnapshot) -> list[str]:
    external_members = state.external_members()
    named = sorted(m.instance_id for m in external_members if m.instance_id is not None)
    dynamic = sorted(f"{m.client_id}@{m.host}" for m in external_members if m.instance_id is None)
    notes = []
    if named:
        notes.append(
            f"{plural(len(named), 'external static member')} in the group ({few(named)}): their "
            "rebalances are counted apart, moved partitions cannot be foretold"
        )
    if dynamic:
        notes.append(
            f"{plural(len(dynamic), 'member')} without an instance id in the group "
            f"({few(dynamic)}): their restarts rebalance, and they are not ours to change"
        )
    return notes


def why_nothing(state: StateSnapshot, wanted: int) -> tuple[str, ...]:
    """Why a plan has no steps."""
    if state.spec.worker is None:
        return ()
    if missing_topics(state.topics, state.spec) and state.spec.create is None:
        return ()  # which is a refusal
    nothing = unmatched(state.topics, state.spec)
    if nothing:
        return (f"nothing to do: no topic matches {' or '.join(nothing)} yet; it is waited for",)
    be = "is" if wanted == 1 else "are"
    what = f"{plural(wanted, 'slot')} of revision {state.revision}"
    return (f"nothing to do: {what} {be} wanted and there",)


# Which slots stay where fewer are wanted than there are.
#
# Problem: a rolling batch of dynamic members that was given up (its manager died, `fleet apply
# --abort`) leaves one more member than is wanted, of the new code, and it may be the only one that
# does not have to roll: closing it as the highest number costs two rebalances that are not needed.
# Choice: numbers stay from the lowest on, but a good canary of the wanted revision comes before
# those that would have to roll. Cost: none for static members, whose roll costs no rebalance: their
# numbers stay together.


def slots_that_stay(
    held: tuple[int, ...], wanted: int, *, old: Collection[int], canaries: Collection[int]
) -> tuple[int, ...]:
    """At most `wanted` of the open slots, in order.

    old: those that would have to roll. canaries: see `good_canaries`.
    """
    first = {n for n in canaries if n not in old} if old else set()
    return tuple(sorted(sorted(held, key=lambda n: (n not in first, n))[:wanted]))


def good_canaries(state: StateSnapshot) -> tuple[int, ...]:
    """Slots whose owners have committed as many batches as a canary must, and do well: without
    that, a member could take partitions from others and fail.
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
    """The plan that brings a group to `wanted` slots of `state.revision`.

    `wanted` is capped at what can own a partition and at replicas.max, with a note; it may be
    below replicas.min (0 = leave all). force_roll hands over slots that already run the
    revision, too, and tries a revision again that was rolled back. why = the reason for
    `wanted`, the first note.
    Never raises for a state of the world: what is wrong is a refusal or a note.
    """
    told = (why,) if why else ()
    if state.spec.worker is None:
        unmanaged = f"{state.spec.group} declares no worker: it is only observed"
        return _plan(state, (), wanted=max(0, wanted), now=now, notes=(*told, unmanaged))
    most, cap_notes = capped(state, wanted)
    steps, step_notes = _Planning(state=state, wanted=most, force_roll=force_roll).steps()
    nothing = () if steps else why_nothing(state, most)
    return _plan(
        state,
        steps,
        wanted=most,
        now=now,
        notes=(*told, *nothing, *cap_notes, *step_notes, *promises(state, steps, most)),
        forced=force_roll,
    )


def make_drain_plan(
    state: StateSnapshot,
    *,
    slots: Sequence[int],
    now: float,
) -> Plan:
    """The plan that lets exactly these slots leave, together.

    Slots that are not open are named in a note. The scaling policy may open slots again
    (the lowest free numbers): pause the group to keep them away.
    """
    held = state.open_slots()
    leaving = tuple(n for n in held if n in set(slots))
    absent = sorted(set(slots) - set(leaving))
    notes = [f"nothing to do for {numbers_of(absent)}: no such open slot"] if absent else []
    steps: tuple[Step, ...] = ()
    if leaving and state.spec.worker is not None:
        staying = tuple(n for n in held if n not in leaving)
        planning = _Planning(state=state, wanted=len(staying), force_roll=False)
        steps = (planning.leave_step(leaving, staying),)
        notes.append("the scaling policy may open slots again; `fleet pause` prevents it")
    left = len(held) - len(leaving)
    return _plan(
        state,
        steps,
        wanted=left,
        now=now,
        notes=(*notes, *promises(state, steps, left)),
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
    """An empty plan has nothing to hold up; only that a topic is missing is said all the same."""
    missing = missing_topic(state) if state.spec.worker is not None else ""
    against: tuple[str, ...] = (missing,) if missing else ()
    if steps:
        against = refusals(state, now, steps=steps, forced=forced)
    return Plan(
        id=plan_id(
            state.cluster,
            state.spec.group,
            now=now,
            seen=seen_in(state),
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


def seen_in(state: StateSnapshot) -> tuple[object, ...]:
    """What a plan is decided on, as far as another of it makes another plan.

    Not who holds a slot, how much waits or how old the look is: a failover between two looks, or
    one more record, takes nothing from what a person has approved.
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
        """The steps, and notes about why they are these."""
        held = self.state.open_slots()
        differing, unknown = self._membership_difference(held)
        old = tuple(n for n in held if self._runs_other(n))
        notes: list[str] = []
        if unknown and old:
            notes.append(
                f"no settings are kept of revision {', '.join(unknown)} that this release can "
                "read: a change of assignor, protocol or session timeout would show only at the "
                "first slot, and be rolled back"
            )
        if held and differing - {"topics"} and self.wanted > 0:
            steps = self._stop_and_open(held, differing)
        else:
            steps = self._in_place(held, old, topics_differ="topics" in differing)
        if self._must_repair(steps, held):
            later = ", ".join(step.kind for step in steps)
            notes.append(f"slots are without a worker: {later} follows once they are held")
            steps = [self._warm_step(held)]
        elif not steps and self._standbys_differ(held):
            steps = [self._warm_step(held)]
        if sum(step.kind is StepKind.OPEN for step in steps) > 1:
            delay = round((self.state.initial_delay or 0) * 1000)
            notes.append(
                "one slot opens before the others: brokers assign an empty group to whoever joins "
                f"first (group.initial.rebalance.delay.ms is {delay}); with 3000, Kafka's "
                "default, all would join in one rebalance"
            )
        return tuple(steps), tuple(notes)

    # --- orders of steps -------------------------------------------------------------------

    def _stop_and_open(self, held: tuple[int, ...], differing: set[str]) -> list[Step]:
        fresh = self._free_numbers(self.wanted, taken=())
        what = ", ".join(sorted(differing)).replace("_", " ")
        stop = self._step(
            StepKind.STOP_ALL,
            held,
            Pricing(self.state).stop_all(held),
            f"once new workers are warm, {count_of(held, 'slot')} drain and leave in one "
            f"request: members with another {what} cannot share a generation; the group stands "
            "still until the next step, and what ran is put back if that fails",
        )
        return [stop, *self._open_steps(fresh, beside=(), emptied=True)]

    def _in_place(
        self, held: tuple[int, ...], old: tuple[int, ...], *, topics_differ: bool
    ) -> list[Step]:
        steps: list[Step] = []
        may_stay = self._worker_is_dynamic() and not self.force_roll
        canaries = good_canaries(self.state) if may_stay else ()
        staying = slots_that_stay(held, self.wanted, old=old, canaries=canaries)
        leaving = tuple(n for n in held if n not in staying)
        rolling = tuple(n for n in staying if self.force_roll or n in old)
        # A new subscription must be there before the rebalance that gives its topics out.
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
        """One; where the first to join would be assigned alone, it is, and then the others."""
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
            f"{'joins' if len(fresh) == 1 else 'join together'} as {numbers_of(fresh)}"
            + (f", beside the {len(beside)} there are" if beside else ""),
        )

    def leave_step(self, leaving: tuple[int, ...], staying: tuple[int, ...]) -> Step:
        return self._step(
            StepKind.LEAVE,
            leaving,
            Pricing(self.state).leave(leaving, staying=staying),
            f"{count_of(leaving, 'slot')} ({numbers_of(leaving)}) "
            f"{'drains, closes and leaves' if len(leaving) == 1 else 'drain, close together'}"
            f"{'' if len(leaving) == 1 else ' and leave in one request'}; "
            + (f"{len(staying)} stay" if staying else "nobody stays, offsets are kept"),
        )

    def _roll_step(self, rolling: tuple[int, ...], *, subscription_changed: bool) -> Step:
        width = self.state.spec.rollout.max_parallel
        how = "one by one" if width == 1 else f"up to {width} at once"
        return self._step(
            StepKind.ROLL,
            rolling,
            Pricing(self.state).roll(rolling, subscription_changed=subscription_changed),
            f"{count_of(rolling, 'slot')} ({numbers_of(rolling)}) handed over to warm workers, "
            f"{how}, {rolling[0]} first as the canary, to revision {self.state.revision}",
        )

    def _rolling_batch_steps(
        self, rolling: tuple[int, ...], held: tuple[int, ...]
    ) -> tuple[list[Step], tuple[int, ...]]:
        """A step per rolling batch of rollout.max_parallel, and the slots that are open after them.

        The successors of a rolling batch take the lowest free numbers, which the rolling batch
        before has left.
        """
        width = self.state.spec.rollout.max_parallel
        rolling_batches = [rolling[at : at + width] for at in range(0, len(rolling), width)]
        steps: list[Step] = []
        for index, old in enumerate(rolling_batches, start=1):
            fresh = self._free_numbers(len(old), taken=held)
            expected_cost = Pricing(self.state).rolling_batch(
                index, len(rolling_batches), width=len(old)
            )
            first = ", which has to prove itself," if index == 1 else ""
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
            Pricing(self.state).rejoin(number, members=members),
            f"slot {number} leaves and joins again once, so that the changed topics are "
            "assigned: a static member's return alone does not rebalance",
        )

    def _warm_step(self, held: tuple[int, ...]) -> Step:
        good, bad = self._workers(held)
        standby = self.state.spec.replicas.standby
        need = len(held) + standby
        parts = [f"{plural(len(bad), 'worker')} replaced, ended or stale"] if bad else []
        if good < need:
            parts.append(f"{plural(need - good, 'worker')} started")
        elif good > need:
            parts.append(f"{plural(good - need, 'standby')} removed")
        return self._step(
            StepKind.WARM,
            (),
            Pricing.warm(),
            f"{', '.join(parts) or 'workers are looked after'}, for {count_of(held, 'slot')} "
            f"and {plural(standby, 'standby')}; membership does not change",
        )

    # --- facts -----------------------------------------------------------------------------

    def _worker_is_dynamic(self) -> bool:
        worker = self.state.spec.worker
        return worker is not None and worker.membership == "dynamic"

    def _needs_rejoin(self) -> bool:
        """Only static classic members return without a rebalance in spite of new topics."""
        worker = self.state.spec.worker
        return worker is not None and worker.protocol == "classic" and not self._worker_is_dynamic()

    def _rejoin_was_left_out(self) -> bool:
        """The last change rolled to this revision, but ended before its REJOIN."""
        change = self.state.change
        if change is None or change.plan.revision != self.state.revision:
            return False
        if change.state not in {ChangeState.FAILED, ChangeState.ABORTED}:
            return False
        return any(step.kind is StepKind.REJOIN for step in change.plan.steps[change.step :])

    def _reads_removed(self) -> bool:
        """Whether our members own what none of them subscribes to any more: a change that rolled
        to fewer topics ended before its rejoin, and others came since. Theirs end in no rejoin.
        """
        spec, state = self.state.spec, self.state
        if any(self._runs_other(n) for n in state.open_slots()):
            return False  # who subscribes to it still would be given it again
        strange = state.external_members()
        owned = {tp.topic for m in state.members() if m not in strange for tp in m.partitions}
        return bool(owned - subscribed(dict.fromkeys(owned, 1), spec).keys())

    def _runs_other(self, number: int) -> bool:
        return self.state.slot(number).revision not in {None, self.state.revision}

    def _membership_difference(self, held: tuple[int, ...]) -> tuple[set[str], list[str]]:
        """Keys of the membership part that differ from what slots run; revisions unknown."""
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
        """The lowest numbers that are neither taken nor quarantined."""
        found: list[int] = []
        number, closed = 0, {*taken, *self.state.targets.quarantined}
        while len(found) < count:
            if number not in closed:
                found.append(number)
            number += 1
        return tuple(found)

    def _workers(self, held: tuple[int, ...]) -> tuple[int, list[WorkerProcess]]:
        """How many workers count, and those wanted ones that do not: ended often, or stale.

        One that ended once or twice is started again by its supervisor and still counts.
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
        """Not looked at while a slot waits for its new owner: that may be the standby counted
        here.
        """
        if not held or any(self.state.slot(n).owner is None for n in held):
            return False
        good, bad = self._workers(held)
        return good != len(held) + self.state.spec.replicas.standby or bool(bad)

    def _must_repair(self, steps: list[Step], held: tuple[int, ...]) -> bool:
        """A slot without a worker, and no worker that could take it: start one before all else.

        The change itself would be refused for the member that is away, for ever.
        """
        unheld = [n for n in held if self.state.slot(n).owner is None]
        if not unheld or sum(1 for p in self.state.processes if p.wanted) >= len(held):
            return False
        blocked = [s for s in steps if s.kind in {StepKind.OPEN, StepKind.LEAVE, StepKind.REJOIN}]
        return bool(blocked) and not set(unheld) <= {n for s in blocked for n in s.slots}
