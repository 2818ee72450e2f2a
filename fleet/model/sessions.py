"""Session timeouts of KIP-848 groups over time, as somebody asked for them. Pure.

Problem: the log does not hold a group's session timeout (`consumer.session.timeout.ms` of the
group, else of the broker), it may change at any moment, and whether a member that is gone left or
expired rests on it. Choice: what was told is kept with when it was told first and last; asked
about a removal, every timeout counts that may have armed the timer that ran out then. Cost: what
was before the first asking is taken to have been the same, and is said to be less sure. Times of
a clock that was set back since say nothing any more: the first asking after that is the first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

STALE_S: Final = 30.0
"""Seconds after which nobody knows any more what was told."""
_SLACK: Final = 0.5
_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Session:
    """What a KIP-848 group's members are told; seconds."""

    timeout_s: float
    heartbeat_s: float
    """Members send a heartbeat this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThen:
    """What may have held for a member that was removed; seconds."""

    least_s: float
    most_s: float
    silent_s: float
    """An expired member committed nothing for at least so long: a commit is no heartbeat."""
    sure: bool
    """It was known before the last heartbeat that can have counted."""


AskSession = Callable[[str, float], SessionThen | None]
"""(protocol: consumer, share or streams; when a member was removed) → what may have held."""


def never_asked(_protocol: str, _at: float) -> SessionThen | None:
    """Nobody asks."""
    return None


@dataclass(frozen=True, slots=True)
class _Told:
    session: Session
    first: float
    last: float


class SessionTimes:
    """What was told of each group; noted by one thread, asked by any."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[_Told, ...]] = {}

    def note(self, at: float, sessions: Mapping[str, Session]) -> None:
        """What groups were told to have at that time (wall seconds, before they were asked)."""
        for group, session in sessions.items():
            known = self._told.get(group, ())
            if known and at < known[-1].last - _SLACK:
                known = ()
            if known and known[-1].session == session:
                last = max(at, known[-1].last)
                self._told[group] = (*known[:-1], replace(known[-1], last=last))
            else:
                self._told[group] = (*known, _Told(session, at, at))[-_KEPT:]

    def of(self, group: str, at: float) -> SessionThen | None:
        """For a member that was removed at that time; None: it cannot be said."""
        known = self._told.get(group, ())
        if not known or at > known[-1].last + STALE_S:
            return None
        begins = (float("-inf"), *(each.last for each in known))
        ends = (*(each.first for each in known[1:]), float("inf"))
        found: list[Session] = []
        sure = True
        for each, begin, end in zip(known, begins, ends, strict=False):
            armed = at - each.session.timeout_s  # the heartbeat that was the last one
            if begin - _SLACK <= armed <= end + _SLACK:
                found.append(each.session)
                sure &= armed >= known[0].first
        if not found:
            return None
        return SessionThen(
            least_s=min(each.timeout_s for each in found),
            most_s=max(each.timeout_s for each in found),
            silent_s=min(max(0.0, each.timeout_s - each.heartbeat_s) for each in found),
            sure=sure,
        )
