"""The built wheel works outside the checkout: what a flat layout cannot show by itself."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.needs import repository


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the checkout without network."""
    out = tmp_path_factory.mktemp("dist")
    _run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out)],
        cwd=repository(),
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """The bin folder of a new environment: our wheel, and third parties by a path entry.

    Of the folder behind a path entry Python reads packages but no .pth files, so the editable
    installation of the checkout stays out of sight.
    """
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps",
          "--no-index", "--disable-pip-version-check", str(wheel)])  # fmt: skip
    site = next(home.glob("lib/python*/site-packages"))
    (site / "third-parties.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home / "bin"


def _run(argv: list[str], cwd: Path | None = None) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "FLEET_HOME"}}
    done = subprocess.run(
        argv, cwd=cwd, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_wheel_holds_packages_and_data(wheel: Path) -> None:
    """Every package with all its files; no tests."""
    names = set(zipfile.ZipFile(wheel).namelist())
    root = repository()
    tracked = {
        str(path.relative_to(root))
        for package in ("fleet", "assets", "k8s")
        for path in (root / package).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".pyo"}
    }
    assert tracked <= names, sorted(tracked - names)
    assert {"fleet/py.typed", "fleet/broker/SHA256SUMS"} <= names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.slow
def test_installed_command_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    """`fleet` starts from the wheel's own files and finds its parts."""
    origin = _run(
        [str(installed / "python"), "-c", "import fleet; print(fleet.__file__)"], tmp_path
    )
    assert Path(origin.strip()).is_relative_to(installed.parent)
    assert "broker" in _run([str(installed / "fleet"), "--help"], tmp_path)
    assert "fleet broker start" in _run([str(installed / "fleet"), "broker", "status"], tmp_path)
    assert not any(tmp_path.iterdir()), "reading commands write nothing"
