"""Keeps the objects of one kind and selector current by one list and then watches.

Problem: a reader that polls ten times a second must not ask the API server each time. It must not
conclude from the server's silence that an owner is dead, and must not read less than it has written
itself. Choice: one watch per informer, in a thread of its own. Its events come in the order in
which they were stored, so no version is ever compared: versions are opaque. A write of this process
is shown at once and has to come back by the watch. A watch that does not bring it back, or that is
silent for too long, is ended, and all objects are listed again. While the server is away, readers
see the last known state, and `known_since` says that it is not current. `narrow` follows fewer
objects from then on; `hidden` shows one as it left. Cost: a reader may be behind by one event.
"""

import contextlib
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import BRISK, Api, Denied, Gone, Object, Watching
from fleet.system.closing import Closing

_SECONDS: Final = (300, 600)
"""Seconds of one watch, drawn anew each time: thousands of watches must not end together."""
_SHORT: Final = 1.0
"""Seconds below which a watch without an event counts as vain."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_ECHO: Final = 5.0
"""Seconds within which the watch has to bring back a write of this process."""
_CATCH_UP: Final = 0.5
"""Seconds that a reading waits for a write of this process to come back."""
_FRESH: Final = 0.4
"""Fraction of `silence` after which a reader that acts at once asks the server instead."""
_RECENT: Final = 256
"""Versions that are remembered, for answers that come after their event."""
_LOOK: Final = 1.0
"""Seconds after which a waiting reader looks again, whatever it was told."""


class Informer(Closing):
    """Caches the objects of one kind and selector. Thread-safe.

    selector: `labelSelector` or `fieldSelector`. silence: seconds without an event after which
    nothing counts as known.
    """

    def __init__(
        self, api: Api, kind: str, selector: Mapping[str, str], *, silence: float, clock: Clock
    ) -> None:
        self.api = api
        self.kind = kind
        self.clock = clock
        self.silence = silence
        self.stopped = threading.Event()
        self._selector = dict(selector)
        self._narrowed: tuple[str, frozenset[str]] | None = None
        """A label and its values that objects must have besides."""
        self._hidden: dict[str, Object] = {}
        self.is_whole = True
        """Whether the selector hides nothing: the last list was not narrowed, nor was it since."""
        self._moved = threading.Condition()
        self._known: dict[str, Object] = {}
        """By name, as the list and the watch brought them."""
        self._written: dict[str, tuple[Object, float]] = {}
        """By name: a write of this process that the watch has not brought back, and since when."""
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._changes = 0
        self._since = ""
        self._listed = False
        self._stands = False
        """Whether a watch runs."""
        self._why = "no answer yet"
        self._denied = False
        self._heard_at = -math.inf
        self._known_since: float | None = None
        self._watching: Watching | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Lists and watches from now on."""
        self._thread = threading.Thread(target=self._run, name=f"watch {self.kind}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; waits up to two seconds for its thread."""
        self.stopped.set()
        with self._moved:
            self._moved.notify_all()
        self._end_watch()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    # --- reading ----------------------------------------------------------------------------

    def objects(self) -> dict[str, Object]:
        """Returns all objects by name, as last known; do not change them.

        Waits for the first list. Raises Unreachable if none comes.
        """
        with self._moved:
            settled = self._moved.wait_for(
                lambda: self._listed or self._denied or self.stopped.is_set(), BRISK.grace
            )
            if not settled or not self._listed:
                raise Unreachable(f"no {self.kind} could be read yet: {self._why}")
            return self._shown()

    def get(self, name: str) -> Object | None:
        """Returns one of them; None if it does not exist."""
        return self.objects().get(name)

    def current_objects(self) -> dict[str, Object] | None:
        """Returns all objects, with all that this process wrote or saw before; None if unknown."""
        with self._moved:
            self._moved.wait_for(lambda: self._stands and not self._written, _CATCH_UP)
            known = self.known_since() is not None and self._stands and not self._written
            fresh = self.clock.monotonic() - self._heard_at <= _FRESH * self.silence
            return self._shown() if known and fresh else None

    def hidden(self, name: str) -> Object | None:
        """Returns an object as it was when it left the narrowed selection; do not change it."""
        return self._hidden.get(name)

    def version(self) -> int:
        """Returns a value that changes with what is known."""
        return self._changes

    def known_since(self) -> float | None:
        """Returns the monotonic time since which the objects are current; None: they are not.

        Ends a watch that is silent for too long, or that does not bring back a write.
        """
        now = self.clock.monotonic()
        with self._moved:
            late = any(now - at > _ECHO for _, at in self._written.values())
            if not late and now - self._heard_at <= self.silence:
                return self._known_since
            self._known_since = None
            if self._stands:
                self._since, self._stands = "", False
                self._why = "its watch is silent"
                self._end_watch()
        return None

    def _shown(self) -> dict[str, Object]:
        """Under the lock."""
        return {**self._known, **{name: found for name, (found, _) in self._written.items()}}

    # --- what is followed -------------------------------------------------------------------

    def narrow(self, label: str, values: Collection[str], *, silence: float) -> None:
        """Follows only objects with one of these values of a label from now on; no values: all.

        Until the new list is there, readers see the last known state, and nothing counts as known.
        """
        narrowed = (label, frozenset(values)) if values else None
        with self._moved:
            if narrowed == self._narrowed:
                return
            self._narrowed, self.silence = narrowed, silence
            self.is_whole = self.is_whole and narrowed is None
            self._written = {n: w for n, w in self._written.items() if self._takes(w[0])}
            self._since, self._known_since, self._stands = "", None, False
            self._why = "it is listed anew"
            self._end_watch()

    def _takes(self, found: Object) -> bool:
        if self._narrowed is None:
            return True
        label, values = self._narrowed
        return (found["metadata"].get("labels") or {}).get(label) in values

    def _query(self) -> dict[str, str]:
        if self._narrowed is None:
            return self._selector
        label, values = self._narrowed
        wanted = f"{label} in ({','.join(sorted(values))})"
        all_of = filter(None, (self._selector.get("labelSelector"), wanted))
        return {**self._selector, "labelSelector": ",".join(all_of)}

    # --- writing ----------------------------------------------------------------------------

    def put(self, stored: Object) -> None:
        """Shows a write of this process, as it was answered, until the watch brings it back.

        The caller writes nothing here that the selector does not select.
        """
        name, version = _name_and_version(stored)
        stored["metadata"].pop("managedFields", None)
        with self._moved:
            known = self._known.get(name)
            if not self._takes(stored):  # the watch will not bring it back
                return
            if version in self._recent or (known and _name_and_version(known)[1] == version):
                return
            self._written[name] = (stored, self.clock.monotonic())
            self._changes += 1
            self._moved.notify_all()

    # --- the watch's thread -------------------------------------------------------------------

    def _run(self) -> None:
        """Lists and watches in a loop.

        A forgotten version is listed again at once. Repeated forgetting, watches that end as soon
        as they have begun, and a server that is away are waited out with a growing pause.
        """
        away, vain, gone = _FIRST_PAUSE, _FIRST_PAUSE, False
        while not self.stopped.is_set():
            try:
                if not self._since:
                    self._list()
                stood, away = self._follow(), _FIRST_PAUSE
            except Gone:
                self._since, before, gone = "", gone, True
                if not before:
                    continue
                stood = False
            except Exception as error:  # noqa: BLE001 - the last known state stays; it is retried
                with self._moved:
                    self._why, self._denied = str(error), isinstance(error, Denied)
                    self._moved.notify_all()
                self.stopped.wait(away * random.uniform(0.75, 1.25))
                away = min(2 * away, _LONGEST_PAUSE)
                continue
            if stood:
                vain, gone = _FIRST_PAUSE, False
                continue
            self._why = "its watches end as soon as they have begun"
            self.stopped.wait(vain * random.uniform(0.75, 1.25))
            vain = min(2 * vain, _LONGEST_PAUSE)

    def _list(self) -> None:
        began, query = self.clock.monotonic(), self._query()
        items, since = self.api.find(self.kind, **query)
        self._take_list(items, since, began=began, query=query)

    def _take_list(
        self, items: list[Object], since: str, *, began: float, query: Mapping[str, str]
    ) -> None:
        """Stores a list that was asked for at `began`: writes answered before are in it."""
        for found in items:
            found["metadata"].pop("managedFields", None)  # takes the most room and is never read
        with self._moved:
            if query != self._query():  # it was narrowed or widened meanwhile
                return
            if self._narrowed is not None:
                self._hidden |= self._known
            self.is_whole = self._narrowed is None
            self._known = {found["metadata"]["name"]: found for found in items}
            listed = {_name_and_version(found) for found in items}
            self._written = {
                name: (stored, at)
                for name, (stored, at) in self._written.items()
                if at >= began and _name_and_version(stored) not in listed
            }
            self._since, self._listed, self._denied = since, True, False
            self._heard()

    def _follow(self) -> bool:
        """Follows one watch to its end; False if it ended at once without an event."""
        began, before = self.clock.monotonic(), self._changes
        seconds = random.randint(*_SECONDS)
        with self._moved:
            since, query = self._since, self._query()
        if not since:  # a list was asked for meanwhile
            return True
        watching = self.api.watch(self.kind, since=since, seconds=seconds, **query)
        self._watching, ended = watching, False
        if self.stopped.is_set():  # `close` may have come before there was a watch to end
            watching.stop()
        try:
            with self._moved:
                if not self._since:
                    return True
                self._stands, self._denied = True, False
            for what, found in watching.events():
                if self.stopped.is_set() or not self._take(what, found):
                    return True
            ended = True
        finally:
            self._stands, self._watching = False, None
            if not ended:  # a connection that was read to its end is in the pool again
                with contextlib.suppress(Exception):
                    watching.stop()
        return self._changes != before or self.clock.monotonic() - began >= _SHORT

    def _take(self, what: str, found: Object) -> bool:
        """Stores an event; False if its watch was ended. A bookmark proves nothing."""
        name, version = found["metadata"].get("name", ""), found["metadata"]["resourceVersion"]
        with self._moved:
            if not self._stands:
                return False
            self._since = version
            if what == "BOOKMARK":
                return True
            self._recent.append(version)
            if what == "DELETED":
                gone = self._known.pop(name, None)
                if gone is not None and self._narrowed is not None:
                    self._hidden[name] = gone
            else:
                found["metadata"].pop("managedFields", None)
                self._known[name] = {**found, "kind": self.kind}
            written = self._written.get(name)
            if written is not None and _name_and_version(written[0])[1] == version:
                del self._written[name]
            self._heard()
        return True

    def _heard(self) -> None:
        """Records that the server read or wrote its store for this informer. Under the lock."""
        now = self.clock.monotonic()
        if self._known_since is None or now - self._heard_at > self.silence:
            self._known_since = now  # what was not heard before counts for nothing
        self._heard_at = now
        self._changes += 1
        self._moved.notify_all()

    def _end_watch(self) -> None:
        watching = self._watching
        if watching is not None:
            with contextlib.suppress(Exception):  # it may have ended in this moment
                watching.stop()


def _name_and_version(found: Object) -> tuple[str, str]:
    return found["metadata"]["name"], found["metadata"]["resourceVersion"]


class PodInformer(Informer):
    """Caches pods. The first read lists them, as the manager's client does, and may fail."""

    def __init__(self, api: Api, selector: str, *, clock: Clock) -> None:
        query = {"labelSelector": selector} if selector else {}
        super().__init__(api.brisk(), "Pod", query, silence=math.inf, clock=clock)
        self._api = api
        self._label_selector = selector

    def items(self) -> tuple[Object, ...]:
        """Returns the last known pods by name. Raises what a first list raises."""
        with self._moved:
            if not self._listed:
                began = self.clock.monotonic()
                items, since = self._api.find(self.kind, self._label_selector)
                self._take_list(items, since, began=began, query=self._query())
                self.start()
            self.known_since()
            return tuple(found for _, found in sorted(self._shown().items()))

    def wait(self, settled: Callable[[tuple[Object, ...]], bool], *, seconds: float) -> bool:
        """Waits until a predicate holds for the pods; False after the timeout."""
        deadline = self.clock.monotonic() + seconds
        while not settled(self.items()):
            left = deadline - self.clock.monotonic()
            if left <= 0:
                return False
            with self._moved:
                self._moved.wait(min(left, _LOOK))
        return True

    def written(self, found: Object | None) -> None:
        """Shows the answer of a write; ignores None, and all before the first read."""
        if found is not None and self._listed:
            self.put(found)
