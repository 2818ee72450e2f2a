"""Reads from a pod what a roll, a plan and a person need to know of the worker in it.

Problem: "timed out after 120 s" does not tell a mistyped image from an entrypoint that raises.
Choice: the pod's own status says why its container waits, and what the last one left as its
termination message. A container that can never start (no such image, a missing Secret) never
restarts either: its worker counts as stuck once it has waited for a while. Admission may add
containers to a pod. The worker's is known by its name; another one counts while the worker's waits
for it, or as a reason if the worker's own gives none. Cost: a registry that is away for longer than
that stops a roll; it goes back, and says why.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from fleet.errors import FleetError, Refused
from fleet.kubernetes.client.api import Api, Object, Request, message_of, path_of, timestamp
from fleet.kubernetes.client.object_names import (
    CONTAINER,
    DRAINED_ANNOTATION,
    HASH_LABEL,
    REVISION_ANNOTATION,
)
from fleet.slots import STEADY_SECONDS, WorkerProcess
from fleet.system.log_files import LogLine, LogPart, time_of
from fleet.worker.pod_environment import MARK

# The log of a pod, read on from where one was.
#
# Problem: the API server has a stream for whoever follows, which is one connection and one thread
# per pod, and breaks off when the container starts again. Choice: short requests with the time of
# the last line seen; the kubelet stamps each line. Of the pod's containers the worker's is read,
# whatever others admission has added. Cost: up to a second's delay for who follows, and
# one request per look and pod.


_TIMEOUTS: Final = (5.0, 20.0)
_MOST_LINES: Final = 20_000
"""Of a log that is read for the first time."""
_NOT_THERE: Final = ("is waiting to start", "previous terminated container", "is terminated")
"""The kubelet's words for a container that has written nothing yet, or nothing that is kept."""


def read_log(api: Api, pod: str, place: str | None = None) -> LogPart:
    """Reads lines since `place`, the kubelet's stamp of the last line; None: the end.

    Raises Refused where there is no such pod, Unreachable, FleetError.
    """
    if place is None:
        most = ("tailLines", str(_MOST_LINES))
        before, _ = _lines(api, pod, [("previous", "true"), most], None)
        now, waits = _lines(api, pod, [most], None)
        lines = [*before, *now]
        if waits and not lines:
            lines = [("", waits)]
    else:
        at = time_of(place) or 0.0
        # To the second: what was seen of this second is sent again, and left out by its stamp.
        lines, _ = _lines(api, pod, [("sinceTime", timestamp(at))], place)
    last = next((stamp for stamp, _ in reversed(lines) if stamp), place)
    return LogPart(
        lines=tuple(
            LogLine(at=time_of(stamp), text=piece)
            for stamp, text in lines
            for piece in text.splitlines() or [""]
        ),
        place=last or "1970-01-01T00:00:00Z",
    )


def _lines(
    api: Api, pod: str, query: list[tuple[str, str]], after: str | None
) -> tuple[list[tuple[str, str]], str | None]:
    """(stamp, text) of each line that the kubelet ended; no stamp: its own words.

    Beside them why there are none: the container waits to start, or none ended before it.
    """
    request = Request(
        "GET",
        f"{path_of('Pod', api.namespace, pod)}/log",
        query=[("container", CONTAINER), ("timestamps", "true"), *query],
    )
    response, content = api.ask(request, _TIMEOUTS)
    text = content.decode("utf-8", errors="replace")
    if response.status == 404:
        raise Refused(f"namespace {api.namespace} has no pod {pod}")
    said = message_of(text) or f"status {response.status}"
    if response.status == 400 and any(each in said for each in _NOT_THERE):
        return [], said
    if response.status >= 400:
        raise FleetError(
            f"cannot read the log of pod {pod} ({response.status}): {said}; allow get on pods/log"
        )
    found = [_stamped(line) for line in text.split("\n") if line]
    key = None if after is None else _padded(after)
    return [(stamp, rest) for stamp, rest in found if key is None or _padded(stamp) > key], None


def _stamped(line: str) -> tuple[str, str]:
    stamp, _, rest = line.partition(" ")
    return ("", line) if time_of(stamp) is None else (stamp, rest)


def _padded(stamp: str) -> str:
    """A stamp whose text sorts as its time does: RFC 3339 leaves trailing zeros out."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"


GRACE: Final = 20.0
"""Seconds that a container may fail to be made before its worker counts as ill."""
_CANNOT_START: Final = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}


def worker_of(
    pod: Object, *, group: str, templates: Mapping[str, str], now: float
) -> WorkerProcess:
    """Describes the worker of a pod.

    templates: the revision by pod-template-hash, of those that a manager rendered; a pod of
    another template is a revision of its own, `<revision>~<hash>` [22].
    """
    meta, known = pod["metadata"], hash_of(pod)
    told = (meta.get("annotations") or {}).get(REVISION_ANNOTATION, "")
    container = _container(pod)
    return WorkerProcess(
        name=meta["name"],
        group=group,
        revision=templates.get(known) or (f"{told}{MARK}{known}" if known else told),
        wanted=not is_leaving(pod),
        running=container.get("name") == CONTAINER
        and "running" in _state(container)
        and "deletionTimestamp" not in meta,
        restarts=int(container.get("restartCount") or 0),
        exit_reason=exit_reason(pod),
        stuck=_stuck(pod, now),
        waits_for_node=condition_of(pod, "PodScheduled").get("status") == "False",
        failures=_failures(container, now),
    )


def hash_of(pod: Object) -> str:
    """Returns the hash of its template."""
    return str((pod["metadata"].get("labels") or {}).get(HASH_LABEL, ""))


def is_marked(pod: Object) -> bool:
    """Tells whether the pod is marked for removal."""
    return DRAINED_ANNOTATION in (pod["metadata"].get("annotations") or {})


def is_leaving(pod: Object) -> bool:
    """Tells whether the pod is marked, deleted, or has ended for good (evicted)."""
    return is_marked(pod) or "deletionTimestamp" in pod["metadata"] or has_ended(pod)


def is_gone(pod: Object) -> bool:
    """Tells whether the pod is deleted or has ended, so that its ReplicaSet ignores it."""
    return "deletionTimestamp" in pod["metadata"] or has_ended(pod)


def has_ended(pod: Object) -> bool:
    """Tells whether the pod has ended for good; it exists until it is deleted."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def is_ready(pod: Object) -> bool:
    """Tells whether the pod is Ready; only such pods are ranked by deletion cost."""
    return condition_of(pod, "Ready").get("status") == "True"


def exit_reason(pod: Object) -> str | None:
    """Returns why its worker does not run, or how the last one ended; None if unknown."""
    decisive = _container(pod)
    place = condition_of(pod, "PodScheduled")
    if told := _reason(decisive):
        return told
    if place.get("status") == "False":
        return _joined("has no node", place.get("message"))
    others = [*_statuses(pod, "initContainers"), *_statuses(pod, "containers")]
    failing = (each for each in others if "running" not in _state(each))
    reasons = (_reason(e) for e in failing if e is not decisive and not _has_succeeded(e))
    return next(filter(None, reasons), None)


def _reason(container: Object) -> str | None:
    told = "" if container.get("name") == CONTAINER else f"its container {container.get('name')}: "
    waiting = _state(container).get("waiting") or {}
    if waiting.get("reason") in _CANNOT_START:
        return told + _joined(waiting["reason"], waiting.get("message"))
    for when in ("state", "lastState"):
        ended = (container.get(when) or {}).get("terminated")
        if ended:
            reason = ended.get("reason") or "Error"
            what = f"{'' if reason == 'Error' else f'{reason}, '}exit code {ended.get('exitCode')}"
            return told + _joined(what, _last_line(ended.get("message")))
    return None


def _failures(container: Object, now: float) -> int:
    """Restarts, unless the container that runs has outlived them."""
    running = (container.get("state") or {}).get("running") or {}
    began = running.get("startedAt")
    steady = began is not None and now - datetime.fromisoformat(began).timestamp() >= STEADY_SECONDS
    return 0 if steady else int(container.get("restartCount") or 0)


def _stuck(pod: Object, now: float) -> bool:
    """Whether its container cannot be made, and has had its time."""
    waiting = _state(_container(pod)).get("waiting") or {}
    if waiting.get("reason") not in _CANNOT_START:
        return False
    since = condition_of(pod, "PodScheduled").get("lastTransitionTime")
    begun = since or pod["metadata"].get("creationTimestamp")
    return begun is not None and now - datetime.fromisoformat(begun).timestamp() >= GRACE


def _container(pod: Object) -> Object:
    """The worker's container, or the init container that it waits for."""
    found = _statuses(pod, "containers")
    worker = next((each for each in found if each["name"] == CONTAINER), {})
    if worker and (_state(worker).get("waiting") or {}).get("reason") != "PodInitializing":
        return worker
    sidecars = {
        each["name"]
        for each in (pod.get("spec") or {}).get("initContainers") or []
        if each.get("restartPolicy") == "Always"
    }
    for each in _statuses(pod, "initContainers"):
        # A sidecar goes on; the next container starts once its startup probe has succeeded.
        done = bool(each.get("started")) if each["name"] in sidecars else _has_succeeded(each)
        if not done:
            return each
    return worker


def _statuses(pod: Object, kind: str) -> list[Object]:
    found = (pod.get("status") or {}).get(f"{kind.removesuffix('s')}Statuses")
    return list(found or [])


def _state(container: Object) -> Object:
    return dict(container.get("state") or {})


def _has_succeeded(container: Object) -> bool:
    return (_state(container).get("terminated") or {}).get("exitCode") == 0


def condition_of(found: Object, kind: str) -> Object:
    """Returns an object's condition of this type; an empty one if it has none."""
    conditions: list[Object] = (found.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def refusal_of(found: Object) -> str | None:
    """Returns why the API server refuses pods of a Deployment or ReplicaSet, if it does."""
    failure = condition_of(found, "ReplicaFailure")
    return str(failure.get("message")) if failure.get("status") == "True" else None


def _joined(what: str, message: object) -> str:
    return f"{what}: {str(message)[:300]}" if message else what


def _last_line(message: object) -> str:
    lines = [line.strip() for line in str(message or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""
