"""What hangs is ended, and what a dead holder left running on Spark stops before its successor.

The entrypoints here really block: in a Python function inside Spark, in the worker itself, in a
write that outlives its client.
"""

import http.client
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from fleet.slots import Phase
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BLOCKING = """
import os, time
from pathlib import Path

FOLDER = Path(os.environ["BLOCKING"])


def in_spark(df, context):
    if context.warm:
        return
    def crawl(batches, folder=str(FOLDER), worker=context.worker):
        import os, time
        until = time.time() + float(os.environ.get("CRAWL", "60"))
        for each in batches:
            while time.time() < until:
                with open(f"{folder}/{worker}", "a") as out:
                    out.write(f"{time.time()}\\n")
                time.sleep(0.05)
            yield each
    if (FOLDER / "quick").exists():
        df.count()
        return
    df.select("value").mapInArrow(crawl, "value binary").write.format("noop").mode(
        "append"
    ).save()


def in_python(df, context):
    if context.warm:
        return
    time.sleep(600)
"""


@pytest.fixture
def blocking(group: Group) -> Group:
    """A group whose entrypoints block."""
    (group.folder / "blocking_job.py").write_text(BLOCKING)
    return group


def start(group: Group, name: str, function: str, **settings: Any) -> None:
    group.start(
        name, env={"BLOCKING": str(group.folder)}, entrypoint=f"blocking_job:{function}", **settings
    )


def livez(group: Group, name: str) -> tuple[int, str]:
    """The liveness endpoint's answer."""
    (report,) = [r for r in group.store.reports(group.name) if r.worker == name]
    try:
        url = f"http://127.0.0.1:{report.http_port}/livez"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
    except (OSError, http.client.HTTPException):  # it has ended, maybe in the middle of an answer
        return 0, ""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        pytest.param("in_spark", "longer than batch_timeout (6 s) twice", id="in Spark"),
        pytest.param(
            "in_python",
            "the entrypoint hangs outside Spark",
            id="in Python",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_batch_that_never_ends_ends_the_worker(blocking: Group, function: str, told: str):
    """Interrupted by its tag, run once more, then a non-zero exit with a sentence [5]."""
    group = blocking
    start(group, "w1", function, batch_timeout="6s")
    group.warm("w1")
    group.produce(8)
    group.open(0, phase=Phase.JOINING)  # not active before its first commit
    # Stored as taken a moment before the worker knows that it is.
    group.until(lambda: livez(group, "w1") == (200, "ok: joining (slot 0)"), "w1 to say so")
    seen: list[tuple[int, str]] = []

    def ended() -> bool:
        if function == "in_python":
            seen.append(livez(group, "w1"))
        return group.processes["w1"].poll() is not None

    group.until(ended, "the worker to end")
    assert group.processes["w1"].returncode == 1
    last = (group.folder / "w1.log").read_text().splitlines()[-1]
    assert "ended: " in last
    assert told in last
    (end,) = group.events("exit")
    assert (end["code"], told in end["reason"]) == (1, True)
    assert not group.events("committed")
    assert group.slot(0).holder is None
    if function == "in_python":
        assert (503, "no: ill (slot 0): the batch runs for 7 s, batch_timeout is 6 s") in seen


def test_a_dead_holders_writing_stops_before_its_successors_commit(blocking: Group):
    """Kill -9 in a long Spark write: its tasks outlive it, its successor ends them first [3]."""
    group = blocking
    for name in ("w1", "w2"):  # before the write: it takes all of Spark's cores
        start(group, name, "in_spark")
    group.warm("w1", "w2")
    group.produce(8)
    group.open(0, phase=Phase.JOINING)
    former = str(group.slot(0).holder)
    output = group.folder / former
    group.until(output.exists, "the former holder's tasks to write")
    (group.folder / "quick").touch()
    group.processes[former].kill()
    killed = time.time()
    group.until(group.all_committed, "the successor's commit")
    committed = group.events("committed")[0]
    taken = group.events("slot")[-1]
    time.sleep(3)
    written = [float(line) for line in output.read_text().splitlines()]
    figures = {
        "slot taken after the kill": taken["at"] - killed,
        "last line written after the kill": max(written) - killed,
        "committed after the kill": committed["at"] - killed,
    }
    print({what: f"{seconds:.2f} s" for what, seconds in figures.items()})
    assert committed["worker"] == taken["worker"] != former
    assert max(written) > killed + 1, "the dead holder's tasks wrote on: there is something to end"
    assert max(written) < committed["at"], "they ended before the successor's commit"
    said = (group.folder / f"{taken['worker']}.log").read_text()
    assert "the former holder's Spark session is interrupted" in said
