"""The reconciling schedule: every minute one look, a plan per group, runs only where needed.

Problem: a run costs ten seconds to start, so a run per group and minute is out of the
question; a plan costs milliseconds. Choice: the tick itself plans all groups in mode `act`
from one snapshot and asks for a run only where a plan has steps and no refusals. The schedule
is off until somebody turns it on, or fleet.yaml names it (`dagster.schedules`).

A run key is the plan's id [35]. Dagster drops a repeated key of a schedule only within one
tick, so the tick also leaves out groups whose run is not over, and groups whose last runs
after the same aim failed: those wait 5, 10, 20, ... 60 minutes, or for a changed aim.

Whether the actor of an unfinished change lives shows only after a lease, and Dagster ends a tick
after a minute, with all that it was to ask for. So the tick looks at all such groups together, as
long as it has time, and goes on in the next one; the run that it asks for watches the lease itself.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultScheduleStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource
from fleet.decide.refusals import paused
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot
from fleet.model import Plan, Step, StepKind
from fleet.slots import ChangeState
from fleet.text import duration, plural

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

    from fleet.manager.cycle import Fleet


# Every run of a state, however many there are.
#
# Problem: of a long queue a limit shows the newest only, so a group whose run waits behind it
# looks idle, and a dead run that others came after is never ended. Choice: page by page, oldest
# first, so that what begins meanwhile is on the last page. Cost: a page of 500 is a query, and
# each of its runs is read whole.


PAGE = 500


def all_runs(
    instance: DagsterInstance, statuses: Collection[DagsterRunStatus]
) -> Iterator[RunRecord]:
    """The runs that are in one of these states when their page is read, oldest first."""
    filters = RunsFilter(statuses=list(statuses))
    last: str | None = None
    while True:
        page = instance.get_run_records(filters, limit=PAGE, cursor=last, ascending=True)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].dagster_run.run_id


RECONCILE = "reconcile"
TICK_DEADLINE = 40.0
"""Seconds; Dagster ends a tick after 60."""
START_SECONDS = 120.0
"""A run's own start, plan and checks, on a busy machine."""
SETTLE_SECONDS = 60.0
"""What a membership change may take beyond drains and warm-ups."""
FIRST_WAIT = 300.0
LONGEST_WAIT = 3600.0
LOOK = 1.0
"""Seconds between two looks at leases within a tick."""
GOLDEN = 0.618033988749895
"""By how much of all groups a tick begins behind the one before: the golden ratio."""
SENTENCES = 10
"""How many groups a skipped tick speaks of by name."""

UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def step_seconds(step: Step, fleet: GroupSpec) -> float:
    """The longest a step may take when every wait in it is used up."""
    how = fleet.rollout
    if step.kind is StepKind.WARM:
        return how.warm_timeout
    if step.kind is StepKind.ROLL:
        turns = -(-len(step.slots) // how.max_parallel)
        each = how.drain_timeout + how.warm_timeout + fleet.batch_limit
        # A rolling batch that was given nothing to read is proven once more when the old ones have
        # left.
        rolling_batches = fleet.worker is not None and fleet.worker.membership == "dynamic"
        proofs = (2 if rolling_batches else 1) * fleet.canary_limit
        return how.warm_timeout + proofs + turns * each + SETTLE_SECONDS
    opens = step.kind in (StepKind.OPEN, StepKind.STOP_ALL)
    joins = how.warm_timeout + fleet.batch_limit if opens else 0.0  # and commit first batches
    return how.drain_timeout + joins + SETTLE_SECONDS


def max_runtime(plan: Plan, fleet: GroupSpec) -> int:
    """Seconds after which the run is ended by Dagster's run monitoring [36]."""
    steps = sum(step_seconds(step, fleet) for step in plan.steps)
    return int(START_SECONDS + 2 * fleet.runtime.lease + steps)


def wait_after(failures: int) -> float:
    """Seconds to wait after so many failed runs with the same aim: doubling, at most an hour."""
    return 0.0 if failures == 0 else min(FIRST_WAIT * 2.0 ** (failures - 1), LONGEST_WAIT)


def aim_of(plan: Plan) -> str:
    """What the plan is after, the same from tick to tick: slots, revision and kinds of steps."""
    kinds = "+".join(step.kind.value.replace(" ", "-") for step in plan.steps)
    return f"{plan.wanted}:{plan.revision}:{kinds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What became of one group in a tick."""

    group: str
    sentence: str
    request: RunRequest | None = None
    unknown: bool = False
    """Whether somebody still works on its unfinished change shows at a later look."""


def request_for(plan: Plan, fleet: GroupSpec, *, resume: bool = False) -> RunRequest:
    """A run of the job, with the group as its partition."""
    op = asset_keys.rollout_key(plan.cluster).to_python_identifier()
    return RunRequest(
        run_key=f"{plan.id}-resume" if resume else plan.id,
        partition_key=asset_keys.name_of(plan.group),
        run_config={"ops": {op: {"config": {"resume": True}}}} if resume else {},
        tags={
            asset_keys.AIM_TAG: "resume" if resume else aim_of(plan),
            asset_keys.PLAN_TAG: plan.id,
            asset_keys.MAX_RUNTIME_TAG: str(max_runtime(plan, fleet)),
        },
    )


class Tick:
    """One tick of the schedule: groups one after another, each with a sentence."""

    def __init__(
        self,
        cycle: "Fleet",
        instance: DagsterInstance,
        snapshot: Snapshot,
        *,
        partitions: Collection[str],
    ) -> None:
        """partitions: the names of groups that a run may be asked for."""
        self._cycle = cycle
        self._instance = instance
        self._snapshot = snapshot
        self._partitions = partitions
        self._busy = busy_groups(instance)
        self._deadline = cycle.clock.monotonic() + TICK_DEADLINE

    def all(self, fleets: Iterable[GroupSpec]) -> list[Said]:
        """Every group once, in this order, and again where that tells more, as time allows."""
        said: dict[str, Said] = {}
        unknown: list[GroupSpec] = []
        for fleet in fleets:
            if self._is_over():
                said[fleet.group] = Said(group=fleet.group, sentence="not reached in this tick")
                continue
            said[fleet.group] = self._one(fleet)
            if said[fleet.group].unknown:
                unknown.append(fleet)
        while unknown and not self._is_over():
            self._cycle.clock.sleep(LOOK)
            said.update((fleet.group, self._one(fleet)) for fleet in unknown)
            unknown = [fleet for fleet in unknown if said[fleet.group].unknown]
        return list(said.values())

    def _is_over(self) -> bool:
        return self._cycle.clock.monotonic() > self._deadline

    def _one(self, fleet: GroupSpec) -> Said:
        """One group; what is wrong with it does not hold the others."""
        try:
            return self.reconcile(fleet)
        except FleetError as error:
            return Said(group=fleet.group, sentence=str(error))

    def reconcile(self, fleet: GroupSpec) -> Said:
        """Ask for a run of this group, or say why not."""
        group = fleet.group
        if asset_keys.name_of(group) in self._busy:
            return Said(group=group, sentence="a run of it is not over")
        change = self._cycle.store.change(group)
        if change is not None and change.state is ChangeState.RUNNING:
            alive = self._cycle.change_alive(group)
            if alive:
                return Said(group=group, sentence=f"{change.actor} is changing it")
            if alive is None:
                sentence = (
                    f"whether {change.actor} still changes it shows within "
                    f"{duration(fleet.runtime.lease)}"
                )
                return Said(group=group, sentence=sentence, unknown=True)
            if pause := paused(self._cycle.pauses(), group):
                left = f"{change.actor} left a change unfinished, and {pause}"
                return Said(group=group, sentence=left)
            request = request_for(change.plan, fleet, resume=True)
            return self._asked(fleet, request, f"{change.actor} left a change unfinished")
        plan = self._cycle.plan(group, snapshot=self._snapshot)
        if plan.refusals:
            return Said(group=group, sentence="refused: " + " ".join(plan.refusals))
        if plan.empty:
            self._cycle.keep_current(plan)
            return Said(group=group, sentence="as wanted")
        said = "; ".join(step.sentence for step in plan.steps)
        return self._asked(fleet, request_for(plan, fleet), said)

    def _asked(self, fleet: GroupSpec, request: RunRequest, sentence: str) -> Said:
        """The request, unless Dagster cannot start it, or runs after the same aim failed."""
        group = fleet.group
        if request.partition_key not in self._partitions:
            return Said(group=group, sentence=f"{sentence}; {without_partition(fleet)}")
        failures, last = failures_of(self._instance, request)
        wait, waited = wait_after(failures), self._cycle.clock.now() - last
        left = wait - waited
        if 0 <= waited < wait:  # of a run that ends in the future nothing is known: time was set
            held = f"{plural(failures, 'run')} with this aim failed; next try in {duration(left)}"
            return Said(group=group, sentence=held)
        return Said(group=group, sentence=sentence, request=request)


def without_partition(fleet: GroupSpec) -> str:
    """Why no run can be asked for, and what to do."""
    if fleet.worker is None:
        return f"`fleet apply {fleet.group}` does it: no run changes a Deployment of other people"
    return "reload the code location: it was loaded before fleet.yaml gave the group a worker"


def busy_groups(instance: DagsterInstance) -> set[str]:
    """Names of groups that have a run which may still change them, however it was started."""
    runs = (record.dagster_run for record in all_runs(instance, UNFINISHED))
    return {
        name
        for run in runs
        if (name := asset_keys.group_of_run(run)) is not None and not is_rolled_out(instance, run)
    }


def is_rolled_out(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether a run works, or worked until it was killed, on a team's assets behind the rollout.

    Where everything was killed with it, it stays STARTED until its `dagster/max_runtime`: that is
    hours without the tag, and no reason to leave the group alone.
    """
    if not asset_keys.does_more(run):
        return False
    ends = {DagsterEventType.STEP_SUCCESS, DagsterEventType.STEP_FAILURE}
    over = {
        each.event_log_entry.step_key
        for each in instance.get_records_for_run(run.run_id, of_type=ends).records
    }
    return asset_keys.rollout_step(run) in over


def failures_of(instance: DagsterInstance, request: RunRequest) -> tuple[int, float]:
    """How many of the latest runs with this group and aim failed in a row, and the last's end."""
    same: dict[str, str | list[str]] = {
        asset_keys.PARTITION_TAG: str(request.partition_key),
        asset_keys.AIM_TAG: request.tags[asset_keys.AIM_TAG],
    }
    count, last = 0, 0.0
    for record in instance.get_run_records(RunsFilter(tags=same), limit=10):
        if record.dagster_run.status is not DagsterRunStatus.FAILURE:
            break
        count += 1
        last = max(last, record.end_time or record.create_timestamp.timestamp())
    return count, last


def summary(said: Sequence[Said]) -> str:
    """Why no run was asked for, group by group, at most ten by name."""
    if not said:
        return "No group is in mode act: nothing is done without it."
    quiet = sum(1 for s in said if s.sentence == "as wanted")
    spoken = [f"{s.group}: {s.sentence}" for s in said if s.sentence != "as wanted"]
    more = f"; and {len(spoken) - SENTENCES} more" if len(spoken) > SENTENCES else ""
    head = f"{quiet} of {len(said)} groups are as wanted"
    return "; ".join([head, *spoken[:SENTENCES]]) + more + "."


def tick(
    context: ScheduleEvaluationContext, resource: FleetResource, partitions: Collection[str]
) -> list[RunRequest] | SkipReason:
    """Plan all groups in mode act; a run per group that needs one.

    partitions: the job's, as of loading. Dagster fails a whole tick for a run of any other.
    """
    try:
        with resource.open() as cycle:
            acting = [f for f in cycle.spec.fleets if cycle.spec.mode_of(f) == "act"]
            snapshot = cycle.snapshot([f.group for f in acting])
            this = Tick(cycle, context.instance, snapshot, partitions=partitions)
            minutes = context.scheduled_execution_time.timestamp() // 60
            said = this.all(rotated(acting, minutes))
    except FleetError as error:
        return SkipReason(str(error))
    requests = [s.request for s in said if s.request is not None]
    context.log.info(summary(said))
    return requests or SkipReason(summary(said))


def rotated(fleets: Sequence[GroupSpec], turn: float) -> list[GroupSpec]:
    """Begin elsewhere at each turn: where one tick reaches few, all have theirs soon.

    The beginnings of n turns in a row are at most 2/n of all groups apart: groups for ten ticks are
    all reached in twenty. Nothing is remembered, so no restart forgets whose turn it is.
    """
    start = int(turn * GOLDEN % 1.0 * len(fleets))
    return [*fleets[start:], *fleets[:start]]


def reconcile_schedule(spec: FleetSpec, job: "UnresolvedAssetJobDefinition") -> ScheduleDefinition:
    """The schedule; running by itself only where fleet.yaml says so."""
    runs = RECONCILE in spec.dagster.schedules
    loaded = frozenset(asset_keys.managed(spec))

    @schedule(
        name=RECONCILE,
        job=job,
        cron_schedule="* * * * *",
        default_status=DefaultScheduleStatus.RUNNING if runs else DefaultScheduleStatus.STOPPED,
        description=(
            "Plans every group in mode act once a minute, asks for a run where a plan has steps."
        ),
    )
    def reconcile(
        context: ScheduleEvaluationContext, fleet: FleetResource
    ) -> list[RunRequest] | SkipReason:
        return tick(context, fleet, loaded)

    return reconcile
