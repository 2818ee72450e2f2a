"""A server of a test on this machine that answers in JSON."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """One request; who serves says what `get` and `post` do."""

    def do_GET(self) -> None:
        """See `get`."""
        self.get()

    def do_POST(self) -> None:
        """See `post`."""
        self.post()

    def get(self) -> None:
        """Answers."""
        raise NotImplementedError

    def post(self) -> None:
        """Answers."""
        raise NotImplementedError

    def body(self) -> bytes:
        """What was posted."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def say(self, status: int, body: Mapping[str, Any]) -> None:
        """The answer."""
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def serving(handler: type[JsonHandler], tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The address where it listens; `tls`: its certificate and key."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
