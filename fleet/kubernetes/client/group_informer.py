"""What a manager knows of a group while it changes it: kept current by watches, not by asking.

Problem: a change looks ten times a second how slots and reports stand, for minutes; and what it
reads must not be older than what it has just written, or it takes a slot for free that was taken
before its own gate shut. Choice: one watch of all Leases of the group, whose events come in the
order in which they were stored, whatever the object; a reading waits until that watch has
brought the manager's own last write, and then everything that was stored before it is there too.
Where the watch is down, slow, or the server has been silent, the server is asked as without it.
Cost: a manager's role lists and watches Leases and ConfigMaps of its namespace by label.
"""

from collections.abc import Mapping
from typing import Final

from fleet.clock import Clock
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.informer import Informer
from fleet.kubernetes.client.reflector import Reflector

_CATCH_UP: Final = 0.5
"""Seconds that a reading waits for the watch."""


class GroupInformer(Informer):
    """All objects of one kind that a selector takes."""

    def __init__(
        self, calls: Calls, kind: str, selector: Mapping[str, str], *, silence: float, clock: Clock
    ) -> None:
        super().__init__(calls, kind, silence=silence, clock=clock)
        self._stream = Reflector(self, selector)
        self._watch(self._stream, f"follow {kind}")

    def objects(self, *, at_least: int) -> dict[str, Object] | None:
        """All by name, as they stood at that version or later; None where that is not known."""
        with self._moved:
            current = self._moved.wait_for(
                lambda: self._stream.stands and self._stream.version >= at_least, _CATCH_UP
            )
            return self._objects() if current and not self._is_silent() else None
