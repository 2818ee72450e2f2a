"""The API server as plain JSON objects: server-side apply, patches, watches, errors in words.

Problem: an API server is away now and then (an upgrade takes it for half a minute), answers 409
where somebody else wrote first, and a manager that gives up at either leaves a change half done.
Choice: requests that may be sent twice are repeated with a growing pause for a bounded time; a
conflict is told apart, so that the caller looks again and decides anew; objects are dicts as the
server sends them, since what is applied is rendered elsewhere
(`fleet.kubernetes.manifests.deployment_objects`). Cost: no types from the client; what a field
means is said where it is read.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import urllib3

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.kubernetes.client.connection import Connection, connection_of
from fleet.kubernetes.client.object_names import MANAGER
from fleet.slots.backend import ConcurrentWrite
from fleet.system.closing import Closing

Object = dict[str, Any]
Result = TypeVar("Result")

FIRST_WAIT: Final = 10.0
"""Seconds that a server may be away before it has answered once: a wrong address, most likely."""
LONGEST_WAIT: Final = 90.0
"""Seconds that it may be away later: an upgrade of the control plane."""
_CONFLICTS: Final = 10
_TIMEOUTS: Final = (5.0, 20.0)
_PASSING: Final = {0, 429, 500, 502, 503, 504}
TRANSPORT: Final = (urllib3.exceptions.HTTPError, OSError)
"""What is raised where no answer came."""

_PLACES: Final = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "ConsumerFleet": ("/apis/fleet-for-kafka.io/v1alpha1", "consumerfleets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Event": ("/api/v1", "events"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Namespace": ("/api/v1", "namespaces"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Pod": ("/api/v1", "pods"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("/apis/monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": ("/apis/monitoring.coreos.com/v1", "prometheusrules"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
}


class Conflict(FleetError, ConcurrentWrite):
    """Reports that another writer was first (409): read again."""


class Gone(FleetError):
    """Reports a watch from a version that the server no longer has (410): list again."""


@dataclass(frozen=True, slots=True)
class Request:
    """Describes one request."""

    method: str
    path: str
    body: Object | None = None
    query: Sequence[tuple[str, str]] = ()
    content_type: str = "application/json"


class Api(Closing):
    """Reads and writes one namespace of one API server. Thread-safe.

    Methods raise Unreachable after a bounded wait, and FleetError with the server's own words
    where it refuses.
    """

    def __init__(self, connection: Connection, *, namespace: str, clock: Clock) -> None:
        self.namespace = namespace
        self.connection = connection
        """For requests with other waits than these (fleet.kubernetes.client.calls)."""
        self._clock = clock
        self._answered = threading.Event()

    @property
    def host(self) -> str:
        """Returns the server's address."""
        return self.connection.host

    def close(self) -> None:
        """Closes its connections."""
        self.connection.close()

    # --- objects ----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Object | None:
        """Returns one object; None if there is none."""
        return self._call("GET", self._path(kind, name), missing=None)

    def find(self, kind: str, selector: str = "") -> tuple[list[Object], str]:
        """Returns the objects of a label selector, and the version of the list."""
        query = [("labelSelector", selector)] if selector else []
        found = self._call("GET", self._path(kind), query=query) or {}
        return list(found.get("items") or []), str(found["metadata"]["resourceVersion"])

    def create(self, wanted: Object) -> bool:
        """Creates an object; False if the name exists already, which stays."""
        query = [("fieldManager", MANAGER)]
        try:
            self._call("POST", self._path(wanted["kind"]), body=wanted, query=query)
        except Conflict:
            return False
        return True

    def apply(self, wanted: Object, *, trial: bool = False) -> Object:
        """Applies on the server as Fleet's field manager, which then owns the named fields.

        trial: only what would become of it; nothing is written.
        """
        path = self._path(wanted["kind"], wanted["metadata"]["name"])
        query = [("fieldManager", MANAGER), ("force", "true")]
        if trial:
            query.append(("dryRun", "All"))
        kind = "application/apply-patch+yaml"
        made = self._call("PATCH", path, body=wanted, query=query, content_type=kind)
        assert made is not None
        return made

    def merge(
        self, kind: str, name: str, patch: Object, *, seen: Object | None = None, part: str = ""
    ) -> Object | None:
        """Changes some fields; None if the object does not exist.

        seen: the object as it was when this was decided; Conflict where it is another by now.
        part: the subresource, such as `status`.
        """
        if seen is not None:
            version = seen["metadata"]["resourceVersion"]
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}
        return self._call(
            "PATCH",
            self._path(kind, f"{name}/{part}" if part else name),
            body=patch,
            query=[("fieldManager", MANAGER)],
            content_type="application/merge-patch+json",
            missing=None,
        )

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object with all that it owns, if it exists."""
        query = [("propagationPolicy", "Background")]
        self._call("DELETE", self._path(kind, name), query=query, missing=None)

    def allowed(self, verb: str, kind: str, name: str = "") -> bool:
        """Tells whether this login has a permission here (SelfSubjectAccessReview)."""
        prefix, plural = _PLACES[kind]
        group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": plural,
            "name": name,
        }
        made = self._call(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
        return bool(made and made.get("status", {}).get("allowed"))

    def version(self) -> str:
        """Returns the server's version."""
        return str((self._call("GET", "/version") or {}).get("gitVersion", "unknown"))

    # --- sending ----------------------------------------------------------------------------

    def _path(self, kind: str, name: str | None = None) -> str:
        return path_of(kind, self.namespace, name)

    def _call(self, method: str, path: str, *, missing: object = ..., **rest: Any) -> Object | None:
        """One request, repeated while the server is away. `missing` given: 404 is None."""
        request = Request(method, path, **rest)
        longest = LONGEST_WAIT if self._answered.is_set() else FIRST_WAIT
        deadline = self._clock.monotonic() + longest
        pause = 0.1
        while True:
            try:
                return self._once(request, missing)
            except Unreachable:
                if self._clock.monotonic() + pause >= deadline:
                    raise
            self._clock.sleep(pause)
            pause = min(2 * pause, 3.0)

    def _once(self, request: Request, missing: object) -> Object | None:
        response = self._send(request, _TIMEOUTS)
        try:
            text = _text(response.read())
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(self._away(error)) from error
        if response.status in _PASSING:
            raise Unreachable(self._away(message_of(text) or f"status {response.status}"))
        self._answered.set()
        if response.status == 404 and missing is not ...:
            return None
        if response.status >= 400:
            raise _refusal(response.status, text)
        answer = json.loads(text)
        assert isinstance(answer, dict)
        return answer

    def _send(self, request: Request, timeouts: tuple[float, float]) -> Any:
        try:
            return transmit(self.connection, request, timeouts, {"User-Agent": "fleet"})
        except TRANSPORT as error:
            raise Unreachable(self._away(error)) from error

    def _away(self, error: object) -> str:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else "no answer"
        return (
            f"Kubernetes API server {self.host} does not answer ({first}); check kubeconfig, "
            "runtime.context and the network"
        )


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
                    raise _refusal(int(found.get("code") or 500), json.dumps(found))
                yield event["type"], found

    def stop(self) -> None:
        """Ends a read that waits in another thread."""
        self._response.shutdown()


def connect(
    *,
    namespace: str,
    context: str | None,
    environ: Mapping[str, str],
    clock: Clock,
    light: bool = False,
) -> Api:
    """Connects to the API of a kubeconfig's context, else of this pod.

    light: see `connection_of`. Raises ConfigError where neither is there.
    """
    connection = connection_of(context=context, environ=environ, clock=clock, light=light)
    return Api(connection, namespace=namespace, clock=clock)


def path_of(kind: str, namespace: str, name: str | None = None) -> str:
    """Returns the path of an object, or of all of its kind."""
    prefix, plural = _PLACES[kind]
    within = "" if kind == "Namespace" else f"/namespaces/{namespace}"
    path = f"{prefix}{within}/{plural}"
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
    for turn in range(_CONFLICTS):
        try:
            return attempt()
        except Conflict:
            if turn + 1 == _CONFLICTS:
                raise
        clock.sleep(min(0.05 * 2**turn, 1.0))
    raise AssertionError


def _refusal(status: int, text: str) -> FleetError:
    said = message_of(text) or f"status {status}"
    if status == 409:
        return Conflict(f"the object has changed on the Kubernetes API server: {said}")
    if status == 410:
        return Gone(said)
    return FleetError(f"the Kubernetes API server refuses ({status}): {said}")


def message_of(text: str) -> str:
    """Returns the message of a Status, or the beginning of any other text."""
    try:
        told = json.loads(text)
    except ValueError:
        return text.strip()[:300]
    return str(told.get("message") or "") if isinstance(told, dict) else ""


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
