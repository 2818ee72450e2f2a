"""Builds observed assets for the topics and groups of fleet.yaml, and assets for the history.

Kafka makes topics and groups, and the sensor observes them; `fleet.dagster.change_assets` defines
plans and rollouts. People look for a declared group by name, so it has its own asset, with its
owner, its mode as a tag and three checks. Undeclared groups share one asset with a partition each.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from dagster import (
    AssetDep,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BetaWarning,
    CodeReferencesMetadataValue,
    DataVersion,
    DynamicPartitionsDefinition,
    LocalFileCodeReference,
    MetadataValue,
    ObserveResult,
    multi_observable_source_asset,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.config.topic_patterns import is_pattern, matches
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource, fleet_errors_as_failures
from fleet.dagster.sink_assets import depths, writers_of_topics
from fleet.report.dashboard import dashboard_url

if TYPE_CHECKING:
    from fleet.lag.snapshot import Figures
    from fleet.manager.cycle import Fleet


# Data versions, by which Dagster's automation conditions see that a topic or group went on.
#
# Problem: an event wakes an asset downstream only if its data version is new, and a group commits
# all the time. Choice: a topic's version is its number of partitions. A group's version is a time
# at a full interval (`dagster.watermark`): the group has committed every record that is older. It
# moves on only after a commit, so that an idle group wakes nothing. Cost: records of the last
# interval wait for its end.


MARGIN_SECONDS: Final = 30.0
"""Seconds by which the age of a record may be wrong: two samples of a log's end."""
_NO_VERSION: Final = "none"


def topics_of(topics: Mapping[str, int], entries: Iterable[str]) -> dict[str, int]:
    """Returns the existing topics that these names and patterns select, with their partitions."""
    return {
        topic: count
        for entry in entries
        for topic, count in (
            topics.items() if is_pattern(entry) else ((entry, topics.get(entry, 0)),)
        )
        if count and matches(entry, topic)
    }


def topic_version(topics: Mapping[str, int], topic: str) -> str:
    """Returns the data version of a topic or pattern: its number of partitions."""
    return str(sum(topics_of(topics, [topic]).values()))


def topic_metadata(topics: Mapping[str, int], topic: str) -> dict[str, Any]:
    """Returns the metadata of a topic's observation."""
    found = topics_of(topics, [topic])
    return {"partitions": sum(found.values()), "topics": len(found)}


def watermark_of(figures: "Figures | None", *, at: float, every: float) -> int:
    """Returns the time up to which a group committed all records; 0 if unknown."""
    if figures is None or figures.age is None or figures.moved is None or figures.undated:
        return 0
    passed = math.floor((at - figures.age - MARGIN_SECONDS) / every)
    return int(min(passed, math.ceil(figures.moved / every)) * every)


def group_version(watermark: int) -> str:
    """Returns the data version of a group."""
    if not watermark:
        return _NO_VERSION
    return datetime.fromtimestamp(watermark, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _observe_now(cycle: "Fleet", context: AssetExecutionContext) -> Iterator[ObserveResult]:
    """Observes the topics and groups of a run; only the sensor gives a group another version."""
    spec, chosen = cycle.spec, context.selected_asset_keys
    groups = {
        fleet.group: key
        for fleet in spec.fleets
        if (key := asset_keys.group_key(spec.cluster.name, fleet.group)) in chosen
    }
    seen = cycle.snapshot(list(groups))
    for topic in writers_of_topics(spec):
        if (key := asset_keys.topic_key(spec.cluster.name, topic)) in chosen:
            version = DataVersion(topic_version(seen.topics, topic))
            metadata = topic_metadata(seen.topics, topic)
            yield ObserveResult(asset_key=key, data_version=version, metadata=metadata)
    for group, key in groups.items():
        last = context.instance.fetch_observations(key, limit=1).records
        told = last[0].asset_observation.data_version if last else None
        state = seen.groups[group]
        metadata = {"group": group, "state": state.state.value, "members": len(state.members)}
        if state.lag is not None:
            metadata["lag (records)"] = state.lag
        version = DataVersion(told or group_version(0))
        yield ObserveResult(asset_key=key, data_version=version, metadata=metadata)


def _observed_assets(
    fleet: FleetResource, kind: str, specs: Iterable[AssetSpec], depths: Iterable[int]
) -> list[AssetsDefinition]:
    """Defines assets of topics or declared groups, which the sensor or a run observes."""
    name = asset_keys.definition_name(fleet.spec.cluster.name, f"observe_{kind}")
    ops = asset_keys.split_into_ops(
        (spec.key, depth, spec) for spec, depth in zip(specs, depths, strict=True)
    )

    def observe(context: AssetExecutionContext) -> Iterator[ObserveResult]:
        with fleet_errors_as_failures(), fleet.open() as cycle:
            yield from _observe_now(cycle, context)

    return [
        observe_op(name if number == 1 else f"{name}_{number}", of_op, observe)
        for number, of_op in enumerate(ops, start=1)
    ]


def observe_op(
    name: str, specs: Sequence[AssetSpec], observe: Callable[..., Iterator[ObserveResult]]
) -> AssetsDefinition:
    """Defines observed assets by one op.

    Dagster's stable decorator makes one op for each asset: 300 groups would be 300 ops.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        define = multi_observable_source_asset(name=name, specs=specs, can_subset=True)
    made: AssetsDefinition = define(observe)
    return made


def topic_specs(spec: FleetSpec) -> list[AssetSpec]:
    """Returns an asset for each topic or `^pattern` that a group reads or writes."""
    cluster = spec.cluster.name
    return [
        AssetSpec(
            key=asset_keys.topic_key(cluster, topic),
            deps=[asset_keys.group_key(cluster, group) for group in writers],
            group_name="topics",
            kinds={"kafka", "topic"},
            description=f"Kafka {'topics matching' if topic.startswith('^') else 'topic'} {topic}.",
            metadata={"topic": topic, "cluster": cluster},
        )
        for topic, writers in writers_of_topics(spec).items()
    ]


def group_spec(spec: FleetSpec, fleet: GroupSpec) -> AssetSpec:
    """Returns the asset of a declared group."""
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
        description=f"Consumer group {fleet.group}: state, members and lag, stored on change.",
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
    """Returns the partitions of undeclared groups, by name (`asset_keys.name_of`)."""
    return DynamicPartitionsDefinition(name=f"{spec.cluster.name}_discovered_groups")


def discovered_spec(spec: FleetSpec) -> AssetSpec:
    """Returns the asset of undeclared groups, which Fleet observes and never changes."""
    cluster = spec.cluster.name
    return AssetSpec(
        key=asset_keys.discovered_key(cluster),
        group_name="discovered",
        kinds={"kafka", "groups"},
        partitions_def=discovered_partitions(spec),
        description=f"Groups of {cluster} that fleet.yaml does not name; Fleet only observes them.",
        metadata={"cluster": cluster},
    )


def build_topic_assets(fleet: FleetResource) -> list[AssetsDefinition]:
    """Defines the assets of all topics in fleet.yaml.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[AssetsDefinition]: Observable assets; a data version is the number of partitions.
    """
    topics, _ = depths(fleet.spec)
    return _observed_assets(fleet, "topics", topic_specs(fleet.spec), topics.values())


def _links(spec: FleetSpec, group: str, path: Path, line: int | None) -> dict[str, Any]:
    """Returns where the group is declared, and where `fleet ui` and Grafana show it."""
    found: dict[str, Any] = {}
    if line is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BetaWarning)  # there is no other form of it
            found["dagster/code_references"] = CodeReferencesMetadataValue(
                code_references=[
                    LocalFileCodeReference(file_path=str(path), line_number=line, label=path.name)
                ]
            )
    if spec.ui.url is not None:
        page = f"{spec.ui.url.rstrip('/')}/groups/{quote(group, safe='')}"
        found["fleet ui"] = MetadataValue.url(page)
    if spec.dagster.grafana is not None:
        page = dashboard_url(spec.dagster.grafana, cluster=spec.cluster.name, group=group)
        found["Grafana"] = MetadataValue.url(page)
    return found


def build_group_assets(fleet: FleetResource) -> list[AssetSpec | AssetsDefinition]:
    """Defines the assets of all groups in fleet.yaml, and one for other groups.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[AssetSpec | AssetsDefinition]: Observable assets; a data version is the time up to
            which the group has committed all records.
    """
    spec = fleet.spec
    lines = fleet.group_lines
    named = (
        group_spec(spec, each).merge_attributes(
            metadata=_links(spec, each.group, fleet.path, lines.get(each.group))
        )
        for each in spec.fleets
    )
    _, groups = depths(spec)
    return [discovered_spec(spec), *_observed_assets(fleet, "groups", named, groups.values())]
