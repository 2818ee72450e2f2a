"""Plans every group in mode `act` once a minute, and requests runs for plans with steps.

Problem: a run takes ten seconds to start, so a run per group and minute is too expensive; a plan
takes milliseconds. Choice: the tick plans all groups from one snapshot. It requests a run only if a
plan has steps and no refusals. The schedule is off until you turn it on or fleet.yaml names it
(`dagster.schedules`).

A run key is the plan's id [35]. Dagster drops a repeated key of a schedule only within one tick. So
the tick ends runs whose processes have ended (`fleet.dagster.dead_runs`), then skips groups with an
unfinished run. It also skips groups whose last runs with the same target failed: they wait 5, 10,
20, ... 60 minutes, or for another target.

Only a lease shows whether the actor of an unfinished change is running, and Dagster aborts a tick
after a minute. So the tick polls all such groups together and continues in the next tick. It does
not wait if the actor is a run that failed: the requested run watches the lease itself.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import (
    AssetDep,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DataVersion,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    ObserveResult,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    schedule,
)

from fleet.act.lease import this_machine
from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.dead_runs import all_runs, end_ended_runs
from fleet.dagster.group_assets import observe_op, topic_metadata, topic_version
from fleet.dagster.live import live_cluster
from fleet.dagster.resources import FleetResource, fleet_errors_as_failures
from fleet.decide.refusals import aim_of, pause_refusal, wait_after
from fleet.decide.scaling import restraint_note
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot
from fleet.model import Plan, Step, StepKind
from fleet.slots import ChangeState
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


RECONCILE = "reconcile"
TICK_DEADLINE = 40.0
"""Seconds; Dagster aborts a tick after 60."""
START_SECONDS = 120.0
"""Seconds for a run's start, plan and checks on a busy machine."""
SETTLE_SECONDS = 60.0
"""Seconds of a membership change beyond drains and warm-ups."""
_UP_TO_DATE = "no change needed"
LEASE_POLL_SECONDS = 1.0
"""Seconds between two polls of the leases within a tick."""
GOLDEN_RATIO = 0.618033988749895
"""Part of all groups by which the start moves at each tick."""
MOST_SENTENCES = 10
"""Groups that a skipped tick names."""

UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def step_seconds(step: Step, fleet: GroupSpec) -> float:
    """Returns the longest time of a step, with all its waits."""
    how = fleet.rollout
    warm = how.node_timeout + how.warm_timeout
    if step.kind is StepKind.WARM:
        return warm
    if step.kind is StepKind.ROLL:
        turns = -(-len(step.slots) // how.max_parallel)
        each = how.drain_timeout + warm + fleet.batch_limit
        # A rolling batch that got no records is proven once more after the old workers have left.
        rolling_batches = fleet.worker is not None and fleet.worker.membership == "dynamic"
        proofs = (2 if rolling_batches else 1) * fleet.canary_limit
        return warm + proofs + turns * each + SETTLE_SECONDS
    opens = step.kind in (StepKind.OPEN, StepKind.STOP_ALL)
    joins = warm + fleet.batch_limit if opens else 0.0  # and commit first batches
    return how.drain_timeout + joins + SETTLE_SECONDS


def max_runtime(plan: Plan, fleet: GroupSpec) -> int:
    """Returns the seconds after which Dagster's run monitoring stops the run [36]."""
    steps = sum(step_seconds(step, fleet) for step in plan.steps)
    return int(START_SECONDS + 2 * fleet.runtime.lease + steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOutcome:
    """The outcome of one group in a tick."""

    group: str
    sentence: str
    request: RunRequest | None = None
    unknown: bool = False
    """Whether the actor of its unfinished change may still be running."""


def request_for(plan: Plan, fleet: GroupSpec, *, resume: bool = False) -> RunRequest:
    """Requests a run of the job with the group as its partition."""
    op = asset_keys.rollout_key(plan.cluster).to_python_identifier()
    return RunRequest(
        run_key=f"{plan.id}-resume" if resume else plan.id,
        partition_key=asset_keys.name_of(plan.group),
        run_config={"ops": {op: {"config": {"resume": True}}}} if resume else {},
        tags={
            asset_keys.CLUSTER_TAG: plan.cluster,
            asset_keys.AIM_TAG: "resume" if resume else aim_of(plan),
            asset_keys.PLAN_TAG: plan.id,
            asset_keys.MAX_RUNTIME_TAG: str(max_runtime(plan, fleet)),
            asset_keys.MACHINE_TAG: this_machine(),
        },
    )


class Tick:
    """Handles one tick of the schedule, group by group."""

    def __init__(
        self,
        cycle: "Fleet",
        instance: DagsterInstance,
        snapshot: Snapshot,
        *,
        partitions: Collection[str],
    ) -> None:
        """partitions: the groups (by name) for which a run may be requested."""
        self._cycle = cycle
        self._instance = instance
        self._snapshot = snapshot
        self._partitions = partitions
        self._busy = busy_groups(instance, cycle.spec.cluster.name)
        self._deadline = cycle.clock.monotonic() + TICK_DEADLINE

    def all(self, fleets: Iterable[GroupSpec]) -> list[TickOutcome]:
        """Handles every group in this order, and unknown ones again while there is time."""
        said: dict[str, TickOutcome] = {}
        unknown: list[GroupSpec] = []
        for fleet in fleets:
            if self._is_over():
                said[fleet.group] = TickOutcome(
                    group=fleet.group, sentence="not reached in this tick"
                )
                continue
            said[fleet.group] = self._try_reconcile(fleet)
            if said[fleet.group].unknown:
                unknown.append(fleet)
        while unknown and not self._is_over():
            self._cycle.clock.sleep(LEASE_POLL_SECONDS)
            said.update((fleet.group, self._try_reconcile(fleet)) for fleet in unknown)
            unknown = [fleet for fleet in unknown if said[fleet.group].unknown]
        return list(said.values())

    def _is_over(self) -> bool:
        return self._cycle.clock.monotonic() > self._deadline

    def _try_reconcile(self, fleet: GroupSpec) -> TickOutcome:
        """Handles one group; an error does not block the others."""
        try:
            return self.reconcile(fleet)
        except FleetError as error:
            return TickOutcome(group=fleet.group, sentence=str(error))

    def reconcile(self, fleet: GroupSpec) -> TickOutcome:
        """Requests a run for this group, or returns why not."""
        group = fleet.group
        if asset_keys.name_of(group) in self._busy:
            return TickOutcome(group=group, sentence="its last run has not ended")
        change = self._cycle.store.change(group)
        if change is not None and change.state is ChangeState.RUNNING:
            alive = self._cycle.change_alive(group)
            if alive is None and self._has_failed(change.actor):
                alive = False  # the run that resumes the change watches the lease anyway
            if alive:
                return TickOutcome(group=group, sentence=f"{change.actor} is changing it")
            if alive is None:
                sentence = (
                    f"its change by {change.actor} may still be running; "
                    f"checked again within {duration(fleet.runtime.lease)}"
                )
                return TickOutcome(group=group, sentence=sentence, unknown=True)
            if pause := pause_refusal(self._cycle.pauses(), group):
                left = f"{change.actor} left a change unfinished, and {pause}"
                return TickOutcome(group=group, sentence=left)
            request = request_for(change.plan, fleet, resume=True)
            return self._request_unless_failed(
                fleet, request, f"{change.actor} left a change unfinished"
            )
        plan = self._cycle.plan(group, snapshot=self._snapshot)
        if plan.refusals:
            return TickOutcome(group=group, sentence="refused: " + " ".join(plan.refusals))
        if plan.empty:
            self._cycle.keep_current(plan)
            return TickOutcome(group=group, sentence=restraint_note(plan.notes) or _UP_TO_DATE)
        said = "; ".join(step.sentence for step in plan.steps)
        return self._request_unless_failed(fleet, request_for(plan, fleet), said)

    def _has_failed(self, actor: str) -> bool:
        """Returns whether a change's actor is a run that Dagster, or Fleet, marked as failed."""
        run = self._instance.get_run_by_id(actor.removeprefix(asset_keys.actor("")))
        return run is not None and run.status is DagsterRunStatus.FAILURE

    def _request_unless_failed(
        self, fleet: GroupSpec, request: RunRequest, sentence: str
    ) -> TickOutcome:
        """Returns the request, unless Dagster cannot start it or runs with this target failed."""
        group = fleet.group
        if request.partition_key not in self._partitions:
            return TickOutcome(
                group=group, sentence=f"{sentence}; {missing_partition_reason(fleet)}"
            )
        failures, last = failures_of(self._instance, request)
        wait, waited = wait_after(failures), self._cycle.clock.now() - last
        left = wait - waited
        if 0 <= waited < wait:  # negative: the clock was set, and the end is no evidence
            why = f"{plural(failures, 'run')} with this target failed; next in {duration(left)}"
            return TickOutcome(group=group, sentence=why)
        return TickOutcome(group=group, sentence=sentence, request=request)


def missing_partition_reason(fleet: GroupSpec) -> str:
    """Returns why no run can be requested, and what to do."""
    if fleet.worker is None:
        return f"Dagster does not change an external Deployment; run `fleet apply {fleet.group}`"
    return "the group got its worker after the code location was loaded: reload the code location"


def busy_groups(instance: DagsterInstance, cluster: str) -> set[str]:
    """Returns the names of the cluster's groups with a run that may still change them."""
    runs = (record.dagster_run for record in all_runs(instance, UNFINISHED))
    return {
        name
        for run in runs
        if (name := asset_keys.group_of_run(run, cluster)) is not None
        and not is_rolled_out(instance, run, cluster)
    }


def is_rolled_out(instance: DagsterInstance, run: DagsterRun, cluster: str) -> bool:
    """Returns whether a run has finished the rollout and works on a team's assets after it.

    A killed run stays STARTED until its `dagster/max_runtime`, or for hours without the tag. That
    must not block the group.
    """
    if not asset_keys.makes_other_assets(run, cluster):
        return False
    ends = {DagsterEventType.STEP_SUCCESS, DagsterEventType.STEP_FAILURE}
    over = {
        each.event_log_entry.step_key
        for each in instance.get_records_for_run(run.run_id, of_type=ends).records
    }
    return asset_keys.rollout_step(cluster) in over


def failures_of(instance: DagsterInstance, request: RunRequest) -> tuple[int, float]:
    """Counts the latest failures in a row with this group and target; and the last one's end.

    The first run that ended without a failed step does not count: its process was killed, or did
    not start. More in a row count, since a process that needs too much memory is killed each time.
    """
    same: dict[str, str | list[str]] = {
        asset_keys.PARTITION_TAG: str(request.partition_key),
        asset_keys.CLUSTER_TAG: request.tags[asset_keys.CLUSTER_TAG],
        asset_keys.AIM_TAG: request.tags[asset_keys.AIM_TAG],
    }
    count, killed, last = 0, 0, 0.0
    for record in instance.get_run_records(RunsFilter(tags=same), limit=10):
        if record.dagster_run.status is not DagsterRunStatus.FAILURE:
            break
        failed = instance.get_records_for_run(
            record.dagster_run.run_id, of_type=DagsterEventType.STEP_FAILURE, limit=1
        )
        count += 1
        killed += not failed.records
        last = max(last, record.end_time or record.create_timestamp.timestamp())
    return count - min(1, killed), last


def summary(said: Sequence[TickOutcome]) -> str:
    """Describes why no run was requested, group by group, at most ten by name."""
    if not said:
        return "No group has mode: act, so there is nothing to do."
    quiet = sum(1 for s in said if s.sentence == _UP_TO_DATE)
    spoken = [f"{s.group}: {s.sentence}" for s in said if s.sentence != _UP_TO_DATE]
    more = f"; and {len(spoken) - MOST_SENTENCES} more" if len(spoken) > MOST_SENTENCES else ""
    head = f"{quiet} of {len(said)} groups need no change"
    return "; ".join([head, *spoken[:MOST_SENTENCES]]) + more + "."


def tick(
    context: ScheduleEvaluationContext, resource: FleetResource, partitions: Collection[str]
) -> list[RunRequest] | SkipReason:
    """Plans all groups in mode act, and requests a run per group that needs one.

    partitions: the job's partitions when it was loaded. Dagster fails the tick for another one.
    """
    try:
        with live_cluster(resource) as live, resource.open() as cycle:
            # Else each plan reads its group's log, which takes up to 0.2 s.
            cycle.tail = live.cluster.tail if live.cluster.tail.is_current() else None
            acting = [f for f in cycle.spec.fleets if cycle.spec.mode_of(f) == "act"]
            snapshot = cycle.snapshot([f.group for f in acting])
            for sentence in end_ended_runs(context.instance, cycle.spec.cluster.name):
                context.log.warning(sentence)
            this = Tick(cycle, context.instance, snapshot, partitions=partitions)
            minutes = context.scheduled_execution_time.timestamp() // 60
            said = this.all(rotate(acting, minutes))
    except FleetError as error:
        return SkipReason(str(error))
    requests = [s.request for s in said if s.request is not None]
    if not requests:  # a log line makes a file for each tick
        return SkipReason(summary(said))
    context.log.info(summary(said))
    return requests


def rotate(fleets: Sequence[GroupSpec], turn: float) -> list[GroupSpec]:
    """Rotates the groups, so that ticks that reach only some of them reach all in time.

    The starts of n ticks in a row are at most 2/n of all groups apart: if ten ticks could handle
    all groups, twenty do. The function is stateless, so a restart does not disturb it.
    """
    start = int(turn * GOLDEN_RATIO % 1.0 * len(fleets))
    return [*fleets[start:], *fleets[:start]]


def build_reconcile_schedules(fleet: FleetResource) -> list[ScheduleDefinition]:
    """Defines the schedule, or none if no group has workers; off unless fleet.yaml names it.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[ScheduleDefinition]: The schedule of the job of `build_change_jobs`.
    """
    spec = fleet.spec
    if not asset_keys.managed_groups(spec):
        return []
    cluster = spec.cluster.name
    runs = RECONCILE in spec.dagster.schedules
    loaded = frozenset(asset_keys.managed_groups(spec))

    @schedule(
        name=asset_keys.definition_name(cluster, RECONCILE),
        job_name=asset_keys.definition_name(cluster, asset_keys.CHANGE_JOB),
        cron_schedule="* * * * *",
        default_status=DefaultScheduleStatus.RUNNING if runs else DefaultScheduleStatus.STOPPED,
        description=(
            "Plans every group in mode act once a minute and starts a run if a plan has steps."
        ),
    )
    def reconcile(context: ScheduleEvaluationContext) -> list[RunRequest] | SkipReason:
        return tick(context, fleet, loaded)

    return [reconcile]


# New partitions of a topic ask for a plan and a rollout of the groups that read it.
#
# Problem: Dagster maps an asset without partitions to all partitions downstream, and a run for each
# of 300 groups is wrong. Choice: one more asset has a partition for each topic of a group in mode
# act. Its data version is the topic's number of partitions, and a static mapping leads to the
# groups. The automation sensor of both assets is off until you turn it on or fleet.yaml names it.
# Cost: its runs use the executor of the code location.


NEW_PARTITIONS = "new_partitions"


def acting_topics(spec: FleetSpec) -> dict[str, list[str]]:
    """Returns the topics and patterns of groups in mode act, with the names of these groups."""
    found: dict[str, list[str]] = {}
    for name, fleet in asset_keys.managed_groups(spec).items():
        for topic in fleet.topics if spec.mode_of(fleet) == "act" else ():
            found.setdefault(topic, []).append(name)
    return found


def build_partitions_assets(fleet: FleetResource) -> list[AssetsDefinition]:
    """Defines the asset of partition counts; none if no group is in mode act."""
    spec = fleet.spec
    cluster = spec.cluster.name
    by_name = {asset_keys.name_of(topic): topic for topic in acting_topics(spec)}
    if not by_name:
        return []
    observed = AssetSpec(
        key=asset_keys.partitions_key(cluster),
        deps=[asset_keys.topic_key(cluster, topic) for topic in sorted(by_name.values())],
        partitions_def=StaticPartitionsDefinition(sorted(by_name)),
        group_name="topics",
        kinds={"kafka", "topic"},
        description="Number of partitions of each topic that a group in mode act reads.",
        metadata={"cluster": cluster},
    )

    def observe(context: AssetExecutionContext) -> Iterator[ObserveResult]:
        topic = by_name[context.partition_key]
        with fleet_errors_as_failures(), fleet.open() as cycle:
            topics = cycle.snapshot([]).topics
        yield ObserveResult(
            data_version=DataVersion(topic_version(topics, topic)),
            metadata=topic_metadata(topics, topic),
        )

    return [
        observe_op(asset_keys.definition_name(cluster, "observe_partitions"), [observed], observe)
    ]


def partitions_deps(spec: FleetSpec) -> list[AssetDep]:
    """Returns the dependency of plan and rollout on the partition counts."""
    if not (acting := acting_topics(spec)):
        return []
    key = asset_keys.partitions_key(spec.cluster.name)
    mapping = StaticPartitionMapping({asset_keys.name_of(t): acting[t] for t in acting})
    return [AssetDep(key, partition_mapping=mapping)]


def on_new_partitions(spec: FleetSpec) -> "AutomationCondition[AssetKey] | None":
    """Returns the condition of plan and rollout: the partitions of a topic of the group changed.

    It allows only this dependency: a plan that you materialize asks for no rollout.
    """
    if not acting_topics(spec):
        return None
    counts = AssetSelection.assets(asset_keys.partitions_key(spec.cluster.name))
    return AutomationCondition.any_deps_updated().allow(counts)


def build_new_partitions_sensors(
    fleet: FleetResource,
) -> list[AutomationConditionSensorDefinition]:
    """Defines the sensor that evaluates the condition; none if no group is in mode act.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[AutomationConditionSensorDefinition]: Off unless fleet.yaml names it.
    """
    spec = fleet.spec
    if not acting_topics(spec):
        return []
    cluster, runs = spec.cluster.name, NEW_PARTITIONS in spec.dagster.schedules
    target = AssetSelection.assets(asset_keys.plan_key(cluster), asset_keys.rollout_key(cluster))
    return [
        AutomationConditionSensorDefinition(
            asset_keys.definition_name(cluster, NEW_PARTITIONS),
            target=target,
            default_status=DefaultSensorStatus.RUNNING if runs else DefaultSensorStatus.STOPPED,
            description="Starts a run for each group in mode act whose topic has new partitions.",
        )
    ]
