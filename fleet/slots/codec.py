"""Converts the values of the store to JSON and back.

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
from fleet.slots.backend import Claim

Value = TypeVar("Value")
_CODECS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def as_json(value: object, *only: str, known: bool = False) -> dict[str, Any]:
    """Returns a value as JSON: every field, or `only` these, by name. known: without None."""
    told: dict[str, Any] = _codec(type(value)).dump_python(
        value, mode="json", exclude_none=known, include=set(only) or None
    )
    return told


def from_json(kind: type[Value], value: Mapping[str, Any]) -> Value:
    """Returns the value that `as_json` wrote.

    Raises pydantic.ValidationError, a ValueError, if the JSON is no such value.
    """
    found: Value = _codec(kind).validate_python(value)
    return found


def from_json_or_none(kind: type[Value], value: Mapping[str, Any] | None) -> Value | None:
    """Returns the value; None if there is none, or another release wrote it differently."""
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
    """Returns the slot targets as JSON: slot numbers are sorted, and strings as keys."""
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


def canaries_as_json(canaries: Mapping[str, Claim]) -> dict[str, Any]:
    """Returns claims by revision as JSON."""
    return {revision: as_json(claim) for revision, claim in sorted(canaries.items())}


def canaries_from_json(value: Mapping[str, Any]) -> dict[str, Claim]:
    """Returns the claims that `canaries_as_json` wrote."""
    return {revision: from_json(Claim, told) for revision, told in value.items()}
