"""Where a group's data goes: topic → group → table → a team's own assets, in one graph."""

from dagster import AssetKey, Definitions, asset

from fleet.config.spec import FleetSpec
from fleet.dagster import FleetResource, build_definitions, build_group_checks, group_key, topic_key
from fleet.dagster.sink_assets import writers_of_topics

WORKER = {"entrypoint": "job:process", "protocol": "classic", "dead_letter_topic": "orders.dead"}
SPEC = FleetSpec.model_validate(
    {
        "fleets": [
            {
                "group": "enrich",
                "topics": ["orders"],
                "worker": WORKER,
                "writes": {"tables": ["lake/orders"], "topics": ["orders.rich"]},
            },
            {"group": "bill", "topics": ["orders.rich"], "writes": {"tables": ["lake/bills"]}},
            {"group": "audit", "topics": ["orders"], "writes": {"tables": ["lake/orders"]}},
        ]
    }
)


@asset(deps=[AssetKey(["lake", "orders"])])
def revenue() -> None:
    """A team's own."""


def parents(key: AssetKey) -> set[AssetKey]:
    built = Definitions.merge(
        build_definitions(FleetResource.of(SPEC)), Definitions(assets=[revenue])
    )
    return set(built.resolve_asset_graph().get(key).parent_keys)


def test_a_job_of_all_of_them_can_be_made():
    """Although a group leads to a topic that leads to a group; also with checks that block."""
    fleet = FleetResource.of(SPEC)
    built = build_definitions(fleet)
    Definitions.validate_loadable(built)
    blocking = build_group_checks(fleet, blocking={"lag"})
    Definitions.validate_loadable(Definitions(assets=built.assets, asset_checks=blocking))


def test_a_circle_of_topics_is_cut():
    """A group that retries what it wrote, and two that write to each other."""
    circle = [
        {"group": "retry", "topics": ["a", "b"], "writes": {"topics": ["b"]}},
        {"group": "there", "topics": ["c"], "writes": {"topics": ["d"]}},
        {"group": "back", "topics": ["d"], "writes": {"topics": ["c", "e"]}},
    ]
    spec = FleetSpec.model_validate({"fleets": circle})
    Definitions.validate_loadable(build_definitions(FleetResource.of(spec)))
    assert {topic: groups for topic, groups in writers_of_topics(spec).items() if groups} == {
        "d": ["there"],
        "e": ["back"],
    }


def test_a_table_is_behind_every_group_that_writes_it():
    """And before whatever a team computes from it."""
    assert parents(AssetKey("revenue")) == {AssetKey(["lake", "orders"])}
    groups = {group_key("main", "enrich"), group_key("main", "audit")}
    assert parents(AssetKey(["lake", "orders"])) == groups
    assert parents(group_key("main", "enrich")) == {topic_key("main", "orders")}


def test_a_written_topic_leads_to_the_groups_that_read_it():
    """The topic of dead letters is there without a line of its own."""
    assert parents(topic_key("main", "orders.rich")) == {group_key("main", "enrich")}
    assert parents(group_key("main", "bill")) == {topic_key("main", "orders.rich")}
    assert parents(topic_key("main", "orders.dead")) == {group_key("main", "enrich")}
    assert parents(topic_key("main", "orders")) == set()
