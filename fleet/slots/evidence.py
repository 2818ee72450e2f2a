"""When an observer may call a lease expired: it looked, it could read, and it could write.

Problem: a lease that stands still proves a death only to who could have seen and done better. A
store that is read but not written (locked, disk full, an API server that refuses writes), one
that is silent, and a machine that was frozen make every living owner look dead. Choice: an
observer counts on its own monotonic clock how long (owner, token, counter) has not changed
[13], and each of three things starts the count anew: a gap between two of its looks of more than
a third of the lease [39], a time in which its store did not know (`known_since`), a write of its
own that did not go through [38]. A store tells of its own writes (`Writes`); an observer that
writes nothing by itself has one small write made (`beat`) once a lease has stood still for half
its duration. Who renews says by what lease, since an observer may have been told another: the
longer of both counts. Cost: two such writes per observer and death on Kubernetes, none locally,
where every worker reports or renews thrice a lease; after an outage a dead owner is found one
lease later.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleet.clock import Clock
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.slots.store import Store

_REST: Final = 0.4
"""Of the lease: an own write that long ago is done anew. Who renews thrice a lease never does."""
_FRESH: Final = 0.5
"""Of the lease: an own write that long ago proves nothing of now."""
_GAP: Final = 1 / 3
"""Of the lease: between two looks of one observer."""


class Writes:
    """What became of a store's own writes of slots; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._in_hand = 0
        self._tried_at = -math.inf
        self._through_at = -math.inf
        self._since: float | None = -math.inf
        self._why = ""

    @contextlib.contextmanager
    def one(self) -> Iterator["Write"]:
        """One write, around which this is put; it says itself whether anything was stored."""
        began, write = self._clock.monotonic(), Write()
        with self._lock:
            self._in_hand += 1
        try:
            yield write
        except FleetError as error:
            write.why = str(error)
            raise
        finally:
            self._ended(write, began)

    def _ended(self, write: "Write", began: float) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._in_hand -= 1
            self._tried_at = now
            if write.refused:
                self._since = None
                self._why = write.why
            elif write.stored:
                self._through_at = max(self._through_at, began)
                self._since = now if self._since is None else self._since

    @property
    def refusal(self) -> str | None:
        """Why the last write was refused; None where it was not."""
        with self._lock:
            return self._why if self._since is None else None

    def due(self, after: float) -> bool:
        """Whether none is under way, and the last one ended `after` seconds ago; a quarter of
        that where it was refused.
        """
        now = self._clock.monotonic()
        with self._lock:
            rest = after if self._since is not None else after / 4
            return not self._in_hand and now - self._tried_at >= rest

    def through_since(self, within: float) -> float | None:
        """Monotonic time since when no write was refused; None where the last one was, or none
        has gone through that began in the last `within` seconds.
        """
        now = self._clock.monotonic()
        with self._lock:
            return self._since if now - self._through_at <= within else None


@dataclass(slots=True)
class Write:
    """One write's end. Neither: the store answered, and nothing was to be stored."""

    stored: bool = False
    refused: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Whether an owner's renewals of `group` would have been stored, and seen [38]."""

    store: "Store"
    group: str
    lease: float
    clock: Clock

    def since(self) -> float | None:
        """Monotonic time since when they would have been, without a break; None: not now.

        Writes where the last write of our own is too long ago, which takes seconds where the
        store is locked or silent: what was seen before that proves nothing then.
        """
        began, writes = self.clock.monotonic(), self.store.writes
        if writes.due(_REST * self.lease):
            with contextlib.suppress(FleetError):  # `writes` tells
                self.store.beat(self.group)
            if self.clock.monotonic() - began > _GAP * self.lease / 2:
                return None
        known, through = self.store.known_since(), writes.through_since(_FRESH * self.lease)
        return None if known is None or through is None else max(known, through)


@dataclass(slots=True)
class _Seen:
    mark: object
    since: float
    looked_at: float
    expired: bool = False


@dataclass(slots=True)
class LeaseWatch:
    """An observer's memory of leases: dead when unchanged for `duration` monotonic seconds.

    evidence: None where nothing but what people read depends on it.
    """

    duration: float
    evidence: Evidence | None
    blind: float = field(default=0.0, init=False)
    """Seconds for which each look that asked for evidence has found none."""
    _blind_since: float | None = field(default=None, init=False)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    @classmethod
    def over(cls, store: "Store", *, group: str, lease: float, clock: Clock) -> "LeaseWatch":
        """Over a group's leases of `lease` seconds, by what this store's own writes prove."""
        return cls(lease, Evidence(store=store, group=group, lease=lease, clock=clock))

    def expired(self, key: str, mark: object, monotonic: float, *, told: float = 0.0) -> bool:
        """Note what the lease looks like at a look; True once it has expired.

        monotonic: the time of the look, before the store was read. told: seconds of the lease
        that is renewed by, where whoever renews it says so.
        """
        duration = max(self.duration, told)
        seen = self._seen.get(key)
        gap = seen is not None and monotonic - seen.looked_at > _GAP * self.duration
        if seen is None or seen.mark != mark or gap:
            # A slow store may have stored it while it was read: no earlier than now.
            read = monotonic if self.evidence is None else self.evidence.clock.monotonic()
            self._seen[key] = _Seen(mark, max(read, monotonic), monotonic)
            return False
        seen.looked_at = monotonic
        if seen.expired or self.evidence is None:
            return seen.expired or monotonic - seen.since >= duration
        if monotonic - seen.since < duration / 2:
            return False
        since = self.evidence.since()
        self._note(monotonic, blind=since is None)
        seen.since = monotonic if since is None else max(seen.since, since)
        seen.expired = monotonic - seen.since >= duration
        return seen.expired

    def _note(self, monotonic: float, *, blind: bool) -> None:
        if not blind:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = monotonic
        self.blind = 0.0 if self._blind_since is None else monotonic - self._blind_since


def known_for(store: "Store", monotonic: float) -> float:
    """Seconds for which what the store answers has been true without a break; < 0: it is not now.

    A store that is fed from elsewhere tells since when (`known_since`); while nobody hears of a
    owner, its silence says nothing [13]. Any other store is known for ever.
    """
    since = store.known_since()
    return -1.0 if since is None else monotonic - since
