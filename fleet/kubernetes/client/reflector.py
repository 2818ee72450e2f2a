"""One list, then watches from where it ended: how anything here is kept current.

A watch ends by itself after some minutes and goes on from the last version heard of (bookmarks
move it along where nothing changes); where the server forgot that version (410) everything is
listed again. Errors, and watches that end as soon as they have begun, are waited out with a growing
pause: the reader's last knowledge stands, and `is_out` says for how long it has been old.
"""

import contextlib
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from fleet.clock import Clock
from fleet.kubernetes.client.api import Gone, Object, Watching
from fleet.kubernetes.client.calls import Calls, Denied

_SECONDS: Final = (200, 400)
"""Of one watch, drawn anew each time: a hundred watches must not end together."""
_SHORT: Final = 1.0
"""Seconds of a watch that has shown nothing, unless it told something."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class EventHandler(Protocol):
    """Whoever is told what a stream hears."""

    calls: Calls
    kind: str
    clock: Clock
    silence: float
    stopped: threading.Event

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """Everything that the selector takes, at that version."""
        ...

    def put(self, found: Object) -> None:
        """An object as it is now."""
        ...

    def gone(self, name: str, version: int) -> None:
        """It is deleted."""
        ...

    def heard(self, *, proof: bool = True) -> None:
        """The stream has come further; proof: the server read or wrote its own store for that."""
        ...

    def interrupted(self) -> None:
        """A watch was away for too long: what it may have missed counts for nothing."""
        ...


class Reflector:
    """Lists and watches what one selector takes, one after the other, until its reader stops.

    needed: whether the reader knows nothing while this is not there.
    """

    def __init__(
        self, reader: EventHandler, selector: Mapping[str, str], *, needed: bool = True
    ) -> None:
        self.why = "no answer yet"
        self.needed = needed
        self.denied = False
        """Whether the server does not let us read it."""
        self._reader = reader
        self._calls = reader.calls
        self._kind = reader.kind
        self._clock = reader.clock
        self._selector = dict(selector)
        self._since = ""
        self._out_since: float | None = reader.clock.monotonic()
        self._listed = False
        self._watching: Watching | None = None

    @property
    def version(self) -> int:
        """Up to which everything was heard."""
        return int(self._since or 0)

    @property
    def stands(self) -> bool:
        """Whether it is listed, and a watch tells what changes."""
        return self._listed and self._out_since is None

    def is_out(self, now: float) -> bool:
        """Whether nothing is known of what is needed, or its watch has been away for too long."""
        if not self._listed:
            return self.needed
        out_since = self._out_since
        return out_since is not None and now - out_since > self._reader.silence

    def go_on_from(self, version: str) -> None:
        """Watch from what somebody has listed already; before `run`."""
        self._since, self._listed = version, True

    def stop(self) -> None:
        """End a read that waits."""
        watching = self._watching
        if watching is not None:
            with contextlib.suppress(Exception):  # it may have ended in this moment
                watching.stop()

    def run(self) -> None:
        """List, watch, and again.

        A version that was forgotten is listed again at once; what is so again and again is waited
        out, as are watches that end as soon as they have begun, and a server that is away.
        """
        stopped, away, vain, gone = self._reader.stopped, _FIRST_PAUSE, _FIRST_PAUSE, False
        while not stopped.is_set():
            try:
                if not self._since:
                    self._list()
                stood, away = self._follow(), _FIRST_PAUSE
            except Gone:
                self._since, before, gone = "", gone, True
                if not before:
                    continue
                stood = False
            except Exception as error:  # noqa: BLE001 - the view stays, the next try mends it
                self.why = str(error)
                self.denied = isinstance(error, Denied)
                stopped.wait(away * random.uniform(0.75, 1.25))
                away = min(2 * away, _LONGEST_PAUSE)
                continue
            if stood:
                vain, gone = _FIRST_PAUSE, False
                continue
            self.why = "its watches end as soon as they have begun"
            stopped.wait(vain * random.uniform(0.75, 1.25))
            vain = min(2 * vain, _LONGEST_PAUSE)

    def _list(self) -> None:
        items, since = self._calls.find(self._kind, **self._selector)
        self._reader.listed(self._selector, items, int(since))
        self._since, self._listed = since, True
        self._reader.heard()

    def _follow(self) -> bool:
        """One watch to its end; False where it ended at once and has told nothing."""
        before, out_since, began = self._since, self._out_since, self._clock.monotonic()
        seconds = random.randint(*_SECONDS)
        watching = self._calls.watch(
            self._kind, since=self._since, seconds=seconds, **self._selector
        )
        self._watching = watching
        if self._reader.stopped.is_set():  # `stop` may have come before there was what to stop
            self.stop()
        self._is_back()
        ended = False
        try:
            for what, found in watching.events():
                self._take(what, found)
                if self._reader.stopped.is_set():
                    return True
            ended = True
        finally:
            now = self._clock.monotonic()
            stood = self._since != before or now - began >= _SHORT
            self._out_since = now if stood or out_since is None else out_since
            self._watching = None
            if not ended:  # a connection that was read to its end is in the pool again
                with contextlib.suppress(Exception):
                    watching.stop()
        return stood

    def _take(self, what: str, found: Object) -> None:
        version = str(found["metadata"]["resourceVersion"])
        if what == "DELETED":
            self._reader.gone(found["metadata"]["name"], int(version))
        elif what != "BOOKMARK":
            self._reader.put({**found, "kind": self._kind})
        self._since = version
        self._reader.heard(proof=what != "BOOKMARK")

    def _is_back(self) -> None:
        self.denied = False
        out_since, self._out_since = self._out_since, None
        if out_since is not None and self._clock.monotonic() - out_since > self._reader.silence:
            self._reader.interrupted()
        self._reader.heard(proof=False)


def version_of(found: Object) -> int:
    """Versions of one kind of object can be compared as numbers (Kubernetes 1.35)."""
    return int(found["metadata"]["resourceVersion"])
