"""What the API server holds of one kind, kept current by watches.

Problem: whoever looks ten times a second how pods, slots and reports stand must not ask the server
each time, and must not conclude from its silence that anybody is gone. Choice: one list and then a
watch of each selector (`fleet.kubernetes.client.reflector`), each in a thread of its own; readers
see the last known state at once. What was heard is kept with its version, deletions too, so that
what comes late changes nothing. A server that is away leaves the last known state standing; since
when that is known to be true is told beside it. Cost: a reader may be behind by the way of one
event; who has just written puts the answer in itself (`put`). Names of what was deleted are kept as
long as the informer.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from fleet.clock import Clock
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.reflector import Reflector, version_of
from fleet.system.closing import Closing


class Informer(Closing):
    """Objects of one kind. Thread-safe; its subclasses say what is watched, and read.

    silence: seconds without a word of the server after which nothing is known.
    """

    def __init__(self, calls: Calls, kind: str, *, silence: float, clock: Clock) -> None:
        self.calls = calls
        self.kind = kind
        self.clock = clock
        self.silence = silence
        self.stopped = threading.Event()
        self._moved = threading.Condition()
        self._known: dict[str, tuple[int, Object | None]] = {}
        """By name: version, and the object, None once it is deleted."""
        self._changes = 0
        self._heard_at: float | None = None
        self._known_since: float | None = None
        self._streams: list[Reflector] = []
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """End all watches; returns when their threads have ended, or after two seconds each."""
        self.stopped.set()
        with self._moved:
            streams = list(self._streams)
            self._moved.notify_all()
        for stream in streams:
            stream.stop()
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _watch(self, stream: Reflector, name: str) -> None:
        self._streams.append(stream)
        self._start(stream.run, name)

    def _start(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _objects(self) -> dict[str, Object]:
        """All that are there, by name. Under the lock."""
        return {name: found for name, (_, found) in self._known.items() if found is not None}

    def _is_silent(self) -> bool:
        """Under the lock."""
        heard_at = self._heard_at
        return heard_at is None or self.clock.monotonic() - heard_at > self.silence

    # --- being told -------------------------------------------------------------------------

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """All that the selector takes, as of that version: what else it took is gone."""
        with self._moved:
            for found in items:
                self.put(found)
            for name in set(self._taken(selector)) - {f["metadata"]["name"] for f in items}:
                self.gone(name, version)

    def _taken(self, selector: Mapping[str, str]) -> Iterable[str]:
        """Names that a list by this selector says something of."""
        del selector
        return self._known

    def put(self, found: Object) -> None:
        """What the server said of an object, unless it is older than what is known."""
        found["metadata"].pop("managedFields", None)  # takes the most room and is never read
        self._take(found["metadata"]["name"], version_of(found), found)

    def gone(self, name: str, version: int) -> None:
        """It is deleted, unless there is another of that name by now."""
        self._take(name, version, None)

    def _take(self, name: str, version: int, found: Object | None) -> None:
        with self._moved:
            known = self._known.get(name)
            if known is not None and known[0] >= version:
                return
            self._known[name] = (version, found)
            self._changes += 1
            self._moved.notify_all()

    def heard(self, *, proof: bool = True) -> None:
        """A stream has come further; proof: the server read or wrote its own store for that."""
        with self._moved:
            if proof:
                now = self.clock.monotonic()
                if self._is_silent() or self._known_since is None:
                    self._known_since = now  # what was not heard before counts for nothing
                self._heard_at = now
            self._moved.notify_all()

    def interrupted(self) -> None:
        """A watch was away for too long: what it may have missed counts for nothing."""
        with self._moved:
            self._known_since = None
