"""Decides when an observer may call a lease expired.

Problem: an unchanged lease proves a death only if the observer could have seen and stored a
renewal. A store that refuses writes (locked, disk full), an unreachable store and a frozen machine
make every living owner look dead. Choice: an observer measures on its own monotonic clock how long
(owner, token, counter) has not changed [13]. Three things restart the count: more than a third of
the lease between two polls [39], a time in which the store was not current (`known_since`), and a
failed write of its own [38]. If an observer does not write by itself, a small write is made
(`beat`) once a lease is unchanged for half its duration. An owner stores its own lease, because an
observer may have another setting; the longer one counts. Cost: two such writes per observer and
death on Kubernetes, none locally. After an outage a dead owner is found one lease later.
"""

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.slots import WorkerReport

if TYPE_CHECKING:
    from fleet.slots.store import Store

_REWRITE_AFTER: Final = 0.4
"""Fraction of the lease after which an own write is repeated. Workers that renew never need it."""
_PROOF_WITHIN: Final = 0.5
"""Fraction of the lease for which an own write proves that the store accepts writes."""
_MAX_GAP: Final = 1 / 3
"""Fraction of the lease: the longest gap between two polls of one observer."""


class WriteLog:
    """Records the results of a store's own writes of slots; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._in_hand = 0
        self._tried_at = -math.inf
        self._through_at = -math.inf
        self._since: float | None = -math.inf
        self._why = ""

    @contextlib.contextmanager
    def track(self) -> Iterator["Write"]:
        """Wraps one write; the caller sets its result."""
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
        """Returns why the last write was refused; None if it was not."""
        with self._lock:
            return self._why if self._since is None else None

    def is_due(self, after: float) -> bool:
        """Whether no write runs and the last one ended `after` seconds ago, a quarter if it was
        refused.
        """
        now = self._clock.monotonic()
        with self._lock:
            rest = after if self._since is not None else after / 4
            return not self._in_hand and now - self._tried_at >= rest

    def accepted_since(self, within: float) -> float | None:
        """Returns the monotonic time since when no write was refused.

        None if the last one was, or if none that began in the last `within` seconds was stored.
        """
        now = self._clock.monotonic()
        with self._lock:
            return self._since if now - self._through_at <= within else None


@dataclass(slots=True)
class Write:
    """The result of one write. Neither flag: the store answered, and nothing had to be stored."""

    stored: bool = False
    refused: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Whether an owner's renewals of `group` would have been stored and read [38]."""

    store: "Store"
    group: str
    lease: float
    clock: Clock

    def since(self) -> float | None:
        """Returns the monotonic time since when that holds without a break; None: not now.

        Writes if the last own write is too old. That takes seconds if the store is locked or
        unreachable, and what was read before then proves nothing.
        """
        began, writes = self.clock.monotonic(), self.store.writes
        if writes.is_due(_REWRITE_AFTER * self.lease):
            with contextlib.suppress(FleetError):  # `writes` has recorded it
                self.store.beat(self.group)
            if self.clock.monotonic() - began > _MAX_GAP * self.lease / 2:
                return None
        known, through = self.store.known_since(), writes.accepted_since(_PROOF_WITHIN * self.lease)
        return None if known is None or through is None else max(known, through)


@dataclass(slots=True)
class _Seen:
    mark: object
    since: float
    looked_at: float
    expired: bool = False


@dataclass(slots=True)
class LeaseWatch:
    """Remembers leases: expired when unchanged for `duration` monotonic seconds.

    evidence: None if only displays depend on it.
    """

    duration: float
    evidence: Evidence | None
    blind: float = field(default=0.0, init=False)
    """Seconds for which evidence was asked for and missing."""
    _blind_since: float | None = field(default=None, init=False)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    @classmethod
    def for_group(cls, store: "Store", *, group: str, lease: float, clock: Clock) -> "LeaseWatch":
        """Watches a group's leases of `lease` seconds, with this store's own writes as evidence."""
        return cls(lease, Evidence(store=store, group=group, lease=lease, clock=clock))

    def is_expired(self, key: str, mark: object, monotonic: float, *, lease: float = 0.0) -> bool:
        """Records the lease's state as polled; True once it has expired.

        monotonic: time of the poll, before the store was read. lease: seconds of the lease as its
        owner stored it.
        """
        duration = max(self.duration, lease)
        seen = self._seen.get(key)
        gap = seen is not None and monotonic - seen.looked_at > _MAX_GAP * self.duration
        if seen is None or seen.mark != mark or gap:
            # A slow store may have stored it during the read: count from now.
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

    def living(self, reports: Iterable[WorkerReport], monotonic: float) -> list[WorkerReport]:
        """Returns the workers' reports that still change: a dead pod's stays."""
        return [
            each for each in reports if not self.is_expired(each.worker, each.counter, monotonic)
        ]

    def _note(self, monotonic: float, *, blind: bool) -> None:
        if not blind:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = monotonic
        self.blind = 0.0 if self._blind_since is None else monotonic - self._blind_since
