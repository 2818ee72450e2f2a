"""A worker's view of its group's Leases, fed by watches, and since when it is known to be true.

Problem: a standby has to see a freed slot within a tick and the gate's asks within two, without
polling the API server; and it must not take a slot because the server was silent: whoever could
not renew is not dead [12, 13]. Choice: one list and one watch per Lease (what a Role that names
them allows), each in a thread of its own; the view counts as known only while every watch stands
and the server has proved itself by an answer or an event a short while ago. Where nothing is
heard for a tenth of the lease, one Lease is read to find out; a silence of more than a fifth
makes the view unknown, and what it said before that counts for no lease. Cost: a thread and a
connection per slot (about 130 KB), and after an outage a dead holder is found one lease later.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import PATIENCE, Calls
from fleet.kubernetes.client.reflector import Reflector, version_of
from fleet.system.closing import Closing

_BY_NAME = "metadata.name="


class LeaseInformer(Closing):
    """The last known state of some Leases. Thread-safe; reads never wait for the server.

    lease: seconds; see the module for what depends on it. pulse: the object that is read to find
    out whether the server lives.
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
    ) -> None:
        self.calls = calls
        self.kind = kind
        self._pulse = pulse
        self.clock = clock
        self._every = lease / 10
        self.silence = lease / 5
        """Seconds without a word after which nothing is known."""
        self._lock = threading.Condition()
        self._known: dict[str, tuple[int, Object | None]] = {}
        self._version = 0
        self._heard_at: float | None = None
        self._known_since: float | None = None
        self.stopped = threading.Event()
        self._streams: dict[str, Reflector] = {}
        self._threads: list[threading.Thread] = []
        calls.on_answer = self.heard
        self._start(self._beat, "pulse")
        for name in names:
            self.follow(name, needed=True)

    def close(self) -> None:
        """End all watches; returns when their threads have ended, or after two seconds."""
        self.stopped.set()
        with self._lock:
            streams = list(self._streams.values())
            self._lock.notify_all()
        for stream in streams:
            stream.stop()
        for thread in self._threads:
            thread.join(timeout=2.0)

    def follow(self, name: str, *, needed: bool = False) -> None:
        """Watch one more; where it is not needed, the view is known without it too."""
        with self._lock:
            if name in self._streams or self.stopped.is_set():
                return
            stream = Reflector(self, {"fieldSelector": _BY_NAME + name}, needed=needed)
            self._streams[name] = stream
        self._start(stream.run, f"watch {name}")

    def _start(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- reading ----------------------------------------------------------------------------

    def follows(self, name: str) -> bool:
        """Whether this object is watched."""
        return name in self._streams

    def get(self, name: str) -> Object | None:
        """As last known; do not change it. Waits for the first list of what is needed, else
        Unreachable; anything else is not there until it is known.
        """
        with self._lock:
            stream = self._streams[name]

            def settled() -> bool:
                return name in self._known or stream.denied or self.stopped.is_set()

            known = not stream.needed or self._lock.wait_for(settled, PATIENCE)
            if not known or (stream.denied and name == self._pulse and name not in self._known):
                raise Unreachable(f"{self.kind} {name} could not be read yet: {stream.why}")
            return self._known.get(name, (0, None))[1]

    def version(self) -> int:
        """Differs whenever anything in the view has changed."""
        return self._version

    def known_since(self) -> float | None:
        """Monotonic time since when the view has been current without a break; None: it is not."""
        now = self.clock.monotonic()
        with self._lock:
            if self._heard_at is None or now - self._heard_at > self.silence:
                return None
            streams = self._streams.items()
            # A slot that our Role does not name (made before replicas.max grew) is not ours to
            # take; of the gate something has to be known.
            if any(s.is_out(now) and (name == self._pulse or not s.denied) for name, s in streams):
                self._known_since = None
            return self._known_since

    # --- being told -------------------------------------------------------------------------

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """The one object that was listed, or that it is not there."""
        for found in items:
            self.put(found)
        if not items:
            self.gone(selector["fieldSelector"].removeprefix(_BY_NAME), version)

    def put(self, found: Object) -> None:
        """Take over what the server said of an object, unless it is older than what is known."""
        name = found["metadata"]["name"]
        if name not in self._streams:
            return
        found["metadata"].pop("managedFields", None)
        self._take(name, version_of(found), found)

    def gone(self, name: str, version: int) -> None:
        """It is deleted."""
        self._take(name, version, None)

    def _take(self, name: str, version: int, found: Object | None) -> None:
        with self._lock:
            known = self._known.get(name)
            if known is not None and known[0] >= version:
                return
            self._known[name] = (version, found)
            self._version += 1
            self._lock.notify_all()

    def heard(self, *, proof: bool = True) -> None:
        """The server proved that it reads and writes its own store."""
        if not proof:
            return
        now = self.clock.monotonic()
        with self._lock:
            silent = self._heard_at is None or now - self._heard_at > self.silence
            if silent or self._known_since is None:
                self._known_since = now  # what was not heard before counts for nothing
            self._heard_at = now

    def interrupted(self) -> None:
        """A watch was away for too long: what it may have missed counts for nothing."""
        with self._lock:
            self._known_since = None

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
