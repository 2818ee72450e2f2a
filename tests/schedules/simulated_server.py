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
from fleet.kubernetes.client.informer import LeaseInformer, Reflector
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
        if "targets" in url:
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
        for view in self.views if kind == "Lease" else ():
            view.tell(name)
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


class SimulatedView(LeaseInformer):
    """A worker's; its streams are fed by moments instead of threads."""

    def __init__(
        self, *args: Any, server: SimulatedServer, process: Process, changed: Any, **keywords: Any
    ) -> None:
        self._server = server
        self._process = process
        self._changed = changed
        self._streams_by_name: dict[str, Reflector] = {}
        super().__init__(*args, **keywords)
        self.stopped: Any = _Waits(process)
        server.views.append(self)

    def _start(self, run: Callable[[], None], name: str) -> None:
        if name == "pulse":
            self._process.start(run)

    def _watch(self, stream: Reflector, name: str) -> None:
        self._streams_by_name[name.removeprefix("watch ")] = stream
        self._process.start(lambda: self._list(stream))

    def _list(self, stream: Reflector) -> None:
        name = stream._selector["fieldSelector"].removeprefix("metadata.name=")
        while True:
            try:
                found, version = self.calls.find(self.kind, fieldSelector=f"metadata.name={name}")
            except FleetError as error:
                stream.why = str(error)
                self._process.sleep(0.5)
                continue
            self.listed(stream._selector, found, int(version))
            stream._listed, stream._out_since = True, None
            self.heard()
            self._changed()
            return

    def tell(self, name: str) -> None:
        """It was written."""
        stream = self._streams_by_name.get(name)
        if stream is not None and self._process.alive:
            delay = 0.002 + 0.1 * self._process.world.random.random() ** 3
            self._process.later(delay, lambda: self._comes(name, stream))

    def _comes(self, name: str, stream: Reflector) -> None:
        if stream._out_since is not None:
            return  # listed again, once the server is back
        if self._server.weather.over(self._process) is Sky.AWAY:
            stream._out_since = self.clock.monotonic()
            self._process.start(lambda: self._list(stream))
            return
        found = self._server.objects.get((self.kind, name))
        if found is not None:
            self.put(self._server.get(self.kind, name))
            self.heard()
            self._changed()

    def get(self, name: str) -> Object | None:
        """As it is, without a wait that stops the world."""
        stream, until = self._by_name[name], self.clock.monotonic() + GRACE
        while stream.needed and not (name in self._known or stream.denied):
            if self.clock.monotonic() > until:
                raise Unreachable(f"{self.kind} {name} could not be read yet: {stream.why}")
            self._process.sleep(0.05)
        return super().get(name)
