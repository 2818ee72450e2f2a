"""A worker's view of its group's Leases, fed by watches, and since when it is known to be true.

Problem: a standby has to see a freed slot within a tick and the gate's asks within two, without
polling the API server; and it must not take a slot because the server was silent: whoever could
not renew is not dead [12, 13]. Choice: one list and one watch per Lease (what a Role that names
them allows), each in a thread of its own: of the gate, and of the slots that it says were opened
or are first to be; the view counts as known only while every watch stands and the server has
proved itself by an answer or an event a short while ago. Where nothing is heard for a tenth of the
lease, one Lease is read to find out; a silence of more than a fifth makes the view unknown, and
what it said before that counts for no lease. Cost: a thread and a connection per slot that was
ever opened (about 130 KB), one answer more at a start, and after an outage a dead holder is found
one lease later.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import PATIENCE, Calls
from fleet.kubernetes.client.informer import Informer
from fleet.kubernetes.client.reflector import Reflector

_BY_NAME = "metadata.name="


class LeaseInformer(Informer):
    """The last known state of some Leases; reads never wait for the server.

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
        """Watch one more; where it is not needed, the view is known without it too."""
        with self._moved:
            if name in self._by_name or self.stopped.is_set():
                return
            stream = Reflector(self, {"fieldSelector": _BY_NAME + name}, needed=needed)
            self._by_name[name] = stream
            self._watch(stream, f"watch {name}")

    # --- reading ----------------------------------------------------------------------------

    def follows(self, name: str) -> bool:
        """Whether this object is watched."""
        return name in self._by_name

    def get(self, name: str) -> Object | None:
        """As last known; do not change it. Waits for the first list of what is needed, else
        Unreachable; anything else is not there until it is known.
        """
        with self._moved:
            stream = self._by_name[name]

            def settled() -> bool:
                return name in self._known or stream.denied or self.stopped.is_set()

            known = not stream.needed or self._moved.wait_for(settled, PATIENCE)
            if not known or (stream.denied and name == self._pulse and name not in self._known):
                raise Unreachable(f"{self.kind} {name} could not be read yet: {stream.why}")
            return self._known.get(name, (0, None))[1]

    def version(self) -> int:
        """Differs whenever anything in the view has changed."""
        return self._changes

    def known_since(self) -> float | None:
        """Monotonic time since when the view has been current without a break; None: it is not."""
        now = self.clock.monotonic()
        with self._moved:
            if self._is_silent():
                return None
            streams = self._by_name.items()
            # A slot that our Role does not name (made before replicas.max grew) is not ours to
            # take; of the gate something has to be known.
            if any(s.is_out(now) and (name == self._pulse or not s.denied) for name, s in streams):
                self._known_since = None
            return self._known_since

    # --- being told -------------------------------------------------------------------------

    def _taken(self, selector: Mapping[str, str]) -> Iterable[str]:
        """The one that was listed, there or not."""
        return (selector["fieldSelector"].removeprefix(_BY_NAME),)

    def put(self, found: Object) -> None:
        """Of those that are followed."""
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
