"""What code an entrypoint is: its digest, and a copy of it for one revision.

Problem: a worker that restarts must run the code of its revision, not what the file became
meanwhile, and two revisions run side by side during a roll. Choice: the entrypoint's
top-level module or package is found on `worker.python_path` without importing it, digested,
and copied per revision. What is installed (not on python_path) is digested by the module's
own file and stays where it is: then only the environment or the image can keep revisions
apart. On Kubernetes installed code is the image's, of which what is installed here says
nothing: there the digest is of the image's name and of what is copied. Cost: modules beside
the entrypoint's package are neither digested nor copied.
"""

import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.config.spec import GroupSpec, KubernetesRuntimeSpec
from fleet.errors import CodeElsewhere, ConfigError
from fleet.system.job_signature import examine_source

MAX_BYTES = 20 * 1024 * 1024
"""Largest package that is copied; data belongs elsewhere."""
MAX_FILES = 20_000
"""And the most files: a link may lead to a whole disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Files of an entrypoint; `copied` False = installed code, whose digest alone counts."""

    files: tuple[tuple[str, Path], ...]
    copied: bool


def code_digest(group: GroupSpec) -> str:
    """SHA-256 (hex) of the entrypoint's code; on Kubernetes of the image's name and the copy's.

    Raises ConfigError where the module cannot be found or is larger than MAX_BYTES, and on
    Kubernetes CodeElsewhere where a folder that may hold it is not here.
    """
    if isinstance(group.runtime, KubernetesRuntimeSpec):
        return _in_image(group.runtime, _carried(group))
    return _digest(_find(group).files)


def examine_entrypoint(group: GroupSpec) -> None:
    """Look at the entrypoint's source, where it is here: on Kubernetes only what is copied is.

    Raises ConfigError where the module cannot be found, or has no such function.
    """
    in_image = isinstance(group.runtime, KubernetesRuntimeSpec)
    found = _on_path(group) if in_image else _find(group)
    if found is None:
        return
    assert group.worker is not None
    module = group.worker.entrypoint.partition(":")[0].replace(".", "/")
    names = {f"{module}.py", f"{module}/__init__.py"}
    for name, file in found.files:
        if (name in names or not found.copied) and file.suffix == ".py":
            examine_source(file, entrypoint=group.worker.entrypoint, group=group.group)


def lies_beside(group: GroupSpec, here: Path) -> Path | None:
    """The entrypoint's module in a folder, where `worker.python_path` does not take it along.

    Not this package's own, which is in every image.
    """
    worker = group.worker
    if worker is None or _on_path(group) is not None:
        return None
    top, *below = worker.entrypoint.partition(":")[0].split(".")
    if top == __name__.partition(".")[0]:
        return None
    leaf = here.joinpath(top, *below)
    for file in (leaf.with_suffix(".py"), leaf / "__init__.py"):
        if file.is_file():
            return file
    return None


def packed_code(group: GroupSpec) -> tuple[str, bytes | None]:
    """The digest, as code_digest's, and the copy as a .tar.gz: the same bytes for the same files.

    For runtimes that carry code to another machine. None: the code comes with the image.
    Raises as code_digest does.
    """
    assert isinstance(group.runtime, KubernetesRuntimeSpec), "only there is it carried"
    found = _carried(group)
    if found is None:
        return _in_image(group.runtime, None), None
    # Read once: digest and copy are of the same bytes.
    files = tuple((name, file.read_bytes()) for name, file in found.files)
    import tarfile  # noqa: PLC0415 - most commands pack nothing

    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return _image_digest(group.runtime, _digest_of(files)), packed.getvalue()


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


def _in_image(runtime: KubernetesRuntimeSpec, found: "_Found | None") -> str:
    return _image_digest(runtime, "" if found is None else _digest(found.files))


def _image_digest(runtime: KubernetesRuntimeSpec, copied: str) -> str:
    return hashlib.sha256(f"{runtime.image}\0{copied}".encode()).hexdigest()


def _digest(files: tuple[tuple[str, Path], ...]) -> str:
    return _digest_of((name, file.read_bytes()) for name, file in files)


def _digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, content in files:
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _find(group: GroupSpec) -> _Found:
    return _on_path(group) or _installed(group)


def _on_path(group: GroupSpec) -> _Found | None:
    """What `worker.python_path` holds of the entrypoint, which is copied; None: it is elsewhere."""
    worker = group.worker
    if worker is None:
        raise ConfigError(f"group {group.group!r} declares no worker, so it has no code to run")
    module = worker.entrypoint.partition(":")[0]
    for folder in worker.python_path:
        found = _in_folder(Path(folder), module, group.group)
        if found is not None:
            return found
    return None


def _carried(group: GroupSpec) -> _Found | None:
    """What is copied to pods; None: the image holds the code.

    Raises CodeElsewhere where that cannot be told: a manager in the cluster reads the fleet.yaml
    of the laptop on which the code lies, and would take it for another revision without code.
    """
    found = _on_path(group)
    worker = group.worker
    assert worker is not None
    away = [folder for folder in worker.python_path if not Path(folder).is_dir()]
    if found is None and away:
        raise CodeElsewhere(
            f"group {group.group!r}: worker.python_path names {', '.join(away)}, which is not "
            f"here, so what {worker.entrypoint} is cannot be told: plan and apply new code where "
            "that folder is, or build an image that holds it and leave python_path out"
        )
    return found


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
    found, size = [], 0
    for name, file in _walk(package):
        if not file.is_file():
            raise ConfigError(
                f"group {group!r}: {file} is no file, or a link that leads to none; delete it"
            )
        found.append((f"{top}/{name}", file))
        size += file.stat().st_size
        if size > MAX_BYTES or len(found) > MAX_FILES:
            raise ConfigError(
                f"group {group!r}: {package} holds {len(found):,} files and {size / 1e6:.1f} MB or "
                f"more, and {MAX_FILES:,} files and {MAX_BYTES / 1e6:.0f} MB are copied per "
                "revision; move data out of the package"
            )
    return _Found(files=tuple(sorted(found)), copied=True)


def _walk(package: Path) -> Iterator[tuple[str, Path]]:
    """What Python would import, and what lies beside it: links are followed, to a place once."""
    seen = {package.resolve()}
    for folder, folders, names in os.walk(package, followlinks=True):
        kept = []
        for name in sorted(folders):
            place = (Path(folder) / name).resolve()
            linked = (Path(folder) / name).is_symlink()
            if name == "__pycache__" or name.startswith(".") or (linked and place in seen):
                continue
            seen.add(place)
            kept.append(name)
        folders[:] = kept
        for name in names:
            file = Path(folder) / name
            if not name.endswith((".pyc", ".pyo")) and not name.startswith("."):
                yield file.relative_to(package).as_posix(), file


def _installed(group: GroupSpec) -> _Found:
    """The module's own file, found along its packages' folders without importing them."""
    worker = group.worker
    assert worker is not None
    module = worker.entrypoint.partition(":")[0]
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
        raise ConfigError(
            f"group {group.group!r}: the module {module} of worker.entrypoint is neither in "
            f"worker.python_path {list(worker.python_path)} nor installed; add its folder to "
            "python_path or install it"
        )
    return _Found(files=((Path(spec.origin).name, Path(spec.origin)),), copied=False)
