"""Images into the cluster's containerd: archives, and the one that holds a pod's namespaces.

Nothing is pulled in this cluster, so `imagePullPolicy` is to be IfNotPresent or Never, and a tag
other than `latest`.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from fleet.errors import FleetError
from fleet.system.processes import ProcessId
from fleet.system.retrying import retry
from k8s.cluster import boundary, programs
from k8s.cluster.cluster_layout import PAUSE


def load(outer: ProcessId, archive: IO[bytes]) -> list[str]:
    """Import an OCI or docker archive; the names that it brought."""

    def attempt() -> str:
        archive.seek(0)
        done = subprocess.run(
            boundary.enter(outer, *_ctr("images", "import", "-")),
            stdin=archive, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise FleetError(f"containerd refused the image: {done.stderr.strip()[-400:]}")
        return done.stdout

    told = retry("importing an image", attempt)
    return [line.split()[1] for line in told.splitlines() if line.startswith("unpacking")]


def names(outer: ProcessId) -> list[str]:
    """The images that pods can run."""
    listed = boundary.run(outer, *_ctr("images", "ls", "--quiet"))
    return [name for name in listed.splitlines() if "/" in name and "@" not in name]


def contents(outer: ProcessId) -> set[str]:
    """The digests of all blobs that are there: no archive needs to bring them again."""
    return set(boundary.run(outer, *_ctr("content", "ls", "--quiet")).split())


def load_pause(outer: ProcessId) -> None:
    """The image of sandboxes, of one static program; nothing where it is there."""
    if PAUSE not in names(outer):
        with tempfile.TemporaryFile() as archive:
            archive.write(_image(Path(programs.path("pause")), PAUSE))
            archive.seek(0)
            load(outer, archive)


def _ctr(*words: str) -> list[str]:
    return [programs.path("ctr"), "--namespace=k8s.io", *words]


def _image(program: Path, name: str) -> bytes:
    """An OCI archive with one program and nothing else."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_text = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described("application/vnd.oci.image.config.v1+json", config_text),
        "layers": [_described("application/vnd.oci.image.layer.v1.tar", layer)],
    }
    manifest_text = json.dumps(manifest).encode()
    described = _described("application/vnd.oci.image.manifest.v1+json", manifest_text)
    described["annotations"] = {"io.containerd.image.name": name}
    index = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    blobs = {f"blobs/sha256/{_digest(b)[7:]}": b for b in (layer, config_text, manifest_text)}
    version = b'{"imageLayoutVersion": "1.0.0"}'
    return _tar({"oci-layout": version, "index.json": index, **blobs}, mode=0o644)


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tar(members: dict[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
