"""`fleet logs`: what workers wrote, whichever file it is in, and while they come and go."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import cli
from fleet.act.local.process_table import Launch, ProcessRow, ProcessTable
from fleet.clock import SystemClock
from fleet.slots import SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.system.log_files import read_log
from tests.support.needs import repository
from tests.support.waiting import until

_FLEET = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # behind `&` it is ignored
from fleet.cli import main
main()
"""
FILE = """
cluster: {name: main, bootstrap_servers: "127.0.0.1:1"}
fleets:
  - group: orders
    topics: [orders]
    worker: {entrypoint: "orders_job:process"}
"""


def test_a_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    """Whole lines only; what was written before it was set aside is not lost."""
    log = tmp_path / "w.log"
    log.write_text("2026-01-01T00:00:01Z w: one\n  deeper\nhal")
    first = read_log(log)
    assert [each.text for each in first.lines] == ["2026-01-01T00:00:01Z w: one", "  deeper"]
    assert first.lines[1].at == first.lines[0].at == 1767225601.0
    with log.open("a") as file:
        file.write("f\nlast words\n")
    log.rename(tmp_path / "w.log.1")
    log.write_text("of the next process\n")
    then = read_log(log, first.place)
    assert [each.text for each in then.lines] == ["half", "last words", "of the next process"]
    assert read_log(log, then.place).lines == ()


class Home:
    """A home with workers as its process table has them, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=SystemClock())
        self.table = ProcessTable(folder, clock=SystemClock())

    def worker(self, name: str, *, slot: int | None = None) -> None:
        launch = Launch(argv=("true",), env={})
        row = ProcessRow(
            name=name, cluster="main", group="orders", revision="r1", launch=launch,
            shared_spark=False,
        )  # fmt: skip
        self.table.add([row])
        if slot is not None:
            targets = self.store.targets("orders")
            opened = SlotTargets(
                group="orders", version=targets.version, open=targets.open | {slot}
            )
            assert self.store.write_targets(opened) is not None
            (seen,) = (s for s in self.store.slots("orders") if s.number == slot)
            assert self.store.take(seen, worker=name, revision="r1", spark_session=None)

    def write(self, name: str, second: int, text: str) -> None:
        log = self.folder / "workers" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as file:
            file.write(f"2026-01-01T00:00:{second:02}.000Z {name}: {text}\n")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))
    (tmp_path / "fleet.yaml").write_text(FILE)
    made = Home(tmp_path)
    made.worker("w-1", slot=0)
    made.worker("w-2")
    made.write("w-1", 1, "took slot 0")
    made.write("w-2", 2, "ready")
    made.write("w-1", 3, "INFO orders_job: 3 rows")
    return made


@pytest.mark.usefixtures("home")
def test_logs_of_all_workers_are_in_order_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    """With the worker's name before each line, and no broker asked: there is none."""
    assert cli.run(["logs", "orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "w-1 2026-01-01T00:00:01.000Z took slot 0",
        "w-2 2026-01-01T00:00:02.000Z ready",
        "w-1 2026-01-01T00:00:03.000Z INFO orders_job: 3 rows",
    ]
    assert cli.run(["logs", "orders", "--slot", "0", "-n", "1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "worker": "w-1",
        "slot": 0,
        "at": 1767225603.0,
        "line": "2026-01-01T00:00:03.000Z w-1: INFO orders_job: 3 rows",
    }
    assert cli.run(["logs", "orders", "--since", "2026-01-01T00:00:02"]) == 0
    assert "took slot" not in capsys.readouterr().out
    assert cli.run(["logs", "orders", "--slot", "7"]) == 1
    assert "group orders has no worker in slot 7" in capsys.readouterr().err


def test_who_follows_hears_new_workers_and_ends_with_ctrl_c(home: Home) -> None:
    """Exit 0 and no traceback; a worker that came later is read from its first line on."""
    out, told = home.folder / "out", home.folder / "told"
    following = subprocess.Popen(
        [sys.executable, "-c", _FLEET, "logs", "orders", "--follow", "-n", "1"],
        cwd=home.folder,
        env={**os.environ, "PYTHONPATH": str(repository()), "PYTHONUNBUFFERED": "1"},
        stdout=out.open("w"),
        stderr=told.open("w"),
    )
    try:
        until(lambda: "3 rows" in out.read_text(), "the last lines are there")
        home.worker("w-3")
        home.write("w-3", 4, "starts")
        home.write("w-2", 5, "took slot 1")
        late = ("w-2 2026-01-01T00:00:05.000Z took slot 1", "w-3 2026-01-01T00:00:04.000Z starts")
        until(lambda: all(each in out.read_text() for each in late), "what came later is there")
        following.send_signal(signal.SIGINT)
        assert following.wait(120) == 0
        assert told.read_text() == ""
    finally:
        following.kill()
        following.wait()
