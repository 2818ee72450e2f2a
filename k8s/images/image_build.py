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
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from fleet.errors import FleetError
from fleet.system.home import cache_home, write_whole
from fleet.system.retrying import retry
from k8s.cluster import programs
from k8s.cluster.lifecycle import TrialCluster
from k8s.images import base, wheels

_CODE: Final = "code-"
_KEPT: Final = 5

Say = Callable[[str], None]


TARGETS: Final = {"worker": "python", "spark": "java", "manager": "python"}
"""Image of the Containerfile → the base that it takes more than Python from."""


def name_of(target: str, tag: str) -> str:
    """The image's name."""
    return f"localhost/fleet-{target}:{tag}"


def code_tag() -> str:
    """A tag for this checkout as it is: another one whenever a file of an image would change."""
    root = wheels.repository()
    digest = hashlib.sha256()
    files = [root / "pyproject.toml", root / "requirements.lock"]
    files += (root / "fleet").rglob("*")
    files += (root / "k8s" / "images").rglob("*")
    for file in sorted(files):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return f"{_CODE}{digest.hexdigest()[:12]}"


def names() -> list[str]:
    """The images that are built, the newest first."""
    return _buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines()


def context(say: Say) -> Path:
    """The folder that an image is built from, up to date: lists, wheels, code, Containerfile."""
    folder = store() / "context"
    for role in wheels.ROLES:
        say(f"wheels for {role}")
        write_whole(folder / f"{role}.txt", wheels.gather(folder / "wheels", role))
    write_whole(folder / "code.sha256", wheels.own(folder / "code") + "\n")
    recipe = Path(__file__).with_name("Containerfile").read_text(encoding="utf-8")
    write_whole(folder / "Containerfile", recipe)
    return folder


def build(targets: list[str], tag: str, say: Say) -> list[str]:
    """Build images under a tag; their names."""
    with _alone():
        _buildah("rm", "--all")  # what a killed build left
        folder = context(say)
        for target in targets:
            given = {
                "BASE": _base("python", say),
                "JAVA": _base(TARGETS[target], say),
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
    return _buildah("images", "--format={{.Size}}", name).strip()


def clean() -> None:
    """Delete the store: images, layers, wheels, bases."""
    with _alone():
        shutil.rmtree(store(), ignore_errors=True)


def store() -> Path:
    """Where everything about images is kept."""
    return cache_home() / "images"


def base_of(name: str) -> str:
    """The image of `python` or `java` that others are built on, as its recipe is now."""
    return f"localhost/fleet-base-{name}:{base.recipe(name)}"


def _base(name: str, say: Say) -> str:
    image = base_of(name)
    if image in names():
        return image
    say(f"base {image}")
    with tempfile.TemporaryDirectory(dir=store()) as scratch:
        base.make(name, Path(scratch) / "base.tar")
        recipe = Path(scratch) / "Containerfile"
        recipe.write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
        _buildah("build", "--quiet", f"--tag={image}", f"--file={recipe}", scratch)
    return image


def _forget(say: Say) -> None:
    """All but the newest images of `code_tag`; one that is in use stays, and fails no build."""
    ours = [name for name in names() if name.partition(":")[2].startswith(_CODE)]
    for name in ours[_KEPT * len(TARGETS) :]:
        try:
            _buildah("rmi", name)
        except FleetError as error:
            say(f"kept {name}: {error}")


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
