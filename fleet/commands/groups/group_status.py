"""Gathers what `fleet status` shows of groups, and defines its columns, JSON and tables.

Kafka's state comes from one snapshot of the whole cluster; slots, workers, changes and pauses come
from the store, for declared groups only. A group named on the command line also has its members,
partitions and slots. The coordinator's log is read for those alone: that costs a read per group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rich.markup import escape
from rich.table import Table

from fleet.commands.answers import as_answer, change_answer, receipt_answer, table
from fleet.commands.invocation import SCHEMA_VERSION
from fleet.decide.lag_status import WORST, GroupLagStatus, LagStatus, Level
from fleet.decide.scaling import Pin
from fleet.decide.storms import Storm, budget_of, reach
from fleet.lag.snapshot import Snapshot
from fleet.manager.lag_assessment import compute_lag_statuses
from fleet.manager.past import Recent, read_recent
from fleet.model import GroupSnapshot, LagCase, Member, PartitionState
from fleet.model.rebalances import Rebalance
from fleet.report.wording import shorten_for_table
from fleet.slots import (
    Change,
    ChangeState,
    Pause,
    Phase,
    Slot,
    SlotTargets,
    WorkerProcess,
    WorkerReport,
)
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Holds one traceback of the job, and the workers that have it."""

    error: str
    traceback: str
    revision: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """Holds what Fleet itself stores of a declared group."""

    mode: str
    owner: str
    has_worker: bool
    targets: SlotTargets
    slots: tuple[Slot, ...]
    workers: tuple[WorkerProcess, ...]
    reports: tuple[WorkerReport, ...]
    change: Change | None
    pin: Pin | None = None
    """Number of slots that a person pinned against the policy."""
    refusal: str | None = None
    """Why the runtime's cluster refuses more workers; None if it does not."""

    @property
    def owned(self) -> int:
        """Counts slots with an owner."""
        return sum(slot.owner is not None for slot in self.slots)

    @property
    def active(self) -> int:
        """Counts slots whose owner has committed or polled."""
        return sum(s.phase is Phase.ACTIVE and not s.owner_ended for s in self.slots)

    @property
    def standby(self) -> int:
        """Counts warm workers without a slot."""
        return sum(report.phase == "standby" for report in self.without_slot)

    @property
    def failures(self) -> "tuple[Failure, ...]":
        """Lists the job's failures, one per traceback."""
        known = {worker.name for worker in self.workers}
        found: dict[tuple[str, str], list[WorkerReport]] = {}
        for report in self.reports:
            if report.traceback is not None and report.worker in known:
                found.setdefault((report.revision, report.traceback), []).append(report)
        return tuple(
            Failure(
                error=reports[0].error or "",
                traceback=traceback,
                revision=revision,
                workers=tuple(report.worker for report in reports),
            )
            for (revision, traceback), reports in found.items()
        )

    @property
    def failing(self) -> tuple[WorkerProcess, ...]:
        """Lists workers that exit repeatedly, or cannot be started."""
        return tuple(worker for worker in self.workers if worker.is_failing)

    @property
    def failed_change(self) -> Change | None:
        """Returns the last change if it did not end well."""
        well = {ChangeState.RUNNING, ChangeState.DONE}
        return None if self.change is None or self.change.state in well else self.change

    @property
    def spark_uis(self) -> tuple[str, ...]:
        """Lists the addresses of Spark's web UIs that running workers report."""
        return tuple(sorted({r.spark_ui for r in self._of_running if r.spark_ui}))

    @property
    def gaps(self) -> tuple[str, ...]:
        """Lists what running workers report of partitions whose commits Kafka deleted."""
        return tuple(r.gap for r in self._of_running if r.gap)

    @property
    def without_slot(self) -> tuple[WorkerReport, ...]:
        """Lists reports of running workers without a slot."""
        return tuple(r for r in self._of_running if r.slot is None)

    @property
    def _of_running(self) -> tuple[WorkerReport, ...]:
        """Lists reports of running workers; a dead one's last report stays stored."""
        running = {worker.name for worker in self.workers if worker.running}
        return tuple(r for r in self.reports if r.worker in running)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Holds one group: Kafka's state, Fleet's state (None if undeclared), and its pauses."""

    group: str
    seen: GroupSnapshot | None
    managed: Managed | None
    pauses: tuple[Pause, ...] | None
    """None if Fleet's own state cannot be read."""
    rebalances: int | None = None
    window: float | None = None
    """Seconds over which rebalances were counted; None: not counted."""
    per_hour: int | None = None
    """Rebalances of the last hour; None: unknown."""
    last_rebalance: Rebalance | None = None
    """The last one of the last day."""
    storm: Storm | None = None
    """The storm now, or, if the log was not read, as it was last stored."""
    lag_status: GroupLagStatus | None = None
    """Whether it keeps up; None: unknown."""

    @property
    def exists(self) -> bool:
        """Tells whether Kafka knows the group."""
        return self.seen is not None and self.seen.exists


def gather(
    fleet: "Fleet", names: Sequence[str]
) -> tuple[Snapshot, list[GroupStatus], Recent, tuple[Pause, ...] | None]:
    """Returns all groups of the cluster and all declared ones, or those named, by name.

    If Fleet's own state cannot be read, returns Kafka's state alone and a problem that says so.
    """
    snapshot = fleet.snapshot(names or None)
    recent = read_recent(fleet)
    pauses, problem = fleet.pauses_or_reason()
    kept = pauses is not None
    if problem is not None:
        snapshot = replace(snapshot, problems=(*snapshot.problems, problem))

    def storm(group: str) -> Storm | None:
        return fleet.storm(group, kept=kept) if names else _storm_now(fleet, recent, group, kept)

    seen = statuses(fleet, snapshot, recent, names, storm=storm, pauses=pauses)
    if not names:
        return snapshot, seen, recent, pauses
    found = []
    for status in seen:
        window = budget_of(fleet.spec, status.group).window
        counted = fleet.rebalances(status.group, window=window)
        found.append(replace(status, rebalances=counted, window=window))
    return snapshot, found, recent, pauses


def _storm_now(fleet: "Fleet", recent: Recent, group: str, kept: bool) -> Storm | None:
    """Returns the storm by the log if it was just read, else as stored within its window."""
    known = recent.rebalances.get(group, ())
    if recent.kind != "log" or not known:
        return fleet.last_storm(group) if kept else None
    since = fleet.clock.now() - reach(budget_of(fleet.spec, group))
    return fleet.storm(group, [each for each in known if each.ended_at >= since], kept=kept)


def statuses(
    fleet: "Fleet",
    snapshot: Snapshot,
    recent: Recent,
    names: Sequence[str] = (),
    *,
    storm: Callable[[str], Storm | None],
    pauses: tuple[Pause, ...] | None,
) -> list[GroupStatus]:
    """Returns the same from a snapshot; `storm` returns a group's storm.

    pauses: None if Fleet's own state cannot be read.
    """
    snapshot, statuses = compute_lag_statuses(fleet, snapshot, recent, names)
    declared = {spec.group for spec in fleet.spec.fleets}
    wanted = list(dict.fromkeys(names)) or sorted(declared | set(snapshot.groups))
    kept = {
        name: managed_of(fleet, name) for name in wanted if name in declared and pauses is not None
    }
    return [
        GroupStatus(
            group=name,
            seen=snapshot.groups.get(name),
            managed=kept.get(name),
            pauses=None if pauses is None else tuple(p for p in pauses if p.group in (None, name)),
            per_hour=recent.per_hour(name),
            last_rebalance=recent.last.get(name),
            storm=storm(name),
            lag_status=with_failing(name, statuses.get(name), kept.get(name)),
        )
        for name in wanted
    ]


def with_failing(
    group: str, lag_status: GroupLagStatus | None, managed: Managed | None
) -> GroupLagStatus | None:
    """Returns the lag status, at best WARN if workers fail or are refused, STOP if none can run.

    The lag alone does not show that workers are missing.
    """
    if managed is None or not (managed.failing or managed.refusal):
        return lag_status
    wanted = [worker for worker in managed.workers if worker.wanted]
    failing, sentences = managed.failing, []
    if failing:
        worst = max(failing, key=lambda worker: worker.failures)
        count = f"{len(failing)} of {plural(len(wanted), 'worker')}"
        sentences.append(f"{count} cannot run: {worst.name} {how_it_fails(worst)}")
    if managed.refusal:
        sentences.append(f"the cluster refuses workers: {managed.refusal}")
    why = "; ".join(sentences)
    least = LagStatus.STOP if len(failing) == len(wanted) else LagStatus.WARN
    if lag_status is None:
        return GroupLagStatus(group=group, status=least, sentence=why)
    known = lag_status.status if lag_status.status in WORST else LagStatus.OK
    worse = min(known, least, key=WORST.index)
    sentence = why if lag_status.level is Level.OK else f"{lag_status.sentence}; {why}"
    return replace(lag_status, status=worse, sentence=sentence)


def how_it_fails(worker: WorkerProcess) -> str:
    """Describes how often a worker has exited in a row, and why the last time."""
    what = "cannot be started" if worker.stuck else f"exited {worker.failures} times in a row"
    return f"{what}: {worker.exit_reason or 'unknown reason'}"


def managed_of(fleet: "Fleet", name: str) -> Managed:
    """Reads what Fleet stores of a declared group."""
    spec = fleet.group(name)
    return Managed(
        mode=fleet.spec.mode_of(spec),
        owner=spec.owner,
        has_worker=spec.worker is not None,
        targets=fleet.targets(name),
        slots=fleet.slots(name),
        workers=fleet.workers(name),
        reports=fleet.reports(name),
        change=fleet.change(name),
        pin=fleet.pin(name),
        refusal=fleet.refusal(name),
    )


def with_problems(groups: Iterable[GroupStatus]) -> list[GroupStatus]:
    """Returns the groups with a problem, worst first; a pause is none."""
    ranked = ((_problem_rank(status), status) for status in groups)
    found = [(rank, status) for rank, status in ranked if rank is not None]
    return [status for _, status in sorted(found, key=lambda each: (each[0], each[1].group))]


def _problem_rank(status: GroupStatus) -> int | None:
    """Ranks the worst problem, 0 the worst; None if the group has none."""
    level = status.lag_status.level if status.lag_status is not None else Level.OK
    managed = status.managed
    found = (
        status.storm is not None,
        level is Level.ERR,
        managed is not None and bool(managed.targets.quarantined),
        managed is not None and managed.failed_change is not None,
        level is Level.WARN,
    )
    return next((rank for rank, applies in enumerate(found) if applies), None)


def status_answer(
    snapshot: Snapshot,
    groups: Sequence[GroupStatus],
    pauses: Sequence[Pause] | None,
    *,
    recent: Recent,
    detail: bool,
) -> dict[str, Any]:
    """Returns the JSON of `fleet status -o json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": snapshot.cluster,
        "at": snapshot.at,
        "took_seconds": snapshot.took,
        "problems": list(snapshot.problems),
        "rebalances_from": {"kind": recent.kind, "sentence": recent.sentence},
        "pauses": None if pauses is None else [asdict(pause) for pause in pauses],
        "groups": [_group(group, detail=detail) for group in groups],
    }


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """Defines a column of `fleet status`, of the page and of docs/reference/json.md."""

    header: str = ""
    key: str
    """Path of its key in JSON."""
    about: str
    """Its meaning, for the help."""
    cell: Callable[[T, float], str] | None = None
    """Returns its markup at a wall time; None: only the page has it."""
    number: bool = False
    ours: bool = False
    """Left out if no group is declared."""
    form: str = ""
    """How page.js shows it; empty: not on the page."""
    label: str = ""
    """Its header on the page, if it differs."""

    def on_page(self) -> dict[str, Any]:
        """Returns it for page.js."""
        label = self.label or self.header.capitalize()
        return {"label": label, "key": self.key, "form": self.form, "number": self.number}


_WHOLE_NAME: Final = 24
"""Characters up to which names are not wrapped, so that the eye and a search find them."""


def as_table(
    columns: Iterable[Column[T]], items: Iterable[T], now: float, *, ours: bool = True
) -> Table:
    """Creates a table with a row for each item."""
    shown = [(c, c.cell) for c in columns if c.cell is not None and (ours or not c.ours)]
    rows = table(*(c.header for c, _ in shown), right=[c.header for c, _ in shown if c.number])
    cells = [[cell(item, now) for _, cell in shown] for item in items]
    rows.columns[0].no_wrap = all(len(first) <= _WHOLE_NAME for first, *_ in cells)
    for row in cells:
        rows.add_row(*row)
    return rows


GROUPS: Final[tuple[Column[GroupStatus], ...]] = (
    Column(
        header="GROUP", key="group", about="its id", form="group",
        cell=lambda s, _: escape(shorten_for_table(s.group)),
    ),
    Column(
        header="STATE", key="state", about="state in Kafka", form="state",
        cell=lambda s, _: _state(s),
    ),
    Column(
        header="MEM", key="members", about="members", number=True, form="count", label="Members",
        cell=lambda s, _: str(len(s.seen.members)) if s.seen and s.exists else "-",
    ),
    Column(
        header="LAG", key="lag", about="records not yet committed", number=True, form="count",
        cell=lambda s, _: _count(s.seen.lag if s.seen else None),
    ),
    Column(
        header="BEHIND", key="lag_seconds", about="age of the oldest uncommitted record",
        number=True, form="seconds",
        cell=lambda s, _: duration(s.seen.lag_seconds if s.seen else None),
    ),
    Column(
        key="in_per_second", about="records produced per second", number=True, form="count",
        label="In/s",
    ),
    Column(
        key="out_per_second", about="records consumed per second", number=True, form="count",
        label="Out/s",
    ),
    Column(
        header="REB/H", key="rebalances_per_hour", about="rebalances in the last hour",
        number=True, form="count", cell=lambda s, _: _count(s.per_hour),
    ),
    Column(
        header="LAST CAUSE", key="last_rebalance", form="cause",
        about="cause and age of the last rebalance",
        cell=lambda s, now: last_cause(s.last_rebalance, now),
    ),
    Column(
        header="MODE", key="managed.mode", about="observe, plan or act", ours=True,
        cell=lambda s, _: _mode(s),
    ),
    Column(
        header="SLOTS", key="managed.slots", about="active/open slots", ours=True, form="slots",
        cell=lambda s, _: _slots_of(s.managed),
    ),
    Column(
        header="WORKERS", key="managed.workers", about="running+standby workers", ours=True,
        cell=lambda s, _: _workers(s.managed),
    ),
    Column(
        header="LAST CHANGE", key="managed.last_change", about="state and age of the last change",
        ours=True, cell=lambda s, now: last_change(s.managed.change if s.managed else None, now),
    ),
    Column(
        key="busy", about="share of the last minute inside batches", number=True, form="percent",
        label="Busy",
    ),
    Column(key="notes", about="warnings", form="notes", label="Notes"),
)  # fmt: skip
"""Columns of all groups."""
PARTITIONS: Final[tuple[Column[PartitionState], ...]] = (
    Column(
        header="PARTITION", key="topic", about="with its `partition`", form="partition",
        cell=lambda p, _: escape(shorten_for_table(str(p.tp))),
    ),
    Column(
        header="COMMITTED", key="committed", about="committed offset", number=True, form="count",
        cell=lambda p, _: _count(p.committed),
    ),
    Column(
        header="END", key="log_end", about="end of the log", number=True, form="count",
        cell=lambda p, _: _count(p.log_end),
    ),
    Column(
        header="LAG", key="lag", about="records not yet committed", number=True, form="count",
        cell=lambda p, _: _count(p.lag),
    ),
    Column(
        header="BEHIND", key="lag_seconds", about="age of the committed offset", number=True,
        form="seconds", cell=lambda p, _: duration(p.lag_seconds),
    ),
    Column(
        header="OWNER", key="owner", about="member that owns it", form="owner",
        cell=lambda p, _: escape(_short(p.owner)),
    ),
    Column(
        header="", key="case", about="why the lag is unknown or 0", form="case",
        cell=lambda p, _: "" if p.case is LagCase.OK else p.case.value,
    ),
)  # fmt: skip
"""Columns of one group's partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """Holds a slot with its worker; a worker without a slot has no number."""

    number: int | None = None
    instance_id: str = ""
    open: bool = True
    phase: str
    owner: str | None
    revision: str | None
    batches: int | None = None
    records: int | None = None
    reading: str | None = None
    error: str | None = None


SLOTS: Final[tuple[Column[SlotRow], ...]] = (
    Column(
        header="SLOT", key="number", about="slot number", number=True, form="plain",
        cell=lambda s, _: "-" if s.number is None else str(s.number),
    ),
    Column(
        header="PHASE", key="phase", about="phase, and whether it is open (`open`)",
        form="phase", cell=lambda s, _: s.phase + ("" if s.open else " (closed)"),
    ),
    Column(
        header="WORKER", key="owner", about="worker that owns it", form="plain",
        cell=lambda s, _: escape(s.owner or "-"),
    ),
    Column(
        header="REVISION", key="revision", about="revision of the worker", form="plain",
        cell=lambda s, _: s.revision or "-",
    ),
    Column(
        header="BATCHES", key="batches", about="finished batches", number=True, form="count",
        cell=lambda s, _: _count(s.batches),
    ),
    Column(
        header="RECORDS", key="records", about="records in them", number=True, form="count",
        cell=lambda s, _: _count(s.records),
    ),
    Column(
        header="READS", key="reading", about="reading mode",
        cell=lambda s, _: s.reading or "-",
    ),
    Column(
        key="number", about="share of the last minute inside batches", number=True, form="busy",
        label="Busy",
    ),
    Column(
        header="ERROR", key="error", about="why the worker fails", form="bad",
        cell=lambda s, _: escape(s.error or ""),
    ),
)  # fmt: skip
"""Columns of a declared group's slots."""
_STATE_COLOURS: Final = {"Stable": "green", "Empty": "dim", "Dead": "red"}


def slot_rows(managed: Managed) -> list[SlotRow]:
    """Returns rows of its slots, then of workers without one, then of other failing workers."""
    by_slot: Mapping[int | None, WorkerReport] = {r.slot: r for r in managed.reports}
    rows = []
    for slot in managed.slots:
        report = by_slot.get(slot.number)
        rows.append(
            SlotRow(
                number=slot.number,
                instance_id=slot.instance_id(),
                open=slot.number in managed.targets.open,
                phase=slot.phase.value,
                owner=slot.owner,
                revision=slot.revision,
                batches=slot.batches,
                records=report.records if report else None,
                reading=report.reading if report else None,
                error=error_of(slot, managed),
            )
        )
    rows += [
        SlotRow(phase=r.phase, owner=r.worker, revision=r.revision, error=r.error)
        for r in managed.without_slot
    ]
    shown = {row.owner for row in rows}
    rows += [
        SlotRow(phase="failed", owner=w.name, revision=w.revision, error=how_it_fails(w))
        for w in managed.failing
        if w.name not in shown
    ]
    return rows


def _state(status: GroupStatus) -> str:
    if not status.exists or status.seen is None:
        return "[dim]none yet[/dim]"
    name = status.seen.state.value
    return f"[{_STATE_COLOURS.get(name, 'yellow')}]{name}[/]"


def _mode(status: GroupStatus) -> str:
    if status.managed is None:
        return "[dim]-[/dim]"
    if any(pause.is_unmanaged for pause in status.pauses or ()):
        return "[yellow]unmanaged[/yellow]"
    paused = "[yellow] paused[/yellow]" if status.pauses else ""
    return status.managed.mode + paused


def _slots_of(managed: Managed | None) -> str:
    if managed is None or not managed.has_worker:
        return "-"
    return f"{managed.active}/{len(managed.targets.open)}"


def _workers(managed: Managed | None) -> str:
    if managed is None or not managed.has_worker:
        return "-"
    running = sum(worker.running for worker in managed.workers)
    return f"{running - managed.standby}+{managed.standby}"


def last_cause(rebalance: Rebalance | None, now: float) -> str:
    """Formats cause and age of a group's last rebalance, such as `join 3 m`; - for none."""
    if rebalance is None:
        return "-"
    return f"{rebalance.cause.value} {duration(max(0.0, now - rebalance.ended_at))}"


def last_change(change: Change | None, now: float) -> str:
    """Formats state and age of a change, such as `done 3 m ago` or `running, step 2 of 3`."""
    if change is None:
        return "-"
    if change.state is ChangeState.RUNNING:
        steps = len(change.plan.steps)
        return f"running, step {min(change.step + 1, steps)} of {steps}"
    colour = "green" if change.state is ChangeState.DONE else "red"
    ago = duration(max(0.0, now - (change.ended_at or change.started_at)))
    return f"[{colour}]{change.state.value}[/] {ago} ago"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _short(member: str | None) -> str:
    """Returns a member id without its random end: `<name>` of `<name>-<uuid>`."""
    if member is None:
        return "-"
    return member[:-37] if len(member) > 40 and member[-37] == "-" else member


def _group(status: GroupStatus, *, detail: bool) -> dict[str, Any]:
    seen, storm, last = status.seen, status.storm, status.last_rebalance
    lag_status = status.lag_status
    answer: dict[str, Any] = {
        "group": status.group,
        "exists": status.exists,
        **as_answer(seen, "state", "type", "assignor", "lag", "lag_seconds"),
        "members": len(seen.members) if seen else 0,
        "rebalances_per_hour": status.per_hour,
        "last_rebalance": last
        and as_answer(last, "ended_at", "number", "cause", "confidence", names={"ended_at": "at"}),
        "paused": None if status.pauses is None else bool(status.pauses),
        "storm": storm
        and as_answer(
            storm,
            *(
                "since",
                "seen_at",
                "rebalances",
                "moved",
                "window",
                "cause",
                "top_offender",
                "summary",
            ),
            names={"window": "window_seconds"},
            cooling_down=storm.cooldown_since is not None,
        ),
        "lag_status": lag_status
        and as_answer(
            lag_status,
            "status",
            "sentence",
            level=str(lag_status.level),
            partitions=[as_answer(each) for each in lag_status.worse],
        ),
        "managed": _managed_answer(status.managed) if status.managed else None,
    }
    if detail:
        answer |= {
            "rebalances": None
            if status.rebalances is None
            else {"count": status.rebalances, "window_seconds": status.window},
            "member_list": [_member(m) for m in seen.members] if seen else [],
            "partitions": [as_answer(p) for p in seen.partitions] if seen else [],
            **_detail(status.managed),
        }
    return answer


def _detail(managed: Managed | None) -> dict[str, list[Any]]:
    if managed is None:
        return {key: [] for key in ("slots", "receipts", "failures", "spark_uis", "gaps")}
    receipts = managed.change.receipts if managed.change else ()
    return as_answer(
        managed,
        *("spark_uis", "gaps"),
        slots=[as_answer(row) for row in slot_rows(managed)[: len(managed.slots)]],
        receipts=[receipt_answer(each) for each in receipts],
        failures=[as_answer(each) for each in managed.failures],
    )


def _managed_answer(managed: Managed) -> dict[str, Any]:
    change, targets = managed.change, managed.targets
    slots = as_answer(
        managed,
        *("owned", "active"),
        open=len(targets.open),
        leaving=sorted(targets.leaving),
        quarantined=sorted(targets.quarantined),
    )
    counts = {
        key: sum(getattr(worker, key) for worker in managed.workers)
        for key in ("wanted", "running", "restarts")
    }
    failing = [
        as_answer(w, "failures", worker=w.name, error=w.exit_reason) for w in managed.failing
    ]
    workers = as_answer(managed, "standby", "refusal", failing=failing, **counts)
    last = change and {
        key: each for key, each in change_answer(change).items() if key not in {"group", "receipts"}
    }
    return as_answer(
        managed, "mode", "owner", "pin", slots=slots, workers=workers, last_change=last
    )


def _member(member: Member) -> dict[str, Any]:
    return as_answer(member, partitions=[asdict(tp) for tp in sorted(member.partitions)])


def error_of(slot: Slot, managed: Managed) -> str | None:
    """Returns the error of a slot's owner: as reported, or how its process exits."""
    errors = [how_it_fails(w) for w in managed.failing if w.name == slot.owner]
    errors += [r.error for r in managed.reports if r.worker == slot.owner and r.error]
    return slot.error or next(iter(errors), None)
