"""Serves the page of `fleet ui`: its files, and answers from the last refresh.

Problem: the page has no login, and every site that its user visits can try to read it. DNS
rebinding points a foreign name to 127.0.0.1. Choice: Python's own server binds to 127.0.0.1 and
only reads. It accepts a Host header only if that is an address, `localhost`, or a name of this
page (`--listen`, `ui.url`). No other origin may read an answer or frame the page, and the page
runs only its own script. Cost: behind a proxy, `ui.url` must hold the name that people use.
Everyone who reaches the address can read the page, so a login is the proxy's task.
"""

import gzip
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from fleet.errors import FleetError
from fleet.report.timeline_html import stylesheet
from fleet.system.listening import ELSEWHERE, HttpServer, Listening, QuietHandler, host_of

Answer = Callable[[Mapping[str, str]], bytes | None]
"""Makes JSON from the query; None if the query names nothing that exists."""
_PAGES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_WORTH_PACKING: Final = 2_000


class PageServer(Listening):
    """Serves the page until closed. Raises ConfigError if it cannot bind.

    `answers` are keyed by path, and `columns` describe the page's tables. `names` are accepted
    host names beside addresses, `localhost` and the host of `address`.
    """

    def __init__(
        self,
        address: str,
        answers: Mapping[str, Answer],
        *,
        columns: Mapping[str, object],
        names: Collection[str] = (),
    ) -> None:
        served = {name.lower() for name in (*names, host_of(address), "localhost")}

        class Page(_Page):
            known, made = frozenset(served), answers
            script = f"const COLUMNS = {json.dumps(columns)};\n".encode()

        super().__init__(address, Page, key="ui.listen", remedy=ELSEWHERE)

    @property
    def url(self) -> str:
        """Returns the URL of the page."""
        return f"http://{self.address}"


def is_served(host: str | None, names: Collection[str]) -> bool:
    """Returns whether a Host header is an address or one of these names."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True


def read_runbook(name: str) -> str | None:
    """Reads a runbook by its file name; None if there is no such runbook.

    A checkout has the runbooks in docs, the wheel has them beside this module.
    """
    if not re.fullmatch(r"[a-z-]+\.md", name):
        return None
    here = Path(__file__)
    for folder in (
        here.parent / "runbooks",
        here.parents[2] / "docs" / "troubleshoot" / "runbooks",
    ):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    return None


class _Page(QuietHandler):
    known: ClassVar[Collection[str]]
    made: ClassVar[Mapping[str, Answer]]
    script: ClassVar[bytes]
    server: HttpServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fleet", ""

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _get(self) -> None:
        if self.server.closed:
            self.close_connection = True
            return
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # This server reads no body. The rest of it would count as the next request, whose
            # answer a proxy might give to another client.
            self.close_connection = True
        if not is_served(self.headers.get("Host"), self.known):
            self._text(421, "this page does not serve this host name: add it as ui.url\n")
            return
        try:
            where = urlsplit(self.path)
        except ValueError as error:
            self._text(400, f"not a valid address: {error}\n")
            return
        if where.path in _PAGES:
            name, kind = _PAGES[where.path]
            self._send(200, files("fleet.ui").joinpath("page", name).read_bytes(), kind)
        elif where.path == "/columns.js":
            self._send(200, self.script, "text/javascript")
        elif where.path == "/paints.css":
            self._send(200, stylesheet().encode(), "text/css")
        elif where.path.startswith("/groups/"):
            group = quote(unquote(where.path.removeprefix("/groups/")), safe="")
            self._send(302, b"", "text/plain", Location=f"/#/groups/{group}")
        elif where.path.startswith("/runbooks/"):
            self._runbook(where.path.removeprefix("/runbooks/"))
        elif where.path == "/healthz":
            self._text(200, "ok\n")
        elif where.path in self.made:
            self._answer(self.made[where.path], where.query)
        else:
            self._text(404, "not found: the page is at /\n")

    def _answer(self, answer: Answer, query: str) -> None:
        asked = parse_qs(query, keep_blank_values=True)
        try:
            found = answer({key: values[-1] for key, values in asked.items()})
        except ValueError as error:
            self._text(400, f"{error}\n")
        except FleetError as error:
            self._text(503, f"{error}\n")
        except Exception as error:  # noqa: BLE001 - the answer says so, and the server goes on
            self._text(500, f"{type(error).__name__}: {error}; this is a defect, report it\n")
        else:
            body = b'{"error":"no such group"}' if found is None else found
            self._send(404 if found is None else 200, body, "application/json")

    def _runbook(self, name: str) -> None:
        found = read_runbook(name)
        self._text(200, found) if found else self._text(404, "no such runbook\n")

    def _text(self, code: int, text: str) -> None:
        self._send(code, text.encode(), "text/plain")

    def _send(self, code: int, body: bytes, kind: str, **more: str) -> None:
        headers = {**_HEADERS, **more, "Content-Type": f"{kind}; charset=utf-8"}
        if len(body) > _WORTH_PACKING and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
