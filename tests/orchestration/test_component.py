"""A fleet.yaml as a Dagster component, in a project of nothing but `defs.yaml`."""

import sys
from pathlib import Path

import pytest
from dagster import AssetKey
from dagster.components import load_from_defs_folder

from fleet.dagster.definitions import build_definitions

FILES = {
    "fleet.yaml": "cluster: {name: shop, bootstrap_servers: 'kafka:9092'}\n"
    "fleets:\n- {group: orders, topics: [orders], worker: {entrypoint: 'job:process'}}\n",
    "pyproject.toml": '[tool.dg]\ndirectory_type = "project"\n'
    '[tool.dg.project]\nroot_module = "made_project"\n',
    "made_project/__init__.py": "",
    "made_project/defs/__init__.py": "",
    "made_project/defs/fleet/defs.yaml": "type: fleet.dagster.FleetComponent\n",
}


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_component_is_the_file_of_its_project(tmp_path: Path, monkeypatch) -> None:
    """Whatever the current folder is, with the same assets as `build_definitions`."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FLEET_CONFIG", "nowhere.yaml")
    loaded = load_from_defs_folder(path_within_project=tmp_path / "made_project")
    found: set[AssetKey] = set(loaded.resolve_asset_graph().get_all_asset_keys())
    assert found == set(build_definitions().resolve_asset_graph().get_all_asset_keys())
    assert any("orders" in key.path for key in found)
    sys.modules.pop("made_project", None)
