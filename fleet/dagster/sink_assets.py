"""External assets of the tables that groups write, so that a team's own assets can follow them.

A group's job decides where it writes; `writes:` in fleet.yaml names it. The tables are downstream
of their groups, and topics that a group writes are too (`fleet.dagster.group_assets`).

The version of a Delta or Iceberg table is its data version. The sensor reads it once all groups
that write the table have another data version. A sink commits before its worker commits to Kafka,
so that version holds every record up to the groups' watermark. Cost: the code server needs the
login of the object store or catalog, and about 80 MB.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dagster import AssetKey, AssetMaterialization, AssetSpec, MetadataValue

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource
from fleet.errors import FleetError


def writers_of_topics(spec: FleetSpec) -> dict[str, list[str]]:
    """Returns the groups that write each topic or `^pattern` that a group reads or writes.

    A group with a worker writes the topic of its dead letters too. Dagster takes no circle of
    assets: a group that writes what it reads, directly or by way of other groups, is left out.
    """
    readers: dict[str, list[str]] = {}
    written: dict[str, list[str]] = {}
    for each in spec.fleets:
        for topic in each.topics:
            readers.setdefault(topic, []).append(each.group)

    def leads_to(topic: str, group: str) -> bool:
        behind = readers.get(topic, ())
        further = (other for reader in behind for other in written.get(reader, ()))
        return group in behind or any(leads_to(other, group) for other in further)

    found: dict[str, list[str]] = {topic: [] for topic in readers}
    for each in spec.fleets:
        dead = None if each.worker is None else each.worker.dead_letter_topic
        for topic in dict.fromkeys([*each.writes.topics, *([dead] if dead else [])]):
            found.setdefault(topic, [])
            if not leads_to(topic, each.group):
                found[topic].append(each.group)
                written.setdefault(each.group, []).append(topic)
    return dict(sorted(found.items()))


def depths(spec: FleetSpec) -> tuple[dict[str, int], dict[str, int]]:
    """Returns how many groups each topic and each group is behind.

    What one op observes must not lead from one of its assets to another by way of another op, so
    an op holds one depth.
    """
    writers = writers_of_topics(spec)
    topics: dict[str, int] = {}
    reads = {each.group: each.topics for each in spec.fleets}

    def of_topic(topic: str) -> int:
        if topic not in topics:
            topics[topic] = max((of_group(group) + 1 for group in writers[topic]), default=0)
        return topics[topic]

    def of_group(group: str) -> int:
        return max(map(of_topic, reads[group]))

    return {topic: of_topic(topic) for topic in writers}, {
        group: of_group(group) for group in reads
    }


def build_sink_assets(fleet: FleetResource) -> list[AssetSpec]:
    """Returns an external asset for each table in `writes:` of fleet.yaml.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        list[AssetSpec]: A table's key is its entry: `lake/orders` is `AssetKey(["lake",
            "orders"])`.
    """
    return [
        _table_spec(fleet.spec.cluster.name, table, groups)
        for table, groups in writers_of_tables(fleet.spec).items()
    ]


def _table_spec(cluster: str, table: str, groups: Sequence[GroupSpec]) -> AssetSpec:
    found = place_of(table, groups)
    return AssetSpec(
        key=table_key(table),
        deps=[asset_keys.group_key(cluster, group.group) for group in groups],
        group_name=asset_keys.asset_group(groups[0]),
        owners=asset_keys.owners(groups[0]),
        kinds={"table"} if found is None else {"table", found[0]},
        description=f"Written by {', '.join(group.group for group in groups)}.",
        metadata={
            "cluster": cluster,
            "table": table,
            **({} if found is None else {_PLACES[found[0]]: found[1]}),
        },
    )


DELTA, ICEBERG = "deltalake", "iceberg"
"""Kinds of assets, as Dagster names them."""
_PLACES = {DELTA: "dagster/uri", ICEBERG: "dagster/table_name"}
"""Metadata in which Dagster shows where a table is."""


def table_key(table: str) -> AssetKey:
    """Returns the key of a table's external asset."""
    return AssetKey(table.split("/"))


def writers_of_tables(spec: FleetSpec) -> dict[str, list[GroupSpec]]:
    """Returns the groups that write each table."""
    writers: dict[str, list[GroupSpec]] = {}
    for group in spec.fleets:
        for table in group.writes.all_tables():
            writers.setdefault(table, []).append(group)
    return writers


def place_of(table: str, writers: Iterable[GroupSpec]) -> tuple[str, str] | None:
    """Returns the table's kind and place, if fleet.yaml says it."""
    for group in writers:
        for kind, places in ((DELTA, group.writes.delta), (ICEBERG, group.writes.iceberg)):
            if table in places:
                return kind, places[table]
    return None


def read_version(kind: str, place: str) -> int | None:
    """Returns the version of a table; None without one. Raises FleetError."""
    from fleet.sinks import read_delta_version, read_iceberg_snapshot  # noqa: PLC0415  80 MB

    if kind == DELTA:
        return read_delta_version(place)
    catalog, _, table = place.partition(":")
    return read_iceberg_snapshot(table, catalog=catalog)


TableMemory = Mapping[str, tuple[int, str]]
"""Table → the watermark for which its version was read, and that version."""


def table_events(
    spec: FleetSpec,
    watermarks: Mapping[str, int],
    known: TableMemory,
    *,
    is_late: Callable[[], bool],
) -> tuple[list[AssetMaterialization], TableMemory, list[str]]:
    """Returns a materialization for each table with another version, the memory and problems.

    watermarks: of the groups. is_late: whether no further table is to be read.
    """
    made: list[AssetMaterialization] = []
    after: dict[str, tuple[int, str]] = {}
    problems: list[str] = []
    for table, writers in writers_of_tables(spec).items():
        found = place_of(table, writers)
        passed = min(watermarks.get(each.group, 0) for each in writers)
        until, told = known.get(table, (0, ""))
        if found is None:
            continue
        after[table] = (until, told)
        if passed <= until or is_late():
            continue
        try:
            version = read_version(*found)
        except FleetError as error:
            problems.append(str(error))
            continue
        if version is not None and str(version) != told:
            made.append(_materialization(table, str(version), passed))
            told = str(version)
        after[table] = (passed, told)
    return made, after, problems


def _materialization(table: str, version: str, watermark: int) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=table_key(table),
        description=f"Version {version} has every record up to the watermark of its groups.",
        metadata={"version": version, "watermark": MetadataValue.timestamp(float(watermark))},
        tags=asset_keys.version_tags(version),
    )
