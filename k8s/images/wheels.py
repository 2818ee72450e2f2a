"""The wheels of an image: the closure of what its role imports, at the lock's versions.

The lock holds everything that this checkout needs, tests and linters too. What an image needs of
it follows from the metadata of the installed packages: their requirements, and theirs. Wheels are
fetched (or built, where only sources exist) by pip as it is configured here, never in an image.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fleet.errors import FleetError
from fleet.system.home import write_whole
from fleet.system.retrying import retry

ROLES: Final = {
    "worker": frozenset({"kubernetes", "worker"}),  # its slots are Leases
    # Where its runs are Jobs, it needs to be able to start them; it records the history.
    "manager": frozenset({"manager"}),
}
"""Image → the extras of pyproject.toml that it needs."""
OWN: Final = "fleet-for-kafka"


def repository() -> Path:
    """The checkout that images are built from."""
    return Path(__file__).parents[2]


def pins(role: str) -> dict[str, str]:
    """Package → exact version, for one role. FleetError where the environment misses one."""
    locked = _locked()
    names = sorted(closure(ROLES[role]))
    unknown = [name for name in names if name not in locked]
    if unknown:
        raise FleetError(f"requirements.lock lacks {', '.join(unknown)}: freeze it anew")
    return {name: locked[name] for name in names}


def gather(folder: Path, role: str) -> str:
    """Put the wheels of a role into `folder`; the text of its list of versions."""
    text = "".join(f"{name}=={version}\n" for name, version in pins(role).items())
    digest = hashlib.sha256(text.encode()).hexdigest()
    stamp = folder / f".{role}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        listed = folder / f".{role}.txt"
        write_whole(listed, text)
        _pip("wheel", "--no-deps", "-r", str(listed), "--wheel-dir", str(folder))
        if not (folder / "pip.whl").exists():
            _fetch_pip(folder)
        write_whole(stamp, digest)
    return text


def own(folder: Path) -> str:
    """Build the checkout's own wheel into `folder`; the digest of its contents."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run("building Fleet's wheel", "hatchling", "build", "--target", "wheel", "-d", str(folder))
    return hashlib.sha256(next(folder.glob("*.whl")).read_bytes()).hexdigest()


def closure(extras: frozenset[str]) -> set[str]:
    """Distributions that Fleet with these extras needs: its requirements, and theirs."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(OWN, extras)]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        needs = [each for each in map(Requirement, _requires(name)) if _applies(each, extras)]
        todo += [(str(canonicalize_name(each.name)), frozenset(each.extras)) for each in needs]
    return {name for name, _ in seen if name != OWN}


def _requires(name: str) -> Iterable[str]:
    """Ours as pyproject.toml says now: installed metadata may be older."""
    if name != OWN:
        try:
            return metadata.requires(name) or []
        except metadata.PackageNotFoundError as error:
            raise FleetError(f"{name} is not installed here: run `make .venv`") from error
    text = (repository() / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    optional = project["optional-dependencies"].items()
    marked = [f'{each} ; extra == "{extra}"' for extra, wanted in optional for each in wanted]
    return [*project["dependencies"], *marked]


def _applies(need: Requirement, extras: frozenset[str]) -> bool:
    if need.marker is None:
        return True
    return any(need.marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def _locked() -> dict[str, str]:
    text = (repository() / "requirements.lock").read_text(encoding="utf-8")
    pairs = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in pairs}


def _fetch_pip(folder: Path) -> None:
    """The installer itself, run from its wheel: it does not stay in the image."""
    version = metadata.version("pip")
    _pip("download", "--no-deps", f"pip=={version}", "--dest", str(folder))
    next(folder.glob("pip-*.whl")).rename(folder / "pip.whl")


def _pip(command: str, *words: str) -> None:
    _run(f"pip {command}", "pip", command, "--quiet", "--disable-pip-version-check", *words)


def _run(what: str, module: str, *words: str) -> None:
    def attempt() -> None:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=repository(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"{what} failed: {(done.stdout + done.stderr).strip()[-1000:]}")

    retry(what, attempt)
