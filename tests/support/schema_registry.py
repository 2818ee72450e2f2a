"""The routes of a schema registry that clients use to write and read, in this process' memory."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = tuple[int, dict[str, Any]]


@dataclass
class RegistryServer:
    """Schemas by id from 1 on, and subjects as lists of ids; `login` where one is asked for."""

    url: str = ""
    login: str | None = None
    """The header Authorization that is let in."""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Paths of GET, without what stands behind `?`."""

    def basic(self, user: str, password: str) -> None:
        """Let in this user only."""
        coded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.login = f"Basic {coded}"

    def register(self, subject: str, body: dict[str, Any]) -> Answer:
        """POST /subjects/S/versions."""
        if body not in self.schemas:
            self.schemas.append(body)
        number = self.schemas.index(body) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return 200, {"id": number, **body}

    def answer(self, path: str) -> Answer:
        """GET /schemas/ids/N, /subjects/S/versions/V."""
        self.asked.append(path)
        match [unquote(each) for each in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                if int(number) > len(self.schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                return 200, self.schemas[int(number) - 1]
            case ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject)
                if not ids:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found"}
                at = len(ids) if version == "latest" else int(version)
                found = {"subject": subject, "version": at, "id": ids[at - 1]}
                return 200, {**found, **self.schemas[ids[at - 1] - 1]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """One that listens on this machine."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(lambda: registry.answer(urlsplit(self.path).path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            subject = unquote(urlsplit(self.path).path.split("/")[2])
            self._say(lambda: registry.register(subject, body))

        def _say(self, answer: Any) -> None:
            if registry.login not in {None, self.headers.get("Authorization")}:
                status, said = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, said = answer()
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        registry.url = f"http://127.0.0.1:{server.server_port}"
        yield registry
        server.shutdown()
        thread.join()
