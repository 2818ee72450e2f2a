"""What a pod tells its worker: its revision, its address, its code.

Problem: `kubectl set image` and `kubectl rollout restart` create other workers of the same settings
without a manager that names them. The kubelet probes the pod's address. Choice: a worker's revision
is `<revision>~<pod-template-hash>`, both from the downward API, so that an edited template is
another revision [22]. The copy of the code beside the settings is unpacked into the state
directory, under its digest, so that a restarted container finds it complete. Cost: slots and
reports on Kubernetes hold that raw form, and their readers translate it.

A worker has its pod's name, also after a restart of the container. That is safe: every write of an
owner names the token of its take, which the new process does not have. It begins as a standby, and
any warm standby takes its predecessor's slot once the lease has expired [12, 13, 16].
"""

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from fleet.config.settings import WorkerSettings
from fleet.config.spec import KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.system.code import carried_digest

REVISION: Final = "FLEET_REVISION"
TEMPLATE: Final = "FLEET_TEMPLATE_HASH"
SPARK: Final = "FLEET_SPARK"
"""Address of the shared Connect server, if it is not the Service of the fleet's Secrets."""
SPARK_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - PySpark's name of it
MARK: Final = "~"
"""Separates the two parts of a raw revision."""
CODE_DIGEST: Final = "FLEET_CODE_DIGEST"
CODE: Final = "code.tgz"
"""The copy of the entrypoint's module or package, beside the settings."""


def raw_revision(revision: str, environ: Mapping[str, str]) -> str:
    """Returns `<revision>~<pod-template-hash>`; the plain revision if no template is named.

    The template's own annotation (FLEET_REVISION) overrides the settings.
    """
    template = environ.get(TEMPLATE)
    plain = environ.get(REVISION) or revision
    return f"{plain}{MARK}{template}" if template else plain


def template_of(raw: str) -> str | None:
    """Returns the pod template's hash in a raw revision; None for a plain one."""
    return raw.partition(MARK)[2] or None


def with_pod_settings(settings: WorkerSettings, environ: Mapping[str, str]) -> WorkerSettings:
    """Returns the settings with the pod's values: its raw revision, its HTTP port."""
    group = settings.group
    if group.worker is None or not isinstance(group.runtime, KubernetesRuntimeSpec):
        return settings
    worker = group.worker.model_copy(update={"http": f"0.0.0.0:{group.runtime.http_port}"})
    return settings.model_copy(
        update={
            "group": group.model_copy(update={"worker": worker}),
            "revision": raw_revision(settings.revision, environ),
        }
    )


def spark_url(runtime: KubernetesRuntimeSpec, environ: Mapping[str, str]) -> str:
    """Returns the address of the Connect server of the fleets with these Secrets."""
    return environ.get(SPARK) or f"sc://{runtime.spark_server()}.{runtime.namespace}.svc:15002"


def unpack(
    archive: Path, home: Path, *, runtime: KubernetesRuntimeSpec, environ: Mapping[str, str]
) -> Path | None:
    """Returns the complete folder with the code of a revision; None without an archive.

    Raises ConfigError if the archive cannot be read, holds more than files below it, or is not the
    code that the pod template names (FLEET_CODE_DIGEST).
    """
    try:
        packed = archive.read_bytes() if archive.is_file() else None
        files = [] if packed is None else _files(packed)
        _check_digest(carried_digest(runtime, files), environ.get(CODE_DIGEST), archive)
        if packed is None:
            return None
        folder = home / "code" / hashlib.sha256(packed).hexdigest()[:16]
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
        try:
            _write(files, fresh)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ConfigError(
            f"the code in {archive} cannot be unpacked into {home} ({error}); publish the revision "
            "again, or build it into the image"
        ) from error
    return folder


def _check_digest(found: str, wanted: str | None, archive: Path) -> None:
    """Raises ConfigError for another digest; a template of an earlier release names none."""
    if wanted and found != wanted:
        raise ConfigError(
            f"the code in {archive} has digest {found[:12]}, but the pod template names "
            f"{wanted[:12]}: the ConfigMap of this revision was changed after it was published; "
            "delete the ConfigMap, and run `fleet apply` where the code is"
        )


def _files(packed: bytes) -> list[tuple[str, bytes]]:
    """Returns names and contents of an archive; Python before 3.11.4 has no filter for links."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        for each in tar:
            content = tar.extractfile(each) if each.isreg() else None
            if content is not None:
                found.append((each.name, content.read()))
            elif not each.isdir():
                raise tarfile.TarError(f"{each.name} is not a file below its folder")
    return found


def _write(files: Iterable[tuple[str, bytes]], into: Path) -> None:
    """Writes files below `into` and nothing else."""
    root = into.resolve()
    for name, content in files:
        target = (root / name.lstrip("/")).resolve()
        if not target.is_relative_to(root):
            raise tarfile.TarError(f"{name} is not a file below its folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def put_first(folder: Path, environ: "os._Environ[str] | dict[str, str]") -> None:
    """Makes child processes (Spark's Python workers) find the code as well."""
    paths = [str(folder), environ.get("PYTHONPATH")]
    environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
