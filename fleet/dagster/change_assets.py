"""What is done for groups: plans and rollouts, a partition for each group, and the job of both.

Problem: an asset and a job step per group are 600 ops at 300 groups, and a graph that nobody can
read. Choice: two assets whose partitions are the groups that have workers. The partition of a run
is the group that it may change; the rollout's grid of partitions shows all groups at once, red
where the last change did not end well. A rollout that was rolled back, failed or was refused never
materialises: its run is red, and the `receipt` check of the group's own asset fails with the
worker's error. A run goes in one process and under the group's own lease: Dagster's pools would
hold a place for a killed run [36].
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetObservation,
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
)
from fleet.dagster.judgements import receipt_judgement
from fleet.dagster.resources import FleetResource, told
from fleet.errors import FleetError
from fleet.slots import Change, ChangeState

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

    from fleet.manager.change_progress import ChangeProgress
    from fleet.manager.cycle import Fleet


# A change's progress while its run goes: observations of the rollout, shown and plotted live.
#
# Problem: a roll of many slots takes minutes in one step, and a page that shows nothing until its
# end is not watched. Choice: a thread beside the change looks every two seconds and stores an
# observation (slots done, records waiting, rebalances, longest pause so far) when a slot more is
# done, else every ten seconds: an op with thousands of events is slow in Dagster. The change
# itself stays in the main thread, where a cancelled run interrupts it. Cost: a second Fleet, open
# for as long as the change.


LOOK: Final = 2.0
"""Seconds between two looks."""
TELL: Final = 5
"""Looks after which figures are told though no slot more is done."""
_END: Final = 30.0


def observation(
    context: AssetExecutionContext, group: str, seen: "ChangeProgress"
) -> AssetObservation:
    """What the page shows; numbers are plotted."""
    figures: dict[str, Any] = {
        "slots done": seen.slots_done,
        "slots": seen.slots,
        "lag (records)": seen.lag,
        "rebalances so far": seen.rebalances,
        "longest pause so far (s)": seen.longest_downtime,
    }
    known = {name: value for name, value in figures.items() if value is not None}
    return AssetObservation(
        asset_key=context.asset_key,
        partition=context.partition_key,
        description=f"{group}: {seen.sentence}.",
        metadata={"sentence": f"{group}: {seen.sentence}.", **known},
    )


def watch(
    context: AssetExecutionContext, resource: FleetResource, group: str, over: threading.Event
) -> None:
    """Tell the change's progress until it is over; a look that fails is left out."""
    from fleet.manager.change_progress import change_progress  # noqa: PLC0415  imports Kafka

    told: tuple[object, ...] | None = None
    looks = 0
    with resource.open() as cycle:
        while not over.wait(LOOK):
            try:
                seen = change_progress(cycle, group)
            except FleetError as error:
                context.log.debug("no look at %s: %s", group, error)
                continue
            looks += 1
            if seen is None:
                continue
            mark = (seen.step, seen.slots_done)
            if mark != told or looks >= TELL:
                context.log.info(seen.sentence)  # an observation's own line holds no words
                context.log_event(observation(context, group, seen))
                told, looks = mark, 0


@contextmanager
def told_live(
    context: AssetExecutionContext, resource: FleetResource, group: str
) -> Iterator[None]:
    """Progress is told while the body runs; what becomes of telling it does not touch the body."""
    over = threading.Event()

    def run() -> None:
        try:
            watch(context, resource, group, over)
        except Exception as error:  # noqa: BLE001  a page without figures ends no change
            context.log.warning("progress of %s is not shown: %s", group, error)

    thread = threading.Thread(target=run, name="fleet-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END)


CHANGES = "changes"
"""The box of the two assets in the graph."""


class ChangeConfig(Config):
    """What a person may ask of one run; empty: what the policy wants."""

    wanted: int | None = Field(default=None, ge=0, description="slots; empty: the policy's")
    roll: bool = Field(default=False, description="hand every slot to a fresh worker")


class RolloutConfig(ChangeConfig):
    """The rollout's asks."""

    plan: str | None = Field(
        default=None,
        description="id of the plan that you approve; refused where the group has changed since",
    )
    resume: bool = Field(default=False, description="only finish an unfinished change")


def group_partitions(spec: FleetSpec) -> StaticPartitionsDefinition:
    """A partition for each group that has workers of ours, in the order of the file."""
    return StaticPartitionsDefinition(list(asset_keys.managed(spec)))


def plan_asset(spec: FleetSpec) -> AssetsDefinition:
    """What would be done for a group now, at which expected cost."""
    cluster, groups = spec.cluster.name, asset_keys.managed(spec)

    @asset(
        key=asset_keys.plan_key(cluster),
        partitions_def=group_partitions(spec),
        group_name=CHANGES,
        kinds={"plan"},
        description="What Fleet would change about a group now, and its stated expected cost.",
        metadata={"cluster": cluster},
    )
    def plan(
        context: AssetExecutionContext, config: ChangeConfig, fleet: FleetResource
    ) -> MaterializeResult[None]:
        group = groups[context.partition_key].group
        with told(), fleet.open() as cycle:
            made = cycle.plan(group, wanted=config.wanted, roll=config.roll)
        metadata = plan_metadata(made)
        context.log.info(metadata["sentence"])
        of = MetadataValue.asset(asset_keys.group_key(cluster, group))
        return MaterializeResult(metadata={**metadata, "asset of the group": of})

    return plan


def rollout_asset(spec: FleetSpec) -> AssetsDefinition:
    """A group's change, carried out and checked against the coordinator's records."""
    cluster, groups = spec.cluster.name, asset_keys.managed(spec)

    @asset(
        key=asset_keys.rollout_key(cluster),
        deps=[asset_keys.plan_key(cluster)],
        partitions_def=group_partitions(spec),
        group_name=CHANGES,
        kinds={"rollout"},
        description="The last change of a group: what it was to cost, what Kafka recorded.",
        metadata={"cluster": cluster},
    )
    def rollout(
        context: AssetExecutionContext, config: RolloutConfig, fleet: FleetResource
    ) -> MaterializeResult[None]:
        group = groups[context.partition_key].group
        with told(), fleet.open() as cycle, told_live(context, fleet, group):
            change = carry_out(cycle, group, config, context)
        if change is None:
            said = f"{group} has no unfinished change to resume."
            context.log.info(said)
            return MaterializeResult(metadata={"sentence": said})
        return recorded(context, cluster, change)

    return rollout


def carry_out(
    cycle: "Fleet", group: str, config: RolloutConfig, context: AssetExecutionContext
) -> Change | None:
    """Resume, or apply; None where there was nothing to resume.

    Cancelling the run interrupts this call anywhere: the change stays RUNNING in the store,
    and the next run of the group picks it up once the lease of this one is over [31].
    """
    actor = asset_keys.actor(context.run.run_id)
    if config.resume:
        return cycle.resume_change(group, actor=actor, progress=context.log.info)
    return cycle.apply(
        group,
        wanted=config.wanted,
        roll=config.roll,
        approved=config.plan,
        actor=actor,
        progress=context.log.info,
    )


def recorded(
    context: AssetExecutionContext, cluster: str, change: Change
) -> MaterializeResult[None]:
    """The receipt as a check of the group, and as a materialisation where the change ended well.

    Raises Failure, with receipt and the worker's error, where it did not.
    """
    sentence, key = change_sentence(change), asset_keys.group_key(cluster, change.group)
    context.log.info(sentence)
    ended_well = change.state is ChangeState.DONE
    if change.receipts or not ended_well:
        # Of an asset that this step does not make: people look for the group, not for rollouts.
        context.log_event(receipt_judgement(change).evaluation(asset_keys.RECEIPT, key))
    metadata = {**change_metadata(change), "asset of the group": MetadataValue.asset(key)}
    if not ended_well:
        raise Failure(
            description=f"{change.group}: {change.state.value}. {sentence}",
            metadata={**metadata, **failure_metadata(change)},
            allow_retries=False,
        )
    return MaterializeResult(metadata=metadata)


def change_assets(spec: FleetSpec) -> list[AssetsDefinition]:
    """Both assets; none where no group has workers."""
    return [plan_asset(spec), rollout_asset(spec)] if asset_keys.managed(spec) else []


def change_jobs(spec: FleetSpec) -> "list[UnresolvedAssetJobDefinition]":
    """One job for all groups: a run's partition is its group. None without workers."""
    if not asset_keys.managed(spec):
        return []
    cluster = spec.cluster.name
    job = define_asset_job(
        asset_keys.CHANGE_JOB,
        selection=AssetSelection.assets(
            asset_keys.plan_key(cluster), asset_keys.rollout_key(cluster)
        ),
        executor_def=in_process_executor,
        description="Plan the group that is the run's partition, and carry the plan out.",
    )
    return [job]
