"""A fleet.yaml opened on its cluster: look, decide, act. The only module that names all rooms.

A person's `fleet apply`, a Dagster run and a schedule's tick are this same code under the
same lock: the group's lease, which is the row of its running change. Nothing here outlives
the call; workers, their supervisor and the broker do. What acts is imported where it is used:
an exporter only looks, for months.
"""

import contextlib
import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fleet.act.lease import works_on
from fleet.act.revisions import Revisions
from fleet.act.runtime import Runtime, RuntimeKind
from fleet.act.standby_pool import StandbyPool
from fleet.clock import Clock, SystemClock
from fleet.config.acls import OFFSETS, Grant, allows, needed
from fleet.config.load import load
from fleet.config.settings import settings_if_readable
from fleet.config.spec import ClassicWorker, FleetSpec, GroupSpec, Security
from fleet.config.topic_patterns import is_pattern
from fleet.decide.adopted import MEMBERS, Adopted, make_adopted_plan, not_as_approved, roll_note
from fleet.decide.plans import make_drain_plan, make_plan
from fleet.decide.refusals import beyond_limits, brings_members, may_act, paused, refusals
from fleet.decide.scaling import NOTE as PIN_NOTE
from fleet.decide.scaling import (
    Decision,
    Pin,
    ScalingMemory,
    missing_topics,
    pinned,
    undone_by,
    wanted_slots,
)
from fleet.decide.state_snapshot import StateSnapshot, Vetoes
from fleet.decide.storms import Storm, assess, budget_of, excuses_of, reach
from fleet.errors import ConfigError, Damaged, FleetError, Refused, SchemaTooNew, Unreachable
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.broker_settings import SessionQueries, broker_limits
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.pieces import LogBounds
from fleet.lag.end_history import EndHistory, EndStore
from fleet.lag.lag_columns import Longs
from fleet.lag.snapshot import Logs, Snapshot
from fleet.log.records import Unreadable
from fleet.model import BrokerLimits, Plan, TopicPartition
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.observe.admin import Observer
from fleet.observe.ledger import CoordinatorLedger
from fleet.security import client_config, kafka_python_config
from fleet.slots import (
    UNMANAGED,
    Change,
    ChangeState,
    Pause,
    Slot,
    SlotTargets,
    WorkerProcess,
    WorkerReport,
)
from fleet.slots.codec import as_json, from_json_or_none
from fleet.slots.store import Store
from fleet.system.closing import Closing
from fleet.system.home import fleet_home, make_home
from fleet.system.runtimes import runtime_kind
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.act.change import GroupChanges
    from fleet.act.kafka import GroupAdmin
    from fleet.act.steps.adopting import Adopting

EMBEDDED = "embedded"
STORM_NOTE = "storm"
"""Under which the store keeps a group's storm."""


Progress = Callable[[str], None]


def silent(_sentence: str) -> None:
    """Progress nobody watches."""


def brought_up_to_date(group: str) -> str:
    """What a person should know where `Fleet.keep_current` had something to do."""
    return (
        f"group {group}: what its workers start from (brokers' address, login, lease, module path) "
        f"is as fleet.yaml says now; `fleet roll {group}` brings it to those that run"
    )


class Fleet(Closing):
    """One fleet.yaml and its cluster, opened: all that may be looked at, decided and done."""

    def __init__(
        self,
        *,
        spec: FleetSpec,
        config: Path,
        home: Path,
        bootstrap: str,
        environ: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self.spec = spec
        self.config = config
        self.home = home
        self.bootstrap = bootstrap
        self.clock = clock
        self._environ = environ
        client = self.client = client_config(spec.cluster, bootstrap, environ)
        make_home(home)
        kind: RuntimeKind = runtime_kind(spec.runtime.kind)
        self.runtime: Runtime = kind.open(spec, home=home, environ=environ, clock=clock)
        self.ends = EndHistory(spec.cluster.name, EndStore(home / "samples.db"))
        self._observer = Observer(
            cluster=spec.cluster.name,
            config=client,
            clock=clock,
            ends=self.ends,
        )
        self.sessions = SessionQueries(client, clock=clock)

    @cached_property
    def _ledger(self) -> CoordinatorLedger:
        """Opened by its first question: it loads librdkafka, which who only looks does without."""
        from fleet.log.readers.group_log import GroupLog

        return CoordinatorLedger(
            GroupLog(self.client, clock=self.clock), self._observer, self.sessions
        )

    @property
    def history_path(self) -> str:
        """Where the history's tables are, or would be: `history.path`, or `history` in the home."""
        return self.spec.history.path or str(self.home / "history")

    @classmethod
    def open(
        cls,
        config: Path | None = None,
        *,
        home: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
        start_broker: bool = False,
    ) -> Self:
        """Load fleet.yaml (default `$FLEET_CONFIG` or ./fleet.yaml) and find its cluster.

        Raises ConfigError where the file is missing or wrong, Unreachable where the embedded
        broker does not run and `start_broker` is False.
        """
        path = config or Path(environ.get("FLEET_CONFIG") or "fleet.yaml")
        spec = load(path, environ)
        where = home or fleet_home(dict(environ))
        bootstrap = spec.cluster.bootstrap_servers
        if bootstrap == EMBEDDED:
            spec, bootstrap = _embedded(spec, where, start=start_broker)
        return cls(
            spec=spec,
            config=path,
            home=where,
            bootstrap=bootstrap,
            environ=environ,
            clock=clock or SystemClock(),
        )

    def close(self) -> None:
        """Let go of connections."""
        if "_ledger" in vars(self):
            self._ledger.close()
        self.sessions.close()
        self._observer.close()
        self.runtime.close()

    @property
    def store(self) -> Store:
        """Where slots, slot targets and changes live."""
        return self.runtime.store

    @property
    def _at_once(self) -> Store:
        """The same for who only looks: an API server that is away is waited for by who acts."""
        store: Store = getattr(self.store, "at_once", self.store)
        return store

    def group(self, name: str) -> GroupSpec:
        """The declared fleet; ConfigError naming those there are."""
        found = self.spec.fleet(name)
        if found is None:
            close = difflib.get_close_matches(name, [f.group for f in self.spec.fleets], n=1)
            known = ", ".join(f.group for f in self.spec.fleets) or "none"
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"{self.config} declares no group {name!r}; {hint}declared: {known}")
        return found

    # --- observe ----------------------------------------------------------------------------

    def snapshot(self, groups: Collection[str] | None = None) -> Snapshot:
        """One batched look at all groups of the cluster (or at those named)."""
        seen = self._observer.snapshot(groups)
        declared = [f for f in self.spec.fleets if groups is None or f.group in groups]
        hidden = self.hidden(declared, seen)
        return replace(seen, problems=(*seen.problems, *hidden))

    def read_on(self, seen: Snapshot, rows: Longs) -> Snapshot:
        """The snapshot with what waits in rows that seem to stand still; where it can be read."""
        return self._observer.read_on(seen, rows)

    def hidden(self, fleets: Sequence[GroupSpec], snapshot: Snapshot) -> tuple[str, ...]:
        """Declared groups and topics that are not seen because this login may not describe them."""
        return tuple(
            f"{kind} {name} may not be described by this login: allow Describe on {kind} {name} "
            "(documentation: reference/acls)"
            for kind, name in self.undescribed(fleets, snapshot)
        )

    def undescribed(
        self, fleets: Sequence[GroupSpec], snapshot: Snapshot
    ) -> tuple[tuple[str, str], ...]:
        """The same as ("group" | "topic", name), by one question.

        Asked only about what is missing: to whom it is hidden, a broker says it does not exist.
        """
        seen = snapshot.groups
        groups = {f.group for f in fleets if f.group not in seen or not seen[f.group].exists}
        topics = {t for f in fleets for t in f.topics if not is_pattern(t)} - set(snapshot.topics)
        if not groups and not topics:
            return ()
        allowed = self._observer.allowed(groups, topics)
        return tuple(sorted(what for what, operations in allowed.items() if not operations))

    def lacking(self, fleets: Sequence[GroupSpec]) -> tuple[Grant, ...]:
        """Of what these groups need in their modes, what this login may not do (KIP-430).

        Not what is hidden altogether: the look at groups tells that.
        """
        wanted = [grant for each in fleets for grant in needed(each, self.spec.mode_of(each))]
        if not wanted:
            return ()
        allowed = self._observer.allowed(
            {grant.name for grant in wanted if grant.resource == "group"},
            {grant.name for grant in wanted if grant.resource == "topic"},
        )
        return tuple(
            grant
            for grant in wanted
            if (held := allowed.get((grant.resource, grant.name)))
            and not allows(held, grant.operation)
        )

    def rebalances(self, group: str, *, window: float) -> int | None:
        """Rebalances recorded in the last `window` seconds; None where unreadable."""
        return self._ledger.recorded_since(group, self.clock.now() - window)

    def recorded(self, group: str, *, since: float) -> list[Rebalance] | None:
        """One group's rebalances since a wall time; None where they cannot be read."""
        return self._ledger.rebalances(group, cluster=self.spec.cluster.name, since=since)

    def counted(self, group: str, since: int) -> RebalanceCounts | None:
        """One group's rebalances and pauses from a place in the log on; None where unreadable."""
        return self._ledger.counted(group, since)

    def storm(
        self, group: str, seen: Sequence[Rebalance] | None = None, *, kept: bool = True
    ) -> Storm | None:
        """The group's storm now; None where there is none, or its records cannot be read.

        `seen` are its rebalances of the last `reach(budget)` seconds, where the caller has them.

        Kept beside the slots, since a storm may be older than what is read to tell it. What
        our own changes were to cost does not count. Not `kept`: neither can be read now.
        """
        budget = budget_of(self.spec, group)
        now = self.clock.now()
        if seen is None:
            seen = self.recorded(group, since=now - reach(budget))
        if seen is None:
            return None
        note = self.store.manager_state(group, STORM_NOTE) if kept else None
        storm = assess(
            seen,
            cluster=self.spec.cluster.name,
            group=group,
            budget=budget,
            now=now,
            before=from_json_or_none(Storm, note),
            excuses=excuses_of(self.spec, group, self.readable_changes(group) if kept else ()),
        )
        if kept and (storm is not None or note is not None):
            with contextlib.suppress(Unreachable):  # a full disk hides no storm
                self.store.put_manager_state(group, STORM_NOTE, as_json(storm) if storm else None)
        return storm

    def last_storm(self, group: str) -> Storm | None:
        """The storm as somebody saw it within its window, without a look at the log."""
        storm = from_json_or_none(Storm, self.store.manager_state(group, STORM_NOTE))
        # Of a clock that was set back it would be no older for hours.
        fresh = storm is not None and abs(self.clock.now() - storm.seen_at) < storm.window
        return storm if fresh else None

    def offsets_bounds(self) -> dict[int, LogBounds]:
        """Of each partition of the coordinator's log; {} while there is none.

        Raises Unreadable where this login may not read it, Unreachable where nobody answers.
        """
        allowed = self._observer.allowed([], [OFFSETS]).get(("topic", OFFSETS))
        if allowed is not None and not allows(allowed, "Read"):
            raise Unreadable(
                f"{OFFSETS} may not be read by this login: allow Read on topic {OFFSETS} "
                "(managed Kafka seldom does)"
            )
        try:
            return log_bounds(self.client, OFFSETS)
        except RangeUnread as error:
            raise Unreachable(f"the size of {OFFSETS} cannot be asked: {error}") from error

    def logs(self, tps: Collection[TopicPartition]) -> Logs:
        """Logs of these partitions now, and before."""
        return self._observer.logs(tps)

    def topic_ids(self) -> dict[str, str]:
        """Topic name by topic id."""
        return self._observer.topic_ids()

    def pauses_told(self) -> tuple[tuple[Pause, ...] | None, str | None]:
        """What people hold; or None, and why nothing that Fleet itself keeps can be read now."""
        try:
            return self.pauses(), None
        except FleetError as error:
            return None, f"slots, changes and pauses are not shown: {error}"

    def slots(self, group: str) -> tuple[Slot, ...]:
        """The group's slots."""
        return self._at_once.slots(group)

    def targets(self, group: str) -> SlotTargets:
        """The group's slot targets."""
        return self._at_once.targets(group)

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """What the group's workers last said of themselves."""
        return self._at_once.reports(group)

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """The runtime's workers."""
        return self.runtime.workers(group)

    def undeclared(self) -> dict[str, int]:
        """How many workers run of each group that fleet.yaml declares none for (it was renamed, or
        taken out of the file): nothing changes them any more, and nothing ends them.
        """
        wanted = [worker.group for worker in self.workers() if worker.wanted]
        declared = {fleet.group for fleet in self.spec.fleets if fleet.worker is not None}
        return {group: wanted.count(group) for group in sorted(set(wanted) - declared)}

    def pauses(self) -> tuple[Pause, ...]:
        """What people hold."""
        return self._at_once.pauses()

    def pin(self, group: str) -> Pin | None:
        """The number of slots that a person holds now."""
        pin = from_json_or_none(Pin, self.store.manager_state(group, PIN_NOTE))
        return pin if pin is not None and self.clock.now() < pin.until else None

    def change(self, group: str) -> Change | None:
        """The group's running change, or else the last one."""
        return self._at_once.change(group)

    def changes(self, group: str, limit: int = 20) -> tuple[Change, ...]:
        """The group's changes, latest first."""
        return self._at_once.changes(group, limit=limit)

    def readable_changes(self, group: str, limit: int = 20) -> tuple[Change, ...]:
        """The same; none where what is stored of them cannot be read: they excuse no rebalance."""
        try:
            return self.changes(group, limit=limit)
        except (Damaged, SchemaTooNew):
            return ()

    # --- decide -----------------------------------------------------------------------------

    def state(self, group: str, snapshot: Snapshot) -> StateSnapshot:
        """All a decision about one group may know, at one moment."""
        spec = self.group(group)
        revision = MEMBERS if spec.worker is None else self._revisions().wanted(spec)
        if spec.worker is not None:
            self.runtime.recognise(group, revision)
        slots, reports = self.store.slots(group), self.store.reports(group)
        processes = self.runtime.workers(group)
        state = StateSnapshot(
            spec=spec,
            mode=self.spec.mode_of(spec),
            cluster=self.spec.cluster.name,
            snapshot_at=snapshot.at,
            group=snapshot.groups.get(group),
            topics=snapshot.topics,
            targets=self.store.targets(group),
            slots=slots,
            reports=reports,
            processes=processes,
            change=self.store.change(group),
            change_alive=self.change_alive(group),
            pauses=self.store.pauses(),
            stopped_partitions=self.store.stopped_partitions(group),
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
        if isinstance(spec.worker, ClassicWorker) and (state.is_empty() or changes):
            return replace(state, initial_delay=self._broker_limits.initial_delay)
        return state

    @cached_property
    def _broker_limits(self) -> BrokerLimits:
        with self.sessions.open_connections() as connections:
            return broker_limits(connections)

    def change_alive(self, group: str) -> bool | None:
        """Whether somebody works on the group's unfinished change, without waiting.

        None: that shows at a later look, one lease from the first; see `fleet.act.lease`.
        """
        left = self.store.change(group)
        if left is None or left.state is not ChangeState.RUNNING:
            return False
        lease = self.group(group).runtime.lease
        return works_on(self.store, left, lease=lease, clock=self.clock)

    def open_slots(self, group: str) -> int:
        """Slots that may be held, as plans count them: not those that a foreign owner shut."""
        targets = self.store.targets(group)
        return len(targets.open - targets.quarantined)

    def wanted(self, group: str, snapshot: Snapshot, *, adopted: Adopted | None = None) -> Decision:
        """What the policy wants now; its agreement over time is kept in the store."""
        note = self.store.manager_state(group, "scaling")
        current = adopted.replicas if adopted else self.open_slots(group)
        memory = from_json_or_none(ScalingMemory, note) or ScalingMemory()
        unit = "pod" if adopted else "slot"
        decision = self._asked(group, snapshot, current=current, memory=memory, unit=unit)
        self.store.put_manager_state(group, "scaling", as_json(decision.memory))
        pin = self.pin(group)
        return decision if pin is None else pinned(decision, pin, now=self.clock.now(), unit=unit)

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
            quarantined={mark.tp for mark in self.store.stopped_partitions(group)},
            now=self.clock.now(),
            unit=unit,
        )

    def plan(
        self,
        group: str,
        *,
        wanted: int | None = None,
        roll: bool = False,
        pin: float | None = None,
        snapshot: Snapshot | None = None,
    ) -> Plan:
        """The change that would be made now, with its expected cost; nothing is written to Kafka.

        `wanted` None asks the policy; `roll` asks for a roll even where the code is the same.
        `pin`: seconds for which the policy shall leave `wanted` alone; without it the plan notes
        what the policy will make of a number of slots that a person asks for.
        """
        from fleet.manager.obstacles import obstacles

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
        by_policy = wanted is None and self.pin(group) is None
        if wanted is None:
            decision = self.wanted(group, seen)
            wanted, sentence = decision.wanted, decision.sentence
        elif roll:
            sentence = ""
        elif pin is not None:
            sentence = f"pinned for {duration(pin)}: the policy leaves it alone until then"
        else:
            asked = self._asked(group, seen, current=wanted, memory=ScalingMemory())
            sentence = undone_by(asked, wanted, group) or ""
        recent = self.rebalances(group, window=spec.storm.window)
        state = replace(self.state(group, seen), readable_log=recent is not None)
        plan = make_plan(
            state,
            wanted=wanted,
            now=self.clock.now(),
            force_roll=roll,
            why=sentence,
        )
        plan = _priced(state, plan, by_policy=by_policy)
        if brings_members(plan):  # the brokers are asked what they would refuse of it
            refused = beyond_limits(state, plan, self._broker_limits)
            plan = Vetoes(refusals=refused).told_in(plan)
        against = obstacles(spec, plan, environ=self._environ, here=Path.cwd())
        return self.runtime.vetoes(plan).told_in(against.told_in(plan))

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
            from fleet.decide.other_ways import foretold_of_pods

            against = refusals(self.state(spec.group, seen), now, steps=plan.steps)
            plan = replace(foretold_of_pods(plan, group, adopted), refusals=against)
        return self.runtime.vetoes(plan).told_in(plan)

    def drain_plan(self, group: str, slots: Sequence[int]) -> Plan:
        """The plan of `drain`."""
        if self.group(group).worker is None:
            raise Refused(f"group {group} declares no worker: it has no slots to drain")
        seen = self.snapshot([group])
        state = self.state(group, seen)
        plan = make_drain_plan(state, slots=tuple(slots), now=self.clock.now())
        return self.runtime.vetoes(plan).told_in(_priced(state, plan))

    def _revisions(self) -> Revisions:
        return Revisions(
            cluster=self.spec.cluster,
            bootstrap=self.bootstrap,
            runtime=self.runtime,
            clock=self.clock,
        )

    # --- act --------------------------------------------------------------------------------

    def apply(
        self,
        group: str,
        *,
        wanted: int | None = None,
        roll: bool = False,
        approved: str | None = None,
        pin: float | None = None,
        actor: str,
        progress: Progress = silent,
    ) -> Change:
        """Finish what a dead actor left, then plan and perform; missing topics are created first.

        `approved` is the id of the plan that a person has seen: no other is carried out. `pin` is
        for how many seconds the policy shall leave `wanted` alone; a `wanted` without it ends the
        pin there was.
        Raises Refused with sentences where nothing may be done.
        """
        self._may_act(group)
        resumed = self.resume_change(group, actor=actor, progress=progress)
        if resumed is not None and resumed.state is not ChangeState.DONE:
            return resumed
        plan = self.plan(group, wanted=wanted, roll=roll, pin=pin)
        if approved is not None:
            if resumed is not None and resumed.plan.id == approved:
                return resumed
            if (why := not_as_approved(approved, plan)) is not None:
                raise Refused(why)
        with self._held(group, None if roll else wanted, pin, by=actor):
            if plan.empty and not plan.refusals:
                if self.keep_current(plan):
                    progress(brought_up_to_date(group))
                return resumed or self._nothing_to_do(plan, actor)
            if not plan.refusals:
                self.create_topics(group, progress=progress)
            return self._begin(group, plan, actor=actor, progress=progress)

    @contextmanager
    def _held(
        self, group: str, wanted: int | None, pin: float | None, *, by: str
    ) -> Iterator[None]:
        """While a person's number of slots comes to be, it is held, so that no other manager who
        finishes the change undoes it; a refusal leaves the pin there was.
        """
        before = self.pin(group)
        if wanted is not None:
            until = self.clock.now() + (pin or 0.0)
            made = None if pin is None else as_json(Pin(wanted=wanted, until=until, by=by))
            self.store.put_manager_state(group, PIN_NOTE, made)
        try:
            yield
        except Refused:
            self.store.put_manager_state(group, PIN_NOTE, as_json(before) if before else None)
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
                f"{', '.join(map(str, lacking))} (documentation: reference/acls)"
            )

    def _begin(self, group: str, plan: Plan, *, actor: str, progress: Progress) -> Change:
        if not plan.refusals:
            self._may_by_acl(group)
            if plan.revision != MEMBERS:
                self._revisions().publish(self.group(group), plan.revision)
        return self._changing(group).begin(plan, actor=actor, progress=progress)

    def _changing(self, group: str) -> "GroupChanges":
        from fleet.act.change import GroupChanges

        return GroupChanges(
            group=group,
            store=self.store,
            clock=self.clock,
            lease=self.group(group).runtime.lease,
            perform=lambda change, progress: self._perform(group, change, progress),
        )

    def _perform(self, group: str, change: Change, progress: Progress) -> Change:
        from fleet.act.change import Performer
        from fleet.act.kafka import JoinWindow

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

    def _adopting(self, admin: "GroupAdmin") -> "Adopting":
        from fleet.act.steps.adopting import Adopting

        return Adopting(
            adopted=self.runtime.adopted,
            scale=self.runtime.scale_adopted,
            look=lambda group: self.snapshot([group]).groups.get(group),
            leave=admin.leave_all,
            clock=self.clock,
        )

    def _admin(self) -> "GroupAdmin":
        from fleet.act.kafka import GroupAdmin

        login = kafka_python_config(self.spec.cluster, self.bootstrap, self._environ)
        return GroupAdmin(bootstrap=self.bootstrap, kafka_python_config=login)

    def reopen(self, group: str, slot: int) -> bool:
        """Let workers take a slot again that a foreign owner shut [15]; whether it was shut."""

        def reopened(targets: SlotTargets) -> SlotTargets | None:
            shut = targets.quarantined
            return replace(targets, quarantined=shut - {slot}) if slot in shut else None

        return self.store.change_targets(group, reopened) is not None

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
        """Put a group's setting back that a dead manager changed for the slot targets [19]."""
        from fleet.act.kafka import JoinWindow

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
        wanted = len(self.targets(group).open) + spec.replicas.standby
        if spec.worker is None or sum(w.wanted for w in self.workers(group)) >= wanted:
            return None
        return self.runtime.refusal(group)

    def pause(self, group: str | None, *, reason: str, by: str) -> None:
        """Stops all changes of a group (None: of every group). Refused for an unmanaged group."""
        self._must_be_managed(group)
        self.store.pause(Pause(group=group, reason=reason, by=by, at=self.clock.now()))

    def unpause(self, group: str | None) -> bool:
        """Lifts a pause; False if there was none. Refused for an unmanaged group."""
        self._must_be_managed(group)
        return self.store.resume(group)

    def is_unmanaged(self, group: str | None) -> bool:
        """Tells whether `fleet unmanage` stopped managing the group."""
        return any(each.is_unmanaged for each in self.pauses() if each.group == group)

    def _must_be_managed(self, group: str | None) -> None:
        if self.is_unmanaged(group):
            raise Refused(f"group {group} is unmanaged; `fleet manage {group}` takes it back")

    def manage(self, group: str) -> bool:
        """Takes an unmanaged group back; False if it is managed."""
        self.group(group)
        if not self.is_unmanaged(group):
            return False
        self.runtime.manage(group)
        return self.store.resume(group)

    def unmanage(self, group: str, *, by: str) -> int:
        """Stops managing a group, and returns how many workers of it keep running.

        Refused while a change of it is unfinished. `manage` takes it back.
        """
        self.group(group)
        if self._changing(group).running() is not None:
            raise Refused(
                f"a change of group {group} is not finished; end it first with "
                f"`fleet apply {group} --continue` or `--abort`"
            )
        self.runtime.finish_removals(group)
        self.runtime.unmanage(group)
        now = self.clock.now()
        self.store.pause(Pause(group=group, reason=UNMANAGED, by=by, at=now))
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
        from fleet.act.kafka import JoinWindow, leave_for_good
        from fleet.broker import Broker

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


def _embedded(spec: FleetSpec, home: Path, *, start: bool) -> tuple[FleetSpec, str]:
    """The file with the embedded broker's login, where it is secure, and bootstrap.servers.

    Of a file that says only `embedded` it is the super user's; what it says of security itself is
    taken as it is, so that lesser users can be tried. Raises Unreachable where it does not run.
    """
    from fleet.broker import Broker

    broker = Broker(home)
    status = broker.status()
    if not status.running:
        if not start:
            raise Unreachable(
                f"the embedded broker of {home} does not run; start it with "
                "`fleet dev broker start`; `fleet up` starts it with everything of a fleet.yaml"
            )
        status = broker.start()
    if spec.cluster.security == Security() and status.secure:
        cluster = spec.cluster.model_copy(update={"security": broker.security()})
        spec = spec.model_copy(update={"cluster": cluster})
    return spec, status.bootstrap_servers


def _priced(state: StateSnapshot, plan: Plan, *, by_policy: bool = False) -> Plan:
    """With what the coordinator's model expects of each step; most plans have none.

    by_policy: nobody asked for so many, so it has to be worth its expected cost.
    """
    if plan.empty:
        return plan
    # Of use to few commands, and 60 ms of imports.
    from fleet.decide.expected_costs import foretold
    from fleet.decide.other_ways import not_worth, with_other_ways

    priced = with_other_ways(state, foretold(state, plan))
    against = not_worth(state, priced) if by_policy else ""
    return replace(priced, refusals=(*priced.refusals, against)) if against else priced
