"""Where a group's data goes: topic → group → table → a team's own assets, in one graph."""

import deltalake
import pyarrow as pa
from dagster import AssetKey, Definitions, asset

from fleet.config.spec import FleetSpec
from fleet.dagster import (
    FleetResource,
    build_definitions,
    build_group_checks,
    build_sink_assets,
    group_key,
    topic_key,
)
from fleet.dagster.sink_assets import table_events, writers_of_topics

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


def test_a_table_that_cannot_be_read_is_read_again_and_takes_nothing_from_the_others(tmp_path):
    """Nor is one read before every group that writes it has gone on, or after the deadline."""
    (tmp_path / "file").write_text("no table")
    places = {"lake/bad": str(tmp_path / "file"), "lake/good": str(tmp_path / "good")}
    deltalake.write_deltalake(places["lake/good"], pa.table({"n": [1]}))
    groups = [
        {"group": "a", "topics": ["t"], "writes": {"delta": places}},
        {"group": "b", "topics": ["t"], "writes": {"tables": ["lake/good"]}},
    ]
    spec = FleetSpec.model_validate({"fleets": groups})
    assert {"lake", "bad"} == {*build_sink_assets(FleetResource.of(spec))[0].key.path}

    def told(known, *, late=False, **watermarks):
        made, after, problems = table_events(spec, watermarks, known, is_late=lambda: late)
        return [event.tags["dagster/data_version"] for event in made], after, problems

    versions, known, (problem,) = told({}, a=3600, b=3600)
    assert versions == ["0"]
    assert problem.startswith(f"the Delta table {tmp_path / 'file'} cannot be read: ")
    assert "\x1b" not in problem
    assert told(known, a=3600, b=3600)[2] == [problem]
    deltalake.write_deltalake(places["lake/good"], pa.table({"n": [2]}), mode="append")
    assert told(known, a=7200, b=3600)[0] == []
    assert told(known, a=7200, b=7200, late=True)[0] == []
    versions, known, _ = told(known, a=7200, b=7200)
    assert versions == ["1"]
    assert told(known, a=10_800, b=10_800)[0] == [], "nothing was written"
