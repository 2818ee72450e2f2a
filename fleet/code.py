"""What code an entrypoint is: its digest, and a copy of it for one revision.

Problem: a worker that restarts must run the code of its revision, not what the file became
meanwhile, and two revisions run side by side during a roll. Choice: the entrypoint's
top-level module or package is found on `worker.python_path` without importing it, digested,
and copied per revision. What is installed (not on python_path) is digested by the module's
own file and stays where it is: then only the environment or the image can keep revisions
apart. Cost: modules beside the entrypoint's package are neither digested nor copied.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError
from fleet.spec import GroupSpec

MAX_BYTES = 20 * 1024 * 1024
"""Largest package that is copied; data belongs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Files of an entrypoint; `copied` False = installed code, whose digest alone counts."""

    files: tuple[tuple[str, Path], ...]
    copied: bool


def code_digest(group: GroupSpec) -> str:
    """SHA-256 (hex) of the entrypoint's code.

    Raises ConfigError where the module cannot be found or is larger than MAX_BYTES.
    """
    return _digest(_find(group).files)


def snapshot_code(group: GroupSpec, target: Path) -> str:
    """Copy the entrypoint's module or package into `target`; its digest, as code_digest's.

    Put `target` first on the worker's module path. Installed code is not copied; `target` is
    created all the same. Raises ConfigError as code_digest does.
    """
    found = _find(group)
    target.mkdir(parents=True, exist_ok=True)
    if found.copied:
        for name, file in found.files:
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    # Of the copy, where there is one: the file may have changed between finding and copying.
    files = tuple((name, target / name if found.copied else file) for name, file in found.files)
    return _digest(files)


def _digest(files: tuple[tuple[str, Path], ...]) -> str:
    total = hashlib.sha256()
    for name, file in files:
        content = file.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _find(group: GroupSpec) -> _Found:
    worker = group.worker
    if worker is None:
        raise ConfigError(f"group {group.group!r} declares no worker, so it has no code to run")
    module = worker.entrypoint.partition(":")[0]
    for folder in worker.python_path:
        found = _in_folder(Path(folder), module, group.group)
        if found is not None:
            return found
    return _installed(module, group)


def _in_folder(folder: Path, module: str, group: str) -> _Found | None:
    top, *below = module.split(".")
    package, single = folder / top, folder / f"{top}.py"
    if not package.is_dir() or not (below or (package / "__init__.py").is_file()):
        if not single.is_file():
            return None
        if below:
            raise ConfigError(
                f"group {group!r}: worker.entrypoint names {module}, but {single} is a single "
                f"file; write {top}:function, or make {top} a package"
            )
        return _Found(files=((single.name, single),), copied=True)
    leaf = package.joinpath(*below)
    if below and not leaf.with_suffix(".py").is_file() and not (leaf / "__init__.py").is_file():
        raise ConfigError(
            f"group {group!r}: worker.entrypoint names {module}, but {package} holds neither "
            f"{'/'.join(below)}.py nor {'/'.join(below)}/__init__.py; correct the entrypoint"
        )
    files = tuple((f"{top}/{name}", file) for name, file in sorted(_walk(package)))
    size = sum(file.stat().st_size for _, file in files)
    if size > MAX_BYTES:
        raise ConfigError(
            f"group {group!r}: {package} holds {size / 1e6:.1f} MB, more than the "
            f"{MAX_BYTES / 1e6:.0f} MB that are copied per revision; move data out of the package"
        )
    return _Found(files=files, copied=True)


def _walk(package: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, names in os.walk(package):
        folders[:] = [f for f in folders if f != "__pycache__" and not f.startswith(".")]
        for name in names:
            file = Path(folder) / name
            if not name.endswith((".pyc", ".pyo")) and not name.startswith("."):
                yield file.relative_to(package).as_posix(), file


def _installed(module: str, group: GroupSpec) -> _Found:
    """The module's own file, found along its packages' folders without importing them."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            spec = None
            break
        name = f"{name}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        worker = group.worker
        where = list(worker.python_path) if worker is not None else []
        raise ConfigError(
            f"group {group.group!r}: the module {module} of worker.entrypoint is neither in "
            f"worker.python_path {where} nor installed; add its folder to python_path or install it"
        )
    return _Found(files=((Path(spec.origin).name, Path(spec.origin)),), copied=False)
