"""Slots, slot targets, change and stopped partitions as Kubernetes objects and back: pure.

Problem: a Lease has five fields, a slot has eleven and the slot targets none of them. A person who
reads the objects with kubectl should still see who owns what. Choice: owner, token and time of the
last renewal stand where Kubernetes has a field for them, the rest is JSON in one annotation per
value; a ConfigMap has one key per partition or memory. Every written object names its schema. Cost:
`kubectl edit` can damage an annotation. Such an object is unreadable (Unreachable, with its name),
and nothing is concluded from it.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from fleet.errors import Damaged, SchemaTooNew
from fleet.kubernetes.client.api import Object, new_object
from fleet.kubernetes.client.object_names import OWNERS, PREFIX, WATCHED_LABEL, ObjectNames
from fleet.kubernetes.leases.answers import Answer, with_answer
from fleet.slots import (
    Change,
    ChangeState,
    FirstOpening,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerReport,
)
from fleet.slots.backend import SlotTargetsRecord
from fleet.slots.codec import (
    as_json,
    canaries_as_json,
    canaries_from_json,
    from_json,
    targets_as_json,
)
from fleet.slots.transitions import is_at_rest
from fleet.worker.pod_environment import MARK, template_of

# Revisions of pods: what the manager published, and what a Deployment made of it.
#
# Workers write raw revisions (`fleet.worker.pod_environment`). The slot targets' Lease says which
# pod-template hashes are exactly what the manager rendered, so that the manager reads plain
# revisions there and sees any other as the unknown one that it is [22]. Cost: a pod of a template
# that is not registered yet may not take a slot that is pinned to its revision.


Revised = TypeVar("Revised", bound=Slot | WorkerReport)


@dataclass(frozen=True, slots=True)
class PublishedTemplates:
    """Maps pod-template hashes of rendered templates to revisions."""

    known: Mapping[str, str] = field(default_factory=dict)

    def plain(self, revision: str) -> str:
        """For the manager: a registered template's revision, anything else as it is."""
        published, _, found = revision.partition(MARK)
        return published if found and self.known.get(found) == published else revision

    def raw(self, revision: str, *, own: str) -> str:
        """For a worker: its `own` raw revision if that is one of this revision, else another.

        The revision itself if it is raw, or if no template of it is registered.
        """
        hashes = sorted(found for found, known in self.known.items() if known == revision)
        if MARK in revision or not hashes:
            return revision
        mine = template_of(own)
        return f"{revision}{MARK}{mine if mine in hashes else hashes[0]}"

    def targets_for_worker(self, targets: SlotTargets, *, own: str) -> SlotTargets:
        """Returns slot targets with raw revisions in their pins."""
        return _with_pins(targets, lambda revision: self.raw(revision, own=own))

    def targets_as_stored(self, targets: SlotTargets) -> SlotTargets:
        """Returns slot targets with pins as the manager wrote them."""
        return _with_pins(targets, self.plain)

    def for_manager(self, value: Revised) -> Revised:
        """Returns a slot or a report with the plain revision."""
        told = value.revision
        return value if told is None else replace(value, revision=self.plain(told))


def _with_pins(targets: SlotTargets, convert: Callable[[str], str]) -> SlotTargets:
    pins = {n: replace(pin, revision=convert(pin.revision)) for n, pin in targets.handover.items()}
    return replace(targets, handover=pins)


Value = TypeVar("Value")

SCHEMA: Final = 1
SCHEMA_ANNOTATION: Final = f"{PREFIX}/schema"
TARGETS: Final = f"{PREFIX}/targets"
OPENED: Final = f"{PREFIX}/opened"
"""Slots that were ever opened."""
TEMPLATES: Final = f"{PREFIX}/templates"
FIRST: Final = f"{PREFIX}/first"
"""What opens by itself if no slot was opened yet [22]."""
CANARIES: Final = f"{PREFIX}/canaries"
GOING: Final = f"{PREFIX}/going"
COMMITTED: Final = f"{PREFIX}/committed"
ANSWERS: Final = f"{PREFIX}/answers"
ANSWERED: Final = f"{PREFIX}/answered"
"""Number of the last answer that the slot targets contain."""
TOKEN: Final = f"{PREFIX}/token"
"""Of the change whose actor was the last to write the slot targets, or to adopt a change."""
BEAT: Final = f"{PREFIX}/beat"
"""When somebody last tried whether Leases can be written (fleet.slots.evidence)."""
SLOT: Final = f"{PREFIX}/slot"
CHANGE: Final = f"{PREFIX}/change"
REPORT: Final = f"{PREFIX}/report"

MOST_ERROR: Final = 2000
"""Characters of an error that are kept (of a mark's a quarter): many must fit into one object."""
KEPT_TEMPLATES: Final = 50
"""Registered templates; a Deployment keeps ten old ReplicaSets by default."""
_PACKED: Final = "z:"
_PACK_FROM: Final = 8192
_KEY: Final = re.compile(r"[A-Za-z0-9_-][-._A-Za-z0-9]{0,200}")


# --- any object -----------------------------------------------------------------------------


def blank(kind: str, name: str, names: ObjectNames) -> Object:
    """Returns an object of the fleet without state."""
    meta = {"name": name, "labels": names.labels(), "annotations": names.annotations()}
    return new_object(kind, meta)


def annotation(found: Object, key: str) -> str | None:
    """Returns an annotation; None if it does not exist."""
    value = (found["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def annotate(found: Object, values: Mapping[str, str | None]) -> Object:
    """Returns the object with these annotations and the schema; None removes one."""
    kept = dict(found["metadata"].get("annotations") or {})
    for key, value in {SCHEMA_ANNOTATION: str(SCHEMA), **values}.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value
    return {**found, "metadata": {**found["metadata"], "annotations": kept}}


def watched_by(found: Object, owners: str = OWNERS) -> Object:
    """Returns a Lease that these owners watch, besides standbys."""
    labels = {**(found["metadata"].get("labels") or {}), WATCHED_LABEL: owners}
    return {**found, "metadata": {**found["metadata"], "labels": labels}}


def same_state(one: Object, two: Object) -> bool:
    """Tells whether two objects have the same state, apart from writer and time."""
    return all(
        (one["metadata"].get(part) or {}) == (two["metadata"].get(part) or {})
        for part in ("annotations", "labels")
    ) and all((one.get(part) or {}) == (two.get(part) or {}) for part in ("spec", "data"))


@contextmanager
def reading(found: Object) -> Iterator[None]:
    """Raises SchemaTooNew for a newer schema, and Damaged for unreadable state."""
    kind, name = found.get("kind", "object"), found["metadata"]["name"]
    schema = annotation(found, SCHEMA_ANNOTATION) or "0"
    if schema.isdigit() and int(schema) > SCHEMA:
        raise SchemaTooNew(
            f"{kind} {name} has schema {schema}, but this release reads only up to {SCHEMA}; use "
            "the newer release that wrote it"
        )
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise Damaged(
            f"{kind} {name} is damaged ({type(error).__name__}: {error}); restore its annotations, "
            "or stop the fleet, delete it and run `fleet apply`"
        ) from error


def text(value: object) -> str:
    """Returns compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def packed(value: object) -> str:
    """Returns JSON, compressed if long: objects hold 1 MiB, annotations 256 KiB."""
    plain = text(value)
    if len(plain) < _PACK_FROM:
        return plain
    return _PACKED + base64.b64encode(zlib.compress(plain.encode(), 9)).decode()


def unpacked(value: str) -> Any:
    """Reverses `packed`."""
    if value.startswith(_PACKED):
        value = zlib.decompress(base64.b64decode(value[len(_PACKED) :])).decode()
    return json.loads(value)


def stamp(now: float) -> str:
    """Formats a wall time as Kubernetes does (MicroTime)."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(text: str, most: int = MOST_ERROR) -> str:
    """Shortens a text to so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


# --- slots ----------------------------------------------------------------------------------


def slot_from(found: Object, group: str, number: int) -> Slot:
    """Reads a slot from its Lease; an unwritten Lease is a free, unused slot."""
    with reading(found):
        rest = json.loads(annotation(found, SLOT) or "{}")
        token = int((found.get("spec") or {}).get("leaseTransitions") or 0)
        in_spec = {"group": group, "number": number, "owner": holder_of(found), "token": token}
        return from_json(Slot, {**rest, **in_spec})


def with_slot(found: Object, slot: Slot, *, now: float, lease: float) -> Object:
    """Writes a slot into its Lease, renewed now."""
    made = _renewed(found, slot.owner, now=now, lease=lease, token=slot.token)
    if slot.token != (found.get("spec") or {}).get("leaseTransitions"):
        made["spec"]["acquireTime"] = stamp(now)
    rest = as_json(replace(slot, error=slot.error and shortened(slot.error)))
    for key in ("group", "number", "owner", "token"):
        del rest[key]
    watched = watched_by(made, f"slot-{slot.number}" if is_at_rest(slot) else OWNERS)
    return annotate(watched, {SLOT: text(rest)})


def _renewed(
    found: Object, holder: str | None, *, now: float, lease: float, token: int | None = None
) -> Object:
    """Returns a Lease that its holder renews now; lease: seconds."""
    spec = {
        **(found.get("spec") or {}),
        "holderIdentity": holder,
        "leaseDurationSeconds": max(1, round(lease)),
        "renewTime": stamp(now),
    }
    if token is not None:
        spec["leaseTransitions"] = token
    return {**found, "spec": spec}


# --- the slot targets -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTargetsLease:
    """The slot targets' Lease, with what workers answered to it if that was read too.

    Pins are as stored: of what the manager published.
    """

    record: SlotTargetsRecord
    templates: PublishedTemplates = field(default_factory=PublishedTemplates)
    first: FirstOpening | None = None
    answered: int = 0
    """Number of the last answer of a worker that the record contains."""

    @classmethod
    def empty(cls, group: str) -> "SlotTargetsLease":
        """Returns the value without a Lease."""
        return cls(record=SlotTargetsRecord(targets=SlotTargets(group=group)))


def targets_from(found: Object, group: str) -> SlotTargetsLease:
    """Reads slot targets from their Lease; version 0 if none were written yet."""
    with reading(found):
        targets = annotation(found, TARGETS)
        first = json.loads(annotation(found, FIRST) or "null")
        return SlotTargetsLease(
            record=SlotTargetsRecord(
                targets=SlotTargets(group=group)
                if targets is None
                else from_json(SlotTargets, unpacked(targets)),
                opened=frozenset(json.loads(annotation(found, OPENED) or "[]")),
                going=frozenset(json.loads(annotation(found, GOING) or "[]")),
                token=int(annotation(found, TOKEN) or 0),
            ),
            templates=PublishedTemplates(dict(json.loads(annotation(found, TEMPLATES) or "{}"))),
            first=None if first is None else from_json(FirstOpening, first),
            answered=int(annotation(found, ANSWERED) or 0),
        )


def with_targets(found: Object, lease: SlotTargetsLease) -> Object:
    """The slot targets' Lease with this in it; its `first` is whoever rendered it's.

    What a newer release wrote into the slot targets, and this one does not know, stays.
    """
    before, record = unpacked(annotation(found, TARGETS) or "{}"), lease.record
    return annotate(
        watched_by(found),
        {
            TARGETS: packed(before | targets_as_json(record.targets))
            if record.targets.version
            else None,
            OPENED: text(sorted(record.opened)),
            TEMPLATES: text(dict(lease.templates.known)),
            GOING: text(sorted(record.going)) if record.going else None,
            TOKEN: str(record.token) if record.token else None,
            ANSWERED: str(lease.answered) if lease.answered else None,
        },
    )


# --- what workers answer --------------------------------------------------------------------


def answers_from(found: Object) -> tuple[Answer, ...]:
    """Reads the answers of a group's workers from their Lease."""
    with reading(found):
        stored = json.loads(annotation(found, ANSWERS) or "[]")
        return tuple(from_json(Answer, each) for each in stored)


def with_answers_of(lease: SlotTargetsLease, found: Object | None) -> SlotTargetsLease:
    """Returns the slot targets with what their Lease of answers says."""
    if found is None:
        return lease
    with reading(found):
        answers = sorted(answers_from(found), key=lambda each: each.number)
        targets = lease.record.targets
        for answer in answers:
            if answer.number > lease.answered:
                targets = with_answer(targets, answer)
        record = replace(
            lease.record,
            targets=targets,
            opened=lease.record.opened | targets.open,
            canaries=canaries_from_json(json.loads(annotation(found, CANARIES) or "{}")),
            committed=frozenset(unpacked(annotation(found, COMMITTED) or "[]")),
        )
    latest = answers[-1].number if answers else 0
    return replace(lease, record=record, answered=max(lease.answered, latest))


def with_record_of_workers(
    found: Object, record: SlotTargetsRecord, *, answer: Answer | None, seen: int
) -> Object:
    """Returns the Lease of answers with claims, committed topics and one more answer.

    seen: number of the last answer that the slot targets contain; it and those before it go.
    """
    kept = [each for each in answers_from(found) if each.number > seen]
    answers = [*kept, *(() if answer is None else (answer,))]
    return annotate(
        watched_by(found),
        {
            ANSWERS: text([as_json(each) for each in answers]) if answers else None,
            CANARIES: text(canaries_as_json(record.canaries)) if record.canaries else None,
            COMMITTED: packed(sorted(record.committed)) if record.committed else None,
        },
    )


def with_template(lease: SlotTargetsLease, template_hash: str, revision: str) -> SlotTargetsLease:
    """Adds a registered template and removes the oldest ones."""
    known = {k: v for k, v in lease.templates.known.items() if k != template_hash}
    known[template_hash] = revision
    return replace(lease, templates=PublishedTemplates(dict(list(known.items())[-KEPT_TEMPLATES:])))


# --- the change -----------------------------------------------------------------------------


def change_from(found: Object) -> Change | None:
    """Reads the running or last change; None before the first."""
    with reading(found):
        stored = annotation(found, CHANGE)
        return None if stored is None else from_json(Change, unpacked(stored))


def with_change(found: Object, change: Change, *, now: float, lease: float) -> Object:
    """Writes a change into its Lease, which has a holder while it runs."""
    running = change.state is ChangeState.RUNNING
    holder = change.actor if running else None
    made = _renewed(found, holder, now=now, lease=lease, token=change.token)
    return annotate(made, {CHANGE: packed(as_json(change))})


def archived(data: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns (key, text) of the ended changes, latest first."""
    return tuple(sorted(((k, v) for k, v in data.items() if k.startswith("change.")), reverse=True))


# --- reports --------------------------------------------------------------------------------


def report_from(found: Object) -> WorkerReport | None:
    """Reads a report from its Lease; None if no worker has it."""
    with reading(found):
        stored = annotation(found, REPORT)
        return None if stored is None else from_json(WorkerReport, json.loads(stored))


def with_report(found: Object, report: WorkerReport | None, *, now: float, lease: float) -> Object:
    """Writes a report into its Lease, renewed now by its worker; None frees the Lease."""
    if report is None:
        return annotate({**found, "spec": {}}, {REPORT: None})
    told = text(as_json(replace(report, error=report.error and shortened(report.error))))
    return annotate(_renewed(found, report.worker, now=now, lease=lease), {REPORT: told})


def holder_of(found: Object) -> str | None:
    """Returns the holder of a Lease."""
    return (found.get("spec") or {}).get("holderIdentity") or None


def renewed_at(found: Object) -> float:
    """Returns the wall time of a Lease's last renewal; 0 if there is none."""
    with reading(found):
        renewed = (found.get("spec") or {}).get("renewTime")
        return 0.0 if renewed is None else datetime.fromisoformat(renewed).timestamp()


# --- keys and values of ConfigMaps ----------------------------------------------------------


def key_of(prefix: str, name: str) -> str:
    """Returns a ConfigMap key; names with other characters get a hash."""
    plain = prefix + name
    if _KEY.fullmatch(plain):
        return plain
    return f"{prefix}x.{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def mark_text(mark: StoppedPartition) -> str:
    """Returns the text of a stopped partition."""
    return text({**as_json(mark), "error": shortened(mark.error, MOST_ERROR // 4)})


def values_from(found: Object | None, kind: type[Value]) -> tuple[Value, ...]:
    """Reads the stopped partitions, or the pauses, of a ConfigMap."""
    if found is None:
        return ()
    with reading(found):
        return tuple(from_json(kind, json.loads(v)) for v in (found.get("data") or {}).values())
