"""The factory: what fleet.yaml names in Kafka becomes external assets.

Topics and groups are made by Kafka and observed by the sensor; what is done for a group is
`fleet.dagster.change_assets`. A declared group has an asset of its own, with its owner, its mode
as a tag and three checks, because people look for it by name; groups that nobody declared share
one, with a partition each.
"""

from dagster import AssetDep, AssetSpec, DynamicPartitionsDefinition, MetadataValue

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys


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
    acting = {"changes": MetadataValue.asset(asset_keys.rollout_key(cluster))}
    if fleet.worker is None:
        acting.clear()
    return AssetSpec(
        key=asset_keys.group_key(cluster, fleet.group),
        deps=[AssetDep(asset_keys.topic_key(cluster, topic)) for topic in fleet.topics],
        group_name=asset_keys.asset_group(fleet),
        kinds={"kafka", "group"},
        owners=asset_keys.owners(fleet),
        tags={asset_keys.MODE_TAG: spec.mode_of(fleet)},
        description=f"Consumer group {fleet.group}: state, members and lag, observed on change.",
        metadata={
            **acting,
            "group": fleet.group,
            "cluster": cluster,
            "mode": spec.mode_of(fleet),
            "owner": fleet.owner or "none",
            "topics": ", ".join(fleet.topics),
            **{f"label {key}": value for key, value in fleet.labels.items()},
        },
    )


def discovered_partitions(spec: FleetSpec) -> DynamicPartitionsDefinition:
    """Names (`asset_keys.name_of`) of the groups that exist and are not declared."""
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


def group_assets(spec: FleetSpec) -> list[AssetSpec]:
    """Every topic and group that fleet.yaml names, and one asset for all other groups."""
    named = [group_spec(spec, fleet) for fleet in spec.fleets]
    return [*topic_specs(spec), discovered_spec(spec), *named]
