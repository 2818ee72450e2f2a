"""What a ConfigMap of reports can do without: pure.

Problem: pods come and go for months where nobody manages, and the server takes 1 MiB of one
object, some 2,000 reports, or 200 with a traceback each; who is not in it does not exist for
whoever counts warm standbys. Choice: what was not written anew for a day goes. Where the object is
full, what is missed least goes first, and only as much as makes room for a while: reports of
workers that have no pod any more, by their silence, then tracebacks and the ends of errors, the
oldest first. Cost: beyond 2,000 workers of one group the oldest reports go, and each is back with
its worker's next one.
"""

import json
from collections.abc import Iterator
from typing import Final

from fleet.kubernetes.client.api import Object
from fleet.kubernetes.leases import lease_objects as objects

KEPT: Final = 3 << 18
"""Characters that stay: three quarters of what a server takes."""
GONE_AFTER: Final = 3600.0
"""Seconds without a report after which a worker has no pod: it writes at least once a lease."""
_ERROR: Final = 200
"""Characters of an error that is shortened."""


def made_room(found: Object, *, keep: str, now: float) -> dict[str, str | None]:
    """Keys of a group's reports that are to be written anew, or removed where None.

    keep: the key that room is made for. now: wall time. Raises Damaged.
    """
    data = dict(found.get("data") or {})
    size = sum(len(key) + len(value) for key, value in data.items())
    written: dict[str, str | None] = {}
    for key, text in _by_what_is_missed_least(found, keep=keep, now=now):
        if size <= KEPT:
            break
        before = written.get(key, data[key])
        if before is None:
            continue
        size -= len(before) - len(text) if text is not None else len(before) + len(key)
        written[key] = text
    return written


def silent_for(seconds: float, found: Object, *, keep: str, now: float) -> list[str]:
    """Keys of the reports that were not written for so long, the oldest first.

    By our own clock and by the others' reports: one clock that is wrong drops nobody.
    """
    written_at = _written_at(found, keep=keep)
    latest = min(now, max(written_at.values(), default=now))
    silent = [key for key, at in written_at.items() if latest - at > seconds]
    return sorted(silent, key=lambda key: written_at[key])


def _by_what_is_missed_least(
    found: Object, *, keep: str, now: float
) -> Iterator[tuple[str, str | None]]:
    written_at = _written_at(found, keep=keep)
    oldest = sorted(written_at, key=lambda key: written_at[key])
    for key in silent_for(GONE_AFTER, found, keep=keep, now=now):
        yield key, None
    for key in oldest:
        text = found["data"][key]
        brief = _without_traceback(text)
        if len(brief) < len(text):
            yield key, brief
    for key in oldest:
        yield key, None


def _written_at(found: Object, *, keep: str) -> dict[str, float]:
    return {key: at for key, (at, _) in objects.reports_from(found).items() if key != keep}


def _without_traceback(text: str) -> str:
    told = json.loads(text)
    error = told.get("error")
    brief = None if error is None else objects.shortened(error, _ERROR)
    return objects.text({**told, "error": brief, "traceback": None})
