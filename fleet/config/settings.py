"""What one revision of a group's workers is: the settings a worker process starts from.

A revision is the hash of everything that makes a worker what it is. It has two parts (rule
23): `membership` (topics, assignor, protocol, session timeout, static or dynamic), whose
change needs a step of its own, and `code`, whose change rolls without a rebalance. The
settings file is frozen per revision, so that a restarted worker is the same worker. It
holds no secret: security settings name environment variables or files, and `${NAME}` in
`worker.env` stays as written until the worker starts (fleet.config.references).

Manager and worker may be of two releases that follow each other, and both read these files:
a key that a reader does not know is left out, and one that the file does not have is its
default (`settings_from`). In fleet.yaml, which a person writes, an unknown key stays an error.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet.config.spec import ClassicWorker, ClusterSpec, GroupSpec
from fleet.errors import Refused, SchemaTooNew

SCHEMA = 1
LEFT_OUT = "settings of another release, left out what this one does not know"
"""What a worker says of unknown keys at its start."""


class WorkerSettings(BaseModel):
    """The content of a revision's settings file."""

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
    """Wall time since when this is the revision wanted; not part of it. None: the process's
    start stands in. The newest one has the first right to a free slot [22]."""


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
    # A pod's grace period holds one lease: another lease is another pod.
    place = {"context"} if group.runtime.kind == "kubernetes" else {"lease"}
    return {
        "worker": worker.model_dump(mode="json", exclude=skip),
        "runtime": group.runtime.model_dump(mode="json", exclude=place),
        "drain_timeout": group.rollout.drain_timeout,
        "code": code_digest,
    }


def revision_of(group: GroupSpec, code_digest: str) -> str:
    """Ten hex digits that name what a worker of this group is."""
    parts = {"membership": membership_part(group), "code": code_part(group, code_digest)}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def same_worker(kept: WorkerSettings, group: GroupSpec, code_digest: str) -> bool:
    """Whether published settings make the same worker, whatever the name that was made of them.

    Another release may know more keys and hash the same ones to another name: what it adds has a
    default, which is what workers of the kept settings live by.
    """
    if kept.group.worker is None or group.worker is None:
        return False
    return (
        membership_part(kept.group) == membership_part(group)
        and code_part(kept.group, kept.code_digest) == code_part(group, code_digest)
    )  # fmt: skip


def settings_from(text: str) -> WorkerSettings:
    """Published settings, by whichever release they were written; unknown keys are left out.

    Raises SchemaTooNew where they were written in a form that this release cannot read, and
    pydantic's ValidationError where a value is not allowed.
    """
    return read_settings(text)[0]


def settings_if_readable(text: str) -> WorkerSettings | None:
    """Published settings; None where another release says in them what this one has no word for.

    Its workers go on, and a manager that was gone back to has to be able to roll them.
    """
    try:
        return settings_from(text)
    except (SchemaTooNew, ValueError):
        return None


def settings_to_start(text: str, *, group: str, revision: str) -> WorkerSettings:
    """Those of a revision of which workers are to be started; Refused where they are unreadable."""
    try:
        return settings_from(text)
    except (SchemaTooNew, ValueError) as error:
        raise Refused(
            f"workers of revision {revision} of group {group} cannot be started by this release, "
            f"which does not know what its settings say ({why_unreadable(error)}): use the fleet "
            f"that published them, or roll to what fleet.yaml says with `fleet apply {group}`"
        ) from error


def why_unreadable(error: Exception) -> str:
    """In a line: the first key whose value is not known here, where it is one."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def read_settings(text: str) -> tuple[WorkerSettings, tuple[str, ...]]:
    """The same, and the keys that were left out, such as `group.worker.colour`."""
    try:
        value = json.loads(text)
    except ValueError:
        return WorkerSettings.model_validate_json(text), ()  # which says what is wrong with it
    schema = value.get("schema_version", SCHEMA) if isinstance(value, dict) else SCHEMA
    if isinstance(schema, int) and schema > SCHEMA:
        raise SchemaTooNew(
            f"the settings were written with schema {schema}, this version reads up to {SCHEMA}: "
            "use the newer fleet that wrote them"
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
    """Take one key out; its name. A union's tag is in the place, but not in the text."""
    path: list[str] = []
    for step in place[:-1]:
        if isinstance(value, list) or (isinstance(value, dict) and step in value):
            value = value[step]
            path.append(str(step))
    del value[place[-1]]
    return ".".join([*path, str(place[-1])])
