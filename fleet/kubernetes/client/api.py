"""The API server as plain JSON objects: reads, compare-and-set, patches, watches, errors in words.

Problem: an API server is away now and then, answers 409 if another writer was first, and a write
without an answer may have been done or not. A manager that gives up at any of these leaves a change
half done. A worker that waits for long cannot renew, commit and drain in time [12]. Choice: one
client with two retry policies. The patient one repeats a request for as long as an upgrade of the
control plane takes. The brisk one gives up after seconds, and then fails at once, but for one call
every two seconds. It never repeats a write that compares: `Silent` tells its caller to look.
Cost: no types from the client; what would have worked in those two seconds fails.
"""

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import urllib3

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.kubernetes.client.connection import Connection, connection_of
from fleet.kubernetes.client.object_names import MANAGER
from fleet.slots.backend import ConcurrentWrite
from fleet.slots.evidence import WriteLog
from fleet.system.closing import Closing

Object = dict[str, Any]
Result = TypeVar("Result")

LEASE: Final = "Lease"
CONFIG_MAP: Final = "ConfigMap"
_CONFLICTS: Final = 10
TRANSPORT: Final = (urllib3.exceptions.HTTPError, OSError)
"""What is raised where no answer came."""
_SILENT_STATUSES: Final = frozenset({0, 500, 502, 503, 504})
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_CONNECT: Final = 2.0
"""Seconds that a watch waits for a connection."""
WATCH_SILENCE: Final = 100.0
"""Seconds after which a watch without a word is dead: bookmarks come every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long a client waits for a server that is away.

    The defaults are a manager's: an upgrade of the control plane may take that long.
    """

    first: float = 10.0
    """Seconds that a call may take with its repeats before the server has answered once."""
    grace: float = 90.0
    """The same later."""
    connect: float = 5.0
    answer: float = 20.0
    """Seconds that one attempt waits for a connection, for an answer."""
    longest_pause: float = 3.0
    cool: float = 0.0
    """Seconds without an attempt after a call without an answer; 0: each call tries."""
    again: bool = True
    """Whether writes that compare are repeated: the caller decides anew at a conflict."""
    agent: str = MANAGER
    """User-Agent, and field manager of writes."""


PATIENT: Final = Retries()
BRISK: Final = Retries(
    first=4.0,
    grace=4.0,
    connect=2.0,
    answer=2.0,
    longest_pause=1.0,
    cool=2.0,
    again=False,
    agent="fleet-slots",
)
"""The slot store's."""
LOOK: Final = 2.0
"""Seconds for a look at what became of a write without an answer."""
_PROBE: Final = 1.0
"""Seconds that the first attempt after a pause of `cool` may take."""

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "v1": ("ConfigMap", "Event", "Namespace", "Pod", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "ReplicaSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "coordination.k8s.io/v1": ("Lease",),
    "fleet-for-kafka.io/v1alpha1": ("ConsumerFleet",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
}
_VERSIONS: Final = {kind: version for version, kinds in _KINDS.items() for kind in kinds}


def new_object(kind: str, metadata: Object, **fields: Any) -> Object:
    """Returns an object of a kind, with its apiVersion."""
    return {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": metadata, **fields}


class Conflict(FleetError, ConcurrentWrite):
    """Reports that another writer was first (409): read again."""


class Gone(FleetError):
    """Reports a watch from a version that the server no longer has (410): list again."""


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
class Request:
    """Describes one request."""

    method: str
    path: str
    body: Object | None = None
    query: Sequence[tuple[str, str]] = ()
    content_type: str = "application/json"
    repeat: bool = True
    """Whether it may be done twice."""


@dataclass(slots=True)
class _Breaker:
    """Lets one call through every `cool` seconds while the server does not answer."""

    cool: float
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
            self._down_until = now + self.cool
            return True

    def trip(self, now: float, sentence: str) -> None:
        """Records that the server did not answer."""
        with self._lock:
            if self.cool:
                self._down_until, self._sentence = now + self.cool, sentence

    def reset(self) -> None:
        """Records that the server answered."""
        with self._lock:
            self._down_until = None


class Api(Closing):
    """Reads and writes one namespace of one API server. Thread-safe.

    Methods raise Unreachable after the wait of their policy, and FleetError with the server's own
    words if it refuses. A brisk client raises Denied, an Unreachable, for a missing permission: a
    refusal must stop no worker.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        clock: Clock,
        retries: Retries = PATIENT,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.namespace = namespace
        self.connection = connection
        self.host = connection.host
        self.writes = WriteLog(clock)
        """Of Leases alone: that others are stored says nothing of renewals."""
        self._retries = retries
        self._clock = clock
        self._jitter = jitter
        self._breaker = _Breaker(retries.cool)
        self._answered_once = False
        self._answering_since: float | None = None

    def brisk(self) -> "Api":
        """Returns the same server and namespace with the slot store's policy."""
        return Api(self.connection, namespace=self.namespace, clock=self._clock, retries=BRISK)

    def close(self) -> None:
        """Closes its connections."""
        self.connection.close()

    def answering_since(self) -> float | None:
        """Returns since when (monotonic) every call was answered; None: the last was not."""
        return self._answering_since

    # --- objects ----------------------------------------------------------------------------

    def get(self, kind: str, name: str, *, grace: float | None = None) -> Object | None:
        """Returns the current object (a quorum read); None if there is none."""
        return self._call(Request("GET", self._path(kind, name)), grace)

    def find(self, kind: str, selector: str = "", **query: str) -> tuple[list[Object], str]:
        """Returns the objects of a label selector, and the version of the list.

        query: `fieldSelector` and the like.
        """
        asked = tuple({**({"labelSelector": selector} if selector else {}), **query}.items())
        found = self._made(Request("GET", self._path(kind), query=asked))
        # A list says it once for all.
        shared = {"kind": kind, "apiVersion": found.get("apiVersion")}
        items = [{**item, **shared} for item in found.get("items") or ()]
        return items, str(found["metadata"]["resourceVersion"])

    def create(self, wanted: Object) -> bool:
        """Creates an object; False if the name exists already, which stays."""
        with contextlib.suppress(Conflict):
            self.create_new(wanted)
            return True
        return False

    def create_new(self, wanted: Object) -> Object:
        """Creates an object and returns it. Raises Conflict if the name exists."""
        return self._made(self._write("POST", self._path(wanted["kind"]), wanted))

    def replace(self, wanted: Object) -> Object | None:
        """Replaces an object unless it changed since `wanted` was read; None if it is gone.

        Raises Conflict if it changed, Silent if it may have been done or not.
        """
        path = self._path(wanted["kind"], wanted["metadata"]["name"])
        return self._call(replace(self._write("PUT", path, wanted), repeat=self._retries.again))

    def apply(self, wanted: Object, *, trial: bool = False, manager: str = MANAGER) -> Object:
        """Applies on the server as a field manager, which then owns the named fields.

        trial: only what would become of it; nothing is written.
        """
        query = [("fieldManager", manager), ("force", "true")]
        if trial:
            query.append(("dryRun", "All"))
        path = self._path(wanted["kind"], wanted["metadata"]["name"])
        return self._made(Request("PATCH", path, body=wanted, query=query, content_type=_APPLY))

    def merge(
        self, kind: str, name: str, patch: Object, *, seen: Object | None = None, part: str = ""
    ) -> Object | None:
        """Changes some fields; None if the object does not exist.

        seen: the object as it was when this was decided; Conflict if it is another by now. A
        resourceVersion in the patch does the same. part: the subresource, such as `status`.
        """
        if seen is not None:
            version = seen["metadata"]["resourceVersion"]
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}
        compares = "resourceVersion" in patch.get("metadata", {})
        path = self._path(kind, f"{name}/{part}" if part else name)
        request = self._write("PATCH", path, patch)
        return self._call(
            replace(request, content_type=_MERGE, repeat=self._retries.again or not compares)
        )

    def delete(self, kind: str, name: str) -> bool:
        """Deletes an object with all that it owns; tells whether it existed."""
        query = [("propagationPolicy", "Background")]
        return self._call(Request("DELETE", self._path(kind, name), query=query)) is not None

    def watch(self, kind: str, *, since: str, seconds: int, **selector: str) -> "Watching":
        """Watches changes from a version on; returns when the server has begun to answer.

        Raises Gone if the server forgot that version. Waits for no other call's pause.
        """
        query = (
            ("watch", "true"),
            ("resourceVersion", since),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
            *selector.items(),
        )
        request = Request("GET", self._path(kind), query=query)
        response = self._send(request, (_CONNECT, WATCH_SILENCE))
        if response.status >= 400:
            raise self._refusal(response, response.read(), request)
        return Watching(response)

    def allowed(self, verb: str, kind: str) -> bool:
        """Tells whether this login has a permission here (SelfSubjectAccessReview)."""
        group, resource = _VERSIONS[kind].rpartition("/")[0], f"{kind.lower()}s"
        what = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        version = "authorization.k8s.io/v1"
        review: Object = {"apiVersion": version, "kind": "SelfSubjectAccessReview"}
        review["spec"] = {"resourceAttributes": what}
        path = f"/apis/{version}/selfsubjectaccessreviews"
        made = self._made(Request("POST", path, body=review))
        return bool(made.get("status", {}).get("allowed"))

    def version(self) -> str:
        """Returns the server's version."""
        return str(self._made(Request("GET", "/version")).get("gitVersion", "unknown"))

    # --- sending ----------------------------------------------------------------------------

    def _path(self, kind: str, name: str | None = None) -> str:
        return path_of(kind, self.namespace, name)

    def _write(self, method: str, path: str, body: Object) -> Request:
        return Request(method, path, body=body, query=[("fieldManager", self._retries.agent)])

    def _made(self, request: Request) -> Object:
        """Returns an answer that is an object. Raises Missing for 404."""
        made = self._call(request)
        if made is None:
            raise Missing(
                f"{request.path} does not exist on the Kubernetes API server {self.host}; create "
                f"namespace {self.namespace}, or install what defines that kind"
            )
        return made

    def _call(self, request: Request, grace: float | None = None) -> Object | None:
        """One request with its repeats; None for 404. What becomes of a Lease is noted."""
        if request.method == "GET" or "/leases" not in request.path:
            return self._repeated(request, grace)
        with self.writes.track() as write:
            try:
                answer = self._repeated(request, grace)
            except Conflict:  # another writer's was stored; of ours nothing is known
                raise
            except FleetError:
                write.refused = True
                raise
            write.stored = answer is not None
            return answer

    def _repeated(self, request: Request, grace: float | None) -> Object | None:
        retries, now = self._retries, self._clock.monotonic()
        probing = self._breaker.admit(now)
        usual = retries.grace if self._answered_once else retries.first
        deadline = now + (_PROBE if probing else usual if grace is None else grace)
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
                self._answered_once = True
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
            pause = min(2 * pause, retries.longest_pause)

    def _answered(self) -> None:
        self._answered_once = True
        if self._answering_since is None:
            self._answering_since = self._clock.monotonic()

    def _once(self, request: Request, seconds: float) -> Object | None:
        retries = self._retries
        timeouts = (min(retries.connect, seconds), min(retries.answer, seconds))
        response, content = self.ask(request, timeouts)
        if response.status == 404:
            return None
        if response.status >= 400 or response.status in _SILENT_STATUSES:
            raise self._refusal(response, content, request)
        answer = json.loads(content)
        assert isinstance(answer, dict)
        return answer

    def ask(self, request: Request, timeouts: tuple[float, float]) -> tuple[Any, bytes]:
        """Sends once; returns the response and its body. Raises Silent."""
        response = self._send(request, timeouts)
        try:
            return response, response.read()
        except TRANSPORT as error:
            raise Silent(self._away(error)) from error

    def _send(self, request: Request, timeouts: tuple[float, float]) -> Any:
        headers = {"User-Agent": self._retries.agent}
        try:
            return transmit(self.connection, request, timeouts, headers)
        except TRANSPORT as error:
            raise Silent(self._away(error)) from error

    def _refusal(self, response: Any, content: bytes, request: Request) -> Exception:
        status = response.status
        said = message_of(content.decode(errors="replace")) or f"status {status}"
        if status == 429:
            after = response.headers.get("Retry-After", "")
            return _Busy(float(after) if after.isdigit() else 0.0, self._away(said))
        if status in _SILENT_STATUSES:
            return Silent(self._away(said))
        if status in {401, 403} and self._retries is not PATIENT:
            return Denied(
                f"the Kubernetes API server refuses {request.method} {request.path}: {said}; allow "
                "it in the Role of this service account"
            )
        return _refusal(status, said)

    def _away(self, error: object) -> str:
        lines = str(error).strip().splitlines()
        why = lines[0][:200] if lines else "no answer"
        then = (
            "check kubeconfig, runtime.context and the network"
            if self._retries is PATIENT
            else "slot owners work on"
        )
        return f"Kubernetes API server {self.host} does not answer ({why}); {then}"


class Watching:
    """Yields the events of one watch; `stop` ends it from another thread."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def events(self) -> Iterator[tuple[str, Object]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) until the server ends the watch."""
        rest = b""
        for piece in self._response.stream(amt=None, decode_content=True):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                found = event["object"]
                if event["type"] == "ERROR":
                    raise _refusal(int(found.get("code") or 500), str(found.get("message")))
                yield event["type"], found

    def stop(self) -> None:
        """Ends a read that waits in another thread."""
        self._response.shutdown()


def connect(
    *, namespace: str, context: str | None, environ: Mapping[str, str], clock: Clock
) -> Api:
    """Connects to the API of a kubeconfig's context, else of this pod.

    Raises ConfigError if neither exists.
    """
    connection = connection_of(context=context, environ=environ, clock=clock)
    return Api(connection, namespace=namespace, clock=clock)


def path_of(kind: str, namespace: str, name: str | None = None) -> str:
    """Returns the path of an object, or of all of its kind."""
    version = _VERSIONS[kind]
    within = "" if kind == "Namespace" else f"/namespaces/{namespace}"
    path = f"/{'apis' if '/' in version else 'api'}/{version}{within}/{kind.lower()}s"
    return path if name is None else f"{path}/{name}"


def transmit(
    connection: Connection,
    request: Request,
    timeouts: tuple[float, float],
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Sends once; returns status and body as a stream. Raises one of TRANSPORT.

    timeouts: seconds for a connection, and for each word of the answer.
    """
    told = {"Accept": "application/json", **(headers or {})}
    token = connection.authorization()
    if token:
        told["Authorization"] = token
    body = None
    if request.body is not None:
        told["Content-Type"] = request.content_type
        body = json.dumps(request.body)
    query = f"?{urlencode(request.query)}" if request.query else ""
    return connection.pool.request(
        request.method,
        f"{connection.host}{request.path}{query}",
        body=body,
        headers=told,
        timeout=urllib3.Timeout(connect=timeouts[0], read=timeouts[1]),
        preload_content=False,
    )


def again_on_conflict(clock: Clock, attempt: Callable[[], Result]) -> Result:
    """Reads and writes again after a conflict, with a growing pause."""
    for turn in range(_CONFLICTS - 1):
        with contextlib.suppress(Conflict):
            return attempt()
        clock.sleep(min(0.05 * 2**turn, 1.0))
    return attempt()


def _refusal(status: int, said: str) -> FleetError:
    if status == 409:
        return Conflict(f"the object has changed on the Kubernetes API server: {said}")
    if status == 410:
        return Gone(said)
    if status == 413 or (status == 422 and "long" in said.lower()):
        return TooLarge(said)
    return FleetError(f"the Kubernetes API server refuses ({status}): {said}")


def message_of(text: str) -> str:
    """Returns the message of a Status, or the beginning of any other text."""
    try:
        told = json.loads(text)
    except ValueError:
        return text.strip()[:300]
    return str(told.get("message") or "") if isinstance(told, dict) else ""


def timestamp(at: float) -> str:
    """Returns a wall time as Kubernetes writes it."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
