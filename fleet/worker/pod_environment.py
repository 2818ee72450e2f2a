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
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fleet.config.settings import WorkerSettings
from fleet.config.spec import KubernetesRuntimeSpec
from fleet.errors import ConfigError

REVISION: Final = "FLEET_REVISION"
TEMPLATE: Final = "FLEET_TEMPLATE_HASH"
SPARK: Final = "FLEET_SPARK"
"""Address of the shared Connect server, if it is not the Service of the fleet's Secrets."""
SPARK_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - PySpark's name of it
_TILDE: Final = "~"
CODE: Final = "code.tgz"
"""The copy of the entrypoint's module or package, beside the settings."""


def raw_revision(revision: str, environ: Mapping[str, str]) -> str:
    """Returns `<revision>~<pod-template-hash>`; the plain revision if no template is named.

    The template's own annotation (FLEET_REVISION) overrides the settings.
    """
    template = environ.get(TEMPLATE)
    plain = environ.get(REVISION) or revision
    return f"{plain}{_TILDE}{template}" if template else plain


def template_of(raw: str) -> str | None:
    """Returns the pod template's hash in a raw revision; None for a plain one."""
    return raw.partition(_TILDE)[2] or None


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


def unpack(archive: Path, home: Path) -> Path | None:
    """Returns the complete folder with the code of a revision; None without an archive.

    Raises ConfigError if the archive cannot be read or holds more than files below it.
    """
    if not archive.is_file():
        return None
    try:
        packed = archive.read_bytes()
        folder = home / "code" / hashlib.sha256(packed).hexdigest()[:16]
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
        try:
            with tarfile.open(archive, "r:gz") as tar:
                _extract(tar, fresh)
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


def _extract(tar: tarfile.TarFile, into: Path) -> None:
    """Extracts files below `into` and nothing else; Python before 3.11.4 has no such filter."""
    root = into.resolve()
    for each in tar:
        target = (root / each.name.lstrip("/")).resolve()
        if not (each.isreg() or each.isdir()) or not target.is_relative_to(root):
            raise tarfile.TarError(f"{each.name} is not a file below its folder")
        if each.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        content = tar.extractfile(each)
        assert content is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


def put_first(folder: Path, environ: "os._Environ[str] | dict[str, str]") -> None:
    """Makes child processes (Spark's Python workers) find the code as well."""
    paths = [str(folder), environ.get("PYTHONPATH")]
    environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
