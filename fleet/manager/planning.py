"""What would be done for a group now: the world gathered, the policy asked, a plan made.

Between `fleet.manager.opening`, which only looks, and `fleet.manager.cycle`, which acts. Nothing
here writes to Kafka; what the policy remembers between looks is kept beside the slots.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fleet.act.liveness import works_on
from fleet.act.revisions import Revisions
from fleet.config.settings import settings_if_readable
from fleet.config.spec import ClassicWorker, GroupSpec
from fleet.decide.adopted import MEMBERS, Adopted, make_adopted_plan, roll_note
from fleet.decide.holds import held, undone_by
from fleet.decide.plans import make_drain_plan, make_plan
from fleet.decide.refusals import refusals
from fleet.decide.refused_members import beyond_limits, brings_members
from fleet.decide.scaling import Decision, ScalingMemory, wanted_slots
from fleet.decide.vetoes import Vetoes
from fleet.decide.world import GroupWorld
from fleet.errors import Refused
from fleet.kafka_source.broker_settings import broker_limits
from fleet.lag.snapshot import Snapshot
from fleet.manager.obstacles import obstacles
from fleet.manager.opening import OpenFleet
from fleet.model import Plan
from fleet.model.broker_limits import BrokerLimits
from fleet.slots import ChangeState
from fleet.text import duration


class PlanningFleet(OpenFleet):
    """One fleet.yaml, opened: everything that may be decided without being done."""

    def world(self, group: str, snapshot: Snapshot) -> GroupWorld:
        """All a decision about one group may know, at one moment."""
        spec = self.group(group)
        revision = MEMBERS if spec.worker is None else self._revisions().wanted(spec)
        if spec.worker is not None:
            self.runtime.recognise(group, revision)
        slots, reports = self.store.slots(group), self.store.reports(group)
        processes = self.runtime.workers(group)
        world = GroupWorld(
            spec=spec,
            mode=self.spec.mode_of(spec),
            cluster=self.spec.cluster.name,
            snapshot_at=snapshot.at,
            group=snapshot.groups.get(group),
            topics=snapshot.topics,
            gate=self.store.gate(group),
            slots=slots,
            reports=reports,
            processes=processes,
            change=self.store.change(group),
            change_alive=self.change_alive(group),
            pauses=self.store.pauses(),
            quarantines=self.store.quarantines(group),
            revision=revision,
            storm=self.storm(group),
            published={
                revision: kept
                for revision in {s.revision for s in slots if s.revision}
                if (text := self.runtime.published(group, revision)) is not None
                and (kept := settings_if_readable(text)) is not None
            },
        )
        changes = any(slot.revision not in {None, revision} for slot in slots)
        if isinstance(spec.worker, ClassicWorker) and (world.is_empty() or changes):
            return replace(world, initial_delay=self._broker_limits.initial_delay)
        return world

    @cached_property
    def _broker_limits(self) -> BrokerLimits:
        with self.sessions.connected() as connections:
            return broker_limits(connections)

    def change_alive(self, group: str) -> bool | None:
        """Whether somebody works on the group's unfinished change, without waiting.

        None: that shows at a later look, one lease from the first; see `fleet.act.liveness`.
        """
        left = self.store.change(group)
        if left is None or left.state is not ChangeState.RUNNING:
            return False
        lease = self.group(group).runtime.lease
        return works_on(self.store, left, lease=lease, clock=self.clock)

    def open_slots(self, group: str) -> int:
        """Slots that may be held, as plans count them: not those that a foreign holder shut."""
        gate = self.store.gate(group)
        return len(gate.open - gate.quarantined)

    def wanted(self, group: str, snapshot: Snapshot, *, adopted: Adopted | None = None) -> Decision:
        """What the policy wants now; its agreement over time is kept in the store."""
        note = self.store.note(group, "scaling")
        current = adopted.replicas if adopted else self.open_slots(group)
        memory = ScalingMemory.from_json(note) if note else ScalingMemory()
        unit = "pod" if adopted else "slot"
        decision = self._asked(group, snapshot, current=current, memory=memory, unit=unit)
        self.store.put_note(group, "scaling", decision.memory.as_json())
        hold = self.hold(group)
        return decision if hold is None else held(decision, hold, now=self.clock.now(), unit=unit)

    def _asked(
        self,
        group: str,
        snapshot: Snapshot,
        *,
        current: int,
        memory: ScalingMemory,
        unit: str = "slot",
    ) -> Decision:
        """The policy's answer to so many slots, whatever is held."""
        return wanted_slots(
            spec=self.group(group),
            group=snapshot.groups.get(group),
            topics=snapshot.topics,
            current=current,
            memory=memory,
            quarantined={mark.tp for mark in self.store.quarantines(group)},
            now=self.clock.now(),
            unit=unit,
        )

    def plan(
        self,
        group: str,
        *,
        wanted: int | None = None,
        roll: bool = False,
        hold: float | None = None,
        snapshot: Snapshot | None = None,
    ) -> Plan:
        """The change that would be made now, with its price; nothing is written to Kafka.

        `wanted` None asks the policy; `roll` asks for a roll even where the code is the same.
        `hold`: seconds for which the policy shall leave `wanted` alone; without it the plan notes
        what the policy will make of a number of slots that a person asks for.
        """
        spec = self.group(group)
        if not spec.is_changeable:
            raise Refused(
                f"group {group} declares no worker, so it is observed only; "
                f"write fleets[].worker in {self.config} to run it"
            )
        seen = snapshot or self.snapshot([group])
        if hidden := self.hidden([spec], seen):
            raise Refused("; ".join(hidden))
        if spec.worker is None:
            return self._adopted_plan(spec, seen, wanted=wanted, roll=roll)
        by_policy = wanted is None and self.hold(group) is None
        if wanted is None:
            decision = self.wanted(group, seen)
            wanted, sentence = decision.wanted, decision.sentence
        elif roll:
            sentence = ""
        elif hold is not None:
            sentence = f"held for {duration(hold)}: the policy leaves it alone until then"
        else:
            asked = self._asked(group, seen, current=wanted, memory=ScalingMemory())
            sentence = undone_by(asked, wanted, group) or ""
        recent = self.rebalances(group, window=spec.storm.window)
        world = replace(self.world(group, seen), readable_log=recent is not None)
        plan = make_plan(
            world,
            wanted=wanted,
            now=self.clock.now(),
            force_roll=roll,
            why=sentence,
        )
        plan = self._within_limits(world, _priced(world, plan, by_policy=by_policy))
        against = obstacles(spec, plan, environ=self._environ, here=Path.cwd())
        return self.runtime.vetoes(plan).told_in(against.told_in(plan))

    def _within_limits(self, world: GroupWorld, plan: Plan) -> Plan:
        """With what the brokers would refuse of it; they are asked where members come."""
        if not brings_members(plan):
            return plan
        return Vetoes(refusals=beyond_limits(world, plan, self._broker_limits)).told_in(plan)

    def _adopted_plan(
        self, spec: GroupSpec, seen: Snapshot, *, wanted: int | None, roll: bool
    ) -> Plan:
        """Of other people's Deployment: scaled when asked, or by a policy that is written for it.

        Never rolled. A default policy would scale what nobody has spoken of.
        """
        adopted = self.runtime.adopted(spec.group)
        if adopted is None:
            raise Refused(f"there is no Deployment of group {spec.group}; see `fleet doctor`")
        group = seen.groups.get(spec.group)
        if roll:
            raise Refused(f"{roll_note(group, adopted)}, so it is left to whoever owns it")
        why = ""
        if wanted is None and "scaling" in spec.model_fields_set:
            decision = self.wanted(spec.group, seen, adopted=adopted)
            wanted, why = decision.wanted, decision.sentence
        now = self.clock.now()
        plan = make_adopted_plan(
            spec=spec,
            cluster=self.spec.cluster.name,
            group=group,
            adopted=adopted,
            wanted=wanted,
            snapshot_at=seen.at,
            now=now,
            why=why,
        )
        if plan.steps:
            from fleet.decide.forecast.adopted_costs import foretold_of_pods  # noqa: PLC0415

            against = refusals(self.world(spec.group, seen), now, steps=plan.steps)
            plan = replace(foretold_of_pods(plan, group, adopted), refusals=against)
        return self.runtime.vetoes(plan).told_in(plan)

    def drain_plan(self, group: str, slots: Sequence[int]) -> Plan:
        """The plan of `drain`."""
        if self.group(group).worker is None:
            raise Refused(f"group {group} declares no worker: it has no slots to drain")
        seen = self.snapshot([group])
        world = self.world(group, seen)
        plan = make_drain_plan(world, slots=tuple(slots), now=self.clock.now())
        return self.runtime.vetoes(plan).told_in(_priced(world, plan))

    def _revisions(self) -> Revisions:
        return Revisions(
            cluster=self.spec.cluster,
            bootstrap=self.bootstrap,
            runtime=self.runtime,
            clock=self.clock,
        )


def _priced(world: GroupWorld, plan: Plan, *, by_policy: bool = False) -> Plan:
    """With what the coordinator's model expects of each step; most plans have none.

    by_policy: nobody asked for so many, so it has to be worth its price.
    """
    if plan.empty:
        return plan
    # Of use to few commands, and 60 ms of imports.
    from fleet.decide.forecast.expected_costs import foretold  # noqa: PLC0415
    from fleet.decide.forecast.other_ways import with_other_ways  # noqa: PLC0415
    from fleet.decide.forecast.scale_up_worth import not_worth  # noqa: PLC0415

    priced = with_other_ways(world, foretold(world, plan))
    against = not_worth(world, priced) if by_policy else ""
    return replace(priced, refusals=(*priced.refusals, against)) if against else priced
