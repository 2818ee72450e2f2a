"""What one revision of a group's workers is: the settings a worker process starts from.

A revision is the hash of everything that makes a worker what it is. It has two parts (rule
23): `membership` (topics, assignor, protocol, session timeout, static or dynamic), whose
change needs a step of its own, and `code`, whose change rolls without a rebalance. The
settings file is frozen per revision, so that a restarted worker is the same worker. It
holds no secret: security settings name environment variables or files, and `${NAME}` in
`worker.env` stays as written until the worker starts (fleet.references).
"""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from fleet.spec import ClassicWorker, Cluster, GroupSpec

SCHEMA = 1


class WorkerSettings(BaseModel):
    """The content of a revision's settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA
    cluster: Cluster
    bootstrap_servers: str
    """Resolved address; not part of the revision."""
    group: GroupSpec
    revision: str
    code_digest: str = ""
    """Digest of the entrypoint's source, or the image."""


def membership_part(group: GroupSpec) -> dict[str, Any]:
    """What cannot change by a roll alone."""
    worker = group.worker
    if worker is None:
        raise ValueError(f"group {group.group} declares no worker")
    part: dict[str, Any] = {
        "topics": sorted(group.topics),
        "protocol": worker.protocol,
        "membership": worker.membership,
    }
    if isinstance(worker, ClassicWorker):
        part["assignor"] = worker.assignor
        part["session_timeout"] = worker.session_timeout
    return part


def code_part(group: GroupSpec, code_digest: str) -> dict[str, Any]:
    """What rolls with no rebalance."""
    worker = group.worker
    if worker is None:
        raise ValueError(f"group {group.group} declares no worker")
    # Where the code lies says nothing of what it is: its digest does.
    skip = {"protocol", "membership", "assignor", "session_timeout", "python_path"}
    return {
        "worker": worker.model_dump(mode="json", exclude=skip),
        "runtime": group.runtime.model_dump(mode="json", exclude={"lease"}),
        "drain_timeout": group.rollout.drain_timeout,
        "code": code_digest,
    }


def revision_of(group: GroupSpec, code_digest: str) -> str:
    """Ten hex digits that name what a worker of this group is."""
    parts = {"membership": membership_part(group), "code": code_part(group, code_digest)}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
