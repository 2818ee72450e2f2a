"""The built wheel works outside the checkout: what a flat layout cannot show by itself."""

import sys
import zipfile
from pathlib import Path

import pytest

from k8s.images.image_build import closure
from tests.support.environments import environment, must, runner
from tests.support.needs import repository


@pytest.mark.slow
def test_wheel_holds_packages_and_data(wheel: Path) -> None:
    """Every package with all its files, what is run as such; no tests, no benchmarks."""
    entries = zipfile.ZipFile(wheel).infolist()
    names = {entry.filename for entry in entries}
    root = repository()
    tracked = {
        str(path.relative_to(root))
        for path in (root / "fleet").rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".pyo"}
    }
    assert tracked <= names, sorted(tracked - names)
    run = {entry.filename for entry in entries if entry.external_attr >> 16 & 0o111}
    assert run == {"fleet/system/spark_python.sh"}
    assert {"fleet/py.typed", "fleet/broker/SHA256SUMS"} <= names
    template = {f"fleet/dagster/template/{p.name}" for p in (root / "assets").glob("*.py")}
    assert template <= names, "`fleet new --assets` writes them"
    others = {name.partition("/")[0] for name in names} - {"fleet"}
    assert all(name.endswith(".dist-info") for name in others), others


@pytest.mark.slow
def test_the_name_for_dagsters_users_asks_for_fleet(wheel: Path, tmp_path: Path) -> None:
    """It has no module of its own, and the version of the checkout."""
    thin = repository() / "packaging" / "dagster-kafka-fleet"
    built = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    must([*built, str(thin)])
    (made,) = tmp_path.glob("*.whl")
    assert made.name.split("-")[1] == wheel.name.split("-")[1]
    with zipfile.ZipFile(made) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith("/METADATA")]
        assert "Requires-Dist: fleet-for-kafka[dagster]" in files.read(metadata).decode()
        assert all(".dist-info/" in name for name in files.namelist())


@pytest.mark.slow
def test_installed_command_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """`fleet` starts from the wheel's own files and finds its parts."""
    installed = environment(tmp_path / "env", wheel, closure(frozenset({"worker"})))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    fleet = runner(installed, folder)
    origin = must([str(installed / "python"), "-c", "import fleet; print(fleet.__file__)"], folder)
    assert Path(origin.strip()).is_relative_to(installed.parent)
    assert "broker" in fleet("--help").stdout
    assert "fleet dev broker start" in fleet("dev", "broker", "status").stdout
    assert not any(folder.iterdir()), "reading commands write nothing"
