"""A headless Chromium, driven by plain HTTP: chromedriver speaks W3C WebDriver."""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet import processes
from tests.dagster_ui.ports import free_port

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
        """Load a page."""
        call(f"{self._base}/url", {"url": url})

    def script(self, text: str, *args: object) -> Any:
        """Run JavaScript, with its `return` value."""
        return call(f"{self._base}/execute/sync", {"script": text, "args": list(args)})

    def text(self) -> str:
        """What a person reads on the page."""
        return str(self.script("return document.body.innerText"))

    def wait_for(self, *words: str, timeout: float = 40.0) -> str:
        """Wait until the page shows all these words; its text. AssertionError names what lacks."""
        deadline = time.monotonic() + timeout
        while True:
            shown = self.text()
            lacking = [word for word in words if word not in shown]
            if not lacking:
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"the page never showed {lacking}; it shows:\n{shown}")
            time.sleep(0.3)

    def show(self, url: str, *words: str, timeout: float = 60.0) -> str:
        """Open a page until it shows all these words: a page does not always follow events."""
        deadline = time.monotonic() + timeout
        while True:
            self.open(url)
            try:
                return self.wait_for(*words, timeout=10.0)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

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
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; it and its driver are ended in every case."""
    port = free_port()
    driver = f"http://127.0.0.1:{port}"
    process = processes.spawn(["chromedriver", f"--port={port}"], log=folder / "chromedriver.log")
    try:
        wait_until_ready(driver)
        flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}"]
        wanted = {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}
        session = call(f"{driver}/session", {"capabilities": wanted})["sessionId"]
        try:
            yield Browser(driver, session)
        finally:
            call(f"{driver}/session/{session}", method="DELETE")
    finally:
        processes.end(process, grace=5.0)


def wait_until_ready(driver: str) -> None:
    """Wait until chromedriver takes commands."""
    deadline = time.monotonic() + 20
    while True:
        try:
            if call(f"{driver}/status")["ready"]:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < deadline, "chromedriver did not start"
        time.sleep(0.1)
