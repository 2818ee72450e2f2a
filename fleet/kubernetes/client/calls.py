"""Requests of the slot store: short waits, few repeats, and no waiting at all while it is known
that nobody answers.

Problem: a worker must renew, commit and drain in time whether or not the API server answers [12],
and a write without an answer may have been done or not. Choice: every call is bounded by a few
seconds; 429 is repeated after the pause that it names, reads and patches (which may be done
twice) are repeated once or twice, a replacement never is (`Silent` tells its caller to look).
After a call that nobody answered, the next ones fail at once, but for one that probes every
two seconds. Cost: what would have worked in those two seconds is told as unreachable. The
manager's own, more patient way to the server is `fleet.kubernetes.client.api`.
"""

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.kubernetes.client.api import (
    TRANSPORT,
    Conflict,
    Gone,
    Object,
    Request,
    Watching,
    message_of,
    path_of,
    transmit,
)
from fleet.kubernetes.client.connection import Connection
from fleet.slots.evidence import WriteLog

GRACE: Final = 4.0
"""Seconds that one call may take with its repeats."""
LOOK: Final = 2.0
"""Seconds for a look at what became of a write without an answer."""
COOL: Final = 2.0
"""Seconds without an attempt after a call that nobody answered."""
_PROBE: Final = 1.0
"""Seconds that the attempt after that may take."""
_CONNECT: Final = 2.0
_ANSWER: Final = 2.0
"""Seconds that one attempt waits for a connection, for an answer."""
WATCH_SILENCE: Final = 100.0
"""Seconds after which a watch without a word is dead: bookmarks come every minute."""

LEASE: Final = "Lease"
CONFIG_MAP: Final = "ConfigMap"
VERSIONS: Final[Mapping[str, str]] = {LEASE: "coordination.k8s.io/v1", CONFIG_MAP: "v1"}
_LEASES: Final = "/leases"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_WRITER: Final = "fleet-slots"
"""Field manager of written state; what is applied beforehand is `object_names.MANAGER`'s."""
_SILENT_STATUSES: Final = frozenset({500, 502, 503, 504})


class Silent(Unreachable):
    """Reports a call without an answer, which may have been done."""


class Missing(Unreachable):
    """Reports a missing object that should exist; nothing else follows from that."""


class Denied(Unreachable):
    """Reports a missing permission, which callers treat as no answer."""


class TooLarge(FleetError):
    """Reports an object that is too large for the server."""


class _Busy(Exception):
    def __init__(self, after: float, sentence: str) -> None:
        super().__init__(sentence)
        self.after = after


@dataclass(frozen=True, slots=True)
class _Request(Request):
    repeat: bool = True
    """Whether it may be done twice."""


@dataclass(slots=True)
class _Breaker:
    """Lets one call through every `COOL` seconds while nobody answers."""

    _down_until: float | None = None
    _sentence: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, now: float) -> bool:
        """Returns True for the probe; raises Unreachable for any other call."""
        with self._lock:
            if self._down_until is None:
                return False
            if now < self._down_until:
                raise Unreachable(self._sentence)
            self._down_until = now + COOL
            return True

    def trip(self, now: float, sentence: str) -> None:
        """Records that the server did not answer."""
        with self._lock:
            self._down_until, self._sentence = now + COOL, sentence

    def reset(self) -> None:
        """Records that the server answered."""
        with self._lock:
            self._down_until = None


class Calls:
    """Reads and writes the Leases and ConfigMaps of one namespace. Thread-safe.

    Methods raise Unreachable in bounded time where the server does not answer or does not let
    us: a refusal must stop nobody either.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.namespace = namespace
        self._connection = connection
        self._clock = clock
        self._jitter = jitter
        self.writes = WriteLog(clock)
        """Of Leases alone: that others are stored says nothing of renewals."""
        self._breaker = _Breaker()
        self._answering_since: float | None = None

    def answering_since(self) -> float | None:
        """Returns since when (monotonic) every call was answered; None: the last was not."""
        return self._answering_since

    # --- objects ----------------------------------------------------------------------------

    def get(self, kind: str, name: str, *, grace: float = GRACE) -> Object | None:
        """Returns the current object (a quorum read); None if there is none."""
        return self._call(_Request(method="GET", path=self._path(kind, name)), grace)

    def find(self, kind: str, **selector: str) -> tuple[list[Object], str]:
        """Returns the objects of a fieldSelector or labelSelector, and the version of the list."""
        query = tuple(selector.items())
        found = self._call(_Request(method="GET", path=self._path(kind), query=query)) or {}
        # A list says it once for all.
        items = [
            dict(item, kind=kind, apiVersion=found["apiVersion"]) for item in found["items"] or ()
        ]
        return items, str(found["metadata"]["resourceVersion"])

    def create(self, wanted: Object) -> Object:
        """Creates an object. Raises Conflict if the name exists."""
        query = (("fieldManager", _WRITER),)
        path = self._path(wanted["kind"])
        made = self._call(_Request(method="POST", path=path, body=wanted, query=query))
        if made is None:
            raise Missing(f"namespace {self.namespace} does not exist")
        return made

    def replace(self, wanted: Object) -> Object | None:
        """Replaces an object unless it changed since `wanted` was read; None if it is gone.

        Raises Conflict where somebody did, Silent where it may have been done or not.
        """
        path = self._path(wanted["kind"], wanted["metadata"]["name"])
        query = (("fieldManager", _WRITER),)
        request = _Request(method="PUT", path=path, body=wanted, query=query, repeat=False)
        return self._call(request)

    def merge(self, kind: str, name: str, patch: Object) -> Object | None:
        """Changes the fields of a patch; None if the object does not exist.

        A resourceVersion in the patch makes it a compare-and-set (Conflict).
        """
        compared = "resourceVersion" in patch.get("metadata", {})
        return self._call(
            _Request(
                method="PATCH",
                path=self._path(kind, name),
                body=patch,
                query=(("fieldManager", _WRITER),),
                content_type=_MERGE,
                repeat=not compared,
            )
        )

    def apply(self, wanted: Object, *, manager: str) -> Object:
        """Applies on the server: creates a missing object, else changes only the named fields."""
        made = self._call(
            _Request(
                method="PATCH",
                path=self._path(wanted["kind"], wanted["metadata"]["name"]),
                body=wanted,
                query=(("fieldManager", manager), ("force", "true")),
                content_type=_APPLY,
            )
        )
        if made is None:
            raise Missing(f"namespace {self.namespace} does not exist")
        return made

    def delete(self, kind: str, name: str) -> bool:
        """Deletes an object; tells whether it existed."""
        return self._call(_Request(method="DELETE", path=self._path(kind, name))) is not None

    def watch(self, kind: str, *, since: str, seconds: int, **selector: str) -> Watching:
        """Watches changes from a version on; returns when the server has begun to answer.

        Raises Gone where the server forgot that version. Waits for nobody else's pause.
        """
        query = (
            ("watch", "true"),
            ("resourceVersion", since),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
            *selector.items(),
        )
        request = _Request(method="GET", path=self._path(kind), query=query)
        response = self._send(request, (_CONNECT, WATCH_SILENCE))
        if response.status >= 400:
            raise self._refusal(response.status, response.read(), request)
        return Watching(response)

    # --- sending ----------------------------------------------------------------------------

    def _path(self, kind: str, name: str | None = None) -> str:
        return path_of(kind, self.namespace, name)

    def _call(self, request: _Request, grace: float = GRACE) -> Object | None:
        """One request with its repeats; None for 404. What becomes of a Lease is noted."""
        if request.method == "GET" or _LEASES not in request.path:
            return self._repeated(request, grace)
        with self.writes.track() as write:
            try:
                answer = self._repeated(request, grace)
            except Conflict:  # somebody's was stored; of ours nothing is known
                raise
            except FleetError:
                write.refused = True
                raise
            write.stored = answer is not None
            return answer

    def _repeated(self, request: _Request, grace: float) -> Object | None:
        now = self._clock.monotonic()
        probing = self._breaker.admit(now)
        deadline = now + (_PROBE if probing else grace)
        pause = 0.05
        while True:
            try:
                answer = self._once(request, max(0.2, deadline - self._clock.monotonic()))
            except _Busy as busy:
                failure: Unreachable = Unreachable(str(busy))
                wait = max(pause, busy.after)
            except Silent as silent:
                if not request.repeat:  # its caller looks what came of it: that call tells
                    raise
                failure, wait = silent, pause
            except FleetError as refused:  # an answer too
                self._breaker.reset()
                if isinstance(refused, Conflict):
                    self._answered()
                raise
            else:
                self._breaker.reset()
                self._answered()
                return answer
            wait *= 0.75 + self._jitter() / 2
            now = self._clock.monotonic()
            if now + wait >= deadline:
                self._answering_since = None
                self._breaker.trip(now, str(failure))
                raise failure
            self._clock.sleep(wait)
            pause = min(2 * pause, 1.0)

    def _answered(self) -> None:
        if self._answering_since is None:
            self._answering_since = self._clock.monotonic()

    def _once(self, request: _Request, seconds: float) -> Object | None:
        timeouts = (min(_CONNECT, seconds), min(_ANSWER, seconds))
        response = self._send(request, timeouts)
        try:
            content = response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Silent(self._away(error)) from error
        if response.status == 404:
            return None
        if response.status >= 400:
            raise self._refusal(response.status, content, request, response.headers)
        answer = json.loads(content)
        assert isinstance(answer, dict)
        return answer

    def _send(self, request: _Request, timeouts: tuple[float, float]) -> Any:
        try:
            return transmit(self._connection, request, timeouts)
        except TRANSPORT as error:
            raise Silent(self._away(error)) from error

    def _refusal(
        self,
        status: int,
        content: bytes,
        request: _Request,
        headers: Mapping[str, str] | None = None,
    ) -> Exception:
        said = message_of(content.decode(errors="replace")) or f"status {status}"
        if status == 409:
            return Conflict(said)
        if status == 410:
            return Gone(said)
        if status == 429:
            after = (headers or {}).get("Retry-After", "")
            return _Busy(float(after) if after.isdigit() else 0.0, self._away(said))
        if status in _SILENT_STATUSES:
            return Silent(self._away(said))
        if status in {401, 403}:
            return Denied(
                f"the Kubernetes API server refuses {request.method} {request.path}: {said}; allow "
                "it "
                "in the Role of this service account (`fleet render manifests`)"
            )
        if status == 413 or (status == 422 and "long" in said.lower()):
            return TooLarge(said)
        return FleetError(f"the Kubernetes API server refuses {request.path} ({status}): {said}")

    def _away(self, error: object) -> str:
        lines = str(error).strip().splitlines()
        return (
            f"Kubernetes API server {self._connection.host} does not answer "
            f"({lines[0][:200] if lines else 'no reason'}); slot owners work on"
        )
