"""One cycle of a manager: observe, decide, act, report.

With its bases, `fleet.manager.planning` and `opening`, the only module that names all rooms.

A person's `fleet apply`, a Dagster run and a schedule's tick are this same code under the
same lock: the group's lease, which is the row of its running change. Nothing here outlives
the call; workers, their supervisor and the broker do.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fleet.act.change.changes import GroupChanges
from fleet.act.change.performer import Performer
from fleet.act.join_window import JoinWindow
from fleet.act.kafka import GroupAdmin
from fleet.act.leave_on_shutdown import leave_for_good
from fleet.act.standby_pool import StandbyPool
from fleet.act.steps.adopting import Adopting
from fleet.broker import Broker
from fleet.decide.adopted import MEMBERS
from fleet.decide.capacity import missing_topics
from fleet.decide.holds import NOTE as HOLD_NOTE
from fleet.decide.holds import Hold
from fleet.decide.plan_ids import not_as_approved
from fleet.decide.refusals import may_act, paused
from fleet.errors import Refused
from fleet.manager.opening import EMBEDDED
from fleet.manager.planning import PlanningFleet
from fleet.model import Plan
from fleet.security import kafka_python_config
from fleet.slots import (
    Change,
    ChangeState,
    Gate,
    Pause,
    Slot,
)
from fleet.text import plural

Progress = Callable[[str], None]


def silent(_sentence: str) -> None:
    """Progress nobody watches."""


def brought_up_to_date(group: str) -> str:
    """What a person should know where `Fleet.keep_current` had something to do."""
    return (
        f"group {group}: what its workers start from (brokers' address, login, lease, module path) "
        f"is as fleet.yaml says now; `fleet roll {group}` brings it to those that run"
    )


class Fleet(PlanningFleet):
    """One fleet.yaml, opened: everything a manager may ask or do."""

    # --- act --------------------------------------------------------------------------------

    def apply(
        self,
        group: str,
        *,
        wanted: int | None = None,
        roll: bool = False,
        approved: str | None = None,
        hold: float | None = None,
        actor: str,
        progress: Progress = silent,
    ) -> Change:
        """Finish what a dead actor left, then plan and perform; missing topics are created first.

        `approved` is the id of the plan that a person has seen: no other is carried out. `hold` is
        for how many seconds the policy shall leave `wanted` alone; a `wanted` without it ends the
        hold there was.
        Raises Refused with sentences where nothing may be done.
        """
        self._may_act(group)
        resumed = self.resume_change(group, actor=actor, progress=progress)
        if resumed is not None and resumed.state is not ChangeState.DONE:
            return resumed
        plan = self.plan(group, wanted=wanted, roll=roll, hold=hold)
        if approved is not None:
            if resumed is not None and resumed.plan.id == approved:
                return resumed
            if (why := not_as_approved(approved, plan)) is not None:
                raise Refused(why)
        with self._held(group, None if roll else wanted, hold, by=actor):
            if plan.empty and not plan.refusals:
                if self.keep_current(plan):
                    progress(brought_up_to_date(group))
                return resumed or self._nothing_to_do(plan, actor)
            if not plan.refusals:
                self.create_topics(group, progress=progress)
            return self._begin(group, plan, actor=actor, progress=progress)

    @contextmanager
    def _held(
        self, group: str, wanted: int | None, hold: float | None, *, by: str
    ) -> Iterator[None]:
        """While a person's number of slots comes to be, it is held, so that no other manager who
        finishes the change undoes it; a refusal leaves the hold there was.
        """
        before = self.hold(group)
        if wanted is not None:
            until = self.clock.now() + (hold or 0.0)
            made = None if hold is None else Hold(wanted=wanted, until=until, by=by).as_json()
            self.store.put_note(group, HOLD_NOTE, made)
        try:
            yield
        except Refused:
            self.store.put_note(group, HOLD_NOTE, before.as_json() if before else None)
            raise

    def keep_current(self, plan: Plan) -> bool:
        """Bring up to date what workers of a group start from that needs no change; whether it was
        not: the address of brokers, their login, the lease and the module path name no revision.

        A change does so itself; where nobody may act now, all stays as it is.
        """
        spec = self.group(plan.group)
        if not plan.empty or plan.refusals or plan.revision == MEMBERS:
            return False
        if self.spec.mode_of(spec) != "act" or paused(self.pauses(), plan.group):
            return False
        return self._revisions().keep_current(spec, plan.revision)

    def _nothing_to_do(self, plan: Plan, actor: str) -> Change:
        """An empty plan is no change: it is answered, not stored."""
        now = self.clock.now()
        return Change(
            group=plan.group,
            plan=plan,
            state=ChangeState.DONE,
            actor=actor,
            token=0,
            counter=0,
            step=0,
            started_at=now,
            ended_at=now,
            sentence="nothing to do",
        )

    def drain(
        self, group: str, slots: Sequence[int], *, actor: str, progress: Progress = silent
    ) -> Change:
        """These slots leave together: one batched leave."""
        self._may_act(group)
        self.resume_change(group, actor=actor, progress=progress)
        plan = self.drain_plan(group, slots)
        return self._begin(group, plan, actor=actor, progress=progress)

    def _may_act(self, group: str) -> None:
        spec = self.group(group)
        why = may_act(spec, self.spec.mode_of(spec))
        if why is not None:
            raise Refused(why)

    def _may_by_acl(self, group: str) -> None:
        """Refused before anything is started that the cluster would refuse half-way."""
        lacking = self.lacking([self.group(group)])
        if lacking:
            raise Refused(
                f"this login lacks what mode act of group {group} needs: allow it "
                f"{', '.join(map(str, lacking))} (docs/security.md)"
            )

    def _begin(self, group: str, plan: Plan, *, actor: str, progress: Progress) -> Change:
        if not plan.refusals:
            self._may_by_acl(group)
            if plan.revision != MEMBERS:
                self._revisions().publish(self.group(group), plan.revision)
        return self._changing(group).begin(plan, actor=actor, progress=progress)

    def _changing(self, group: str) -> GroupChanges:
        return GroupChanges(
            group=group,
            store=self.store,
            clock=self.clock,
            lease=self.group(group).runtime.lease,
            perform=lambda change, progress: self._perform(group, change, progress),
        )

    def _perform(self, group: str, change: Change, progress: Progress) -> Change:
        self.runtime.ensure()
        with self._admin() as admin:
            performer = Performer(
                spec=self.group(group),
                store=self.store,
                runtime=self.runtime,
                ledger=self._ledger,
                leave=admin.leave_all,
                window=JoinWindow(group, self.store, admin, clock=self.clock, say=progress),
                clock=self.clock,
                progress=progress,
                adopting=self._adopting(admin) if change.plan.revision == MEMBERS else None,
            )
            return performer.perform(change)

    def _adopting(self, admin: GroupAdmin) -> Adopting:
        return Adopting(
            adopted=self.runtime.adopted,
            scale=self.runtime.scale_adopted,
            look=lambda group: self.snapshot([group]).groups.get(group),
            leave=admin.leave_all,
            clock=self.clock,
        )

    def _admin(self) -> GroupAdmin:
        login = kafka_python_config(self.spec.cluster, self.bootstrap, self._environ)
        return GroupAdmin(bootstrap=self.bootstrap, kafka_python_config=login)

    def reopen(self, group: str, slot: int) -> bool:
        """Let workers take a slot again that a foreign holder shut [15]; whether it was shut."""

        def reopened(gate: Gate) -> Gate | None:
            shut = gate.quarantined
            return replace(gate, quarantined=shut - {slot}) if slot in shut else None

        return self.store.change_gate(group, reopened) is not None

    def resume_change(
        self, group: str, *, actor: str, progress: Progress = silent
    ) -> Change | None:
        """Pick up an unfinished change whose actor is silent for one lease; None where none is.

        Raises Refused where its actor is alive, or a pause holds the group: what was interrupted
        before an incident is not carried on in it.
        """
        resumed = self._changing(group).resume(
            actor=actor, progress=progress, held=lambda: paused(self.pauses(), group)
        )
        self._close_window(group, progress)
        return resumed

    def _close_window(self, group: str, progress: Progress) -> None:
        """Put a group's setting back that a dead manager changed for a gate [19]."""
        with self._admin() as admin:  # connects only where there is something to put back
            JoinWindow(group, self.store, admin, clock=self.clock, say=progress).restore()

    def abort_change(self, group: str, *, actor: str) -> Change | None:
        """End an unfinished change of a dead actor where it stands; asks are taken back."""
        aborted = self._changing(group).abort(actor=actor)
        if aborted is not None:
            self._close_window(group, silent)
            self.runtime.finish_removals(group, given_up=True)
        return aborted

    def let_go(self, group: str) -> str | None:
        """Release what a change that has ended keeps held; what it was, None where nothing is.

        Raises Refused where a change is unfinished: that one has to be ended first.
        """
        if self._changing(group).running() is not None:
            raise Refused(f"a change of group {group} is not finished: its actor has to end first")
        held = self.runtime.held(group)
        if held is not None:
            self.runtime.finish_removals(group, given_up=True)
        return held

    def refusal(self, group: str) -> str | None:
        """Why the runtime has fewer workers than the group's open slots and standbys want."""
        spec = self.group(group)
        wanted = len(self.gate(group).open) + spec.replicas.standby
        if spec.worker is None or sum(w.wanted for w in self.workers(group)) >= wanted:
            return None
        return self.runtime.refusal(group)

    def pause(self, group: str | None, *, reason: str, by: str) -> None:
        """Hold everything that acts on the group (None: on all groups)."""
        self.store.pause(Pause(group=group, reason=reason, by=by, at=self.clock.now()))

    def unpause(self, group: str | None) -> bool:
        """Lift a pause; False where there was none."""
        return self.store.resume(group)

    def release(self, group: str, *, by: str) -> int:
        """Stop managing a group: nothing acts on it any more, its workers go on; how many.

        Refused while a change of it is unfinished. `unpause` manages it again.
        """
        self.group(group)
        if self._changing(group).running() is not None:
            raise Refused(
                f"a change of group {group} is not finished; end it first with "
                f"`fleet apply {group} --resume` or `--abort`"
            )
        self.runtime.finish_removals(group)
        self.runtime.release(group)
        self.pause(group, reason="released: not managed any more", by=by)
        return sum(worker.wanted for worker in self.runtime.workers(group))

    def _is_static(self, group: str) -> Callable[[Slot], bool]:
        """Whether a slot's last member had an instance id: by what it ran, else by the file."""
        pool, fleet = StandbyPool(self.runtime, self.store, group), self.spec.fleet(group)
        worker = None if fleet is None else fleet.worker
        wanted = worker is not None and worker.membership == "static"
        return lambda slot: pool.is_static(slot.revision, otherwise=wanted)

    # --- life -------------------------------------------------------------------------------

    def create_topics(self, group: str | None = None, *, progress: Progress = silent) -> None:
        """Create missing topics of this fleet, or of all, where they say `create:`."""
        fleets = [f for f in self.spec.fleets if group in {None, f.group}]
        known = self._observer.partitions() if any(f.create for f in fleets) else {}
        missing = {
            topic: fleet.create
            for fleet in fleets
            if fleet.create is not None
            for topic in missing_topics(known, fleet)
        }
        if not missing:
            return
        with self._admin() as admin:
            for topic, how in missing.items():
                admin.create_topic(topic, how.partitions, how.replication)
                progress(f"created topic {topic} with {how.partitions} partitions")

    def up(
        self,
        groups: Collection[str] | None = None,
        *,
        actor: str,
        progress: Progress = silent,
    ) -> tuple[Change, ...]:
        """Topics, supervisor and Spark, then one apply for every group in mode act.

        `groups`: for these only; the topics of others are made, too.

        A refused group does not hold the others; Refused is raised after all had their turn.
        """
        self.create_topics(progress=progress)
        self.runtime.ensure()
        done, refused = [], []
        for fleet in self.spec.fleets:
            if self.spec.mode_of(fleet) != "act" if groups is None else fleet.group not in groups:
                continue
            progress(f"group {fleet.group}")
            try:
                done.append(self.apply(fleet.group, actor=actor, progress=progress))
            except Refused as error:
                progress(f"refused: {error}")
                refused.append(str(error))
        for group, count in self.undeclared().items():
            progress(
                f"{plural(count, 'worker')} of group {group} run on, for which fleet.yaml declares "
                "none: `fleet doctor` says what to do"
            )
        if refused:
            raise Refused(" ".join(refused))
        return tuple(done)

    def down(self, *, purge: bool = False, progress: Progress = silent) -> None:
        """End workers, supervisor and Spark; leave the groups; stop the embedded broker.

        `purge` removes the embedded broker's data and this home's slots and workers' files.
        """
        grace = max((f.rollout.drain_timeout for f in self.spec.fleets), default=10.0)
        # Those that the file declares no more are ended too, and would stay members.
        groups = [*(fleet.group for fleet in self.spec.fleets), *self.undeclared()]
        progress("draining workers")
        self.runtime.down(grace=grace)
        with self._admin() as admin:
            for group in dict.fromkeys(groups):
                JoinWindow(group, self.store, admin, clock=self.clock, say=progress).restore()
                if self.store.slots(group):
                    leave_for_good(
                        self.store,
                        admin,
                        group,
                        is_static=self._is_static(group),
                        say=progress,
                    )
        if purge:
            for sentence in self.runtime.purge():
                progress(sentence)
        if self.spec.cluster.bootstrap_servers == EMBEDDED:
            progress("stopping the broker")
            broker = Broker(self.home)
            broker.purge() if purge else broker.stop()
