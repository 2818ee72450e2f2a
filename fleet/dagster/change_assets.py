"""Defines the plan and rollout assets, with a partition per group, and the job of both.

Problem: an asset and a job step per group are 600 ops at 300 groups, and an unreadable graph.
Choice: two assets whose partitions are the groups with workers. A run's partition is the group that
it may change. The rollout's grid shows all groups, red if the last change did not end well. A
rollout that failed, was refused or rolled back does not materialise: its run is red, and the
`receipt` check of the group's asset fails with the worker's error. A run uses one process and the
group's own lease: a Dagster pool would keep the slot of a killed run [36].
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    AssetsDefinition,
    AssetSelection,
    Config,
    Failure,
    MaterializeResult,
    MetadataValue,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    in_process_executor,
)
from pydantic import Field

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.change_metadata import (
    change_metadata,
    change_sentence,
    failure_metadata,
    plan_metadata,
    plan_sentence,
)
from fleet.dagster.check_outcomes import receipt_outcome
from fleet.dagster.dead_runs import STEP_GOES_ON
from fleet.dagster.reconcile_schedule import (
    build_partitions_assets,
    on_new_partitions,
    partitions_deps,
)
from fleet.dagster.resources import FleetResource, fleet_errors_as_failures, parse_time
from fleet.decide.adopted import approval_mismatch
from fleet.errors import ConfigError, FleetError, Refused
from fleet.model import Plan
from fleet.slots import Change, ChangeState

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

    from fleet.manager.change_progress import ChangeProgress
    from fleet.manager.cycle import Fleet


# A change's progress as observations of the rollout, plotted during the run.
#
# Problem: a roll of many slots takes minutes in one step, and the page would show nothing until it
# ends. Choice: a thread refreshes every two seconds. It stores an observation (slots done, waiting
# records, rebalances, longest downtime) for each slot that is done, else every ten seconds, because
# an op with thousands of events is slow in Dagster. The change stays in the main thread, which a
# cancelled run interrupts. Cost: a second Fleet, open during the change.


REFRESH_SECONDS: Final = 2.0
"""Seconds between two refreshes."""
REFRESHES_PER_EVENT: Final = 5
"""Refreshes after which figures are stored although no further slot is done."""
_END: Final = 30.0


def progress_observation(
    context: AssetExecutionContext, group: str, seen: "ChangeProgress"
) -> AssetObservation:
    """Builds the observation of the progress; Dagster plots its numbers."""
    figures: dict[str, Any] = {
        "slots done": seen.slots_done,
        "slots": seen.slots,
        "lag (records)": seen.lag,
        "rebalances so far": seen.rebalances,
        "longest downtime so far (s)": seen.longest_downtime,
    }
    known = {name: value for name, value in figures.items() if value is not None}
    return AssetObservation(
        asset_key=context.asset_key,
        partition=context.partition_key,
        description=f"{group}: {seen.sentence}.",
        metadata={"sentence": f"{group}: {seen.sentence}.", **known},
    )


def watch_progress(
    context: AssetExecutionContext, resource: FleetResource, group: str, over: threading.Event
) -> None:
    """Stores the change's progress until it is over; skips a refresh that fails."""
    from fleet.manager.change_progress import change_progress  # noqa: PLC0415  imports Kafka

    stored: tuple[object, ...] | None = None
    refreshes = 0
    with resource.open() as cycle:
        while not over.wait(REFRESH_SECONDS):
            try:
                seen = change_progress(cycle, group)
            except FleetError as error:
                context.log.debug("progress of %s cannot be read: %s", group, error)
                continue
            refreshes += 1
            if seen is None:
                continue
            mark = (seen.step, seen.slots_done)
            if mark != stored or refreshes >= REFRESHES_PER_EVENT:
                context.log.info(seen.sentence)  # the log line of an observation has no sentence
                context.log_event(progress_observation(context, group, seen))
                stored, refreshes = mark, 0


@contextmanager
def _beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Runs `work` in a thread until the body is over, which its event says."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END)


@contextmanager
def report_progress(
    context: AssetExecutionContext, resource: FleetResource, group: str
) -> Iterator[None]:
    """Stores the progress while the body runs; a failure to do so does not stop the body."""

    def run(over: threading.Event) -> None:
        try:
            watch_progress(context, resource, group, over)
        except Exception as error:  # noqa: BLE001  missing figures must not stop a change
            context.log.warning("progress of %s is not shown: %s", group, error)

    with _beside(run, "fleet-progress"):
        yield


# A run without a change shows in no lease that its process lives, so it stores events
# (`fleet.dagster.dead_runs`). They are events of the engine, since `python_logs` in dagster.yaml
# may drop log lines. Cost: a row every ten seconds of a run.


EVENT_SECONDS: Final = 10.0
"""Seconds between two events of a run whose step goes on."""


@contextmanager
def show_life(context: AssetExecutionContext) -> Iterator[None]:
    """Stores an event at once, and every ten seconds while the body runs."""

    def run(over: threading.Event) -> None:
        while True:
            with suppress(Exception):  # the storage is away: the next one tells
                context.instance.report_engine_event(STEP_GOES_ON, context.run)
            if over.wait(EVENT_SECONDS):
                return

    with _beside(run, "fleet-life"):
        yield


CHANGES = "changes"
"""The asset group of both assets in the graph."""
PLANS_SEARCHED: Final = 50
"""Plans of a group among which a rollout looks for the one that its config names."""


class PlanConfig(Config):
    """What to plan; by default the policy decides.

    Args:
        wanted (Optional[int]): The number of slots.
        pin (Optional[str]): How long the policy keeps `wanted`, such as `2h`.
        roll (bool): Whether every slot is handed over to a new worker.
    """

    wanted: int | None = Field(
        default=None, ge=0, description="number of slots (default: what the policy wants)"
    )
    pin: str | None = Field(
        default=None, description="how long the policy keeps `wanted`, such as 2h (default: not)"
    )
    roll: bool = Field(default=False, description="hand every slot over to a new worker")

    def request(self) -> dict[str, Any]:
        """Returns the arguments of `Fleet.plan` and `Fleet.apply`; raises ConfigError."""
        if self.pin is not None and self.wanted is None:
            raise ConfigError(f"pin {self.pin} keeps a number of slots: set wanted too")
        pin = None if self.pin is None else parse_time("pin", self.pin)
        return {"wanted": self.wanted, "roll": self.roll, "pin": pin}


class RolloutConfig(Config):
    """Which plan to carry out; by default the last one that was materialized.

    Args:
        plan (Optional[str]): The id of the plan.
        resume (bool): Whether to finish an unfinished change, and nothing else.
    """

    plan: str | None = Field(
        default=None, description="id of the plan (default: the group's last materialized plan)"
    )
    resume: bool = Field(default=False, description="finish an unfinished change, nothing else")


def group_partitions(spec: FleetSpec) -> StaticPartitionsDefinition:
    """Returns a partition for each group with Fleet workers, in the order of the file."""
    return StaticPartitionsDefinition(list(asset_keys.managed_groups(spec)))


def plan_asset(fleet: FleetResource) -> AssetsDefinition:
    """Defines the asset of plans: what Fleet would do now, and its expected cost."""
    spec = fleet.spec
    cluster, groups = spec.cluster.name, asset_keys.managed_groups(spec)

    @asset(
        key=asset_keys.plan_key(cluster),
        deps=partitions_deps(spec),
        automation_condition=on_new_partitions(spec),
        partitions_def=group_partitions(spec),
        group_name=CHANGES,
        kinds={"plan"},
        description="What Fleet would change in the group now, and the expected cost.",
        metadata={"cluster": cluster},
    )
    def plan(context: AssetExecutionContext, config: PlanConfig) -> MaterializeResult[None]:
        group = groups[context.partition_key].group
        with show_life(context), fleet_errors_as_failures(), fleet.open() as cycle:
            request = config.request()
            made = cycle.plan(group, **request)
        context.log.info(plan_sentence(made))
        return MaterializeResult(metadata=_plan_asset_metadata(made, request))

    return plan


Execute = Callable[[AssetExecutionContext, FleetResource, RolloutConfig], MaterializeResult[None]]


def rollout_asset(fleet: FleetResource, execute: Execute) -> AssetsDefinition:
    """Defines the asset of changes, verified by the coordinator's records."""
    spec = fleet.spec
    cluster = spec.cluster.name

    @asset(
        key=asset_keys.rollout_key(cluster),
        deps=[asset_keys.plan_key(cluster), *partitions_deps(spec)],
        automation_condition=on_new_partitions(spec),
        partitions_def=group_partitions(spec),
        group_name=CHANGES,
        kinds={"rollout"},
        description="The last change of the group: its expected cost and what Kafka recorded.",
        metadata={"cluster": cluster},
    )
    def rollout(context: AssetExecutionContext, config: RolloutConfig) -> MaterializeResult[None]:
        with show_life(context):
            return execute(context, fleet, config)

    return rollout


def execute_rollout(
    context: AssetExecutionContext, fleet: FleetResource, config: RolloutConfig
) -> MaterializeResult[None]:
    """Carries out the plan of the run's partition, and returns the receipt.

    Raises Failure with the reason if the group has changed since the plan, or if the change was
    refused or did not end well.

    Args:
        context (AssetExecutionContext): The context of the rollout asset.
        fleet (FleetResource): The fleet.yaml.
        config (RolloutConfig): Which plan to carry out.

    Returns:
        MaterializeResult: The receipt.
    """
    spec = fleet.spec
    group = asset_keys.managed_groups(spec)[context.partition_key].group
    with (
        fleet_errors_as_failures(),
        fleet.open() as cycle,
        report_progress(context, fleet, group),
    ):
        change = carry_out(cycle, group, config, context)
    if change is None:
        sentence = f"{group} has no unfinished change to resume."
        context.log.info(sentence)
        return MaterializeResult(metadata={"sentence": sentence})
    return record_result(context, spec.cluster.name, change)


def carry_out(
    cycle: "Fleet", group: str, config: RolloutConfig, context: AssetExecutionContext
) -> Change | None:
    """Resumes or applies a change; returns None if there is nothing to resume.

    A cancelled run interrupts this call at any point. The change stays RUNNING in the store, and
    the group's next run resumes it after this run's lease expires [31].
    """
    actor = asset_keys.actor(context.run.run_id)
    if config.resume:
        return cycle.resume_change(group, actor=actor, progress=context.log.info)
    cluster = cycle.spec.cluster.name
    plan, request, run = materialized_plan(context, cluster, config.plan)
    if run != context.run.run_id:
        return cycle.apply(group, approved=plan, actor=actor, progress=context.log.info, **request)
    change = cycle.apply(group, actor=actor, progress=context.log.info, **request)
    if approval_mismatch(plan, change.plan) is not None:
        # Nobody has seen the plan of this run, so its successor is carried out, and stored too.
        sentence = "%s has changed since plan %s of this run, so the rollout carried out plan %s"
        context.log.warning(sentence, group, plan, change.plan.id)
        context.log_event(
            AssetMaterialization(
                asset_key=asset_keys.plan_key(cluster),
                partition=context.partition_key,
                metadata=_plan_asset_metadata(change.plan, request),
            )
        )
    return change


def _plan_asset_metadata(plan: Plan, request: dict[str, Any]) -> dict[str, Any]:
    of = MetadataValue.asset(asset_keys.group_key(plan.cluster, plan.group))
    return {**plan_metadata(plan), "request": request, "asset of the group": of}


def materialized_plan(
    context: AssetExecutionContext, cluster: str, plan: str | None
) -> tuple[str, dict[str, Any], str]:
    """Returns a plan's id, its request and its run: the partition's last plan, or the one named.

    A plan that only `fleet plan` has made is the policy's, and belongs to no run.
    """
    key, partition = asset_keys.plan_key(cluster), context.partition_key
    found = context.instance.fetch_materializations(
        AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=PLANS_SEARCHED
    )
    for record in found.records:
        made = record.asset_materialization
        known = {} if made is None else made.metadata
        name = known["plan id"].value if "plan id" in known else ""
        if isinstance(name, str) and name and plan in {None, name}:
            return name, dict(known["request"].value), record.run_id
    if plan is None:
        raise Refused(
            f"{key.to_user_string()} holds no plan of partition {partition}: materialize it for "
            "this partition first, or launch plan and rollout together"
        )
    return plan, {}, ""


def record_result(
    context: AssetExecutionContext, cluster: str, change: Change
) -> MaterializeResult[None]:
    """Stores the receipt as a check of the group, and returns it if the change ended well.

    Raises Failure with the receipt and the worker's error if it did not.
    """
    sentence, key = change_sentence(change), asset_keys.group_key(cluster, change.group)
    context.log.info(sentence)
    ended_well = change.state is ChangeState.DONE
    if change.receipts or not ended_well:
        # The check belongs to the group's asset, where people look for it, not to the rollout.
        context.log_event(receipt_outcome(change).evaluation(asset_keys.RECEIPT, key))
    metadata = {**change_metadata(change), "asset of the group": MetadataValue.asset(key)}
    if not ended_well:
        raise Failure(
            description=f"{change.group}: {change.state.value}. {sentence}",
            metadata={**metadata, **failure_metadata(change)},
            allow_retries=False,
        )
    return MaterializeResult(metadata=metadata)


def build_change_assets(
    fleet: FleetResource, execute: Execute = execute_rollout
) -> list[AssetsDefinition]:
    """Returns plan, rollout and the partition counts they depend on; none without workers.

    Args:
        fleet (FleetResource): The fleet.yaml.
        execute (Callable): What the rollout asset runs. Defaults to `execute_rollout`.

    Returns:
        list[AssetsDefinition]: Both assets have a partition for each group with workers.
    """
    if not asset_keys.managed_groups(fleet.spec):
        return []
    return [
        *build_partitions_assets(fleet),
        plan_asset(fleet),
        rollout_asset(fleet, execute),
    ]


def build_change_jobs(fleet: FleetResource) -> "list[UnresolvedAssetJobDefinition]":
    """Returns the job of all groups, or none if no group has workers.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[UnresolvedAssetJobDefinition]: The job plans and rolls out the group of its partition.
    """
    if not asset_keys.managed_groups(fleet.spec):
        return []
    cluster = fleet.spec.cluster.name
    job = define_asset_job(
        asset_keys.definition_name(cluster, asset_keys.CHANGE_JOB),
        selection=AssetSelection.assets(
            asset_keys.plan_key(cluster), asset_keys.rollout_key(cluster)
        ),
        executor_def=in_process_executor,
        description="Plan the group of the run's partition and apply the plan.",
    )
    return [job]
