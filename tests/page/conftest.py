"""A browser, and the page on a picture that a test gives."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fleet.clock import SystemClock
from fleet.commands.ui import Latest, PageState, served
from tests.dagster_ui.browser import Browser, chromium
from tests.page.worlds import picture


class Shown:
    """A page whose last look is set from outside."""

    def __init__(self, found: PageState) -> None:
        self.picture = found
        self.latest: Latest = Latest(value=found)
        self.server = served(self.picture.spec, lambda: self.latest, "127.0.0.1:0", SystemClock())

    @property
    def url(self) -> str:
        return self.server.url

    def fails(self, why: str) -> None:
        """The next look fails; the last one stays."""
        self.latest = replace(self.latest, problem=why, since=SystemClock().now())


@pytest.fixture(scope="session")
def page_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One window for all tests of this folder."""
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="session")
def thousand() -> PageState:
    """1,000 groups, seen just now."""
    return picture(now=SystemClock().now())


@pytest.fixture
def shown(thousand: PageState) -> Iterator[Shown]:
    """The page on them."""
    made = Shown(thousand)
    with made.server:
        yield made


@pytest.fixture
def get() -> Callable[..., "Answered"]:
    """One request, with any headers."""
    return ask


class Answered:
    """Status, headers and body of an answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def ask(url: str, *, method: str = "GET", **headers: str) -> Answered:
    """Without following where it leads."""
    import http.client
    from urllib.parse import urlsplit

    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        path = where.path + (f"?{where.query}" if where.query else "")
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Answered(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()
