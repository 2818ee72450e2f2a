"""A headless Chromium, driven by plain HTTP: chromedriver speaks W3C WebDriver."""

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.system import processes
from fleet.system.ports import on_free_ports
from fleet.system.processes import ProcessId
from tests.support.waiting import until

# The networking flags keep Chromium from looking for hosts outside the machine.
FLAGS = [
    "--headless",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


class Browser:
    """One window."""

    def __init__(self, driver: str, session: str) -> None:
        self._base = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        call(f"{self._base}/url", {"url": url})

    def script(self, text: str, *args: object) -> Any:
        """Run JavaScript, with its `return` value."""
        return call(f"{self._base}/execute/sync", {"script": text, "args": list(args)})

    def later(self, text: str, *args: object) -> Any:
        """The same where the value comes later: its last argument is called with it."""
        return call(f"{self._base}/execute/async", {"script": text, "args": list(args)})

    def text(self) -> str:
        """What a person reads on the page."""
        return str(self.script("return document.body.innerText"))

    def wait_for(self, *words: str, again: Callable[[], None] | None = None) -> str:
        """Wait until the page shows all these words; its text. AssertionError names what lacks.

        Asked `again` each time that the page stands still for ten seconds.
        """
        shown = ""
        asked = time.monotonic()

        def lacking() -> list[str]:
            return [word for word in words if word not in shown]

        def all_there() -> bool:
            nonlocal shown, asked
            before, shown = shown, self.text()
            if shown != before:
                asked = time.monotonic()
            elif again is not None and time.monotonic() - asked > 10:
                again()
                asked = time.monotonic()
            return not lacking()

        until(all_there, f"the page to show {words}", every=0.2,
              picture=lambda: f"it lacks {lacking()} and shows:\n{shown}")  # fmt: skip
        return shown

    def show(self, url: str, *words: str) -> str:
        """Open a page until it shows all these words: a page does not always follow events."""
        self.open(url)
        return self.wait_for(*words, again=lambda: self.open(url))

    def click(self, words: str) -> None:
        """Click the first button or link with this text."""
        found = self.script(
            "const all = [...document.querySelectorAll('button, a, [role=button], [role=tab]')];"
            "const one = all.find(e => e.innerText && e.innerText.trim().includes(arguments[0]));"
            "if (one) one.click(); return !!one;",
            words,
        )
        assert found, f"nothing to click says {words!r}"

    def resize(self, width: int, height: int) -> None:
        """Before a page is opened: a graph is laid out once."""
        call(f"{self._base}/window/rect", {"width": width, "height": height})

    def screenshot(self, path: Path) -> int:
        """Keep what the window shows as PNG, once nothing moves; its size in bytes."""
        time.sleep(1)
        picture = base64.b64decode(call(f"{self._base}/screenshot"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
        return len(picture)


def call(url: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> Any:
    """One WebDriver command; its value."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; it and its driver are ended in every case."""
    with on_free_ports("chromedriver", lambda port: _chromium(folder, port)) as browser:
        yield browser


@contextmanager
def _chromium(folder: Path, port: int) -> Iterator[Browser]:
    driver = f"http://127.0.0.1:{port}"
    process = processes.spawn(["chromedriver", f"--port={port}"], log=folder / "chromedriver.log")
    try:
        wait_until_ready(driver, process, folder / "chromedriver.log")
        flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}"]
        wanted = {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}
        session = call(f"{driver}/session", {"capabilities": wanted})["sessionId"]
        try:
            yield Browser(driver, session)
        finally:
            call(f"{driver}/session/{session}", method="DELETE")
    finally:
        processes.end(process, grace=5.0)


def wait_until_ready(driver: str, process: ProcessId, log: Path) -> None:
    """Wait until chromedriver takes commands."""

    def ready() -> bool:
        assert processes.alive(process), log.read_text()
        try:
            return bool(call(f"{driver}/status")["ready"])
        except (OSError, http.client.HTTPException):  # a listener of another program
            return False

    until(ready, "chromedriver to start")
