"""Holds a KIP-848 group's next assignment back while several members join.

Problem: every join raises the group's epoch, and the coordinator computes an assignment at the
next heartbeat once `consumer.assignment.interval.ms` (1 s as shipped, KIP-1263) has passed since
the last one: joins further apart than that cost one assignment each. Choice: 5 s while slots
open together [19]; what stood there before is noted in the store first, so that whoever acts on
the group next puts it back, should this manager die in between. A broker reads a setting a moment
after it was taken: the note goes only when it reads ours no more, so that the next gate does not
take our 5 s for the owner's. Cost: the last joiner waits up to 5 s for its partitions, and nobody
else's change of the setting in that minute is kept.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.slots.store import Store

if TYPE_CHECKING:
    from fleet.act.kafka import GroupAdmin

SETTING: Final = "consumer.assignment.interval.ms"
WIDE_MS: Final = 5000
"""Broker 4.3.1 allows 0 to 15000 (group.consumer.max.assignment.interval.ms)."""
SEEN_LIMIT: Final = 5.0
"""Seconds that brokers may take to read a setting that was put back."""
_LOOK: Final = 0.05
_NOTE: Final = "join-window"


class JoinWindow:
    """One group's assignment interval, widened and put back."""

    def __init__(
        self,
        group: str,
        store: Store,
        settings: "GroupAdmin",
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._group = group
        self._store = store
        self._settings = settings
        self._clock = clock
        self._say = say

    def widen(self) -> str | None:
        """Widen it; None, or why it stays as it is (the joins may then cost one each)."""
        try:
            if self._store.note(self._group, _NOTE) is None:
                before = self._settings.group_setting(self._group, SETTING)
                if before is not None and int(before) >= WIDE_MS:
                    return None  # its owner wants it at least as wide
                self._store.put_note(self._group, _NOTE, {"before": before})
            self._settings.set_group_setting(self._group, SETTING, str(WIDE_MS))
        except FleetError as error:
            return f"{SETTING} was not raised, so joins may be assigned one by one: {error}"
        return None

    def restore(self) -> bool:
        """Put back what stood before the last `widen`, whoever did it; whether it was due.

        Where the cluster does not take it, that is said and the note stays for the next actor.
        """
        note = self._store.note(self._group, _NOTE)
        if note is None:
            return False
        value = None if note["before"] is None else str(note["before"])
        try:
            self._settings.set_group_setting(self._group, SETTING, value)
            gone = self._await_gone()
        except FleetError as error:
            self._say(f"  {SETTING} of {self._group} could not be put back yet: {error}")
            return True
        if not gone:
            self._say(f"  {SETTING} of {self._group} is put back, but brokers do not show it yet")
            return True
        self._store.put_note(self._group, _NOTE, None)
        self._say(f"  {SETTING} of {self._group} is {value or 'the default'} again")
        return True

    def _await_gone(self) -> bool:
        """Whether our value is read no more, within `SEEN_LIMIT`."""
        deadline = self._clock.monotonic() + SEEN_LIMIT
        while self._settings.group_setting(self._group, SETTING) == str(WIDE_MS):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_LOOK)
        return True
