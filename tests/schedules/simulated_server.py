"""An API server on simulated time: whoever asks may be overtaken, cut off, or not let write.

What a worker's watches bring comes later than it is written, each by itself, and not at all while
the server is away from it.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fleet.errors import FleetError, Unreachable
from fleet.kubernetes.client.api import Api
from fleet.kubernetes.client.calls import GRACE
from fleet.kubernetes.client.connection import Connection
from fleet.kubernetes.client.informer import Informer
from tests.schedules.simulated_time import Process
from tests.schedules.weather import OVERTAKEN, Sky, Weather
from tests.support.memory_server import Answer, MemoryServer, Object

_TIMEOUT = 1.0
"""Seconds until who asks a silent server gives up."""


class SimulatedServer(MemoryServer):
    """Of one namespace; `written` is told of each object as it was, as it is, and who wrote it."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self.weather = weather
        self.written: Callable[[Object | None, Object, Process | None], None] = lambda *_: None
        self.views: list[SimulatedView] = []
        self._writer: Process | None = None

    def api_of(self, process: Process) -> Api:
        """As this process reaches it."""

        def request(method: str, url: str, **rest: Any) -> Answer:
            return self._from(process, method, url, **rest)

        pool: Any = SimpleNamespace(request=request, clear=lambda: None)
        ours = Connection(host="http://memory", pools=lambda room: pool, authorization=lambda: None)
        return Api(ours, namespace=self.namespace, clock=process)

    def _from(self, process: Process, method: str, url: str, **rest: Any) -> Answer:
        chance = process.world.random.random()
        sky = self.weather.over(process)
        if sky is Sky.SLOW:
            process.sleep(0.1 + 0.4 * chance)
        elif chance < OVERTAKEN:
            process.sleep(0.0002 + 0.005 * chance)
        sky, writes = self.weather.over(process), method != "GET"
        if sky is Sky.AWAY:
            if writes and process.world.random.random() < 0.2:  # done, and not answered
                self._asked(process, method, url, **rest)
            process.sleep(_TIMEOUT)
            raise OSError("nobody answers")
        if sky is Sky.READ_ONLY and writes:
            told = "etcdserver: mvcc: database space exceeded"
            return Answer(500, {"kind": "Status", "message": told, "code": 500})
        if "targets" in url or "/leases?" in url:
            process.reaches_targets()
        return self._asked(process, method, url, **rest)

    def _asked(self, process: Process, method: str, url: str, **rest: Any) -> Answer:
        self._writer = process
        try:
            return self._request(method, url, **rest)
        finally:
            self._writer = None

    def _store(self, kind: str, name: str, wanted: Object, what: str) -> Object:
        before = self.objects.get((kind, name))
        stored = super()._store(kind, name, wanted, what)
        self.written(before, stored, self._writer)
        for view in self.views:
            view.tell(self.get(kind, name))
        return stored


class _Waits:
    """An event that nobody sets."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def wait(self, seconds: float) -> bool:
        self._process.sleep(seconds)
        return False

    def is_set(self) -> bool:
        return False


class SimulatedView(Informer):
    """A worker's; its list and its events come at moments instead of in a thread."""

    def __init__(
        self, *args: Any, server: SimulatedServer, process: Process, changed: Any, **keywords: Any
    ) -> None:
        super().__init__(*args, **keywords)
        self._server = server
        self._process = process
        self._changed = changed
        self._next = 0.0
        """When the last event on its way arrives: none overtakes another."""
        self.stopped: Any = _Waits(process)
        server.views.append(self)

    def start(self) -> None:
        """Lists in a thread of the process."""
        self._process.start(self._list_until_answered)

    def _list_until_answered(self) -> None:
        while not self._stands:
            try:
                self._list()
                self._stands = True
            except FleetError as error:
                self._why = str(error)
                self._process.sleep(0.5)
        self._changed()

    def _end_watch(self) -> None:
        self._stands = False
        self.start()

    def tell(self, stored: Object) -> None:
        """Brings an object that was written; an event that comes before the list is in it."""
        if not self._process.alive or stored["kind"] != self.kind:
            return
        now = self._process.world.now
        delay = 0.002 + 0.1 * self._process.world.random.random() ** 3
        self._next = max(self._next, now + delay)
        self._process.later(self._next - now, lambda: self._comes(stored))

    def _comes(self, stored: Object) -> None:
        if not self._stands or int(stored["metadata"]["resourceVersion"]) <= int(self._since):
            return  # listed again once the server is back; or in the list already
        if self._server.weather.over(self._process) is Sky.AWAY:
            self._end_watch()
            return
        self._take("MODIFIED", stored)
        self._changed()

    def objects(self) -> dict[str, Object]:
        """Returns them as they are, without a wait that stops the world."""
        until = self.clock.monotonic() + GRACE
        while not self._listed:
            if self.clock.monotonic() > until:
                raise Unreachable(f"no {self.kind} could be read yet: {self._why}")
            self._process.sleep(0.05)
        return super().objects()
