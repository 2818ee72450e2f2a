"""External assets of the tables that groups write, so that a team's own assets can follow them.

A group's job decides where it writes; `writes:` in fleet.yaml names it. The tables are downstream
of their groups, and topics that a group writes are too (`fleet.dagster.group_assets`).
"""

from dagster import AssetKey, AssetSpec

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource


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
    cluster = fleet.spec.cluster.name
    writers: dict[str, list[GroupSpec]] = {}
    for group in fleet.spec.fleets:
        for table in group.writes.tables:
            writers.setdefault(table, []).append(group)
    return [
        AssetSpec(
            key=AssetKey(table.split("/")),
            deps=[asset_keys.group_key(cluster, group.group) for group in groups],
            group_name=asset_keys.asset_group(groups[0]),
            owners=asset_keys.owners(groups[0]),
            kinds={"table"},
            description=f"Written by {', '.join(group.group for group in groups)}.",
            metadata={"cluster": cluster, "table": table},
        )
        for table, groups in writers.items()
    ]
