"""A fleet.yaml as a Dagster component, in projects that consist of `defs.yaml` files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import (
    AssetKey,
    AssetSpec,
    DagsterInstance,
    Definitions,
    in_process_executor,
    multiprocess_executor,
)
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from fleet.dagster import FleetComponent, FleetResource, build_definitions
from fleet.dagster.asset_keys import CHANGE_JOB, definition_name, group_key, rollout_key

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

TYPE = "fleet.dagster.FleetComponent"
GROUPS = """
fleets:
- {group: orders, topics: [orders], owner: shop, worker: {entrypoint: "job:process"}}
- {group: test-orders, topics: [orders]}
"""


@pytest.fixture
def sandbox(monkeypatch, tmp_path) -> Iterator[DefsFolderSandbox]:
    """A project without definitions; neither its folder nor the environment names a fleet.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_CONFIG", "nowhere.yaml")
    with create_defs_folder_sandbox() as made:
        yield made


def declared(
    sandbox: DefsFolderSandbox, cluster: str = "shop", component: Any = FleetComponent, **more: Any
) -> Path:
    """One instance, whose fleet.yaml is beside its defs.yaml; `more` goes into the latter."""
    path = sandbox.scaffold_component(component, defs_path=cluster)
    (path / "fleet.yaml").write_text(
        f"cluster: {{name: {cluster}, bootstrap_servers: 'kafka:9092'}}{GROUPS}"
    )
    if more:
        (path / "defs.yaml").write_text(yaml.safe_dump({"type": TYPE, **more}))
    return path


def problem(sandbox: DefsFolderSandbox) -> str:
    """Why the project does not load: Dagster's errors and their causes."""
    with sandbox.build_component_tree() as tree, pytest.raises(Exception, match="Error") as error:
        tree.build_defs()
    causes: list[BaseException] = [error.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return "\n".join(map(str, causes))


def keys(definitions: Definitions) -> set[AssetKey]:
    return set(definitions.resolve_asset_graph().get_all_asset_keys())


def spec_of(definitions: Definitions, key: AssetKey) -> AssetSpec:
    return definitions.resolve_asset_graph().get(key).to_asset_spec()


def test_scaffolded_files_load(sandbox):
    """The cluster is called as the folder; without groups there is something to see at once."""
    path = sandbox.scaffold_component(
        FleetComponent, defs_path="shop", scaffold_params={"bootstrap": "broker-1:9092"}
    )
    made = yaml.safe_load((path / "defs.yaml").read_text())
    assert made["attributes"] == {"config": "fleet.yaml"}
    fleet = FleetResource(config=str(path / "fleet.yaml"))
    assert fleet.spec.cluster.bootstrap_servers == "broker-1:9092"
    assert fleet.spec.cluster.name == "shop"
    with sandbox.build_all_defs() as loaded:
        assert AssetKey(["shop", "discovered_groups"]) in keys(loaded)


def test_scaffolding_leaves_an_existing_file(sandbox):
    """Which the option may name."""
    (sandbox.defs_folder_path / "own.yaml").write_text("cluster: {name: own}\n")
    sandbox.scaffold_component(
        FleetComponent, defs_path="shop", scaffold_params={"config": "../own.yaml"}
    )
    with sandbox.build_all_defs() as loaded:
        assert AssetKey(["own", "discovered_groups"]) in keys(loaded)


def test_component_is_the_file_beside_its_defs_yaml(sandbox):
    """Whatever the current folder is, with the same assets as `build_definitions`."""
    path = declared(sandbox)
    fleet = FleetResource(config=str(path / "fleet.yaml"))
    with sandbox.load_component_and_build_defs(path) as (component, loaded):
        assert isinstance(component, FleetComponent)
        assert keys(loaded) == keys(build_definitions(fleet))
        assert group_key("shop", "orders") in keys(loaded)


def test_two_instances_beside_a_host_with_its_own_executor(sandbox):
    """And with its own resource `fleet`, asset, job and schedule names."""
    declared(sandbox, "shop")
    declared(sandbox, "billing")
    own = Definitions(executor=multiprocess_executor, resources={"fleet": "theirs"})
    with sandbox.build_all_defs() as loaded:
        merged = Definitions.merge(loaded, own)
        Definitions.validate_loadable(merged)
        assert merged.executor is multiprocess_executor
        assert {key.path[0] for key in keys(merged)} == {"shop", "billing"}
        for cluster in ("shop", "billing"):
            job = merged.resolve_job_def(definition_name(cluster, CHANGE_JOB))
            assert job.executor_def is in_process_executor


def test_translation_changes_attributes(sandbox):
    """`data` is what the asset stands for, `spec` is Fleet's own."""
    declared(
        sandbox,
        attributes={
            "translation": {
                "group_name": "kafka_{{ data.cluster }}",
                "tags": {"kind": "{{ data.kind }}", "kafka": "{{ data.name }}"},
                "description": "{{ spec.description }} Ours.",
            }
        },
    )
    with sandbox.build_all_defs() as loaded:
        for kind in ("topics", "groups"):
            spec = spec_of(loaded, AssetKey(["shop", kind, "orders"]))
            assert spec.group_name == "kafka_shop"
            assert (spec.tags["kind"], spec.tags["kafka"]) == (kind, "orders")
            assert (spec.description or "").endswith(" Ours.")


def test_a_translation_of_keys_is_refused(sandbox):
    """Sensors report under Fleet's keys."""
    declared(sandbox, attributes={"translation": {"key_prefix": "raw"}})
    assert "Mapping function must not change keys" in problem(sandbox)


def test_groups_are_selected(sandbox):
    """A group that is left out is neither shown nor changed."""
    path = declared(sandbox, attributes={"groups": {"deny": ["test-.*"]}})
    with sandbox.build_all_defs() as loaded:
        assert group_key("shop", "test-orders") not in keys(loaded)
        assert group_key("shop", "orders") in keys(loaded)
    config = str(path / "fleet.yaml")
    assert [f.group for f in FleetResource(config=config, allow=["test.*"]).spec.fleets] == [
        "test-orders"
    ]


def test_checks_block_if_they_are_named(sandbox):
    """And only these; a name that is no check is an error with the allowed ones."""
    path = declared(sandbox, attributes={"blocking_checks": ["freshness"]})
    with sandbox.build_all_defs() as loaded:
        graph = loaded.resolve_asset_graph()
        blocking = [key.name for key in graph.asset_check_keys if graph.get(key).blocking]
        assert blocking == ["freshness"] * 2
    (path / "defs.yaml").write_text(f"type: {TYPE}\nattributes: {{blocking_checks: [late]}}\n")
    assert "name lag, freshness, storm, receipt" in problem(sandbox)


def test_post_processing_applies_to_external_assets_too(sandbox):
    """As to the assets of every component."""
    processed = {"assets": [{"target": "kind:topic", "attributes": {"owners": ["team:kafka"]}}]}
    declared(sandbox, post_processing=processed)
    with sandbox.build_all_defs() as loaded:
        assert list(spec_of(loaded, AssetKey(["shop", "topics", "orders"])).owners) == [
            "team:kafka"
        ]
        assert list(spec_of(loaded, group_key("shop", "orders")).owners) == ["team:shop"]


OWN = """
from dagster import MaterializeResult, component_instance
from fleet.dagster import FleetComponent


class Own(FleetComponent):
    def get_asset_spec(self, props):
        return super().get_asset_spec(props).merge_attributes(tags={"who": props.name})

    def execute(self, context, fleet, config):
        return MaterializeResult(metadata={"file": fleet.config, "resume": config.resume})


@component_instance
def load(context) -> Own:
    return Own()
"""


def test_a_subclass_overrides_spec_and_execution(sandbox):
    """The rollout asset calls the subclass, with this instance's file."""
    path = declared(sandbox)
    (path / "defs.yaml").unlink()
    (path / "component.py").write_text(OWN)
    with sandbox.build_all_defs() as loaded, DagsterInstance.ephemeral() as instance:
        assert spec_of(loaded, group_key("shop", "orders")).tags["who"] == "orders"
        ran = loaded.resolve_job_def(definition_name("shop", CHANGE_JOB)).execute_in_process(
            instance=instance, partition_key="orders", asset_selection=[rollout_key("shop")]
        )
        (made,) = ran.asset_materializations_for_node("shop__rollout")
        assert made.metadata["file"].value == str(path / "fleet.yaml")


def test_a_missing_file_is_one_sentence(sandbox):
    """With the path where it was looked for."""
    path = declared(sandbox)
    (path / "fleet.yaml").unlink()
    told = problem(sandbox)
    assert str(path / "fleet.yaml") in told
    assert "fleet init" in told
