"""Stores the decisions of scaling policies beside a group's slots."""

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fleet.decide.decision_log import KeptDecision, is_news, pack, unpack
from fleet.errors import FleetError
from fleet.slots.codec import as_json, from_json_or_none
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.slots.store import Store

_NOTE: Final = "decisions"
"""Key of a group's decisions in the store: the last one is readable without the others."""


def keep_decision(store: "Store", group: str, made: KeptDecision) -> KeptDecision:
    """Stores a decision if it is news; returns it with its cost so far.

    A store that refuses the write stops no plan.
    """
    note = store.manager_state(group, _NOTE) or {}
    last = _last(note)
    made = made.after(last)
    if last is None or is_news(made, last, lambda: _rows(note)):
        rows = [*unpack(note.get("rows")), as_json(made)]
        with contextlib.suppress(FleetError):
            store.put_manager_state(group, _NOTE, {"last": rows[-1], "rows": pack(rows)})
    return made


def last_decision(store: "Store", group: str) -> KeptDecision | None:
    """Returns the last decision that was news; None if no policy has decided yet."""
    return _last(store.manager_state(group, _NOTE) or {})


def kept_decisions(store: "Store", group: str) -> tuple[KeptDecision, ...]:
    """Returns the kept decisions, oldest first."""
    return _rows(store.manager_state(group, _NOTE) or {})


def _last(note: dict[str, object]) -> KeptDecision | None:
    found = note.get("last")
    return from_json_or_none(KeptDecision, found if isinstance(found, dict) else None)


def _rows(note: dict[str, object]) -> tuple[KeptDecision, ...]:
    found = (from_json_or_none(KeptDecision, each) for each in unpack(note.get("rows")))
    return tuple(each for each in found if each is not None)


def explain(made: KeptDecision) -> tuple[str, ...]:
    """Returns reason, figures and alternatives of a decision, as sentences."""
    when = datetime.fromtimestamp(made.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lag = "unknown" if made.lag is None else f"{made.lag:,}"
    return (
        f"decided at {when}: {made.sentence}",
        f"members: {made.members}, member hours: {made.member_hours:,.1f}",
        f"waiting records: {lag}, age of the oldest: {duration(made.lag_seconds)}",
        *(f"{name}: {value:,.10g}" for name, value in made.inputs.items()),
        *(f"with {each}" for each in made.alternatives),
    )
