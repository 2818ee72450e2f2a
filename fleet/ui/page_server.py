"""The page's server: files of the package, and answers made from the last look.

Problem: a page without a login on the machine of somebody who browses is within reach of every
site that this person visits: a name that is made to lead to 127.0.0.1 (DNS rebinding) would read
it. Choice: Python's own server, which reads only, binds to 127.0.0.1, and answers a Host header
only where it is an address, `localhost`, or a name that this page was given (`--listen`, `ui.url`);
rebinding needs a name of its own. No other origin may read an answer or frame the page, and the
page runs no script but its own. Cost: behind a proxy the name that people use has to be in
`ui.url`; and whoever reaches the address reads it, so a login is the proxy's business.
"""

import gzip
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from fleet.errors import FleetError
from fleet.report.timeline_html import stylesheet
from fleet.system.listening import ELSEWHERE, HttpServer, Listening, host_of

Answer = Callable[[Mapping[str, str]], bytes | None]
"""Makes JSON from the query; None: there is no such thing."""
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
    """Listens until closed. Raises ConfigError where it cannot bind.

    `answers` by path; `columns` are those of the page's tables; `names` are host names, beside
    addresses, `localhost` and that of `address`.
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
        """Where it listens."""
        return f"http://{self.address}"


def is_served(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header is one of ours: an address, or a name that is known."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True


def runbook(name: str) -> str | None:
    """A runbook's text by its file's name; None where there is none.

    In a checkout they are in docs, the wheel has them beside this module.
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


class _Page(BaseHTTPRequestHandler):
    known: ClassVar[Collection[str]]
    made: ClassVar[Mapping[str, Answer]]
    script: ClassVar[bytes]
    server: HttpServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fleet", ""
    timeout = 30

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _get(self) -> None:
        if self.server.closed:
            self.close_connection = True
            return
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # Nobody reads a body here: it would be the next request, and behind a proxy its answer
            # somebody else's.
            self.close_connection = True
        if not is_served(self.headers.get("Host"), self.known):
            self._text(421, "not a name of this page: set ui.url in fleet.yaml\n")
            return
        try:
            where = urlsplit(self.path)
        except ValueError as error:
            self._text(400, f"no address of this page: {error}\n")
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
            self._text(404, "nothing is here: the page is at /\n")

    def _answer(self, answer: Answer, query: str) -> None:
        asked = parse_qs(query, keep_blank_values=True)
        try:
            found = answer({key: values[-1] for key, values in asked.items()})
        except ValueError as error:
            self._text(400, f"{error}\n")
        except FleetError as error:
            self._text(503, f"{error}\n")
        except Exception as error:  # noqa: BLE001 - who asks is told, and the next one answered
            self._text(500, f"{type(error).__name__}: {error}; this is a defect\n")
        else:
            body = b'{"error":"there is no such group"}' if found is None else found
            self._send(404 if found is None else 200, body, "application/json")

    def _runbook(self, name: str) -> None:
        found = runbook(name)
        self._text(200, found) if found else self._text(404, "there is no such runbook\n")

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

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Polls are no events."""
