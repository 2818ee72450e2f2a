"""The factory: what fleet.yaml declares of one group becomes its assets.

Topics and groups are external assets: Kafka makes them, the sensor observes them. A group
with a worker also has a plan (what would be done now, with its price) and a rollout (the
change and its receipt). A run materialises both, in one process and under the group's own
lease: Dagster's pools would hold a place for a killed run [36]. The asset graph shows only
the last part of a key, which these three share, so their kinds say which is which.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetDep,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    Config,
    DynamicPartitionsDefinition,
    Failure,
    MaterializeResult,
    asset,
)
from pydantic import Field

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.change_metadata import change_metadata, change_sentence, plan_metadata
from fleet.dagster.judgements import receipt_judgement
from fleet.dagster.resources import FleetResource, told
from fleet.decide.slugs import slug
from fleet.slots import Change, ChangeState

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


class ChangeConfig(Config):
    """What a person may ask of one run; empty: what the policy wants."""

    wanted: int | None = Field(default=None, ge=0, description="slots; empty: the policy's")
    roll: bool = Field(default=False, description="hand every slot to a fresh worker")


class RolloutConfig(ChangeConfig):
    """The rollout's asks."""

    resume: bool = Field(default=False, description="only finish an unfinished change")


def topic_specs(spec: FleetSpec) -> list[AssetSpec]:
    """One external asset per topic or `^pattern` that any group names."""
    cluster = spec.cluster.name
    found = sorted({topic for fleet in spec.fleets for topic in fleet.topics})
    return [
        AssetSpec(
            key=asset_keys.topic_key(cluster, topic),
            group_name="topics",
            kinds={"kafka", "topic"},
            description=f"Kafka {'topics matching' if topic.startswith('^') else 'topic'} {topic}",
            metadata={"topic": topic, "cluster": cluster},
        )
        for topic in found
    ]


def group_spec(spec: FleetSpec, fleet: GroupSpec) -> AssetSpec:
    """The external asset of a declared group."""
    cluster = spec.cluster.name
    return AssetSpec(
        key=asset_keys.group_key(cluster, fleet.group),
        deps=[AssetDep(asset_keys.topic_key(cluster, topic)) for topic in fleet.topics],
        group_name=asset_keys.asset_group(fleet),
        kinds={"kafka", "group"},
        owners=asset_keys.owners(fleet),
        description=f"Consumer group {fleet.group}: state, members and lag, observed on change.",
        metadata={
            "group": fleet.group,
            "cluster": cluster,
            "mode": spec.mode_of(fleet),
            "owner": fleet.owner or "none",
            "topics": ", ".join(fleet.topics),
            **{f"label {key}": value for key, value in fleet.labels.items()},
        },
    )


def discovered_partitions(spec: FleetSpec) -> DynamicPartitionsDefinition:
    """Ids of the groups that exist and are not declared."""
    return DynamicPartitionsDefinition(name=f"{spec.cluster.name}_discovered_groups")


def discovered_spec(spec: FleetSpec) -> AssetSpec:
    """All other groups of the cluster: observed, never acted upon."""
    cluster = spec.cluster.name
    return AssetSpec(
        key=asset_keys.discovered_key(cluster),
        group_name="discovered",
        kinds={"kafka", "groups"},
        partitions_def=discovered_partitions(spec),
        description=f"Consumer groups of {cluster} that fleet.yaml does not name: only observed.",
        metadata={"cluster": cluster},
    )


def plan_asset(spec: FleetSpec, fleet: GroupSpec) -> AssetsDefinition:
    """What would be done for the group now, at which price."""
    cluster, group = spec.cluster.name, fleet.group

    @asset(
        key=asset_keys.plan_key(cluster, group),
        deps=[asset_keys.group_key(cluster, group)],
        group_name=asset_keys.asset_group(fleet),
        kinds={"plan"},
        owners=asset_keys.owners(fleet),
        description=f"What Fleet would change about {group} now, and its stated price.",
        metadata={"group": group, "mode": spec.mode_of(fleet)},
        tags={asset_keys.GROUP_TAG: slug(cluster, group)},
    )
    def plan(
        context: AssetExecutionContext, config: ChangeConfig, fleet: FleetResource
    ) -> MaterializeResult[None]:
        with told(), fleet.open() as cycle:
            made = cycle.plan(group, wanted=config.wanted, roll=config.roll)
        metadata = plan_metadata(made)
        context.log.info(metadata["sentence"])
        return MaterializeResult(metadata=metadata)

    return plan


def rollout_asset(spec: FleetSpec, fleet: GroupSpec) -> AssetsDefinition:
    """The group's change, carried out and checked against the coordinator's records."""
    cluster, group = spec.cluster.name, fleet.group
    key = asset_keys.rollout_key(cluster, group)

    @asset(
        key=key,
        deps=[asset_keys.plan_key(cluster, group)],
        group_name=asset_keys.asset_group(fleet),
        kinds={"rollout", "kafka", "pyspark"},
        owners=asset_keys.owners(fleet),
        description=f"The last change of {group}: what it was to cost, what Kafka recorded.",
        metadata={"group": group, "mode": spec.mode_of(fleet)},
        tags={asset_keys.GROUP_TAG: slug(cluster, group)},
        check_specs=[
            AssetCheckSpec(
                asset_keys.RECEIPT,
                asset=key,
                description="Every step cost what its plan said.",
            )
        ],
    )
    def rollout(
        context: AssetExecutionContext, config: RolloutConfig, fleet: FleetResource
    ) -> Iterator[MaterializeResult[None]]:
        with told(), fleet.open() as cycle:
            change = carry_out(cycle, group, config, context)
        if change is None:
            context.log.info("%s has no unfinished change to resume.", group)
            judged = receipt_judgement(None)
            yield MaterializeResult(check_results=[judged.result(asset_keys.RECEIPT)])
            return
        yield from recorded(context, change)

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
        group, wanted=config.wanted, roll=config.roll, actor=actor, progress=context.log.info
    )


def recorded(context: AssetExecutionContext, change: Change) -> Iterator[MaterializeResult[None]]:
    """The receipt as a materialisation and a check; then Failure where the change did not end well.

    What was done is recorded before the failure: a rolled back change has a receipt too.
    """
    sentence = change_sentence(change)
    context.log.info(sentence)
    metadata = change_metadata(change)
    ended_well = change.state is ChangeState.DONE
    if ended_well or change.receipts:
        judged: Sequence[AssetCheckResult] = [receipt_judgement(change).result(asset_keys.RECEIPT)]
        yield MaterializeResult(metadata=metadata, check_results=judged)
    if not ended_well:
        raise Failure(
            description=f"{change.group}: {change.state.value}. {sentence}",
            metadata=metadata,
            allow_retries=False,
        )


def group_assets(spec: FleetSpec) -> list[AssetsDefinition | AssetSpec]:
    """Everything declared, as Dagster assets."""
    made: list[AssetsDefinition | AssetSpec] = [*topic_specs(spec), discovered_spec(spec)]
    for fleet in spec.fleets:
        made.append(group_spec(spec, fleet))
        if fleet.worker is not None:
            made += [plan_asset(spec, fleet), rollout_asset(spec, fleet)]
    return made
