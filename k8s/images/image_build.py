"""Build the images with buildah, and bring them to the cluster.

Every buildah runs in a network namespace without interfaces (no step can reach out) and in a
mount namespace of its own (its storage driver leaves a bind mount behind otherwise), with the
overlay driver in a store of our own. Layers: base and libraries change with packages and the
lock, the code's layer is the last and small, so that a change of the code takes seconds; the
cluster is handed only the layers that it lacks.
"""

import fcntl
import hashlib
import io
import json
import logging
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fleet.errors import FleetError
from fleet.system.home import cache_home, write_whole
from fleet.system.retrying import retry
from k8s.cluster import programs
from k8s.cluster.lifecycle import TrialCluster

# The base of the images: a small Debian, made by mmdebstrap from this machine's Debian packages.
#
# All images have the base `python`; what they are made with is in `build`. Versions are those of
# the release that this machine's package sources name, so that a security update arrives by
# making the base anew; which they were stands in the image (/opt/fleet/packages.txt).
# Documentation, translations, apt, dpkg, Perl, logins and every package index stay out.


# usr-is-merged: else the package that merges /usr comes along, and with it all of Perl (47 MB).
PYTHON: Final = ("python3", "ca-certificates", "libstdc++6", "usr-is-merged")
BUILD: Final = (*PYTHON, "binutils", "openjdk-17-jdk-headless")
BASES: Final = {"python": PYTHON, "build": BUILD}
_DROPPED: Final = (
    "bsdutils debconf diffutils dpkg init-system-helpers libpam-modules libpam-modules-bin "
    "libpam-runtime login ncurses-bin perl-base sysvinit-utils util-linux util-linux-extra"
)
"""Packages that Debian calls essential, and that no image runs."""
USER: Final = 10001
_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_EXCLUDED: Final = ("doc", "man", "locale", "info", "lintian", "bash-completion", "zoneinfo/right")
# Both run with $1 = the new root. Java's alternatives want a place for their manuals.
_BEFORE: Final = 'mkdir -p "$1/usr/share/man/man1"'
# In the new root: first dpkg's list of what stays, and only then what goes.
_TRIM: Final = f"""
set -eu
cd /var/lib/dpkg
awk -v RS= -v ORS='\\n\\n' -v dropped=' {_DROPPED} ' '{{
  split($0, line, "\\n"); name = line[1]; sub("Package: ", "", name)
  if (index(dropped, " " name " ") == 0) print
}}' status > status-new
mv status-new status
dpkg-query -W > /opt/fleet/packages.txt
for name in {_DROPPED}; do
  cat "info/$name.list" "info/$name:"*.list 2>/dev/null | while read -r file; do
    [ -d "$file" ] || rm -f "$file"
  done
done
rm -rf info alternatives triggers /usr/lib/*/perl-base /usr/share/perl5 /usr/share/debconf
rm -rf /usr/lib/python3*/test /usr/lib/python3*/pydoc_data /usr/lib/python3*/lib2to3
find /usr/lib/*/gconv -name '*.so' ! -name 'UTF*' ! -name 'UNICODE*' -delete
"""
_FINISH: Final = f"""#!/bin/sh
set -eu
mkdir -p "$1/opt/fleet"
chroot "$1" dpkg-query -W > "$1/opt/fleet/packages.txt"
echo 'fleet:x:{USER}:{USER}::/tmp:/usr/sbin/nologin' >> "$1/etc/passwd"
echo 'fleet:x:{USER}:' >> "$1/etc/group"
mkdir -p "$1/var/lib/fleet" && chown {USER}:{USER} "$1/var/lib/fleet"
rm -rf "$1"/etc/apt/sources.list* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc
rm -rf "$1"/var/lib/apt/lists/* "$1"/usr/lib/apt
rm -rf "$1"/usr/share/man "$1"/usr/share/locale "$1"/usr/share/gcc
: > "$1/etc/machine-id"; : > "$1/etc/resolv.conf"; rm -f "$1/etc/hostname"
"""
_FINISHES: Final = {
    "build": _FINISH,
    "python": f"{_FINISH}chroot \"$1\" sh <<'END'{_TRIM}END\n",
}


def recipe(name: str) -> str:
    """What changes where a base would be made otherwise."""
    parts = repr((BASES[name], _EXCLUDED, _BEFORE, _FINISHES[name])).encode()
    return hashlib.sha256(parts).hexdigest()[:12]


def make(name: str, made: Path) -> None:
    """Write a base as a tar. FleetError with mmdebstrap's words where that fails."""
    retry("mmdebstrap", lambda: _make(name, made))


def _make(name: str, made: Path) -> None:
    with TemporaryDirectory(dir=made.parent) as scratch:
        sources = Path(scratch) / "sources.list"
        sources.write_text(_sources(), encoding="utf-8")
        finish = Path(scratch) / "finish"
        finish.write_text(_FINISHES[name], encoding="utf-8")
        finish.chmod(0o755)
        unfinished = Path(scratch) / "base.tar"
        done = subprocess.run(
            [
                programs.path("mmdebstrap"), "--verbose", "--mode=root", "--variant=essential",
                f"--include={','.join(BASES[name])}",
                *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in _EXCLUDED),
                "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
                f"--essential-hook={_BEFORE}",
                f"--customize-hook={finish}",
                _release(), str(unfinished), str(sources),
            ],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"mmdebstrap failed: {done.stderr.strip()[-1500:]}")
        unfinished.rename(made)


def _sources() -> str:
    """Debian's own among this machine's package sources; third parties' stay out."""
    form = f"$(ORIGIN)|deb [signed-by={_KEYS}] $(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = _output("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    lines = {line.partition("|")[2] for line in listed.splitlines() if line.startswith("Debian|")}
    if not lines:
        raise FleetError("apt has no Debian sources for the base; run `apt-get update`")
    return "\n".join(sorted(lines)) + "\n"


def _release() -> str:
    return _output("sh", "-c", '. /etc/os-release && printf %s "$VERSION_CODENAME"')


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise FleetError(f"`{' '.join(argv)}` failed ({error}); build bases on Debian") from error


# The wheels of an image: the closure of what its role imports, at the lock's versions.
#
# The lock holds everything that this checkout needs, tests and linters too. What an image needs of
# it follows from the metadata of the installed packages: their requirements, and theirs. Wheels
# are fetched (or built, where only sources exist) by pip as it is configured here, never in an
# image.


ROLES: Final = {
    "worker": frozenset({"kubernetes", "worker"}),  # its slots are Leases
    # Where its runs are Jobs, it needs to be able to start them; it records the history.
    "manager": frozenset({"manager"}),
}
"""Image → the extras of pyproject.toml that it needs."""
OMITTED: Final = frozenset({"duckdb"})
"""In no image: `fleet history query` runs where people are; it weighs 70 MB."""
OWN: Final = "fleet-for-kafka"


def repository() -> Path:
    """The checkout that images are built from."""
    return Path(__file__).parents[2]


def pins(role: str) -> dict[str, str]:
    """Package → exact version, for one role. FleetError where the environment misses one."""
    locked = _locked()
    names = sorted(closure(ROLES[role]) - OMITTED)
    unknown = [name for name in names if name not in locked]
    if unknown:
        raise FleetError(f"requirements.lock lacks {', '.join(unknown)}; freeze it again")
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


_log = logging.getLogger(__name__)

_CODE: Final = "code-"
_KEPT: Final = 5
_DAMAGED: Final = re.compile(r'image with ID "([0-9a-f]{64})"')
_HALF_RECORDED: Final = 10
"""Images that are removed one by one before the whole store is given up."""

Say = Callable[[str], None]


TARGETS: Final = ("worker", "spark", "manager")
"""Images of the Containerfile."""


_RUN_IN_BUILD: Final = ("Containerfile", "slimming.py", "sbom.py")


def name_of(target: str, tag: str) -> str:
    """The image's name."""
    return f"localhost/fleet-{target}:{tag}"


def code_tag() -> str:
    """A tag for this checkout as it is: another one whenever a file of an image would change."""
    root = repository()
    digest = hashlib.sha256()
    files = [root / "pyproject.toml", root / "requirements.lock"]
    files += (root / "fleet").rglob("*")
    files += (root / "k8s" / "images").rglob("*")
    for file in sorted(files):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return f"{_CODE}{digest.hexdigest()[:12]}"


def names() -> list[str]:
    """The images that are built, the newest first; a damaged store is repaired."""
    try:
        return _listed()
    except FleetError:
        with _alone():
            _repair()
            return _listed()


def _listed() -> list[str]:
    return _buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines()


def context(say: Say) -> Path:
    """The folder that an image is built from, up to date: lists, wheels, code, Containerfile."""
    folder = store() / "context"
    for role in ROLES:
        say(f"wheels for {role}")
        write_whole(folder / f"{role}.txt", gather(folder / "wheels", role))
    digests = own(folder / "code")
    for name in _RUN_IN_BUILD:
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        digests += f"\n{hashlib.sha256(text.encode()).hexdigest()}"
        write_whole(folder / name, text)
    # A step that only mounts its files runs again if this changes.
    write_whole(folder / "code.sha256", digests + "\n")
    return folder


def build(targets: list[str], tag: str, say: Say) -> list[str]:
    """Build images under a tag; their names."""
    with _alone():
        _repair()
        folder = context(say)
        for target in targets:
            given = {
                "BASE": _base("python", say),
                "BUILD": _base("build", say),
                "ROLE": target,
            }
            say(f"building {name_of(target, tag)}")
            _buildah(
                "build", "--quiet", "--layers", "--isolation=chroot", "--network=host",
                "--pull-never", *(f"--build-arg={key}={value}" for key, value in given.items()),
                f"--tag={name_of(target, tag)}", f"--file={folder / 'Containerfile'}", str(folder),
            )  # fmt: skip
        _forget(say)
    return [name_of(target, tag) for target in targets]


def load(names: list[str], cluster: TrialCluster) -> None:
    """Bring images to a cluster: only the blobs that it lacks."""
    for name in names:
        with tempfile.TemporaryDirectory(dir=store()) as scratch, tempfile.TemporaryFile() as out:
            # The one form that is written without compressing it first, which would take longer
            # than all the rest.
            _buildah("push", "--quiet", "--disable-compression", name, f"dir:{scratch}")
            _write_archive(out, Path(scratch), name, cluster.contents())
            out.seek(0)
            cluster.load(out)


def archive(name: str, target: Path) -> None:
    """Write an image as an OCI archive, for any other cluster's nodes."""
    with _alone():
        _buildah("push", "--quiet", name, f"oci-archive:{target.absolute()}:{name}")


def size(name: str) -> str:
    """How large an image is, uncompressed: `504 MB`."""
    return _buildah("images", "--format={{.Size}}", name).splitlines()[0]  # a line for each tag


def clean() -> None:
    """Delete the store: images, layers, wheels, bases."""
    with _alone():
        shutil.rmtree(store(), ignore_errors=True)


def store() -> Path:
    """Where everything about images is kept."""
    return cache_home() / "images"


def base_of(name: str) -> str:
    """The image of `python` or `build` that others are built on, as its recipe is now."""
    return f"localhost/fleet-base-{name}:{recipe(name)}"


def _repair() -> None:
    """Remove what a killed build left: containers, and images that were half recorded.

    Buildah lists nothing at all while one image lacks its manifest. A store in which removing
    those does not help is deleted; the bases are then rebuilt.
    """
    for _ in range(_HALF_RECORDED):
        try:
            _buildah("rm", "--all")
            _listed()
        except FleetError as error:
            damaged = _DAMAGED.search(str(error))
            _log.warning("the image store is damaged: %s", error)
            if damaged is None:
                break
            try:
                _buildah("rmi", "--force", damaged[1])
            except FleetError as why:
                _log.warning("image %s could not be removed: %s", damaged[1][:12], why)
                break
        else:
            return
    _log.warning("deleting the image store; its bases are rebuilt")
    shutil.rmtree(store() / "storage", ignore_errors=True)


def _base(name: str, say: Say) -> str:
    image = base_of(name)
    if image in _listed():
        return image
    say(f"base {image}")
    with tempfile.TemporaryDirectory(dir=store()) as scratch:
        make(name, Path(scratch) / "base.tar")
        recipe = Path(scratch) / "Containerfile"
        recipe.write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
        _buildah("build", "--quiet", f"--tag={image}", f"--file={recipe}", scratch)
    return image


def _forget(say: Say) -> None:
    """All but the newest images of `code_tag`; one that is in use stays, and fails no build."""
    ours = [name for name in _listed() if name.partition(":")[2].startswith(_CODE)]
    for name in ours[_KEPT * len(TARGETS) :]:
        try:
            _buildah("rmi", name)
        except FleetError as error:
            say(f"could not delete {name}: {error}")


def _write_archive(out: IO[bytes], pushed: Path, name: str, there: set[str]) -> None:
    """An OCI archive of what was pushed to a folder, without the layers that are `there`."""
    text = (pushed / "manifest.json").read_bytes()
    manifest = json.loads(text)
    digest = hashlib.sha256(text).hexdigest()
    described = {
        "mediaType": manifest["mediaType"],
        "digest": f"sha256:{digest}",
        "size": len(text),
        "annotations": {"io.containerd.image.name": name},
    }
    layers = [each["digest"] for each in manifest["layers"] if each["digest"] not in there]
    blobs = dict.fromkeys([manifest["config"]["digest"], *layers])
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [described]}).encode())
        _add(tar, f"blobs/sha256/{digest}", text)
        for each in blobs:
            key = each.partition(":")[2]
            tar.add(pushed / key, f"blobs/sha256/{key}")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _buildah(*words: str) -> str:
    argv = [programs.path("unshare"), "--mount", "--net", programs.path("buildah")]
    argv += ["--root", str(store() / "storage"), "--storage-driver=overlay"]

    def attempt() -> str:
        with tempfile.TemporaryDirectory(prefix="fleet-buildah-") as runroot:
            done = subprocess.run(
                [*argv, "--runroot", runroot, *words],
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"buildah {words[0]} failed: {done.stderr.strip()[-1500:]}")
        return done.stdout

    return retry(f"buildah {words[0]}", attempt)


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time."""
    store().mkdir(parents=True, exist_ok=True)
    with (store().parent / ".images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
