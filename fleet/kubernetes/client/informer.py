"""What the API server holds of one kind, kept current by watches.

Problem: whoever looks ten times a second how pods, slots and reports stand must not ask the server
each time, and must not conclude from its silence that anybody is gone. Choice: one list and then a
watch of each selector (`fleet.kubernetes.client.informer`), each in a thread of its own; readers
see the last known state at once. What was heard is kept with its version, deletions too, so that
what comes late changes nothing. A server that is away leaves the last known state standing; since
when that is known to be true is told beside it. Cost: a reader may be behind by the way of one
event; who has just written puts the answer in itself (`put`). Names of what was deleted are kept as
long as the informer.
"""

import contextlib
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import Api, Gone, Object, Watching
from fleet.kubernetes.client.calls import GRACE, Calls, Denied
from fleet.system.closing import Closing

# One list, then watches from where it ended: how anything here is kept current.
#
# A watch ends by itself after some minutes and goes on from the last version heard of (bookmarks
# move it along where nothing changes); where the server forgot that version (410) everything is
# listed again. Errors, and watches that end as soon as they have begun, are waited out with a
# growing pause: the reader's last knowledge stands, and `is_out` says for how long it has been
# old.


_SECONDS: Final = (200, 400)
"""Of one watch, drawn anew each time: a hundred watches must not end together."""
_SHORT: Final = 1.0
"""Seconds of a watch that has shown nothing, unless it told something."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class EventHandler(Protocol):
    """Receives the events of a stream."""

    calls: Calls
    kind: str
    clock: Clock
    silence: float
    stopped: threading.Event

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """Handles a list of all objects at a version."""
        ...

    def put(self, found: Object) -> None:
        """Handles the current state of an object."""
        ...

    def gone(self, name: str, version: int) -> None:
        """Handles a deletion."""
        ...

    def heard(self, *, proof: bool = True) -> None:
        """Handles progress of the stream; proof: the server read or wrote its store for it."""
        ...

    def interrupted(self) -> None:
        """Handles a watch that was interrupted for too long and may have missed events."""
        ...


class Reflector:
    """Lists and watches the objects of one selector until its reader stops.

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
        """Returns the version up to which all events were received."""
        return int(self._since or 0)

    @property
    def stands(self) -> bool:
        """Tells whether the list is complete and a watch runs."""
        return self._listed and self._out_since is None

    def is_out(self, now: float) -> bool:
        """Tells whether needed objects are unknown, or the watch is interrupted for too long."""
        if not self._listed:
            return self.needed
        out_since = self._out_since
        return out_since is not None and now - out_since > self._reader.silence

    def go_on_from(self, version: str) -> None:
        """Starts the watch from an existing list; call before `run`."""
        self._since, self._listed = version, True

    def stop(self) -> None:
        """Ends a read that waits."""
        watching = self._watching
        if watching is not None:
            with contextlib.suppress(Exception):  # it may have ended in this moment
                watching.stop()

    def run(self) -> None:
        """Lists and watches in a loop.

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
    """Returns a version as a number, comparable within one kind (Kubernetes 1.35)."""
    return int(found["metadata"]["resourceVersion"])


class Informer(Closing):
    """Caches objects of one kind. Thread-safe; subclasses select and read them.

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
        """Ends all watches; waits up to two seconds for each thread."""
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
        """Stores a list; objects that it lacks are deleted."""
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
        """Stores an object, unless a newer one is known."""
        found["metadata"].pop("managedFields", None)  # takes the most room and is never read
        self._take(found["metadata"]["name"], version_of(found), found)

    def gone(self, name: str, version: int) -> None:
        """Removes an object, unless a new one of that name is known."""
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
        """Records progress of a stream; proof: the server read or wrote its store for it."""
        with self._moved:
            if proof:
                now = self.clock.monotonic()
                if self._is_silent() or self._known_since is None:
                    self._known_since = now  # what was not heard before counts for nothing
                self._heard_at = now
            self._moved.notify_all()

    def interrupted(self) -> None:
        """Handles a watch that was interrupted for too long and may have missed events."""
        with self._moved:
            self._known_since = None


# What a manager knows of a group while it changes it: kept current by watches, not by asking.
#
# Problem: a change looks ten times a second how slots and reports stand, for minutes; and what it
# reads must not be older than what it has just written, or it takes a slot for free that was taken
# before its own slot targets shut. Choice: one watch of all Leases of the group, whose events come
# in the order in which they were stored, whatever the object; a reading waits until that watch has
# brought the manager's own last write, and then everything that was stored before it is there too.
# Where the watch is down, slow, or the server has been silent, the server is asked as without it.
# Cost: a manager's role lists and watches Leases and ConfigMaps of its namespace by label.


_CATCH_UP: Final = 0.5
"""Seconds that a reading waits for the watch."""


class GroupInformer(Informer):
    """Caches all objects of one kind and selector."""

    def __init__(
        self, calls: Calls, kind: str, selector: Mapping[str, str], *, silence: float, clock: Clock
    ) -> None:
        super().__init__(calls, kind, silence=silence, clock=clock)
        self._stream = Reflector(self, selector)
        self._watch(self._stream, f"follow {kind}")

    def objects(self, *, at_least: int) -> dict[str, Object] | None:
        """Returns all objects by name at that version or later; None if unknown."""
        with self._moved:
            current = self._moved.wait_for(
                lambda: self._stream.stands and self._stream.version >= at_least, _CATCH_UP
            )
            return self._objects() if current and not self._is_silent() else None


# Pods under a label selector, for whoever waits until they are as they should be.
#
# The first list is asked for by the first look, with a manager's grace period, and may fail; from
# then on the last known pods stand, whatever becomes of the server.


_POD: Final = "Pod"
_LOOK: Final = 1.0
"""Seconds after which one that waits looks again, whatever it was told."""


class PodInformer(Informer):
    """Caches pods; starts at the first read."""

    def __init__(self, api: Api, selector: str, *, clock: Clock) -> None:
        calls = Calls(api.connection, namespace=api.namespace, clock=clock)
        super().__init__(calls, _POD, silence=math.inf, clock=clock)
        self._api = api
        self._selector = selector

    def items(self) -> tuple[Object, ...]:
        """Returns the last known pods by name. Raises what a first list raises."""
        with self._moved:
            if not self._streams:
                self._begin()
            return tuple(found for _, found in sorted(self._objects().items()))

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
        """Stores the answer of a write; ignores None, and all before the first read."""
        if found is not None and self._streams:
            self.put(found)

    def _begin(self) -> None:
        found, version = self._api.find(_POD, self._selector)
        selector = {"labelSelector": self._selector} if self._selector else {}
        self.listed(selector, found, int(version))
        stream = Reflector(self, selector)
        stream.go_on_from(version)
        self._watch(stream, "watch pods")


# A worker's view of its group's Leases, fed by watches, and since when it is known to be true.
#
# Problem: a standby has to see a freed slot within a tick and the slot targets' asks within two,
# without polling the API server; and it must not take a slot because the server was silent: whoever
# could not renew is not dead [12, 13]. Choice: one list and one watch per Lease (what a Role that
# names them allows), each in a thread of its own: of the slot targets, and of the slots that it
# says were opened or are first to be; the view counts as known only while every watch stands and
# the server has proved itself by an answer or an event a short while ago. Where nothing is heard
# for a tenth of the lease, one Lease is read to find out; a silence of more than a fifth makes the
# view unknown, and what it said before that counts for no lease. Cost: a thread and a connection
# per slot that was ever opened (about 130 KB), one answer more at a start, and after an outage a
# dead owner is found one lease later.


_BY_NAME = "metadata.name="


class LeaseInformer(Informer):
    """Caches some Leases; reads never wait for the server.

    lease: seconds; see the module for what depends on it. pulse: the object that is read to find
    out whether the server lives. named_by: what the pulse, where it is known for the first time,
    names that is needed beside `names`; None: it cannot be read.
    """

    def __init__(
        self,
        calls: Calls,
        kind: str,
        names: Iterable[str],
        *,
        pulse: str,
        lease: float,
        clock: Clock,
        named_by: Callable[[Object], Iterable[str] | None] = lambda _: (),
    ) -> None:
        super().__init__(calls, kind, silence=lease / 5, clock=clock)
        self._pulse = pulse
        self._named_by: Callable[[Object], Iterable[str] | None] | None = named_by
        self._every = lease / 10
        self._by_name: dict[str, Reflector] = {}
        calls.on_answer = self.heard
        self._start(self._beat, "pulse")
        for name in names:
            self.follow(name, needed=True)

    def follow(self, name: str, *, needed: bool = False) -> None:
        """Watches one more object; if it is not needed, the view is valid without it."""
        with self._moved:
            if name in self._by_name or self.stopped.is_set():
                return
            stream = Reflector(self, {"fieldSelector": _BY_NAME + name}, needed=needed)
            self._by_name[name] = stream
            self._watch(stream, f"watch {name}")

    # --- reading ----------------------------------------------------------------------------

    def follows(self, name: str) -> bool:
        """Tells whether this object is watched."""
        return name in self._by_name

    def get(self, name: str) -> Object | None:
        """As last known; do not change it. Waits for the first list of what is needed, else
        Unreachable; anything else is not there until it is known.
        """
        with self._moved:
            stream = self._by_name[name]

            def settled() -> bool:
                return name in self._known or stream.denied or self.stopped.is_set()

            known = not stream.needed or self._moved.wait_for(settled, GRACE)
            if not known or (stream.denied and name == self._pulse and name not in self._known):
                raise Unreachable(f"{self.kind} {name} could not be read yet: {stream.why}")
            return self._known.get(name, (0, None))[1]

    def version(self) -> int:
        """Returns a value that changes with the view."""
        return self._changes

    def known_since(self) -> float | None:
        """Returns the monotonic time since which the view is current; None: it is not."""
        now = self.clock.monotonic()
        with self._moved:
            if self._is_silent():
                return None
            streams = self._by_name.items()
            # A slot that our Role does not name (made before replicas.max grew) is not ours to
            # take; of the slot targets something has to be known.
            if any(s.is_out(now) and (name == self._pulse or not s.denied) for name, s in streams):
                self._known_since = None
            return self._known_since

    # --- being told -------------------------------------------------------------------------

    def _taken(self, selector: Mapping[str, str]) -> Iterable[str]:
        """The one that was listed, there or not."""
        return (selector["fieldSelector"].removeprefix(_BY_NAME),)

    def put(self, found: Object) -> None:
        """Stores an object that is watched."""
        name = found["metadata"]["name"]
        with self._moved:  # the pulse is not known without what it names
            if name in self._by_name:
                super().put(found)
            if name == self._pulse:
                self._follow_named(found)

    def _follow_named(self, pulse: Object) -> None:
        named = () if self._named_by is None else self._named_by(pulse)
        if named is not None:
            self._named_by = None
            for name in named:
                self.follow(name, needed=True)

    def _beat(self) -> None:
        """Find out whether the server lives where nothing is heard of it."""
        while not self.stopped.wait(self._every / 2):
            heard_at = self._heard_at
            if heard_at is not None and self.clock.monotonic() - heard_at < self._every:
                continue
            with contextlib.suppress(Exception):  # known_since tells
                found = self.calls.get(self.kind, self._pulse)
                if found is not None:
                    self.put(found)
