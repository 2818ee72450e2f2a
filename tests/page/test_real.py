"""`fleet ui` as a process, where nobody answers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.page.conftest import ask
from tests.support.needs import repository
from tests.support.waiting import until


@contextmanager
def running(
    folder: Path, bootstrap: str, **more: object
) -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and Ctrl-C, which gives the exit code."""
    cluster = {"name": "main", "bootstrap_servers": bootstrap}
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"cluster": cluster, **more}))
    log = folder / "ui.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet", "ui", "--listen", "127.0.0.1:0"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(repository())},
            stderr=out,
        )

    def address() -> str | None:
        assert process.poll() is None, log.read_text()
        found = re.search(r"at (http://\S+)/", log.read_text())
        return found and found[1]

    def interrupt() -> int:
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    try:
        yield str(until(address, "the page's address")), interrupt
    finally:
        process.kill()
        process.wait(60)


def told(url: str) -> dict:
    return json.loads(ask(f"{url}/api/groups").body)


def test_a_cluster_that_is_away_is_told_and_ctrl_c_ends_at_once(tmp_path):
    """While a look at it hangs for ten seconds, as after that."""
    with running(tmp_path, "127.0.0.1:1") as (url, interrupt):
        assert told(url)["status"] is None
        problem = until(lambda: told(url)["problem"], "the failure")
        assert "127.0.0.1:1" in problem["sentence"]
        assert told(url)["problem"]["since"] == problem["since"]
        assert interrupt() == 0
