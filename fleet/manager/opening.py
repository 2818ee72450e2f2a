"""A fleet.yaml opened on its cluster: what may be looked at, before anything is decided.

The base of `fleet.manager.cycle.Fleet`: it finds file, home and cluster, holds the connections, and
answers what people and decisions ask of the present. It changes nothing but its own memory.
"""

import contextlib
import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

from fleet.act.runtime import Runtime, RuntimeKind
from fleet.clock import Clock, SystemClock
from fleet.config.acls import OFFSETS, Grant, allows, needed
from fleet.config.load import load
from fleet.config.spec import FleetSpec, GroupSpec, Security
from fleet.config.topic_patterns import is_pattern
from fleet.decide.holds import NOTE as HOLD_NOTE
from fleet.decide.holds import Hold
from fleet.decide.storms.assessment import Storm, assess, reach
from fleet.decide.storms.storm_watch import budget_of, excuses_of
from fleet.errors import ConfigError, Damaged, FleetError, SchemaTooNew, Unreachable
from fleet.kafka_source.bounds import LogBounds, log_bounds
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.group_sessions import AskedSessions
from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import Longs
from fleet.lag.partition_lag import Logs
from fleet.lag.samples import EndStore
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.offsets_topic import Unreadable
from fleet.model import TopicPartition
from fleet.model.counted import Counted
from fleet.model.rebalances import Rebalance
from fleet.observe.admin import Observer
from fleet.observe.ledger import CoordinatorLedger
from fleet.security import client_config
from fleet.slots import Change, Gate, Pause, Slot, WorkerProcess, WorkerReport
from fleet.slots.store import Store
from fleet.system.closing import Closing
from fleet.system.home import fleet_home, make_home
from fleet.system.runtimes import runtime_kind

EMBEDDED = "embedded"
STORM_NOTE = "storm"
"""Under which the store keeps a group's storm."""


class OpenFleet(Closing):
    """One fleet.yaml and its cluster; a context manager."""

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
        self.sessions = AskedSessions(client, clock=clock)

    @cached_property
    def _ledger(self) -> CoordinatorLedger:
        """Opened by its first question: it loads librdkafka, which who only looks does without."""
        from fleet.log.readers.group_log import GroupLog  # noqa: PLC0415 - see above

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
        """Where slots, gates and changes live."""
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
            "(docs/security.md has the least ACLs of every mode)"
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

    def counted(self, group: str, since: int) -> Counted | None:
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
        note = self.store.note(group, STORM_NOTE) if kept else None
        storm = assess(
            seen,
            cluster=self.spec.cluster.name,
            group=group,
            budget=budget,
            now=now,
            before=Storm.from_json(note),
            excuses=excuses_of(self.spec, group, self.readable_changes(group) if kept else ()),
        )
        if kept and (storm is not None or note is not None):
            with contextlib.suppress(Unreachable):  # a full disk hides no storm
                self.store.put_note(group, STORM_NOTE, storm.as_json() if storm else None)
        return storm

    def last_storm(self, group: str) -> Storm | None:
        """The storm as somebody saw it within its window, without a look at the log."""
        storm = Storm.from_json(self.store.note(group, STORM_NOTE))
        # Of a clock that was set back it would be no older for hours.
        fresh = storm is not None and abs(self.clock.now() - storm.seen_at) < storm.window
        return storm if fresh else None

    def offsets_bounds(self) -> dict[int, LogBounds]:
        """Of each partition of the coordinator's log; {} while there is none.

        Raises Unreadable where this login may
        not read it, Unreachable where nobody answers.
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

    def gate(self, group: str) -> Gate:
        """The group's gate."""
        return self._at_once.gate(group)

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

    def hold(self, group: str) -> Hold | None:
        """The number of slots that a person holds now."""
        hold = Hold.from_json(self.store.note(group, HOLD_NOTE))
        return hold if hold is not None and self.clock.now() < hold.until else None

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


def _embedded(spec: FleetSpec, home: Path, *, start: bool) -> tuple[FleetSpec, str]:
    """The file with the embedded broker's login, where it is secure, and bootstrap.servers.

    Of a file that says only `embedded` it is the super user's; what it says of security itself is
    taken as it is, so that lesser users can be tried. Raises Unreachable where it does not run.
    """
    from fleet.broker import Broker  # noqa: PLC0415 - other clusters do without

    broker = Broker(home)
    status = broker.status()
    if not status.running:
        if not start:
            raise Unreachable(
                f"the embedded broker of {home} does not run; start it with "
                "`fleet broker start`; `fleet up` starts it with everything of a fleet.yaml"
            )
        status = broker.start()
    if spec.cluster.security == Security() and status.secure:
        cluster = spec.cluster.model_copy(update={"security": broker.security()})
        spec = spec.model_copy(update={"cluster": cluster})
    return spec, status.bootstrap_servers
