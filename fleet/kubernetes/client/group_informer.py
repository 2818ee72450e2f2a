"""What a manager knows of a group while it changes it: kept current by watches, not by asking.

Problem: a change looks ten times a second how slots and reports stand, for minutes; and what it
reads must not be older than what it has just written, or it takes a slot for free that was taken
before its own gate shut. Choice: one watch of all Leases of the group, whose events come in the
order in which they were stored, whatever the object; a reading waits until that watch has
brought the manager's own last write, and then everything that was stored before it is there too.
Where the watch is down, slow, or the server has been silent, the server is asked as without it.
Cost: a manager's role lists and watches Leases and ConfigMaps of its namespace by label.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from fleet.clock import Clock
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.reflector import Reflector, version_of
from fleet.system.closing import Closing

_CATCH_UP: Final = 0.5
"""Seconds that a reading waits for the watch."""


class GroupInformer(Closing):
    """All objects of one kind that a selector takes. Thread-safe."""

    def __init__(
        self, calls: Calls, kind: str, selector: Mapping[str, str], *, silence: float, clock: Clock
    ) -> None:
        self.calls = calls
        self.kind = kind
        self.clock = clock
        self.silence = silence
        self.stopped = threading.Event()
        self._moved = threading.Condition()
        self._known: dict[str, Object] = {}
        self._heard_at = clock.monotonic()
        self._stream = Reflector(self, selector)
        self._thread = threading.Thread(target=self._stream.run, name=f"follow {kind}", daemon=True)
        self._thread.start()

    def objects(self, *, at_least: int) -> dict[str, Object] | None:
        """All by name, as they stood at that version or later; None where that is not known."""
        with self._moved:
            current = self._moved.wait_for(
                lambda: self._stream.stands and self._stream.version >= at_least, _CATCH_UP
            )
            silent = self.clock.monotonic() - self._heard_at > self.silence
            return dict(self._known) if current and not silent else None

    def close(self) -> None:
        """End the watch."""
        self.stopped.set()
        self._stream.stop()
        self._thread.join(timeout=2.0)

    # --- being told -------------------------------------------------------------------------

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """Nothing else is there."""
        del selector, version
        with self._moved:
            self._known = {found["metadata"]["name"]: found for found in items}

    def put(self, found: Object) -> None:
        """As it is now."""
        found["metadata"].pop("managedFields", None)
        with self._moved:
            known = self._known.get(found["metadata"]["name"])
            if known is None or version_of(known) <= version_of(found):
                self._known[found["metadata"]["name"]] = found

    def gone(self, name: str, version: int) -> None:
        """It is deleted."""
        del version
        with self._moved:
            self._known.pop(name, None)

    def heard(self, *, proof: bool = True) -> None:
        """The server tells, or has answered elsewhere."""
        with self._moved:
            if proof:
                self._heard_at = self.clock.monotonic()
            self._moved.notify_all()

    def interrupted(self) -> None:
        """What it knows is told anew by the watch that stands again."""
