"""The routes of a schema registry that clients use to write and read, in this process' memory."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from tests.support.json_server import JsonHandler, serving

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
        return 200, {"id": number, "guid": str(UUID(int=number)), **body}

    def answer(self, path: str) -> Answer:
        """GET /schemas/ids/N, /schemas/guids/G, /subjects/S/versions/V."""
        self.asked.append(path)
        match [unquote(each) for each in path.strip("/").split("/")]:
            case ["schemas", "guids", guid]:
                return self.answer(f"schemas/ids/{UUID(guid).int}")
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

    class Handler(JsonHandler):
        def get(self) -> None:
            if self.let_in():
                self.say(*registry.answer(urlsplit(self.path).path))

        def post(self) -> None:
            body = json.loads(self.body())
            if self.let_in():
                self.say(*registry.register(unquote(urlsplit(self.path).path.split("/")[2]), body))

        def let_in(self) -> bool:
            known = registry.login in {None, self.headers.get("Authorization")}
            if not known:
                self.say(401, {"error_code": 401, "message": "Unauthorized"})
            return known

    with serving(Handler) as url:
        registry.url = url
        yield registry
