"""Environments that hold our wheel and no more than chosen distributions, made without network."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from importlib.metadata import distribution
from pathlib import Path

from fleet.system.retrying import retry
from tests.support.needs import repository

Fleet = Callable[..., subprocess.CompletedProcess]


def environment(home: Path, wheel: Path, distributions: Iterable[str]) -> Path:
    """The bin folder of a new environment with our wheel and these distributions.

    They are linked into a folder behind a path entry: what is not among them cannot be imported.
    """
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    must([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps",
           "--no-index", "--disable-pip-version-check", str(wheel)])  # fmt: skip
    others = home / "others"
    others.mkdir()
    for name in distributions:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link = others / top
            if top != "__pycache__" and not link.is_symlink():
                link.symlink_to(Path(str(found.locate_file(top))))
    (next(home.glob("lib/python*/site-packages")) / "others.pth").write_text(f"{others}\n")
    return home / "bin"


def clean_environ(**more: str) -> dict[str, str]:
    """Ours without what would lead back to the checkout."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("FLEET_")}
    return {**kept, **more}


def runner(bin_folder: Path, folder: Path, **environ: str) -> Fleet:
    """`fleet` of an environment, in a folder that is no checkout."""

    def fleet(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(bin_folder / "fleet"), *words],
            cwd=folder, env=clean_environ(**environ), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return fleet


def must(argv: list[str], cwd: Path | None = None) -> str:
    """Standard output of a build or an installation, which has to succeed."""

    def attempt() -> str:
        done = subprocess.run(
            argv, cwd=cwd or repository(), env=clean_environ(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    return retry(" ".join(argv[:4]), attempt, on=AssertionError)
