"""Settings that a worker process starts from, one file per revision.

Problem: a restarted worker must be the same worker, and manager and worker may run adjacent
releases. Choice: a revision is the hash of a worker's settings in two parts (rule 23). `membership`
holds topics, assignor, protocol, session timeout, static or dynamic; its change needs a step of its
own. A change of `code` rolls without a rebalance. The file is never changed, and it holds no secret
(fleet.config.references). A reader ignores a key that it does not know, and uses the default for
one that is missing. Cost: only in fleet.yaml, which a person writes, is an unknown key an error.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet.config.spec import ClassicWorker, ClusterSpec, GroupSpec
from fleet.errors import Refused, SchemaTooNew

SCHEMA = 1
LEFT_OUT = "the settings come from another release; ignored keys that this release does not know"
"""Log message of a worker that starts with unknown keys."""


class WorkerSettings(BaseModel):
    """Holds the content of a revision's settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA
    cluster: ClusterSpec
    bootstrap_servers: str
    """Resolved address; not part of the revision."""
    group: GroupSpec
    revision: str
    code_digest: str = ""
    """Digest of the entrypoint's source, or the image."""
    published_at: float | None = None
    """Wall time at which this revision became the wanted one; not part of it. None: the process's
    start. Workers of the newest revision take a free slot first [22]."""


def membership_part(group: GroupSpec) -> dict[str, Any]:
    """Returns the part that a roll alone cannot change."""
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
    """Returns the part that rolls without a rebalance."""
    worker = group.worker
    if worker is None:
        raise ValueError(f"group {group.group} declares no worker")
    # The digest identifies the code; its place does not.
    skip = {"protocol", "membership", "assignor", "session_timeout", "python_path"}
    # A pod's grace period holds one lease: another lease is another pod.
    place = {"context"} if group.runtime.kind == "kubernetes" else {"lease"}
    return {
        "worker": worker.model_dump(mode="json", exclude=skip),
        "runtime": group.runtime.model_dump(mode="json", exclude=place),
        "drain_timeout": group.rollout.drain_timeout,
        "code": code_digest,
    }


def revision_of(group: GroupSpec, code_digest: str) -> str:
    """Returns the revision of a group's workers, ten hex digits."""
    parts = {"membership": membership_part(group), "code": code_part(group, code_digest)}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def is_same_worker(kept: WorkerSettings, group: GroupSpec, code_digest: str) -> bool:
    """Tells whether published settings describe the same worker, even under another revision.

    Another release may know more keys, so that its hash differs. Workers of the published settings
    use the defaults of those keys.
    """
    if kept.group.worker is None or group.worker is None:
        return False
    return (
        membership_part(kept.group) == membership_part(group)
        and code_part(kept.group, kept.code_digest) == code_part(group, code_digest)
    )  # fmt: skip


def settings_from(text: str) -> WorkerSettings:
    """Reads published settings of any release and ignores unknown keys.

    Raises SchemaTooNew if this release cannot read their schema, and pydantic's ValidationError if
    a value is not allowed.
    """
    return read_settings(text)[0]


def settings_if_readable(text: str) -> WorkerSettings | None:
    """Reads published settings; None if this release cannot read them.

    Their workers go on, and a manager of an older release must be able to roll them.
    """
    try:
        return settings_from(text)
    except (SchemaTooNew, ValueError):
        return None


def settings_to_start(text: str, *, group: str, revision: str) -> WorkerSettings:
    """Reads the settings of a revision to start; raises Refused if they are unreadable."""
    try:
        return settings_from(text)
    except (SchemaTooNew, ValueError) as error:
        raise Refused(
            f"this release cannot start workers of revision {revision} of group {group}, since it "
            f"cannot read their settings ({why_unreadable(error)}); use the release that "
            f"published them, or run `fleet apply {group}` to roll to fleet.yaml"
        ) from error


def why_unreadable(error: Exception) -> str:
    """Returns the reason in one line: the first key with an unknown value, if there is one."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def read_settings(text: str) -> tuple[WorkerSettings, tuple[str, ...]]:
    """Reads settings, and returns the ignored keys too, such as `group.worker.colour`."""
    try:
        value = json.loads(text)
    except ValueError:
        return WorkerSettings.model_validate_json(text), ()  # raises with the reason
    schema = value.get("schema_version", SCHEMA) if isinstance(value, dict) else SCHEMA
    if isinstance(schema, int) and schema > SCHEMA:
        raise SchemaTooNew(
            f"the settings have schema {schema}, but this release reads only up to {SCHEMA}; "
            "use the newer release that wrote them"
        )
    try:
        return WorkerSettings.model_validate_json(text), ()
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
        if not unknown:
            raise
    left_out = tuple(_drop(value, place) for place in unknown)
    settings, more = read_settings(json.dumps(value))
    return settings, (*left_out, *more)


def _drop(value: Any, place: Sequence[Any]) -> str:
    """Removes one key and returns its name; the place has union tags that the text lacks."""
    path: list[str] = []
    for step in place[:-1]:
        if isinstance(value, list) or (isinstance(value, dict) and step in value):
            value = value[step]
            path.append(str(step))
    del value[place[-1]]
    return ".".join([*path, str(place[-1])])
