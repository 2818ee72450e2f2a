"""The values of the store as JSON and back: the only door between them.

Problem: state outlives the release that wrote it, and two releases work on it at once. Choice: a
value's fields are its keys, read by one codec for every kind; a key that a value has no field for
is not looked at, one that is missing is the field's default, an error where it has none. What a
field is called is therefore stored state. Only the slot targets are written by hand, in order,
since its sets would come in any.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from fleet.slots import SlotTargets
from fleet.slots.backend import Claim, SlotTargetsRecord

Value = TypeVar("Value")
_CODECS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def as_json(value: object, *only: str, known: bool = False) -> dict[str, Any]:
    """A plan, change, report, …: every field, or `only` these, by name. known: without None."""
    told: dict[str, Any] = _codec(type(value)).dump_python(
        value, mode="json", exclude_none=known, include=set(only) or None
    )
    return told


def from_json(kind: type[Value], value: Mapping[str, Any]) -> Value:
    """The reverse of as_json. Raises pydantic.ValidationError, a ValueError, where it is none."""
    found: Value = _codec(kind).validate_python(value)
    return found


def if_readable(kind: type[Value], value: Mapping[str, Any] | None) -> Value | None:
    """The same; None where there is none, or another release wrote it otherwise."""
    try:
        return from_json(kind, value) if value else None
    except ValueError:
        return None


def _codec(kind: type[Any]) -> TypeAdapter[Any]:
    made = _CODECS.get(kind)
    if made is None:
        made = _CODECS[kind] = TypeAdapter(kind)
    return made


def targets_as_json(targets: SlotTargets) -> dict[str, Any]:
    """The slot targets; slot numbers are sorted, as keys they are strings."""
    return {
        "group": targets.group,
        "version": targets.version,
        "open": sorted(targets.open),
        "open_at": targets.open_at,
        "leaving": sorted(targets.leaving),
        "handover": {str(n): as_json(asked) for n, asked in sorted(targets.handover.items())},
        "rejoin": {str(number): token for number, token in sorted(targets.rejoin.items())},
        "quarantined": sorted(targets.quarantined),
        "plan_id": targets.plan_id,
    }


def record_as_json(record: SlotTargetsRecord) -> dict[str, Any]:
    """The slot targets with all that is stored beside it."""
    return {
        **targets_as_json(record.targets),
        "opened": sorted(record.opened),
        "canaries": canaries_as_json(record.canaries),
        "going": sorted(record.going),
        "committed": sorted(record.committed),
        "token": record.token,
    }


def record_from_json(value: Mapping[str, Any]) -> SlotTargetsRecord:
    """The reverse of record_as_json."""
    return SlotTargetsRecord(
        targets=from_json(SlotTargets, value),
        opened=frozenset(value.get("opened", ())),
        canaries=canaries_from_json(value.get("canaries", {})),
        going=frozenset(value.get("going", ())),
        committed=frozenset(value.get("committed", ())),
        token=value.get("token", 0),
    )


def canaries_as_json(canaries: Mapping[str, Claim]) -> dict[str, Any]:
    """Claims by revision."""
    return {revision: as_json(claim) for revision, claim in sorted(canaries.items())}


def canaries_from_json(value: Mapping[str, Any]) -> dict[str, Claim]:
    """The reverse of canaries_as_json."""
    return {revision: from_json(Claim, told) for revision, told in value.items()}
