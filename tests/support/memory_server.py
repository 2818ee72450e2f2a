"""An API server in memory: objects with versions, compare-and-set, labels, watches; no controllers.

It stands where `urllib3` would send a request, so that all of our own code runs. What a controller
would do is done by the test (`put`, `delete`), or by `before` and `after`, which are told of every
request and of every write.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fleet.clock import Clock
from fleet.kubernetes.client.api import Api, path_of
from fleet.kubernetes.client.connection import Connection

Object = dict[str, Any]
_MOST = 1 << 20
"""Characters of a ConfigMap's keys and values, as a real server takes them."""
_KINDS = {
    "configmaps": "ConfigMap",
    "deployments": "Deployment",
    "horizontalpodautoscalers": "HorizontalPodAutoscaler",
    "leases": "Lease",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "pods": "Pod",
    "replicasets": "ReplicaSet",
    "rolebindings": "RoleBinding",
    "roles": "Role",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
    "services": "Service",
}


class Answer:
    """A response as urllib3 has it."""

    def __init__(self, status: int, body: Object, lines: Iterator[bytes] | None = None) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {}
        self._body = body
        self._lines = lines
        self.ended = threading.Event()

    def read(self) -> bytes:
        return json.dumps(self._body).encode()

    def stream(self, **_: Any) -> Iterator[bytes]:
        """Of a watch: its lines, as they come."""
        assert self._lines is not None
        return self._lines

    def shutdown(self) -> None:
        self.ended.set()


class MemoryServer:
    """One namespace.

    silent: how many writes from now on are done, but not answered. away: nothing is done at all.
    cut: each watch ends as soon as it has begun. forgets: the next watch is answered with 410.
    lag: seconds by which watches are late.
    """

    def __init__(self, namespace: str = "ns") -> None:
        self.namespace = namespace
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.silent = 0
        self.away = False
        self.cut = self.forgets = False
        self.lag = 0.0
        self.watches = 0
        """How many were asked for."""
        self.events = 0
        """How many they were sent."""
        self.refused_as_too_large = 0
        self.before: Callable[[str, str, str], None] = lambda method, kind, name: None
        self.after: Callable[[str, Object], None] = lambda method, found: None
        self._version = 100
        self._told: list[tuple[int, str, Object, Object | None]] = []
        """Version, what happened, the object, and as it was before."""
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)

    def api(self, clock: Clock) -> Api:
        """Ours, with this server behind it."""
        pool: Any = SimpleNamespace(request=self._request, clear=lambda: None)
        ours = Connection(host="http://memory", pool=pool, authorization=lambda: None)
        return Api(ours, namespace=self.namespace, clock=clock)

    def get(self, kind: str, name: str) -> Object:
        """As it is now."""
        return json.loads(json.dumps(self.objects[kind, name]))

    def put(self, found: Object) -> Object:
        """Written by somebody else, whatever was there; as it is answered."""
        with self._lock:
            kind, name = found["kind"], found["metadata"]["name"]
            what = "MODIFIED" if (kind, name) in self.objects else "ADDED"
            return json.loads(json.dumps(self._store(kind, name, found, what)))

    def delete(self, kind: str, name: str) -> None:
        """Deleted by somebody else."""
        with self._lock:
            gone = self.get(kind, name)  # a copy: what was told of it stays as it was
            del self.objects[kind, name]
            self._version += 1
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._tell("DELETED", gone, gone)

    # --- the wire ---------------------------------------------------------------------------

    def _request(self, method: str, url: str, *, body: str | None, **_: Any) -> Answer:
        place = urlsplit(url)
        query = dict(parse_qsl(place.query))
        plural, _, name = place.path.partition(f"/namespaces/{self.namespace}/")[2].partition("/")
        kind = _KINDS[plural]
        assert place.path.startswith(path_of(kind, self.namespace))
        wanted = json.loads(body) if body else {}
        if self.away:
            raise OSError("nobody is there")
        if query.get("watch"):
            return self._watch(kind, query)
        self.before(method, kind, name)
        with self._lock:
            self.requests.append((method, f"{kind}/{name}" if name else kind))
            answer = self._answered(method, kind, name, wanted, query)
        if method != "GET" and answer.status < 300 and not query.get("dryRun"):
            self.after(method, answer._body)
            if self.silent:
                self.silent -= 1
                raise OSError("the answer was lost")
        return answer

    def _answered(
        self, method: str, kind: str, name: str, wanted: Object, query: Mapping[str, str]
    ) -> Answer:
        if method == "GET" and not name:
            items = [o for (k, _), o in sorted(self.objects.items()) if k == kind and
                     _selected(o, query)]  # fmt: skip
            version = {"resourceVersion": str(self._version)}
            return Answer(200, {"items": items, "metadata": version, "apiVersion": "v1"})
        if method == "POST":
            name = wanted["metadata"]["name"]
            if (kind, name) in self.objects:
                return _refused(409, f"{kind} {name} is there")
            return Answer(201, self._store(kind, name, wanted, "ADDED"))
        found = self.objects.get((kind, name))
        if method == "GET":
            return Answer(200, found) if found else _refused(404, "not there")
        if method == "PATCH" and found is None and wanted.get("apiVersion"):  # apply
            return Answer(201, self._store(kind, name, wanted, "ADDED"))
        if found is None:
            return _refused(404, "not there")
        if method == "DELETE":
            self.delete(kind, name)
            return Answer(200, found)
        seen = wanted["metadata"].get("resourceVersion") if "metadata" in wanted else None
        if seen is not None and seen != found["metadata"]["resourceVersion"]:
            return _refused(409, "the object has been modified")
        made = wanted if method == "PUT" else _merged(found, wanted)
        if query.get("dryRun"):
            return Answer(200, made)
        if sum(len(key) + len(value) for key, value in (made.get("data") or {}).items()) > _MOST:
            self.refused_as_too_large += 1
            return _refused(422, f"{kind} {name} is invalid: data: Too long: at most {_MOST}")
        return Answer(200, self._store(kind, name, made, "MODIFIED"))

    def _store(self, kind: str, name: str, wanted: Object, what: str) -> Object:
        self._version += 1
        stored = json.loads(json.dumps({**wanted, "kind": kind}))
        stored["metadata"] = {**stored["metadata"], "resourceVersion": str(self._version)}
        before = self.objects.get((kind, name))
        self.objects[kind, name] = stored
        self._tell(what, stored, before)
        return stored

    def _tell(self, what: str, found: Object, before: Object | None) -> None:
        self._told.append((self._version, what, found, before))
        self._moved.notify_all()

    def _watch(self, kind: str, query: Mapping[str, str]) -> Answer:
        self.watches += 1
        if self.cut:
            return Answer(200, {}, iter(()))
        if self.forgets:
            self.forgets = False
            return _refused(410, "too old resource version")
        since = int(query["resourceVersion"])

        def lines() -> Iterator[bytes]:
            at = since
            while not answer.ended.is_set():
                with self._moved:
                    news = [each for each in self._told if each[0] > at]
                    if not news:
                        self._moved.wait(0.02)
                for at, what, found, before in news:  # noqa: B007 - where it goes on
                    event = _event(what, found, before, query) if found["kind"] == kind else None
                    if event is not None:
                        self.events += 1
                        time.sleep(self.lag)
                        yield json.dumps(event).encode() + b"\n"

        answer = Answer(200, {}, lines())
        return answer


def _event(
    what: str, found: Object, before: Object | None, query: Mapping[str, str]
) -> Object | None:
    """As the server tells it: what leaves a selection is DELETED, as it was."""
    was, now = before is not None and _selected(before, query), _selected(found, query)
    if what == "MODIFIED" and was and not now:
        assert before is not None
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        return {"type": "DELETED", "object": {**before, "metadata": before["metadata"] | version}}
    if not now:
        return None
    return {"type": "ADDED" if what == "MODIFIED" and not was else what, "object": found}


_REQUIREMENT = re.compile(r"(?P<key>[^,=\s]+)(?:=(?P<one>[^,]*)| in \((?P<any>[^)]*)\))")


def _selected(found: Object, query: Mapping[str, str]) -> bool:
    labels = found["metadata"].get("labels") or {}
    name = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return name in {"", found["metadata"]["name"]} and all(
        labels.get(each["key"]) in (each["any"] or each["one"] or "").split(",")
        for each in _REQUIREMENT.finditer(query.get("labelSelector", ""))
    )


def _merged(found: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _merged(kept.get(key), value)
    return kept


def _refused(status: int, words: str) -> Answer:
    return Answer(status, {"kind": "Status", "message": words, "code": status})
