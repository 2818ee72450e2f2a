"""A worker's side of the slots: poll, take, renew, release.

Problem: a slot's owner is its member and must stop as soon as the store names another owner. But a
silent store must not stop any worker [12]. Choice: a thread of its own renews every third of the
lease and at every change. A renewal that finds another owner sets `lost` at once. A renewal without
an answer changes nothing and is repeated soon, so that a store that comes back finds every owner
within its lease. If that thread ends without being stopped, the slot counts as lost [40]. Cost:
three small writes per lease.
"""

import math
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Phase, Slot, SlotTargets, WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.slots.transitions import is_failed_canary, waits_for_canary
from fleet.worker.events import Events

# Decides which slot a standby may take. Pure.
#
# A slot can be taken if it is open, not leaving, not quarantined, and free or owned by a worker
# with an expired lease [13]. A handover pins it to one revision; the pin ends once no standby of
# that revision has lived for two seconds. Without a pin [22] a free slot goes to the standby
# whose revision was published last; older ones wait one lease. A revision takes a second slot of
# another one only after its first is active, so that a bad revision takes one slot, not all. (Here
# that is a preference on the last read; the store checks it again in the transaction of the take.)
# If a revision failed on a slot before its first commit there, any other revision may take the slot
# at once; the failed one waits a lease.
# While a managed roll has pins, its other slots stay with their revision until the canary has
# worked. Standbys that race for several slots begin at different ones, by their names.


def candidates(
    targets: SlotTargets,
    slots: Sequence[Slot],
    *,
    worker: str,
    revision: str,
    dead: frozenset[int],
    waited: frozenset[int],
    newest: bool,
    handed: frozenset[int] = frozenset(),
    void: Collection[int] = (),
) -> tuple[Slot, ...]:
    """Returns slots that this standby may take now, best first.

    dead: slots whose owner's lease this worker saw expire. waited: slots that this worker saw
    takeable for one lease. newest: no standby of a later revision waits. handed: slots that this
    worker was asked to hand over, and did. void: slots whose pin has ended.
    """
    known = {slot.number: slot for slot in slots}
    pins = {n: pin for n, pin in targets.handover.items() if n not in void}

    def admits(slot: Slot) -> bool:
        if slot.number in pins:
            return pins[slot.number].revision == revision
        rolling = bool(pins) and slot.revision is not None
        first = slot.revision == revision if rolling else newest
        if is_failed_canary(slot) and not rolling:
            first = slot.revision != revision
        first = first or slot.number in waited
        return first and not waits_for_canary(slots, slot, revision)

    numbers = sorted(targets.open - targets.leaving - targets.quarantined)
    found = [
        slot
        for slot in (known.get(n, Slot(group=targets.group, number=n)) for n in numbers)
        if is_takeable(slot, dead)
        and (slot.number not in handed or slot.number in waited)
        and admits(slot)
    ]
    if not found:
        return ()
    first = zlib.crc32(worker.encode()) % len(found)
    return tuple(found[first:] + found[:first])


def is_takeable(slot: Slot, dead: frozenset[int]) -> bool:
    """Whether a slot is free, or owned by a dead worker."""
    return slot.owner is None or slot.number in dead


def find_newer_standby(
    reports: Iterable[WorkerReport], *, revision: str, since: float
) -> WorkerReport | None:
    """Returns a standby of another revision that was published after this one, or None."""
    return next(
        (
            report
            for report in reports
            if report.phase == "standby"
            and report.revision != revision
            and (report.since or 0.0) > since
        ),
        None,
    )


_PIN_GRACE: Final = 2.0
"""Seconds for which a pin outlives the last living standby of its revision that was found."""


class SlotWatcher:
    """Reads slot targets and slots only after changes; watches owners' leases."""

    def __init__(self, store: Store, *, group: str, lease: float, clock: Clock) -> None:
        self.store = store
        self._group = group
        self._clock = clock
        self._lease = lease
        self._watch = LeaseWatch.for_group(store, group=group, lease=lease, clock=clock)
        self._dead: frozenset[int] = frozenset()
        self._alone: int | None = None
        """The slot whose owner sees no other's lease."""
        self._looked_at = 0.0
        self._version: Any = None
        self._read_at = 0.0
        self._free_since: dict[int, float] = {}
        self._unclaimed_since: dict[int, float] = {}
        """Slot → when no standby of its pin's revision was found first."""
        self._handed: dict[int, int] = {}
        self._reports = LeaseWatch.for_group(store, group=group, lease=lease, clock=clock)
        self.void: Mapping[int, Handover] = {}
        """Pins that have ended, by slot, as of the last `takeable_slots`."""
        self.targets = SlotTargets(group=group)
        self.slots: tuple[Slot, ...] = ()

    def refresh(self) -> bool:
        """Refreshes; True if the store was read. Raises Unreachable."""
        now, seen = self._clock.monotonic(), self.store.data_version()
        if seen == self._version and now - self._read_at < 1.0:
            self._watch_owners(now)
            return False
        self._version = seen
        self.targets = self.store.targets(self._group)
        self.slots = self.store.slots(self._group)
        self._read_at = now
        self._watch_owners(now)
        return True

    def attend(self, slot: int | None) -> None:
        """Follows the own slot and what changes; None: each slot, whose lease counts anew [39]."""
        if slot != self._alone:
            self._alone = slot if self.store.attend(self._group, slot) else None

    def _watch_owners(self, now: float) -> None:
        """Records the owners' leases at a poll that began `now`."""
        self._looked_at = now
        self._dead = frozenset(
            slot.number
            for slot in self.slots
            if self._alone is None
            and slot.owner is not None
            and (self._expired(slot, now) or slot.owner_ended)
        )

    def _expired(self, slot: Slot, now: float) -> bool:
        mark = (slot.owner, slot.token, slot.counter)
        return self._watch.is_expired(str(slot.number), mark, now, lease=slot.lease)

    def dead(self) -> frozenset[int]:
        """Returns slots with a dead owner or an expired lease [13], as of the last poll.

        None if that was too long ago, or if its reads are no longer known to be current.
        """
        now = self._clock.monotonic()
        old = now - self._looked_at > self._lease / 3
        return frozenset() if old or self.store.known_since() is None else self._dead

    def forget(self) -> None:
        """Makes the next poll read the store whatever its version."""
        self._version = None
        self._read_at = 0.0

    def forget_released(self, slot: Slot, *, handed: bool) -> None:
        """Forgets what it saw of a slot that this worker owned until now.

        handed: it was asked to hand it over. What it saw free before its ownership says nothing of
        how long a slot is free now.
        """
        self._free_since = {}
        if handed:
            self._handed[slot.number] = slot.token

    def takeable_slots(self, *, worker: str, revision: str, since: float) -> tuple[Slot, ...]:
        """Returns what this standby may take now, best first.

        since: when its revision was published. Nothing if the store may have changed since it was
        last read.
        """
        dead, now = self.dead(), self._clock.monotonic()
        if self.store.known_since() is None:
            self._free_since = {}
            return ()
        free = {s.number for s in self.slots if is_takeable(s, dead)} & self.targets.open
        self._free_since = {n: self._free_since.get(n, now) for n in free}
        waited = frozenset(n for n, at in self._free_since.items() if now - at >= self._lease)
        pins = self.targets.handover
        handed = frozenset(
            n for n, token in self._handed.items() if n in pins and pins[n].token == token
        )
        pinned = {n: pins[n] for n in free & pins.keys() if pins[n].revision != revision}
        reports = self._read_reports() if free else ()
        self.void = self._void(pinned, reports, now)
        return candidates(
            self.targets,
            self.slots,
            worker=worker,
            revision=revision,
            dead=dead,
            waited=waited,
            handed=handed,
            void=self.void,
            # A dead worker's report may delay this one for one lease.
            newest=find_newer_standby(reports or (), revision=revision, since=since) is None,
        )

    def _void(
        self, pinned: Mapping[int, Handover], reports: Iterable[WorkerReport] | None, now: float
    ) -> dict[int, Handover]:
        """Returns pins of takeable slots whose revision has had no living standby for a while."""
        if reports is None:
            return {}
        # A standby's lease counts from its first poll.
        living = self._reports.living(reports, now) if pinned else ()
        warm = {_plain(each.revision) for each in living if each.phase == "standby"}
        unclaimed = {n for n, pin in pinned.items() if _plain(pin.revision) not in warm}
        self._unclaimed_since = {n: self._unclaimed_since.get(n, now) for n in unclaimed}
        since = self._unclaimed_since
        return {n: pinned[n] for n in unclaimed if now - since[n] >= _PIN_GRACE}

    def _read_reports(self) -> tuple[WorkerReport, ...] | None:
        try:
            return self.store.reports(self._group)
        except Unreachable:
            return None


def _plain(revision: str) -> str:
    """Returns the revision without a pod's template that no manager has registered yet [22]."""
    return revision.partition("~")[0]


class SlotLease:
    """One taken slot, renewed from `start` to `release` by a thread of its own.

    Without `start` the caller renews (tests/schedules, on simulated time; lock: theirs). Results of
    a renewal and writes of a release are the same. after: called behind each renewal.
    """

    def __init__(
        self,
        store: Store,
        slot: Slot,
        *,
        lease: float,
        fields: Callable[[], dict[str, Any]],
        clock: Clock,
        events: Events,
        after: Callable[[], None] = lambda: None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.slot = slot
        """As last written."""
        self.lost: str | None = None
        """Why this worker must stop at once: the store names another owner or token [12], or
        no thread renews any more [40]. None while the slot is owned."""
        self.pause = lease / 3
        """Seconds to the next renewal; shorter while the store is silent."""
        self._store = store
        self._lease = lease
        self._fields = fields
        self._clock = clock
        self._events = events
        self._after = after
        self._renewed_at = -math.inf
        self._lock = lock or threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Renews from now on."""
        self._thread.start()

    def renew_soon(self) -> None:
        """Writes the fields now instead of at the next renewal; returns at once."""
        self._wake.set()

    def renew(self) -> bool:
        """Writes the fields; False if another worker owns the slot.

        A store that is silent or refuses is no loss, because no other worker can take the slot then
        [12].
        """
        return self.confirm() is not False

    def confirm(self) -> bool | None:
        """Does the same; None if the store does not say who owns the slot."""
        with self._lock:
            return self._confirm()

    def _confirm(self) -> bool | None:
        if self.lost is not None:
            return False
        began = self._clock.monotonic()  # its answer may be read long after it was stored
        try:
            told = replace(self.slot, lease=self._lease, **self._fields())
            stored = self._store.renew(told)
        except FleetError as error:
            self.pause = self._lease / 12
            self._events.log_rarely(f"{error}; going on while Kafka has this worker as a member")
            return None
        self.pause = self._lease / 3
        if stored is None:
            self.lost = f"slot {self.slot.number} has another owner or token"
            return False
        self.slot = stored
        self._renewed_at = began
        return True

    @property
    def is_fresh(self) -> bool:
        """Whether the last renewal began less than a third of the lease ago."""
        return self._clock.monotonic() - self._renewed_at < self._lease / 3

    def may_join(self) -> bool | None:
        """Whether no other worker can own the slot now; None: the store does not say [54].

        Asks the store if the last renewal is too old, directly before each join.
        """
        if self.lost is None and not self.is_fresh:
            self.confirm()
        if self.lost is not None:
            return False
        if not self.is_fresh:
            said = f"slot {self.slot.number} is not confirmed by the store: waiting to join"
            self._events.log_rarely(said)
        return self.is_fresh or None

    def is_ours(self) -> bool:
        """Asks the store if the last renewal is older than a third of the lease."""
        return self.lost is None if self.is_fresh else self.renew()

    def release(self, *, clean: bool, closed: bool = False, gone: bool = False) -> bool:
        """Releases the slot, with phase CLOSED for a leave; returns whether it was still owned.

        gone: the member left the group with its close, so its id is forgotten.
        """
        self.abandon()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        with self._lock:
            if self._confirm() is False:
                return False
            if closed or gone:
                phase = Phase.CLOSED if closed else self.slot.phase
                member = None if gone else self.slot.member_id
                stored = self._store.renew(replace(self.slot, phase=phase, member_id=member))
                if stored is None:
                    return False
                self.slot = stored
            return self._store.release(self.slot, clean=clean)

    def abandon(self) -> None:
        """Stops renewing and changes nothing."""
        self._stopped.set()
        self._wake.set()

    def _keep(self) -> None:
        """Runs the lease thread: an unrequested end of it ends the membership [40]."""
        why = ""
        try:
            self._renew_on()
        except BaseException as error:  # noqa: BLE001 - nobody catches it in a thread: it is told
            why = f" ({type(error).__name__}: {error})"
        if not self._stopped.is_set() and self.lost is None:
            self.lost = f"the lease of slot {self.slot.number} is not renewed any more{why}"
            self._events.log(self.lost)

    def _renew_on(self) -> None:
        while True:
            self._wake.wait(self.pause)
            self._wake.clear()
            if self._stopped.is_set():
                return
            if not self.renew():
                said = f"another worker owns slot {self.slot.number} now: stopping at once"
                self._events.log(said)
                return
            try:
                self._after()
            except Exception as error:  # noqa: BLE001 - it tells people: no reason to end [40]
                self._events.log_rarely(f"the report could not be written: {error}", key="report")
