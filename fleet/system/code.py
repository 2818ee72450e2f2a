"""What code an entrypoint is: its digest, and a copy of it for one revision.

Problem: a worker that restarts must run the code of its revision, not what the file became
meanwhile, and two revisions run side by side during a roll. Choice: the entrypoint's
top-level module or package is found on `worker.python_path` without importing it, and so is
every module or package there that its source imports, and what those import; all are digested
and copied per revision. What is installed (not on python_path) is digested by the module's
own file and stays where it is: then only the environment or the image can keep revisions
apart. On Kubernetes installed code is the image's, of which what is installed here says
nothing: there the digest is of the image's name and of what is copied. Cost: a module whose
name is computed while the job runs is not found; the worker's log names it.
"""

import ast
import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.config.spec import GroupSpec, KubernetesRuntimeSpec
from fleet.errors import CodeElsewhere, ConfigError

# Whether an entrypoint can be called with a batch and its context: its source is parsed, not run,
# so a name that is imported, assigned or decorated is left to the worker. The second parameter is
# recognized by its annotation, else by its name; foreachBatch's number is refused, since no number
# grows over all workers of a group.


SHAPE: Final = "write process(df, context), or annotate: process(df, batch: BatchContext)"
NUMBERED: Final = (
    "it takes foreachBatch's number, and no number grows over all workers of a group: a job that "
    "skips numbers below the last would lose records; write process(df, context), and skip by the "
    "ends of context.ranges, which grow with their partitions"
)
_CONTEXTS: Final = frozenset({"context", "ctx", "batch_context"})
_NUMBERS: Final = frozenset({"batch_id", "epoch_id", "batchId", "epochId"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def examine_source(file: Path, *, entrypoint: str, group: str) -> None:
    """ConfigError where the function is missing, takes other arguments, or nothing can be read."""
    name = entrypoint.rpartition(":")[2]
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        raise ConfigError(
            f"group {group!r}: worker.entrypoint {entrypoint}: {where} is not valid Python: "
            f"{getattr(error, 'msg', error)}"
        ) from error
    statements = list(_top_level(tree.body))
    named = [each for each in statements if name in _bound_names(each)]
    functions = [each.name for each in statements if isinstance(each, _Function)]
    if not named:
        if (
            "*" in {n for each in statements for n in _bound_names(each)}
            or "__getattr__" in functions
        ):
            return
        raise ConfigError(
            f"group {group!r}: worker.entrypoint {entrypoint}: {file} has no function {name}; it "
            f"has {', '.join(functions[:10]) or 'none'}"
        )
    last = named[-1]
    if isinstance(last, _Function) and not last.decorator_list:
        _examine_arguments(last, entrypoint, group)


def is_number(name: str, annotation: str) -> bool | None:
    """Whether a second parameter is foreachBatch's number, not the context; None: neither."""
    words = set(re.findall(r"\w+", annotation))
    if "BatchContext" in words or "int" in words:
        return "BatchContext" not in words
    return name in _NUMBERS if name in _CONTEXTS | _NUMBERS else None


def _examine_arguments(function: _Function, entrypoint: str, group: str) -> None:
    subject = f"group {group!r}: worker.entrypoint {entrypoint}"
    if isinstance(function, ast.AsyncFunctionDef):
        raise ConfigError(
            f"{subject} is an async function, but the worker calls it without await; {SHAPE}"
        )
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(function)):
        raise ConfigError(f"{subject} is a generator, which the worker does not run; {SHAPE}")
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    wanted = [a.arg for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is None]
    number = None
    if len(positional) >= 2:
        second = positional[1]
        annotation = "" if second.annotation is None else ast.unparse(second.annotation)
        number = is_number(second.arg, annotation)
        if number is None and annotation:  # only an import could resolve the name
            number = False
    if number:
        raise ConfigError(f"{subject}: {NUMBERED}")
    if wanted or required > 2 or number is None:
        raise ConfigError(f"{subject} takes ({ast.unparse(given)}); {SHAPE}")


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, but not in functions and classes inside of it."""
    for each in ast.iter_child_nodes(function):
        if not isinstance(each, _Function | ast.ClassDef | ast.Lambda):
            yield each
            yield from _own(each)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that make names of the module, also within if, try and with."""
    for each in body:
        yield each
        for inside in ("body", "orelse", "finalbody"):
            if not isinstance(each, _Function | ast.ClassDef):
                yield from _top_level(getattr(each, inside, []))
        for handler in getattr(each, "handlers", []):
            yield from _top_level(handler.body)


def _bound_names(statement: ast.stmt) -> set[str]:
    """Names that a statement gives; `*` where it gives whatever another module has."""
    if isinstance(statement, _Function | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return set()


MAX_BYTES = 20 * 1024 * 1024
"""Most code that is copied; data belongs elsewhere."""
MAX_FILES = 20_000
"""And the most files: a link may lead to a whole disk."""
_IMPORTERS: Final = frozenset({"import_module", "__import__"})
_PARSED: Final[dict[bytes, frozenset[str]]] = {}
"""What sources import, by their digests: a manager looks at the same ones again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Files of an entrypoint and of what it imports, with their names in a copy."""

    copied: tuple[tuple[str, Path], ...]
    installed: tuple[tuple[str, Path], ...] = ()
    """Of these the digest alone counts."""


def code_digest(group: GroupSpec) -> str:
    """SHA-256 (hex) of the entrypoint's code; on Kubernetes of the image's name and the copy's.

    Raises ConfigError where the module cannot be found or is larger than MAX_BYTES, and on
    Kubernetes CodeElsewhere where a folder that may hold it is not here.
    """
    if isinstance(group.runtime, KubernetesRuntimeSpec):
        return _in_image(group.runtime, _carried(group))
    found = _find(group)
    return _digest((*found.installed, *found.copied))


def examine_entrypoint(group: GroupSpec) -> None:
    """Look at the entrypoint's source, where it is here: on Kubernetes only what is copied is.

    Raises ConfigError where the module cannot be found, or has no such function.
    """
    in_image = isinstance(group.runtime, KubernetesRuntimeSpec)
    if group.worker is not None and group.worker.command:
        program = group.worker.command[0]
        if not in_image and shutil.which(program) is None:
            raise ConfigError(
                f"group {group.group!r}: worker.command: no program {program} is on PATH; install "
                "it, or write its path"
            )
        return
    found = _on_path(group) if in_image else _find(group)
    if found is None:
        return
    assert group.worker is not None
    module = group.worker.entrypoint.partition(":")[0].replace(".", "/")
    names = {f"{module}.py", f"{module}/__init__.py"}
    own = found.installed or [each for each in found.copied if each[0] in names]
    for _, file in own:
        if file.suffix == ".py":
            examine_source(file, entrypoint=group.worker.entrypoint, group=group.group)


def lies_beside(group: GroupSpec, here: Path) -> Path | None:
    """The entrypoint's module in a folder, where `worker.python_path` does not take it along.

    Not this package's own, which is in every image.
    """
    worker = group.worker
    if worker is None or worker.command or _on_path(group) is not None:
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
    files = tuple((name, _content(file)) for name, file in found.copied)
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
    return carried_digest(group.runtime, files), packed.getvalue()


def snapshot_code(group: GroupSpec, target: Path) -> str:
    """Copy the entrypoint and what it imports into `target`; the digest, as code_digest's.

    Put `target` first on the worker's module path. Installed code is not copied; `target` is
    created all the same. Raises ConfigError as code_digest does.
    """
    found = _find(group)
    target.mkdir(parents=True, exist_ok=True)
    for name, file in found.copied:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    # Of the copy: the file may have changed between finding and copying.
    return _digest((*found.installed, *((name, target / name) for name, _ in found.copied)))


def _in_image(runtime: KubernetesRuntimeSpec, found: "_Found | None") -> str:
    return _image_digest(runtime, "" if found is None else _digest(found.copied))


def carried_digest(runtime: KubernetesRuntimeSpec, files: Sequence[tuple[str, bytes]]) -> str:
    """The digest of an image's name and of the files that a pod got beside it, as packed_code's."""
    return _image_digest(runtime, _digest_of(files) if files else "")


def _image_digest(runtime: KubernetesRuntimeSpec, copied: str) -> str:
    return hashlib.sha256(f"{runtime.image}\0{copied}".encode()).hexdigest()


def _digest(files: tuple[tuple[str, Path], ...]) -> str:
    return _digest_of((name, _content(file)) for name, file in files)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}, which belongs to the code of an entrypoint: {error.strerror}; "
            "change its permissions, or delete it"
        ) from error


def _digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, content in files:
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _find(group: GroupSpec) -> _Found:
    if group.worker is not None and group.worker.command:
        return _Found(copied=(), installed=tuple(_of_command(group.worker.command)))
    return _on_path(group) or _installed(group)


def _of_command(command: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Files that a command names, by their places in it: a new one of them is another revision.

    A program is found as the shell finds it; one that is missing here may be there at its start.
    """
    program = shutil.which(command[0])
    for place, file in enumerate([Path(program or command[0]), *map(Path, command[1:])]):
        if file.is_file():
            yield str(place), file


def _on_path(group: GroupSpec) -> _Found | None:
    """What `worker.python_path` holds of the entrypoint, which is copied; None: it is elsewhere."""
    worker = group.worker
    if worker is None:
        raise ConfigError(f"group {group.group!r} declares no worker, so it has no code to run")
    module = worker.entrypoint.partition(":")[0]
    for folder in worker.python_path:
        own = _in_folder(Path(folder), module, group.group)
        if own is not None:
            files = _imported(group.group, [Path(each) for each in worker.python_path], own)
            return _Found(copied=tuple(sorted(files.items())))
    return None


def _carried(group: GroupSpec) -> _Found | None:
    """What is copied to pods; None: the image holds the code.

    Raises CodeElsewhere if the code cannot be read: a manager in the cluster reads the fleet.yaml
    of the laptop on which the code lies, and would take it for another revision without code.
    """
    found = _on_path(group)
    worker = group.worker
    assert worker is not None
    away = [folder for folder in worker.python_path if not Path(folder).is_dir()]
    if found is None and away:
        raise CodeElsewhere(
            f"group {group.group!r}: worker.python_path names {', '.join(away)}, which is not on "
            f"this machine, so that Fleet cannot read {worker.entrypoint}. Plan and apply new code "
            "on the machine with that folder, or build an image with it and remove python_path"
        )
    return found


def _in_folder(folder: Path, module: str, group: str) -> dict[str, Path] | None:
    """The entrypoint's own module or package; None: it is not in this folder."""
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
        return {single.name: single}
    leaf = package.joinpath(*below)
    if below and not leaf.with_suffix(".py").is_file() and not (leaf / "__init__.py").is_file():
        raise ConfigError(
            f"group {group!r}: worker.entrypoint names {module}, but {package} holds neither "
            f"{'/'.join(below)}.py nor {'/'.join(below)}/__init__.py; correct the entrypoint"
        )
    return dict(_files(package, group))


def _imported(group: str, folders: Sequence[Path], own: dict[str, Path]) -> dict[str, Path]:
    """These files, and those on python_path that their source imports, and so on.

    A name that Python finds elsewhere first, or only while it runs, is left out.
    """
    files, fresh = dict(own), list(own.items())
    there = {name.partition(".")[0] for folder in folders for name in _listed(folder)}
    # Of a package without __init__.py other folders may hold more, so that one is looked for.
    there -= {re.sub(r"(/__init__)?\.py$", "", name) for name in own}
    there = {each for each in there if each.isidentifier()}
    while fresh and there:
        some, others = "|".join(sorted(there)), "|".join(_IMPORTERS)
        # Parsing is slow: only a source that may import one of them is parsed.
        named = re.compile(
            rf"\b(?:from|import)\b(?:\\\r?\n|[^\n])*(?:{some})|\b(?:{others})\b".encode()
        )
        tops: set[str] = set()
        for name, file in fresh:
            if file.suffix == ".py":
                content, top = _content(file), name.partition("/")[0]
                if top in there or named.search(content):
                    tops |= _names(content, top) & there
        there -= tops
        fresh = []
        for top in sorted(tops):
            for place in _places(top, folders):
                found = _files(place, group) if place.is_dir() else [(place.name, place)]
                fresh += [(name, file) for name, file in found if name not in files]
                files.update({name: file for name, file in found if name not in files})
        size = sum(file.stat().st_size for file in files.values())
        if size > MAX_BYTES or len(files) > MAX_FILES:
            raise _too_large(
                group, f"{', '.join(sorted(tops))} and the entrypoint", len(files), size
            )
    return files


def _names(content: bytes, top: str) -> set[str]:
    """Top-level names of all imports of a source, `top` being its own; none if it is no Python."""
    key = hashlib.sha256(content).digest()
    if key not in _PARSED:
        if len(_PARSED) >= MAX_FILES:
            _PARSED.clear()
        _PARSED[key] = frozenset(_parsed(content))
    return {name or top for name in _PARSED[key]}


def _parsed(content: bytes) -> Iterator[str]:
    """The names; "" for a relative import."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield "" if each.level else str(each.module).partition(".")[0]
        elif (
            isinstance(each, ast.Call)
            and getattr(each.func, "attr", getattr(each.func, "id", None)) in _IMPORTERS
            and each.args
            and isinstance(each.args[0], ast.Constant)
        ):
            yield str(each.args[0].value).partition(".")[0]


def _listed(folder: Path) -> list[str]:
    """Names in a folder; none where Python would find none either."""
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return []


def _places(top: str, folders: Sequence[Path]) -> list[Path]:
    """The files or folders of python_path that Python takes for this name."""
    portions = []
    for folder in folders:
        package = folder / top
        if (package / "__init__.py").is_file():
            return [package]
        for suffix in (*importlib.machinery.EXTENSION_SUFFIXES, ".py"):
            if (folder / f"{top}{suffix}").is_file():
                return [folder / f"{top}{suffix}"]
        if package.is_dir():
            portions.append(package)
    elsewhere = importlib.machinery.PathFinder.find_spec(top) if portions else None
    return portions if elsewhere is None or elsewhere.origin is None else []


def _files(package: Path, group: str) -> list[tuple[str, Path]]:
    """A package's files, with their names beside it."""
    found, size = [], 0
    for name, file in _walk(package):
        if not file.is_file():
            raise ConfigError(f"group {group!r}: {file} is not a file, or a broken link; delete it")
        found.append((f"{package.name}/{name}", file))
        size += file.stat().st_size
        if size > MAX_BYTES or len(found) > MAX_FILES:
            raise _too_large(group, str(package), len(found), size)
    return sorted(found)


def _too_large(group: str, what: str, files: int, size: int) -> ConfigError:
    return ConfigError(
        f"group {group!r}: {what} holds {files:,} files and {size / 1e6:.1f} MB or more, and "
        f"{MAX_FILES:,} files and {MAX_BYTES / 1e6:.0f} MB are copied per revision; move data out "
        "of the package"
    )


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
    own, folders = Path(spec.origin), [Path(folder) for folder in worker.python_path]
    others = _imported(group.group, folders, {"": own})
    del others[""]
    return _Found(copied=tuple(sorted(others.items())), installed=((own.name, own),))
