"""A small HTTP server on a thread of its own, until it is closed.

Problem: a worker's status, the exporter's figures and the page listen alike, and each has to say
in the terms of its own key why it cannot. Choice: Python's own server, a daemon thread for each
connection; what is answered is the caller's handler. Cost: for few who ask, not for the many.
"""

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from fleet.errors import ConfigError
from fleet.system.closing import Closing

_CLOSING: Final = 0.1
"""Seconds that `close` waits at most for the thread that listens."""
ELSEWHERE: Final = (
    "end what listens there, or name another host:port with --listen; port 0 is a free one"
)
"""What to do, for a command that has `--listen`."""


def host_of(address: str) -> str:
    """The host of `host:port`, without brackets; none is this machine's loopback."""
    return address.rpartition(":")[0].strip("[]") or "127.0.0.1"


class QuietHandler(BaseHTTPRequestHandler):
    """Answers whole bodies, and writes no line for each: probes and scrapes are frequent."""

    # A client that sends nothing would keep a thread and a file of this process for good.
    timeout = 30

    def answer(self, code: int, body: bytes, kind: str = "text/plain", **more: str) -> None:
        """Sends a body of a content type; more: further headers."""
        self.send_response(code)
        for name, value in {"Content-Type": kind, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Logs nothing."""


class HttpServer(ThreadingHTTPServer):
    """What a handler sees as its server."""

    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True
    closed = False
    """Connections that are kept alive outlive `close`."""

    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler]) -> None:
        host = host_of(address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, int(address.rpartition(":")[2])), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its caller
        """Ignores clients that hung up; writes one line for any other error."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            client = client_address[0] if isinstance(client_address, tuple) else client_address
            words = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"fleet: an answer to {client} was interrupted ({words})\n")


class Listening(Closing):
    """Listens at `host:port` until closed; port 0 is a free one.

    Raises ConfigError where it cannot: `key` is what names the address, `remedy` what to do.
    """

    def __init__(
        self, address: str, handler: type[BaseHTTPRequestHandler], *, key: str, remedy: str
    ) -> None:
        try:
            self._server = HttpServer(address, handler)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"cannot bind {key} {address} ({error}): {remedy}") from error
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(_CLOSING,), name="http", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The same as host:port."""
        host = str(self._server.server_address[0])
        return f"{f'[{host}]' if ':' in host else host}:{self.port}"

    def close(self) -> None:
        """Listen no more; connections that are kept alive are answered no more."""
        self._server.closed = True
        self._server.shutdown()
        self._server.server_close()
