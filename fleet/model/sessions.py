"""Session timeouts of KIP-848 groups over time, as brokers reported them. Pure.

Problem: the log does not hold a group's session timeout (`consumer.session.timeout.ms` of the
group, else of the broker), and it may change at any moment. Whether a member left or expired
depends on it. Choice: each reported timeout is kept with its first and last report. For a removal,
every timeout counts that may have armed the timer of that moment. Cost: the time before the first
report is assumed to be the same, and marked as less certain. Reports before a clock was set back
are dropped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

STALE_S: Final = 30.0
"""Seconds after which a report no longer counts as current."""
_SLACK: Final = 0.5
_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Session:
    """The session settings of a KIP-848 group; seconds."""

    timeout_s: float
    heartbeat_s: float
    """Members send a heartbeat this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAtRemoval:
    """What may have been in force for a member that was removed; seconds."""

    least_s: float
    most_s: float
    silent_s: float
    """An expired member committed nothing for at least this long; a commit is no heartbeat."""
    sure: bool
    """Whether it was reported before the last heartbeat that can have counted."""


SessionLookup = Callable[[str, float], SessionAtRemoval | None]
"""(protocol: consumer, share or streams; time of the removal) → what may have been in force."""


def no_session_lookup(_protocol: str, _at: float) -> SessionAtRemoval | None:
    """Returns None for every removal."""
    return None


@dataclass(frozen=True, slots=True)
class _SessionSpan:
    session: Session
    first: float
    last: float


class SessionTimes:
    """The reported sessions of each group. One thread records, any thread asks."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[_SessionSpan, ...]] = {}

    def note(self, at: float, sessions: Mapping[str, Session]) -> None:
        """Records the sessions that brokers reported at that time (wall seconds, before the
        request).
        """
        for group, session in sessions.items():
            known = self._spans.get(group, ())
            if known and at < known[-1].last - _SLACK:
                known = ()
            if known and known[-1].session == session:
                last = max(at, known[-1].last)
                self._spans[group] = (*known[:-1], replace(known[-1], last=last))
            else:
                self._spans[group] = (*known, _SessionSpan(session, at, at))[-_KEPT:]

    def of(self, group: str, at: float) -> SessionAtRemoval | None:
        """Returns what was in force at a removal at that time; None if it is not known."""
        known = self._spans.get(group, ())
        if not known or at > known[-1].last + STALE_S:
            return None
        begins = (float("-inf"), *(each.last for each in known))
        ends = (*(each.first for each in known[1:]), float("inf"))
        found: list[Session] = []
        sure = True
        for each, begin, end in zip(known, begins, ends, strict=False):
            armed = at - each.session.timeout_s  # time of the last heartbeat
            if begin - _SLACK <= armed <= end + _SLACK:
                found.append(each.session)
                sure &= armed >= known[0].first
        if not found:
            return None
        return SessionAtRemoval(
            least_s=min(each.timeout_s for each in found),
            most_s=max(each.timeout_s for each in found),
            silent_s=min(max(0.0, each.timeout_s - each.heartbeat_s) for each in found),
            sure=sure,
        )
