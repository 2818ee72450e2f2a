"""/metrics and /healthz of the exporter: bytes that are already there.

A scrape never waits for the cluster: the last complete look's text is kept, plain and (from the
first scrape that wants it) gzipped. Until there was one, only the ages and the exporter's own
metrics are told.
"""

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Final

from fleet.system.listening import ELSEWHERE, Listening

KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = b"/metrics /healthz /readyz\n"


class Body:
    """The text of the last complete look. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._packed: bytes | None = None

    def show(self, text: bytes) -> None:
        """From now on, this."""
        with self._lock:
            self._text, self._packed = text, None

    def get(self, *, packed: bool) -> bytes:
        """The text, gzipped where asked for (members of a gzip file may follow each other)."""
        with self._lock:
            text, found = self._text, self._packed
        if not packed:
            return text
        if found is None:
            found = gzip.compress(text, compresslevel=1)
            with self._lock:
                if self._text is text:
                    self._packed = found
        return found


class Server(Listening):
    """Listens until closed. Raises ConfigError where it cannot bind.

    `ages` gives the text that is made at each scrape; `healthy` and `ready` a reason why not,
    None where all is well.
    """

    def __init__(
        self,
        address: str,
        body: Body,
        *,
        ages: Callable[[], bytes],
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
    ) -> None:
        handler = _handler(body, ages, {"/healthz": healthy, "/readyz": ready})
        super().__init__(address, handler, key="exporter.listen", remedy=ELSEWHERE)


def _handler(
    body: Body, ages: Callable[[], bytes], checks: dict[str, Callable[[], str | None]]
) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                packed = "gzip" in self.headers.get("Accept-Encoding", "")
                now = ages()
                answer = (gzip.compress(now, 1) if packed else now) + body.get(packed=packed)
                self._answer(200, answer, KIND, packed=packed)
            elif path in checks:
                reason = checks[path]()
                told = f"{reason or 'ok'}\n".encode()
                self._answer(503 if reason else 200, told, "text/plain")
            else:
                self._answer(200 if path == "/" else 404, _PAGE, "text/plain")

        def _answer(self, code: int, answer: bytes, kind: str, *, packed: bool = False) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Scrapes are no events."""

    return MetricsHandler
