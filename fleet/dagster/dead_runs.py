"""Ends runs whose processes are dead: at once if that is known, else judged by their silence.

Problem: after a power cut a run stays STARTED in Dagster's storage for ever. Dagster does not
notice a local run worker that died with its code server [36]. Choice: each tick asks for evidence
first. A run that a tick requested on this machine is dead if its process is gone. A run in a Job is
dead if the run launcher reports the Job as failed; Dagster asks later, and for started runs only.
Without evidence, silence decides. A running change raises its counter every third of a lease. A
step stores an event every ten seconds (`fleet.dagster.change_assets`). So a run is dead if its
change stands still for a lease, or its step stores nothing for 45 s. Between steps, where a process
may have to start, it is dead after two minutes.

Time counts in ticks as well as in seconds, and a tick adds at most the usual interval. So neither a
machine that slept nor a changed clock ends runs. A tick whose own writes are refused starts the
count again: the run's writes would be refused too [38]. A code server that starts again also starts
the count again. Cost: a query for each unfinished run and tick. A silent run that makes other
assets too is left to Dagster's `run_monitoring` and to users, as is one that never starts.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRecord,
    RunsFilter,
)

from fleet.act.lease import this_machine
from fleet.config.spec import GroupSpec
from fleet.dagster import asset_keys
from fleet.errors import Unreachable
from fleet.slots import Change, ChangeState
from fleet.system.processes import identify
from fleet.text import duration

# Every run of a state, without a limit.
#
# Problem: a limit shows only the newest runs of a long queue. A group whose run waits behind them
# would look idle, and a dead run would never end. Choice: page by page, oldest first, so that new
# runs are on the last page. Cost: a query per 500 runs, which reads each run completely.


PAGE = 500


def all_runs(
    instance: DagsterInstance, statuses: Collection[DagsterRunStatus]
) -> Iterator[RunRecord]:
    """Yields the runs in one of these states, oldest first."""
    filters = RunsFilter(statuses=list(statuses))
    last: str | None = None
    while True:
        page = instance.get_run_records(filters, limit=PAGE, cursor=last, ascending=True)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].dagster_run.run_id


# What shows at once that a run's process has ended. A process stores how its run ended before it
# ends itself, so the run is read again afterwards.


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_EVENTS = 20
"""Engine events of a run among which its start is."""


def end_ended_runs(instance: DagsterInstance, cluster: str) -> list[str]:
    """Ends the runs of the cluster's groups whose processes have ended; returns sentences."""
    ended: list[str] = []
    for record in all_runs(instance, [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]):
        run = record.dagster_run
        if asset_keys.group_of_run(run, cluster) is None:
            continue
        try:
            why = _known_end(instance, run)
        except Exception:  # noqa: BLE001  Dagster raises many kinds; others would wait as long
            break
        again = None if why is None else instance.get_run_by_id(run.run_id)
        if why is not None and again is not None and again.status is run.status:
            end_run(instance, run, why)
            ended.append(f"ended run {run.run_id}: {why}")
    return ended


def _known_end(instance: DagsterInstance, run: DagsterRun) -> str | None:
    """Returns how it is known that a run's process has ended; None if it is not.

    Raises any error if the run launcher does not answer.
    """
    launcher = instance.run_launcher
    if launcher.supports_check_run_worker_health:  # of a Job or a container
        health = launcher.check_run_worker_health(run)
        if health.status.name == "UNKNOWN":
            raise Unreachable(f"{type(launcher).__name__} does not know the run: {health.msg}")
        failed = health.status.name == "FAILED"
        return f"{type(launcher).__name__} reports: {health.msg}" if failed else None
    pid = _pid_here(instance, run)
    gone = pid is not None and identify(pid) is None
    return f"its process {pid} has ended before it stored a result" if gone else None


def _pid_here(instance: DagsterInstance, run: DagsterRun) -> int | None:
    """Returns the pid of a run on this machine; None if it may run elsewhere, or has no process.

    A run that was executed again has the tags of the first one.
    """
    server = json.loads(run.tags.get(asset_keys.SERVER_TAG, "{}")).get("host")
    machine = run.tags.get(asset_keys.MACHINE_TAG)
    if run.parent_run_id or server not in _LOOPBACK or not machine or machine != this_machine():
        return None
    found = instance.get_records_for_run(
        run.run_id, of_type=DagsterEventType.ENGINE_EVENT, limit=_FIRST_EVENTS
    )
    for record in found.records:
        event = record.event_log_entry.dagster_event
        known = {} if event is None else event.engine_event_data.metadata
        if "pid" in known:  # of its start; a step's process comes later
            return int(str(known["pid"].value))
    return None


# What a run's silence shows.


UNCHANGED_TICKS = 3
STEP_TICKS = 4
STEP_SECONDS = 45.0
"""Seconds for which a step may store no event after `STEP_GOES_ON`."""
IDLE_TICKS = 6
IDLE_SECONDS = 120.0
"""Seconds for which a run may have neither a change nor a new event otherwise."""
LEASE_MARGIN_SECONDS = 5.0
LONGEST_TICK = 30.0
"""Most seconds that one tick adds; ticks are 15 s apart."""

IDLE, STEP = "idle", "step"
"""What the mark of a run without a change begins with; STEP: its last event is `STEP_GOES_ON`."""
STEP_GOES_ON = "the step goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """The last change of a declared group."""

    fleet: GroupSpec
    change: Change | None = None
    unread: str = ""
    """Why its stored changes cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """How long a STARTED run has been unchanged: `mark` for `still` seconds, in `ticks` ticks."""

    mark: str
    still: float
    ticks: int
    at: float
    """Wall time of the last tick."""


def progress_mark(run_id: str, change: Change | None) -> str:
    """Returns the run's current progress mark in the store."""
    if (
        change is None
        or change.actor != asset_keys.actor(run_id)
        or change.state is not ChangeState.RUNNING
    ):
        return IDLE
    return f"{change.token}.{change.counter}"


def _event_mark(instance: DagsterInstance, run: DagsterRun) -> str:
    """Returns the mark of a run without a change: by its newest event."""
    for newest in instance.get_records_for_run(run.run_id, limit=1, ascending=False).records:
        goes_on = newest.event_log_entry.message == STEP_GOES_ON
        return f"{STEP if goes_on else IDLE}.{newest.storage_id}"
    return IDLE


def update_run(
    known: StartedRun | None, mark: str, *, now: float, provable: bool = True
) -> StartedRun:
    """Updates the memory of a run by one tick. provable: whether the store accepts renewals."""
    if known is None or known.mark != mark or not provable:
        return StartedRun(mark=mark, still=0.0, ticks=1, at=now)
    passed = min(max(0.0, now - known.at), LONGEST_TICK)
    return StartedRun(mark=mark, still=known.still + passed, ticks=known.ticks + 1, at=now)


def death_reason(run: StartedRun, *, lease: float) -> str | None:
    """Returns why the run is dead, in a sentence; None while it may be alive."""
    still = run.still
    kind = run.mark.partition(".")[0]
    if kind in (IDLE, STEP):
        ticks, seconds = IDLE_TICKS, max(IDLE_SECONDS, 3 * lease)
        if kind == STEP:
            ticks, seconds = STEP_TICKS, STEP_SECONDS
        if run.ticks >= ticks and still >= seconds:
            return (
                f"this run has had no active change and no new event for {duration(still)}, so its "
                "process has died; the next run of the group continues from the state in Kafka"
            )
        return None
    if run.ticks >= UNCHANGED_TICKS and still >= lease + LEASE_MARGIN_SECONDS:
        return (
            f"this run has not renewed the group's lease for {duration(still)} (lease {lease:g} "
            "s), so its process has died; the next run of the group resumes the change"
        )
    return None


def end_dead_runs(
    instance: DagsterInstance,
    cluster: str,
    changes: Mapping[str, GroupChange],
    before: Mapping[str, StartedRun],
    *,
    now: float,
    writable: bool,
) -> tuple[dict[str, StartedRun], list[str]]:
    """Ends dead runs [36]; returns the memory of the others that are STARTED, and sentences.

    changes: of declared groups. writable: whether the actors of changes could have
    renewed their leases [38].
    """
    by_name = {asset_keys.name_of(group): each for group, each in changes.items()}
    kept: dict[str, StartedRun] = {}
    ended = end_ended_runs(instance, cluster)
    for record in all_runs(instance, [DagsterRunStatus.STARTED]):
        run = record.dagster_run
        mine = by_name.get(asset_keys.group_of_run(run, cluster) or "")
        if mine is None:
            continue
        last = before.get(run.run_id)
        if mine.unread:  # it may be alive: this shows once its changes can be read
            kept |= {} if last is None else {run.run_id: last}
            continue
        mark = progress_mark(run.run_id, mine.change)
        if mark == IDLE:
            if asset_keys.makes_other_assets(run, cluster):
                continue  # its work on other assets does not show here
            mark = _event_mark(instance, run)
        known = update_run(last, mark, now=now, provable=writable)
        why = death_reason(known, lease=mine.fleet.runtime.lease)
        if why is None:
            kept[run.run_id] = known
            continue
        end_run(instance, run, why)
        ended.append(f"ended run {run.run_id}: {why}")
    return kept, ended


def end_run(instance: DagsterInstance, run: DagsterRun, why: str) -> None:
    """Interrupts the run's process if it can be reached, then marks the run as failed.

    A process that wakes later finds that another actor has its lease, and stops [31].
    """
    try:
        instance.run_launcher.terminate(run.run_id)
    except Exception as error:  # noqa: BLE001  Dagster raises many kinds; its server may be down
        instance.report_engine_event(f"interrupting the run failed ({type(error).__name__})", run)
    instance.report_run_failed(run, f"Fleet ended this run: {why}.")
