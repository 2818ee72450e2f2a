"""A password that is renewed under a command that runs for months: read without a restart.

Brokers refuse the old one; clients read theirs once, and are made anew then.
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config.acls import grants
from tests.support.command import answer
from tests.support.needs import repository
from tests.support.waiting import until

pytestmark = pytest.mark.broker


@dataclass(frozen=True)
class Refused:
    """A command that runs with a password which its brokers refuse."""

    process: "subprocess.Popen[bytes]"
    file: Path
    right: str
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def renew(self, again: str, times: int) -> None:
        """As somebody does who writes the file in two steps; it began when it said `again`."""
        until(lambda: "refuses the login" in self.said(), "the refusal", picture=self.said)
        self.file.write_text("")
        time.sleep(3)
        assert "restarting" not in self.said(), "who renews it may be just writing"
        self.file.write_text(self.right)
        until(lambda: self.said().count(again) == times, "it to begin anew", picture=self.said)
        assert f"restarting with the renewed {self.file}" in self.said()


@contextmanager
def refused(
    desk: Any, user: str, tmp_path: Path, settings: dict[str, Any], *command: str
) -> Iterator[Refused]:
    """It ends well and has not told the password, or the test fails."""
    mine = grants("observe", groups=[desk.group], topics=[desk.topic])
    security = desk.guarded.user(user, mine)
    file, log = Path(security.sasl.password_file), tmp_path / "said"
    right = file.read_text()
    file.write_text("not-yet")
    text = yaml.safe_load(desk.file("observe", security))
    (desk.folder / "fleet.yaml").write_text(yaml.safe_dump({**text, **settings}))
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet", *command],
            env={**os.environ, "PYTHONPATH": str(repository())},
            cwd=desk.folder,
            stdout=said,
            stderr=said,
        )
    try:
        yield Refused(process=process, file=file, right=right, log=log)
    finally:
        process.terminate()
        process.wait(120)
    assert process.returncode == 0
    assert right not in log.read_text()


def test_an_exporter(desk, unique, tmp_path):
    command = ("exporter", "--listen", "127.0.0.1:0")
    often = {"exporter": {"interval": "1s"}}
    with refused(desk, f"exporter-{unique}", tmp_path, often, *command) as running:
        running.renew("/metrics", 2)
        (*_, url) = re.findall(r"http://\S+", running.said())

        def told() -> bool:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return f'group="{desk.group}"'.encode() in answer.read()

        until(told, "the group", picture=running.said)


def test_a_tail_of_the_history(desk, unique, tmp_path, capsys):
    often = {"history": {"batch_interval": "1s", "path": str(tmp_path / "tables")}}
    with refused(
        desk, f"tail-{unique}", tmp_path, often, "history", "sync", "--follow", "--polled"
    ) as running:
        running.renew("restarting", 1)

        def recorded() -> bool:
            return bool(answer(capsys, "history", "status")["tables"]["lag"])

        until(recorded, "a look in the tables", picture=running.said)
