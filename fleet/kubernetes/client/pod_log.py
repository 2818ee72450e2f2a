"""The log of a pod, read on from where one was.

Problem: the API server has a stream for whoever follows, which is one connection and one thread
per pod, and breaks off when the container starts again. Choice: short requests with the time of
the last line seen; the kubelet stamps each line. Of the pod's containers the worker's is read,
whatever others admission has added. Cost: up to a second's delay for who follows, and
one request per look and pod.
"""

from datetime import UTC, datetime
from typing import Final

from fleet.errors import FleetError, Refused, Unreachable
from fleet.kubernetes.client.api import TRANSPORT, Api, Request, message_of, path_of, transmit
from fleet.kubernetes.client.object_names import CONTAINER
from fleet.system.log_files import LogLine, LogPart, time_of

_TIMEOUTS: Final = (5.0, 20.0)
_MOST_LINES: Final = 20_000
"""Of a log that is read for the first time."""
_NOT_THERE: Final = ("is waiting to start", "previous terminated container", "is terminated")
"""The kubelet's words for a container that has written nothing yet, or nothing that is kept."""


def read_log(api: Api, pod: str, place: str | None = None) -> LogPart:
    """Lines since `place`, which is the kubelet's stamp of the last one seen; None: its end.

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
        since = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines, _ = _lines(api, pod, [("sinceTime", since)], place)
    last = next((stamp for stamp, _ in reversed(lines) if stamp), place)
    return LogPart(
        lines=tuple(
            LogLine(at=time_of(_micro(stamp)), text=piece)
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
    try:
        response = transmit(api.connection, request, _TIMEOUTS, {"User-Agent": "fleet"})
        text = response.read().decode("utf-8", errors="replace")
    except TRANSPORT as error:
        raise Unreachable(
            f"the API server {api.host} sends no log of pod {pod}: {error}"
        ) from error
    if response.status == 404:
        raise Refused(f"there is no pod {pod} in namespace {api.namespace}")
    said = message_of(text) or f"status {response.status}"
    if response.status == 400 and any(each in said for each in _NOT_THERE):
        return [], said
    if response.status >= 400:
        raise FleetError(
            f"the log of pod {pod} cannot be read ({response.status}): {said}; it needs get on "
            "pods/log (`fleet manifests --part manager --image NAME` has the Role)"
        )
    found = [_stamped(line) for line in text.split("\n") if line]
    key = None if after is None else _padded(after)
    return [(stamp, rest) for stamp, rest in found if key is None or _padded(stamp) > key], None


def _stamped(line: str) -> tuple[str, str]:
    stamp, _, rest = line.partition(" ")
    return ("", line) if time_of(_micro(stamp)) is None else (stamp, rest)


def _padded(stamp: str) -> str:
    """A stamp whose text sorts as its time does: RFC 3339 leaves trailing zeros out."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"


def _micro(stamp: str) -> str:
    """With as many digits as Python reads."""
    return f"{_padded(stamp)[:26]}+00:00"
