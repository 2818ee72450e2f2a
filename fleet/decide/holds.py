"""A number of slots that a person holds for a time: until then the policy does not change it.

Problem: a person who scales by hand before a known peak is undone by the policy a minute later, by
whichever manager looks next. Choice: the hold is a value beside the slots, where every manager
reads it before it asks the policy; it ends by itself. Cost: what the policy would do meanwhile is
only told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fleet.decide.scaling import Decision, ScalingMemory
from fleet.model import Json
from fleet.text import duration, plural

NOTE = "hold"
"""Under which the store keeps a group's hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """So many slots until a wall time."""

    wanted: int
    until: float
    by: str

    def as_json(self) -> dict[str, Json]:
        """For Store.put_note, and for people's JSON."""
        return {"wanted": self.wanted, "until": self.until, "by": self.by}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> "Hold | None":
        """From Store.note; anything that does not read as a hold is none."""
        try:
            held = dict(value or {})
            return cls(wanted=int(held["wanted"]), until=float(held["until"]), by=str(held["by"]))
        except (KeyError, TypeError, ValueError):
            return None

    def sentence(self, now: float, unit: str = "slot") -> str:
        """How many, by whom, how long still."""
        at = datetime.fromtimestamp(self.until, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
        left = duration(max(0.0, self.until - now))
        return f"held at {plural(self.wanted, unit)} by {self.by} for {left} more, until {at}"


def held(decision: Decision, hold: Hold, *, now: float, unit: str = "slot") -> Decision:
    """What is wanted while a hold is in force; the sentence tells what the policy says."""
    said = f"{hold.sentence(now, unit)}; the policy alone: {decision.sentence}"
    return replace(decision, wanted=hold.wanted, sentence=said)


def undone_by(asked: Decision, wanted: int, group: str) -> str | None:
    """What the policy will make of `wanted` slots; None where it leaves them.

    `asked` is its answer to a group that has them already.
    """
    if asked.wanted == wanted and asked.memory == ScalingMemory(current=wanted):
        return None
    return (
        f"the policy decides again at the next look, and will undo this: {asked.sentence}; "
        f"`fleet scale {group} {wanted} --hold 2h` keeps {plural(wanted, 'slot')} for that long"
    )
