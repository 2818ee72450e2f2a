"""Opens a fleet.yaml on its cluster, to observe, decide and act.

Problem: a person, a Dagster run and a schedule may act on the same group at the same time. Choice:
all use this code under the same lock: the group's lease, in the row of its running change. Only
workers, their supervisor and the broker outlive a call. Modules that act are imported on use, since
an exporter only observes. Cost: this module imports all packages.
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

from fleet.act.lease import is_actor_alive
from fleet.act.revisions import Revisions, find_obstacles
from fleet.act.runtime import Runtime, RuntimeKind
from fleet.act.standby_pool import StandbyPool
from fleet.clock import Clock, SystemClock
from fleet.config.acls import OFFSETS, Grant, allows, needed_grants
from fleet.config.load import load
from fleet.config.settings import settings_if_readable
from fleet.config.spec import ClassicWorker, ExternalScaling, FleetSpec, GroupSpec, Security
from fleet.config.topic_patterns import is_pattern
from fleet.decide.adopted import MEMBERS, Adopted, approval_mismatch, make_adopted_plan, roll_note
from fleet.decide.decision_log import KeptDecision
from fleet.decide.plans import make_drain_plan, make_plan
from fleet.decide.refusals import (
    adds_members,
    broker_limit_refusals,
    budget_refusal,
    mode_refusal,
    pause_refusal,
    refusals,
)
from fleet.decide.scaling import NOTE as PIN_NOTE
from fleet.decide.scaling import (
    Decision,
    ExternalNumber,
    Pin,
    ScalingMemory,
    apply_pin,
    explain_undo,
    missing_topics,
    wanted_slots,
)
from fleet.decide.state_snapshot import StateSnapshot, Vetoes
from fleet.decide.storms import Storm, assess, budget_of, expected_rebalances_of, reach
from fleet.errors import ConfigError, Damaged, FleetError, Refused, SchemaTooNew, Unreachable
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.broker_settings import SessionQueries, broker_limits
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.pieces import LogBounds
from fleet.lag.end_history import EndHistory, EndStore
from fleet.lag.lag_columns import Longs
from fleet.lag.snapshot import Logs, Snapshot
from fleet.log.records import Unreadable
from fleet.manager.decisions import keep_decision, kept_decisions, last_decision
from fleet.manager.external_number import ExternalNumbers
from fleet.model import BrokerLimits, Plan, StepKind, TopicPartition
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
    from fleet.log.readers.tail import Tail

EMBEDDED = "embedded"
STORM_NOTE = "storm"
"""Key of a group's storm in the store."""


Progress = Callable[[str], None]


def ignore_progress(_sentence: str) -> None:
    """Ignores progress."""


def current_settings_notice(group: str) -> str:
    """Returns the message for settings that `Fleet.keep_current` updated."""
    return (
        f"group {group}: updated what new workers start from (addresses of brokers, login, lease, "
        f"module path); run `fleet roll {group}` to apply it to running workers"
    )


class Fleet(Closing):
    """Observes, plans and changes the groups of one fleet.yaml."""

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
        self._external_numbers = ExternalNumbers(environ, clock=clock)
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
        self.tail: Tail | None = None
        """A live view of the coordinator's log, if the program keeps one."""
        self.decided: dict[str, KeptDecision] = {}
        """The last decision of each group that this object planned by its policy."""

    @cached_property
    def _ledger(self) -> CoordinatorLedger:
        """Opened at first use, since it loads librdkafka."""
        from fleet.log.readers.group_log import GroupLog

        return CoordinatorLedger(
            GroupLog(self.client, clock=self.clock), self._observer, self.sessions
        )

    @property
    def history_path(self) -> str:
        """Returns the place of the history tables; default: `history` in the state directory."""
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
        """Loads fleet.yaml (default `$FLEET_CONFIG` or ./fleet.yaml) and finds its cluster.

        Raises ConfigError if the file is missing or wrong, Unreachable if the embedded broker does
        not run and `start_broker` is False.
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

    def another(self) -> Self:
        """Opens the same fleet once more, for another thread."""
        return type(self)(
            spec=self.spec,
            config=self.config,
            home=self.home,
            bootstrap=self.bootstrap,
            environ=self._environ,
            clock=self.clock,
        )

    def close(self) -> None:
        """Closes all connections."""
        if "_ledger" in vars(self):
            self._ledger.close()
        self.sessions.close()
        self._observer.close()
        self.runtime.close()

    @property
    def store(self) -> Store:
        """Returns the store of slots, slot targets and changes."""
        return self.runtime.store

    @property
    def _without_retries(self) -> Store:
        """Returns the store for reads only, which do not wait for an unreachable API server."""
        store: Store = getattr(self.store, "at_once", self.store)
        return store

    def group(self, name: str) -> GroupSpec:
        """Returns the declared fleet; raises ConfigError with the declared groups."""
        found = self.spec.fleet(name)
        if found is None:
            close = difflib.get_close_matches(name, [f.group for f in self.spec.fleets], n=1)
            known = ", ".join(f.group for f in self.spec.fleets) or "none"
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"{self.config} declares no group {name!r}; {hint}declared: {known}")
        return found

    # --- observe ----------------------------------------------------------------------------

    def snapshot(self, groups: Collection[str] | None = None) -> Snapshot:
        """Reads all groups of the cluster, or those named, in batched requests."""
        seen = self._observer.snapshot(groups)
        declared = [f for f in self.spec.fleets if groups is None or f.group in groups]
        hidden = self.hidden(declared, seen)
        return replace(seen, problems=(*seen.problems, *hidden))

    def read_on(self, seen: Snapshot, rows: Longs) -> Snapshot:
        """Reads the waiting records of rows that seem to stand still, if they are readable."""
        return self._observer.read_on(seen, rows)

    def hidden(self, fleets: Sequence[GroupSpec], snapshot: Snapshot) -> tuple[str, ...]:
        """Lists declared groups and topics that this login may not describe."""
        return tuple(
            f"this login may not describe {kind} {name}: allow Describe on {kind} {name} "
            "(the page reference/acls lists the ACLs of every mode)"
            for kind, name in self.undescribed(fleets, snapshot)
        )

    def undescribed(
        self, fleets: Sequence[GroupSpec], snapshot: Snapshot
    ) -> tuple[tuple[str, str], ...]:
        """Lists them as ("group" | "topic", name), by one request for all that seem missing.

        A broker reports a group or topic as missing if the login may not describe it.
        """
        seen = snapshot.facts
        groups = {f.group for f in fleets if f.group not in seen or not seen[f.group].exists}
        topics = {t for f in fleets for t in f.topics if not is_pattern(t)} - set(snapshot.topics)
        if not groups and not topics:
            return ()
        allowed = self._observer.allowed_operations(groups, topics)
        return tuple(sorted(what for what, operations in allowed.items() if not operations))

    def missing_grants(self, fleets: Sequence[GroupSpec]) -> tuple[Grant, ...]:
        """Lists the ACLs that this login lacks for these groups in their modes (KIP-430).

        Groups and topics that are hidden altogether are in `hidden`.
        """
        wanted = [
            grant for each in fleets for grant in needed_grants(each, self.spec.mode_of(each))
        ]
        if not wanted:
            return ()
        allowed = self._observer.allowed_operations(
            {grant.name for grant in wanted if grant.resource == "group"},
            {grant.name for grant in wanted if grant.resource == "topic"},
        )
        return tuple(
            grant
            for grant in wanted
            if (granted := allowed.get((grant.resource, grant.name)))
            and not allows(granted, grant.operation)
        )

    def rebalances(self, group: str, *, window: float) -> int | None:
        """Counts the rebalances of the last `window` seconds; None if unreadable."""
        return self._ledger.recorded_since(group, self.clock.now() - window)

    def recorded(self, group: str, *, since: float) -> list[Rebalance] | None:
        """Returns a group's rebalances since a wall time; None if unreadable."""
        if self.tail is not None and self.tail.is_current():
            return self.tail.rebalances(group=group, since=since)
        return self._ledger.rebalances(group, cluster=self.spec.cluster.name, since=since)

    def counted(self, group: str, since: int) -> RebalanceCounts | None:
        """Counts a group's rebalances and downtimes from a log position on; None if unreadable."""
        return self._ledger.counted(group, since)

    def storm(
        self, group: str, seen: Sequence[Rebalance] | None = None, *, kept: bool = True
    ) -> Storm | None:
        """Returns the group's storm now; None if there is none, or its records are unreadable.

        `seen` are its rebalances of the last `reach(budget)` seconds, if the caller has them. The
        storm is stored beside the slots, since it may be older than these. Expected rebalances of
        Fleet's changes do not count. `kept` is False if the store is unreadable.
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
            excuses=expected_rebalances_of(
                self.spec, group, self.readable_changes(group) if kept else ()
            ),
        )
        if kept and (storm is not None or note is not None):
            with contextlib.suppress(Unreachable):  # a full disk must not hide a storm
                self.store.put_manager_state(group, STORM_NOTE, as_json(storm) if storm else None)
        return storm

    def last_storm(self, group: str) -> Storm | None:
        """Returns the stored storm if it was seen within its window, without reading the log."""
        storm = from_json_or_none(Storm, self.store.manager_state(group, STORM_NOTE))
        # abs(): a clock may have been set back.
        fresh = storm is not None and abs(self.clock.now() - storm.seen_at) < storm.window
        return storm if fresh else None

    def offsets_bounds(self) -> dict[int, LogBounds]:
        """Returns the bounds of each partition of the coordinator's log; {} if there is none.

        Raises Unreadable if this login may not read it, Unreachable if no broker answers.
        """
        allowed = self._observer.allowed_operations([], [OFFSETS]).get(("topic", OFFSETS))
        if allowed is not None and not allows(allowed, "Read"):
            raise Unreadable(
                f"this login may not read {OFFSETS}: allow Read on topic {OFFSETS} "
                "(managed Kafka seldom does)"
            )
        try:
            return log_bounds(self.client, OFFSETS)
        except RangeUnread as error:
            raise Unreachable(f"cannot read the size of {OFFSETS}: {error}") from error

    def logs(self, tps: Collection[TopicPartition]) -> Logs:
        """Returns the logs of these partitions, now and before."""
        return self._observer.logs(tps)

    def topic_ids(self) -> dict[str, str]:
        """Returns topic names by topic id."""
        return self._observer.topic_ids()

    def pauses_or_reason(self) -> tuple[tuple[Pause, ...] | None, str | None]:
        """Returns the pauses; or None, and why Fleet's own store is unreadable."""
        try:
            return self.pauses(), None
        except FleetError as error:
            return None, f"cannot show slots, changes and pauses: {error}"

    def slots(self, group: str) -> tuple[Slot, ...]:
        """Returns the group's slots."""
        return self._without_retries.slots(group)

    def targets(self, group: str) -> SlotTargets:
        """Returns the group's slot targets."""
        return self._without_retries.targets(group)

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """Returns the last reports of the group's workers."""
        return self._without_retries.reports(group)

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Returns the runtime's workers."""
        return self.runtime.workers(group)

    def undeclared(self) -> dict[str, int]:
        """Counts the running workers of groups that fleet.yaml no longer declares.

        Nothing changes or stops these workers any more.
        """
        wanted = [worker.group for worker in self.workers() if worker.wanted]
        declared = {fleet.group for fleet in self.spec.fleets if fleet.worker is not None}
        return {group: wanted.count(group) for group in sorted(set(wanted) - declared)}

    def pauses(self) -> tuple[Pause, ...]:
        """Returns all pauses."""
        return self._without_retries.pauses()

    def pin(self, group: str) -> Pin | None:
        """Returns the group's pin, if it is in force."""
        pin = from_json_or_none(Pin, self.store.manager_state(group, PIN_NOTE))
        return pin if pin is not None and self.clock.now() < pin.until else None

    def change(self, group: str) -> Change | None:
        """Returns the group's running change, else the last one."""
        return self._without_retries.change(group)

    def changes(self, group: str, limit: int = 20) -> tuple[Change, ...]:
        """Returns the group's changes, latest first."""
        return self._without_retries.changes(group, limit=limit)

    def readable_changes(self, group: str, limit: int = 20) -> tuple[Change, ...]:
        """Returns the group's changes; none if the stored ones are unreadable."""
        try:
            return self.changes(group, limit=limit)
        except (Damaged, SchemaTooNew):
            return ()

    # --- decide -----------------------------------------------------------------------------

    def state(
        self, group: str, snapshot: Snapshot, *, recorded: Sequence[Rebalance] | None = None
    ) -> StateSnapshot:
        """Reads all that a decision about one group needs; `recorded` as `storm` takes it."""
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
            storm=self.storm(group, recorded),
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
        """Tells whether an actor works on the group's unfinished change, without waiting.

        None: unknown until a call one lease after the first; see `fleet.act.lease`.
        """
        left = self.store.change(group)
        if left is None or left.state is not ChangeState.RUNNING:
            return False
        lease = self.group(group).runtime.lease
        return is_actor_alive(self.store, left, lease=lease, clock=self.clock)

    def open_slots(self, group: str) -> int:
        """Counts open slots as plans do, without quarantined ones."""
        targets = self.store.targets(group)
        return len(targets.open - targets.quarantined)

    def wanted(self, group: str, snapshot: Snapshot, *, adopted: Adopted | None = None) -> Decision:
        """Returns the policy's decision; its memory is in the store."""
        note = self.store.manager_state(group, "scaling")
        current = adopted.replicas if adopted else self.open_slots(group)
        memory = from_json_or_none(ScalingMemory, note) or ScalingMemory()
        unit = "pod" if adopted else "slot"
        decision = self._decide(group, snapshot, current=current, memory=memory, unit=unit)
        kept = as_json(decision.memory)
        if kept != note:
            self.store.put_manager_state(group, "scaling", kept)
        pin = self.pin(group)
        return (
            decision if pin is None else apply_pin(decision, pin, now=self.clock.now(), unit=unit)
        )

    def _keep_decision(self, decision: Decision, plan: Plan, seen: Snapshot) -> None:
        """Keeps a decision with the figures that it saw and the refusals of its plan."""
        group = seen.groups.get(plan.group)
        made = KeptDecision(
            at=seen.at,
            wanted=decision.wanted,
            current=decision.memory.current or 0,
            members=len(group.members) if group else 0,
            lag=group.lag if group else None,
            lag_seconds=group.lag_seconds if group else None,
            reason=decision.sentence,
            refused=" ".join(plan.refusals),
            inputs=decision.inputs,
            alternatives=decision.alternatives,
        )
        self.decided[plan.group] = keep_decision(self.store, plan.group, made)

    def decisions(self, group: str) -> tuple[KeptDecision, ...]:
        """Returns the kept decisions of the group's policy, oldest first."""
        return kept_decisions(self._without_retries, group)

    def last_decision(self, group: str) -> KeptDecision | None:
        """Returns the last kept decision of the group's policy."""
        return last_decision(self._without_retries, group)

    def _decide(
        self,
        group: str,
        snapshot: Snapshot,
        *,
        current: int,
        memory: ScalingMemory,
        unit: str = "slot",
    ) -> Decision:
        """Returns the policy's decision for `current` slots, without a pin."""
        return wanted_slots(
            spec=self.group(group),
            changed_at=_changed_at(self, self.group(group)),
            group=snapshot.groups.get(group),
            topics=snapshot.topics,
            current=current,
            memory=memory,
            quarantined={mark.tp for mark in self.store.stopped_partitions(group)},
            reports=self.store.reports(group),
            seen_at=snapshot.at,
            now=self.clock.now(),
            unit=unit,
            explain=True,
            external=self.external_number(self.group(group)),
        )

    def external_number(self, spec: GroupSpec) -> ExternalNumber | None:
        """Asks for the number of slots of the policy external; None for another policy."""
        policy = spec.scaling
        return self._external_numbers.ask(policy) if isinstance(policy, ExternalScaling) else None

    def plan(
        self,
        group: str,
        *,
        wanted: int | None = None,
        roll: bool = False,
        pin: float | None = None,
        snapshot: Snapshot | None = None,
    ) -> Plan:
        """Plans a change with its expected cost; writes nothing to Kafka.

        `wanted` None asks the policy; `roll` rolls even unchanged code. `pin`: seconds for which
        the policy keeps `wanted`; without it, a note says how the policy will change it.
        """
        spec = self.group(group)
        if not spec.is_changeable:
            raise Refused(
                f"group {group} declares no worker, so Fleet only observes it; "
                f"write fleets[].worker in {self.config} to run workers"
            )
        seen = snapshot or self.snapshot([group])
        if hidden := self.hidden([spec], seen):
            raise Refused("; ".join(hidden))
        if spec.worker is None:
            return self._adopted_plan(spec, seen, wanted=wanted, roll=roll)
        by_policy = wanted is None and self.pin(group) is None
        decision = None
        if wanted is None:
            decision = self.wanted(group, seen)
            wanted, sentence = decision.wanted, decision.sentence
        elif roll:
            sentence = ""
        elif pin is not None:
            sentence = f"pinned for {duration(pin)}: the policy does not change it until then"
        else:
            asked = self._decide(group, seen, current=wanted, memory=ScalingMemory())
            sentence = explain_undo(asked, wanted, group) or ""
        recorded = self.recorded(group, since=self.clock.now() - reach(spec.storm))
        state = self.state(group, seen, recorded=recorded)
        state = replace(state, readable_log=recorded is not None)
        plan = make_plan(
            state,
            wanted=wanted,
            now=self.clock.now(),
            force_roll=roll,
            why=sentence,
        )
        plan = _with_costs(state, plan, by_policy=by_policy)
        if adds_members(plan):  # checked against the brokers' limits
            refused = broker_limit_refusals(state, plan, self._broker_limits)
            plan = Vetoes(refusals=refused).add_to(plan)
        against = find_obstacles(spec, plan, environ=self._environ, here=Path.cwd())
        plan = self._vetoed(against.add_to(plan))
        if decision is not None and "scaling" in spec.model_fields_set:
            self._keep_decision(decision, plan, seen)
        return plan

    def _adopted_plan(
        self, spec: GroupSpec, seen: Snapshot, *, wanted: int | None, roll: bool
    ) -> Plan:
        """Plans the scaling of an adopted Deployment, by request or by its own policy.

        It is never rolled. The default policy does not apply to it.
        """
        adopted = self.runtime.adopted(spec.group)
        if adopted is None:
            raise Refused(f"group {spec.group} has no Deployment; run `fleet doctor` to see why")
        group = seen.groups.get(spec.group)
        if roll:
            raise Refused(f"{roll_note(group, adopted)}. Fleet does not roll it; its owner does")
        why, decision = "", None
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
            from fleet.decide.alternatives import with_adopted_costs

            against = refusals(self.state(spec.group, seen), now, steps=plan.steps)
            plan = replace(with_adopted_costs(plan, group, adopted), refusals=against)
        plan = self._vetoed(plan)
        if decision is not None:
            self._keep_decision(decision, plan, seen)
        return plan

    def drain_plan(self, group: str, slots: Sequence[int]) -> Plan:
        """Plans a drain of these slots."""
        if self.group(group).worker is None:
            raise Refused(f"group {group} declares no worker, so it has no slots to drain")
        seen = self.snapshot([group])
        state = self.state(group, seen)
        plan = make_drain_plan(state, slots=tuple(slots), now=self.clock.now())
        return self._vetoed(_with_costs(state, plan))

    def _vetoed(self, plan: Plan) -> Plan:
        """Adds what the runtime and the cluster's budget of changes have against a plan."""
        full = Vetoes(refusals=_full_budget(self, plan))
        return self.runtime.vetoes(plan).add_to(full.add_to(plan))

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
        progress: Progress = ignore_progress,
    ) -> Change:
        """Finishes a dead actor's change, then creates missing topics, plans and performs.

        `approved` is the id of the only plan to carry out. `pin`: seconds for which the policy
        keeps `wanted`; a `wanted` without it ends an earlier pin.
        Raises Refused with sentences if nothing may be done.
        """
        self._check_mode(group)
        resumed = self.resume_change(group, actor=actor, progress=progress)
        if resumed is not None and resumed.state is not ChangeState.DONE:
            return resumed
        plan = self.plan(group, wanted=wanted, roll=roll, pin=pin)
        if approved is not None:
            if resumed is not None and resumed.plan.id == approved:
                return resumed
            if (why := approval_mismatch(approved, plan)) is not None:
                raise Refused(why)
        with self._pinned(group, None if roll else wanted, pin, by=actor):
            if plan.empty and not plan.refusals:
                if self.keep_current(plan):
                    progress(current_settings_notice(group))
                return resumed or self._nothing_to_do(plan, actor)
            if not plan.refusals:
                self.create_topics(group, progress=progress)
            return self._begin(group, plan, actor=actor, progress=progress)

    @contextmanager
    def _pinned(
        self, group: str, wanted: int | None, pin: float | None, *, by: str
    ) -> Iterator[None]:
        """Stores the pin before the change, so that another manager who finishes it keeps it.

        A refusal restores the earlier pin.
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
        """Updates settings of new workers that are not part of a revision; tells whether it did.

        These are addresses of brokers, login, lease and module path. A change updates them itself;
        without the right to act, nothing is done.
        """
        spec = self.group(plan.group)
        if not plan.empty or plan.refusals or plan.revision == MEMBERS:
            return False
        if self.spec.mode_of(spec) != "act" or pause_refusal(self.pauses(), plan.group):
            return False
        return self._revisions().keep_current(spec, plan.revision)

    def _nothing_to_do(self, plan: Plan, actor: str) -> Change:
        """Answers an empty plan with a change that is not stored."""
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
        self, group: str, slots: Sequence[int], *, actor: str, progress: Progress = ignore_progress
    ) -> Change:
        """Drains these slots by one batched leave."""
        self._check_mode(group)
        self.resume_change(group, actor=actor, progress=progress)
        plan = self.drain_plan(group, slots)
        return self._begin(group, plan, actor=actor, progress=progress)

    def _check_mode(self, group: str) -> None:
        spec = self.group(group)
        why = mode_refusal(spec, self.spec.mode_of(spec))
        if why is not None:
            raise Refused(why)

    def _check_acls(self, group: str) -> None:
        """Refuses a change that the cluster would refuse halfway."""
        missing = self.missing_grants([self.group(group)])
        if missing:
            raise Refused(
                f"mode act of group {group} needs more ACLs for this login: allow "
                f"{', '.join(map(str, missing))} (the page reference/acls lists all)"
            )

    def _begin(self, group: str, plan: Plan, *, actor: str, progress: Progress) -> Change:
        if not plan.refusals:
            self._check_acls(group)
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
            read=lambda group: self.snapshot([group]).groups.get(group),
            leave=admin.leave_all,
            clock=self.clock,
        )

    def _admin(self) -> "GroupAdmin":
        from fleet.act.kafka import GroupAdmin

        login = kafka_python_config(self.spec.cluster, self.bootstrap, self._environ)
        return GroupAdmin(bootstrap=self.bootstrap, kafka_python_config=login)

    def reopen(self, group: str, slot: int) -> bool:
        """Opens a quarantined slot again [15]; tells whether it was quarantined."""

        def reopened(targets: SlotTargets) -> SlotTargets | None:
            found = targets.quarantined
            return replace(targets, quarantined=found - {slot}) if slot in found else None

        return self.store.change_targets(group, reopened) is not None

    def resume_change(
        self, group: str, *, actor: str, progress: Progress = ignore_progress
    ) -> Change | None:
        """Continues an unfinished change whose actor is silent for one lease; None if none is.

        Raises Refused if its actor is alive or the group is paused, since a change from before an
        incident must not continue in it.
        """
        resumed = self._changing(group).resume(
            actor=actor, progress=progress, pause_check=lambda: pause_refusal(self.pauses(), group)
        )
        self._close_window(group, progress)
        return resumed

    def _close_window(self, group: str, progress: Progress) -> None:
        """Restores a group setting that a dead manager changed for a synchronized join [19]."""
        from fleet.act.kafka import JoinWindow

        with self._admin() as admin:  # connects only if there is something to restore
            JoinWindow(group, self.store, admin, clock=self.clock, say=progress).restore()

    def abort_change(self, group: str, *, actor: str) -> Change | None:
        """Ends a dead actor's unfinished change at its current step and withdraws its requests."""
        aborted = self._changing(group).abort(actor=actor)
        if aborted is not None:
            self._close_window(group, ignore_progress)
            self.runtime.finish_removals(group, given_up=True)
        return aborted

    def refusal(self, group: str) -> str | None:
        """Returns why the runtime has fewer workers than open slots and standbys need."""
        spec = self.group(group)
        wanted = len(self.targets(group).open) + spec.replicas.standby
        if spec.worker is None or sum(w.wanted for w in self.workers(group)) >= wanted:
            return None
        return self.runtime.refusal(group)

    def pause(self, group: str | None, *, reason: str, by: str) -> None:
        """Pauses all changes of a group (None: of all groups). Refused for an unmanaged group."""
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
        mine = [each for each in self.pauses() if each.group == group and each.is_unmanaged]
        if group is not None and mine:
            raise Refused(pause_refusal(mine, group))

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
        """Tells whether a slot's last member had an instance id, by its revision or the file."""
        pool, fleet = StandbyPool(self.runtime, self.store, group), self.spec.fleet(group)
        worker = None if fleet is None else fleet.worker
        wanted = worker is not None and worker.membership == "static"
        return lambda slot: pool.is_static(slot.revision, otherwise=wanted)

    # --- life -------------------------------------------------------------------------------

    def create_topics(
        self, group: str | None = None, *, progress: Progress = ignore_progress
    ) -> None:
        """Creates missing topics of one fleet or of all that declare `create:`."""
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
        progress: Progress = ignore_progress,
    ) -> tuple[Change, ...]:
        """Creates topics, starts supervisor and Spark, then applies every group in mode act.

        `groups`: apply only these; topics of all are created. A refused group does not block the
        others; Refused is raised at the end.
        """
        self.create_topics(progress=progress)
        wanted = [
            fleet
            for fleet in self.spec.fleets
            if (self.spec.mode_of(fleet) == "act" if groups is None else fleet.group in groups)
        ]
        if wanted:
            self.runtime.ensure()
        else:
            progress("no declared group has mode: act, so no worker starts")
        done, refused = [], []
        for fleet in wanted:
            progress(f"group {fleet.group}")
            try:
                done.append(self.apply(fleet.group, actor=actor, progress=progress))
            except Refused as error:
                progress(f"refused: {error}")
                refused.append(str(error))
        for group, count in self.undeclared().items():
            progress(
                f"{plural(count, 'worker')} of group {group} still run, but fleet.yaml does not "
                "declare the group; run `fleet doctor` for the next step"
            )
        if refused:
            raise Refused(" ".join(refused))
        return tuple(done)

    def down(self, *, purge: bool = False, progress: Progress = ignore_progress) -> None:
        """Stops workers, supervisor and Spark, leaves the groups, stops the embedded broker.

        `purge` removes the embedded broker's data, and slots and workers' files of this state
        directory.
        """
        from fleet.act.kafka import JoinWindow, leave_for_good
        from fleet.broker import Broker

        grace = max((f.rollout.drain_timeout for f in self.spec.fleets), default=10.0)
        # Workers of undeclared groups are stopped too, and would stay members.
        groups = [*(fleet.group for fleet in self.spec.fleets), *self.undeclared()]
        progress("stopping workers")
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


def _full_budget(fleet: Fleet, plan: Plan) -> tuple[str, ...]:
    """Returns why no further group may begin a change; empty if one may.

    It is asked just before a change begins. Two managers that ask within the same moment may both
    begin one.
    """
    most = fleet.spec.max_groups_in_change
    if most is None or all(step.kind is StepKind.WARM for step in plan.steps):
        return ()
    running = [
        change.group
        for each in fleet.spec.fleets
        if each.group != plan.group
        for change in fleet.readable_changes(each.group, limit=1)
        if change.state is ChangeState.RUNNING
    ]
    return tuple(filter(None, [budget_refusal(running, most)]))


def _changed_at(fleet: Fleet, spec: GroupSpec) -> tuple[float, ...]:
    """Returns when the group's last changes began, without those that only warm standbys."""
    most = spec.scaling.changes_per_hour
    return tuple(
        change.started_at
        for change in (fleet.readable_changes(spec.group, limit=2 * most) if most else ())
        if any(step.kind is not StepKind.WARM for step in change.plan.steps)
    )


def _embedded(spec: FleetSpec, home: Path, *, start: bool) -> tuple[FleetSpec, str]:
    """Returns the file with the embedded broker's login, if it is secure, and its address.

    The login is the super user's unless the file sets security itself. Raises Unreachable if the
    broker does not run.
    """
    from fleet.broker import Broker

    broker = Broker(home)
    status = broker.status()
    if not status.running:
        if not start:
            raise Unreachable(
                f"the embedded broker of {home} does not run; start it with `fleet dev broker "
                "start`, or start all of fleet.yaml with `fleet up`"
            )
        status = broker.start()
    if spec.cluster.security == Security() and status.secure:
        cluster = spec.cluster.model_copy(update={"security": broker.security()})
        spec = spec.model_copy(update={"cluster": cluster})
    return spec, status.bootstrap_servers


def _with_costs(state: StateSnapshot, plan: Plan, *, by_policy: bool = False) -> Plan:
    """Adds simulated costs and alternatives to a plan; most plans are empty.

    by_policy: the policy wants the change, which must be worth its cost.
    """
    if plan.empty:
        return plan
    # Few commands need them, and the imports take 60 ms.
    from fleet.decide.alternatives import find_wasteful_growth, with_alternatives
    from fleet.decide.expected_costs import with_expected_costs

    with_costs = with_alternatives(state, with_expected_costs(state, plan))
    against = find_wasteful_growth(state, with_costs) if by_policy else ""
    return replace(with_costs, refusals=(*with_costs.refusals, against)) if against else with_costs
