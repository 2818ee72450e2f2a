"""What Dagster loads: the graph, the files that name it, and what loading must not touch."""

import ast
import importlib
import inspect
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DefaultScheduleStatus,
    Definitions,
    FilesystemIOManager,
    MultiPartitionsDefinition,
    PipesSubprocessClient,
    StaticPartitionsDefinition,
    colored_console_logger,
    in_process_executor,
    multiprocess_executor,
)
from dagster._core.instance import InstanceRef

import fleet.dagster as exports
from fleet.config.first_job import dagster_instance, dagster_yaml
from fleet.config.spec import ClassicWorker, ClusterSpec, DagsterSpec, FleetSpec, GroupSpec
from fleet.dagster import build_definitions
from fleet.dagster.asset_keys import CHANGE_JOB, definition_name, name_of, rollout_key
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch_sensor import partition_requests
from fleet.errors import ConfigError
from tests.orchestration.made import FLEET_YAML, spec

ROOT = Path(__file__).parents[2]
JOB = definition_name("main", CHANGE_JOB)
WORKER = ClassicWorker(entrypoint="fleet.demo.orders:process")
GOLDEN = Path(__file__).with_name("asset_graph.txt")


def drawn(definitions: Definitions) -> str:
    """The asset graph as text: key, box, owners, what it needs, its checks."""
    graph = definitions.resolve_asset_graph()
    lines = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        kinds = "+".join(sorted(node.kinds)) or "none"
        acted = "observed" if node.is_observable else "external"
        acted = "made by a run" if node.is_materializable else acted
        lines.append(f"{key.to_user_string()}: {acted}, {kinds}, in {node.group_name}")
        lines += [f"  owner {owner}" for owner in node.owners]
        lines += [f"  needs {parent.to_user_string()}" for parent in sorted(node.parent_keys)]
        lines += [f"  check {check.name}" for check in sorted(node.check_keys)]
    return "\n".join(lines) + "\n"


def test_graph_is_the_golden_one():
    """A topic before its groups, a plan before its rollout; ids that differ in one dot stay two."""
    assert drawn(build_definitions(FleetResource.of(spec()))) == GOLDEN.read_text()


def names(definitions: Definitions) -> set[str]:
    """What the definitions hold besides assets and checks, with what runs by itself."""
    repository = definitions.get_repository_def()
    timed = [*repository.schedule_defs, *repository.sensor_defs]
    return {
        *(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *(f"{each.name}: {each.default_status.value}" for each in timed),
    }


def loaded_anew(monkeypatch) -> Definitions:
    """What `assets/` declares with the environment of now."""
    for module in [each for each in sys.modules if each.split(".")[0] == "assets"]:
        monkeypatch.delitem(sys.modules, module)
    made: Definitions = importlib.import_module("assets.definitions").defs
    return made


def test_assets_declare_what_build_definitions_does(monkeypatch):
    """The project that a team edits, beside the one call and what a component calls."""
    monkeypatch.setenv("FLEET_CONFIG", str(FLEET_YAML))
    edited = loaded_anew(monkeypatch)
    built = build_definitions()
    own = (
        "processed_orders: made by a run, none, in orders\n  needs main/groups/orders-enrichment\n"
    )
    assert drawn(edited) == drawn(built) + own
    automation = "default_automation_condition_sensor: STOPPED"  # of the team's own asset
    assert names(edited) == names(built) | {automation}
    assert edited.executor is built.executor is None
    read = "".join(path.read_text() for path in (ROOT / "assets").glob("*.py"))
    assert len(read.splitlines()) <= 140, "a newcomer reads it in a few minutes"


def test_graph_is_the_same_on_kubernetes():
    """A change of `runtime:` in fleet.yaml is all, and loading asks no API server."""
    raw = spec().model_dump(mode="json")
    for fleet in raw["fleets"]:
        fleet["runtime"] = {"kind": "kubernetes", "namespace": "nowhere", "image": "fleet:1"}
    elsewhere = build_definitions(FleetResource.of(FleetSpec.model_validate(raw)))
    Definitions.validate_loadable(elsewhere)
    assert drawn(elsewhere) == GOLDEN.read_text()


@pytest.mark.parametrize(
    "theirs",
    [
        {"executor": multiprocess_executor},
        {"executor": in_process_executor.configured({"retries": {"disabled": {}}}, name="own")},
        {"resources": {"pipes": PipesSubprocessClient(), "io_manager": FilesystemIOManager()}},
        {"loggers": {"console": colored_console_logger}},
    ],
)
def test_a_teams_definitions_merge_with_ours(theirs):
    """Fleet takes no name that another library's examples use, and leaves the executor free."""
    merged = Definitions.merge(build_definitions(FleetResource.of(spec())), Definitions(**theirs))
    Definitions.validate_loadable(merged)
    jobs = {job.name: job for job in merged.get_repository_def().get_all_jobs()}
    for name in (JOB, "main_record_history"):
        assert jobs[name].executor_def is in_process_executor


def test_two_clusters_share_a_code_location():
    """With groups of the same names; each name of Dagster begins with the cluster's."""
    other = spec().model_copy(update={"cluster": ClusterSpec(name="eu-west.1")})
    both = build_definitions(FleetResource.of(spec()), FleetResource.of(other))
    Definitions.validate_loadable(both)
    repository = both.get_repository_def()
    names = [
        *(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *(schedule.name for schedule in repository.schedule_defs),
        *(sensor.name for sensor in repository.sensor_defs),
    ]
    theirs = [name for name in names if name.startswith("eu_west_1_")]
    assert sorted(names) == sorted(theirs + [f"main_{name[10:]}" for name in theirs])
    assert not repository.get_top_level_resources()


ODD = ["", "a...b", "a|b", "a,b", "[a]", "a\nb", "a\0b", "g" * 300, "ä", "a b", "a_b", "../a", "*"]


def test_an_odd_group_id_is_a_partition_and_an_asset_of_its_own():
    """As what it is discovered and declared by; Dagster takes each, and none is another's."""
    odd = [*ODD, *map(name_of, ODD)]
    assert len({name_of(group) for group in odd}) == len(set(odd))
    fleets = [
        GroupSpec(group=group, topics=("t",), worker=WORKER)
        for group in ODD
        if 0 < len(group) < 250
    ]
    declared = spec().model_copy(update={"fleets": tuple(fleets)})
    definitions = build_definitions(FleetResource.of(declared))
    Definitions.validate_loadable(definitions)
    (names,) = [
        sorted(asset.partitions_def.get_partition_keys())
        for asset in definitions.assets or ()
        if isinstance(asset, AssetsDefinition) and rollout_key("main") in asset.keys
    ]
    assert names == sorted(name_of(each.group) for each in fleets)
    MultiPartitionsDefinition(
        {"group": StaticPartitionsDefinition(names), "day": StaticPartitionsDefinition(["1"])}
    )
    with DagsterInstance.ephemeral() as instance:
        (request,) = partition_requests(instance, spec(), ODD, ODD)
        instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        assert partition_requests(instance, spec(), ODD, ODD) == []
        (deleted,) = partition_requests(instance, spec(), [], [])
        assert partition_requests(instance, spec(), [], None) == [], "a broker was silent"
    assert sorted(deleted.partition_keys) == sorted(request.partition_keys)
    assert set(map(name_of, ODD)) == set(request.partition_keys)
    assert max(map(len, request.partition_keys)) <= 100


def test_a_group_links_to_its_line_and_to_its_page(tmp_path):
    """The line of the file that declares it; pages only if the file names their addresses."""
    path = tmp_path / "fleet.yaml"
    text = FLEET_YAML.read_text()
    path.write_text(text)
    key = AssetKey(["main", "groups", "billing.v1"])

    def links() -> dict[str, object]:
        graph = build_definitions(FleetResource(config=str(path))).resolve_asset_graph()
        return dict(graph.get(key).metadata)

    (line,) = links()["dagster/code_references"].code_references
    assert text.splitlines()[line.line_number - 1].strip() == "- group: billing.v1"
    assert line.file_path == str(path)
    assert not {"fleet ui", "Grafana"} & links().keys()
    pages = "ui: {url: 'https://fleet.example.com/'}\ndagster: {grafana: 'https://g.example.com'}\n"
    path.write_text(text + pages)
    assert links()["fleet ui"].url == "https://fleet.example.com/groups/billing.v1"
    shown = "https://g.example.com/d/fleet-groups?var-cluster=main&var-group=billing.v1"
    assert links()["Grafana"].url == shown


@pytest.mark.parametrize("name", exports.__all__)
def test_what_a_team_imports_says_what_it_takes(name):
    """In the form of Dagster's own docstrings; a component says it by its attributes."""
    exported = getattr(exports, name)
    told = inspect.getdoc(exported) or ""
    assert any(head in told for head in ("Args:", "Attributes:", "Examples:"))
    if inspect.isfunction(exported):
        assert "Returns:" in told
        for parameter in inspect.signature(exported).parameters:
            assert f"{parameter} (" in told


def test_raw_ids_are_metadata():
    """Keys are slugs; what Kafka calls the group stands beside."""
    graph = build_definitions(FleetResource.of(spec())).resolve_asset_graph()
    raw = {graph.get(k).metadata.get("group") for k in graph.get_all_asset_keys()}
    assert {"orders-enrichment", "billing.v1", "billing-v1"} <= raw


@pytest.mark.parametrize("asked", [(), ("reconcile",), ("reconcile", "record_history")])
def test_schedules_run_by_themselves_only_where_the_file_says_so(asked):
    """Also where every group is in mode act: loading the page changes nothing."""
    fleets = [f.model_copy(update={"mode": "act"}) for f in spec().fleets]
    told = DagsterSpec(schedules=asked)
    made = spec().model_copy(update={"fleets": tuple(fleets), "dagster": told})
    schedules = build_definitions(FleetResource.of(made)).schedules or ()
    running = {s.name for s in schedules if s.default_status is DefaultScheduleStatus.RUNNING}
    assert running == {f"main_{name}" for name in asked}
    assert {s.name for s in schedules} == {"main_reconcile", "main_record_history"}


def test_one_job_of_two_ops_changes_all_groups():
    """Its partitions are the groups that have workers; others may not be asked for."""
    job = build_definitions(FleetResource.of(spec())).resolve_job_def(JOB)
    assert {node.name for node in job.nodes} == {"main__plan", "main__rollout"}
    assert job.partitions_def.get_partition_keys() == ["orders-enrichment", "billing.v1"]


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param("orders-enrichment", "orders-enrichment", id="as in Kafka"),
        pytest.param("billing.v1", "billing.v1", id="a dot"),
        pytest.param("a/b:c", "a_b_c_", id="not allowed in a key"),
        pytest.param("a...b", "a_b_", id="a range to Dagster"),
        pytest.param("*", "", id="nothing readable"),
        pytest.param("g" * 249, "g" * 40 + "_", id="long"),
    ],
)
def test_names_have_a_hash_only_where_the_id_cannot_stand(group, name):
    """Every one of them loads, as a key and as a partition."""
    made = name_of(group)
    assert made == name if group == name else made.startswith(name) and len(made) == len(name) + 8
    fleets = (GroupSpec(group=each, topics=("t",), worker=WORKER) for each in (group, "a-b"))
    Definitions.validate_loadable(
        build_definitions(FleetResource.of(FleetSpec(fleets=tuple(fleets))))
    )


def test_no_fleets_load():
    """An empty file shows the sensor and the history, and no job that acts."""
    definitions = build_definitions(FleetResource.of(FleetSpec()))
    Definitions.validate_loadable(definitions)
    assert [job.name for job in definitions.jobs or ()] == ["main_record_history"]
    assert [schedule.name for schedule in definitions.schedules or ()] == ["main_record_history"]


def test_workspace_names_this_module():
    """`dagster dev` finds the module that these tests load."""
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    assert workspace["load_from"] == [
        {
            "python_module": {
                "module_name": "assets.definitions",
                "working_directory": ".",
                "location_name": "fleet",
            }
        }
    ]
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert not {"dagster", "dg"} & set(tools), "either block would make workspace.yaml ignored"


def test_dagster_yaml_keeps_everything_in_one_folder(tmp_path, monkeypatch):
    """Storage, artifacts and logs are under .fleet/dagster, with or without DAGSTER_HOME.

    What `fleet new` and the manager's pod have is the same but for the folder.
    """
    monkeypatch.chdir(tmp_path)
    ours = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    assert ours == dagster_instance(".fleet/dagster")
    assert ours == yaml.safe_load(dagster_yaml(".fleet/dagster"))
    with DagsterInstance.from_ref(
        InstanceRef.from_dir(str(tmp_path / "home"), config_dir=str(ROOT))
    ) as instance:
        assert instance.run_monitoring_enabled
        assert not instance.run_retries_enabled
        assert not instance.telemetry_enabled
        assert not instance.get_concurrency_config().pool_config.default_pool_limit
        assert instance.get_runs() == []
        written = {path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("*.db")}
    assert written == {(".fleet", "dagster")}


def test_loading_touches_no_kafka_and_no_spark():
    """Code servers and run workers import clients only where they are used."""
    code = (
        "import sys, assets.definitions\n"
        "print([m for m in ('confluent_kafka', 'kafka', 'pyspark', 'pyarrow', 'kubernetes')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"FLEET_CONFIG": str(FLEET_YAML), "PATH": "/usr/bin"},
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(None, "fleet init", id="no file"),
        pytest.param("cluster: {nmae: x}\n", "nmae", id="a typo"),
    ],
)
def test_bad_file_is_one_error_that_says_what_to_do(tmp_path, monkeypatch, text, said):
    """The web page shows a ConfigError's sentence for the location, not an empty graph."""
    path = tmp_path / "fleet.yaml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("FLEET_CONFIG", str(path))
    with pytest.raises(ConfigError) as error:
        loaded_anew(monkeypatch)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_three_hundred_groups_load_quickly():
    """The figure behind one job and one sensor for all groups [37]."""
    fleets = tuple(
        GroupSpec(group=f"group.{n}", topics=(f"topic-{n % 20}",), worker=WORKER)
        for n in range(300)
    )
    began = time.process_time()  # of this process: others may use the machine
    definitions = build_definitions(FleetResource.of(FleetSpec(fleets=fleets)))
    Definitions.validate_loadable(definitions)
    assert len(definitions.resolve_asset_graph().get_all_asset_keys()) == 300 + 20 + 1 + 1 + 2 + 5
    assert time.process_time() - began < 20
    assert sum(len(job.nodes) for job in definitions.resolve_all_job_defs()) < 20, "no op per group"


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "fleet" / "dagster").rglob("*.py")),
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_what_is_dagsters_own_is_not_imported_to_load(file: Path) -> None:
    """A later Dagster may have it elsewhere, and nothing of the code location would load then."""
    made = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ImportFrom)]
    assert not [n.module for n in made if (n.module or "").startswith("dagster._")]
