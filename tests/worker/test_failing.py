"""What hangs, fails or kills its worker, with real workers on a real broker and Spark [3, 5, 9]."""

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import NewTopic

from fleet.slots import Phase
from tests.conftest import RunningBroker
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
    assert group.slot(0).owner is None
    if function == "in_python":
        assert (503, "no: ill (slot 0): the batch runs for 7 s, batch_timeout is 6 s") in seen


def test_a_dead_owners_writing_stops_before_its_successors_commit(blocking: Group):
    """Kill -9 in a long Spark write: its tasks outlive it, its successor ends them first [3]."""
    group = blocking
    for name in ("w1", "w2"):  # before the write: it takes all of Spark's cores
        start(group, name, "in_spark")
    group.warm("w1", "w2")
    group.produce(8)
    group.open(0, phase=Phase.JOINING)
    former = str(group.slot(0).owner)
    output = group.folder / former
    group.until(output.exists, "the former owner's tasks to write")
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
    assert max(written) > killed + 1, "the dead owner's tasks wrote on: there is something to end"
    assert max(written) < committed["at"], "they ended before the successor's commit"
    said = (group.folder / f"{taken['worker']}.log").read_text()
    assert "the former owner's Spark session is interrupted" in said


# --- a sink that is away, and a record that kills its workers ---------------------------------


JOB = """
import os, signal
from pathlib import Path

FOLDER = Path(os.environ["SHOP"])


def process(df, context):
    if context.warm:
        return
    rows = df.select("partition", "offset", "value").collect()
    if any(bytes(row["value"]) == b"killer" for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)
    if (FOLDER / "down").exists():
        raise OSError("the shop's database does not answer")
    with open(FOLDER / "rows", "a") as out:
        out.writelines(f"{row['partition']} {row['offset']}\\n" for row in rows)
"""


def start_shop(group: Group, name: str, **settings: Any) -> None:
    (group.folder / "shop_job.py").write_text(JOB)
    env = {"SHOP": str(group.folder)}
    group.start(name, env=env, entrypoint="shop_job:process", **settings)


def rows(folder: Path) -> list[tuple[int, int]]:
    """What the sink got, as the sink tells it."""
    lines = (folder / "rows").read_text().splitlines()
    return [(int(p), int(at)) for p, at in (line.split() for line in lines)]


def status(group: Group, name: str) -> dict[str, Any]:
    (report,) = [r for r in group.store.reports(group.name) if r.worker == name]
    with urllib.request.urlopen(f"http://127.0.0.1:{report.http_port}/status", timeout=5) as answer:
        return dict(json.load(answer))


def test_a_sink_that_is_away_costs_no_record(group: Group):
    """One partition has records: it is not stopped, no letter is sent, and the worker says why."""
    dead, down = f"{group.name}-dead", group.folder / "down"
    group.admin.create_topics([NewTopic(dead, 1, 1)])[dead].result(120)
    start_shop(group, "w1", dead_letter_topic=dead)
    group.warm("w1")
    down.touch()
    group.produce(10, partition=0)
    group.open(0, phase=Phase.JOINING)  # not active before its first commit
    group.until(lambda: len(group.events("unhealthy")) >= 2, "it to be ill, and to try again")
    seen = status(group, "w1")
    assert (seen["condition"], seen["live"], seen["ready"]) == ("unhealthy", True, False)
    assert seen["failing_seconds"] > 0
    assert seen["waits_for"] is None
    assert "the shop's database does not answer" in str(group.slot(0).error)
    assert "worker.entrypoint_failure_timeout" in str(group.slot(0).error)
    assert group.slot(0).phase is Phase.JOINING
    down.unlink()
    group.produce(10, partition=0)
    group.drained()
    assert sorted(rows(group.folder)) == [(0, at) for at in range(20)]
    assert group.store.stopped_partitions(group.name) == ()
    assert not group.events("dead_letter")
    group.until(lambda: group.slot(0).error is None, "the error to be gone")
    assert status(group, "w1")["failing_seconds"] == 0
    down.touch()
    group.produce(1, partition=0)
    group.until(lambda: "does not answer" in str(group.slot(0).error), "it to be ill again")
    asked = time.monotonic()
    assert group.end() == {"w1": 0}
    assert time.monotonic() - asked < 60, "an ill worker has nothing to finish"


def test_a_record_that_kills_its_workers_is_named(group: Group):
    """Worker after worker goes down with it; then its partition stops there, all else is done."""
    for at in range(6):
        group.produce(1, b"killer" if at == 4 else b"x", partition=2)
    group.produce(20, partition=1)
    names = [f"w{number}" for number in range(3)]
    for name in names:
        start_shop(group, name)
    group.warm(*names)
    group.open(0, phase=Phase.JOINING)

    def named() -> bool:
        alive = [n for n in group.processes if group.processes[n].poll() is None]
        if len(alive) < 3:
            start_shop(group, f"w{len(group.processes)}")
        return bool(group.store.stopped_partitions(group.name))

    group.until(named, "the record to be named")
    (mark,) = group.store.stopped_partitions(group.name)
    assert (mark.tp.partition, mark.offset) == (2, 4)
    assert "ended the worker's process at every try" in mark.error
    killed = [n for n, p in group.processes.items() if p.poll() == -9]
    assert len(killed) == 5
    group.until(
        lambda: (
            sorted(rows(group.folder))
            == sorted([(1, at) for at in range(20)] + [(2, at) for at in range(4)])
        ),
        "all other records, each once",
    )
    group.produce(5, partition=1)
    group.until(lambda: (1, 24) in rows(group.folder), "the other partition to go on")


# --- records that cannot be processed are put aside with their story [9] ----------------------


@pytest.fixture
def dead(group: Group) -> str:
    """The dead-letter topic."""
    name = f"{group.name}-dead"
    group.admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)
    return name


def letters(broker: RunningBroker, topic: str) -> list[Any]:
    """Everything in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                if message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                continue
            found.append(message)
    finally:
        consumer.close()
    return found


def offset_of(message: Any) -> int:
    return int(dict(message.headers())["fleet.offset"])


def test_the_partition_goes_on(group: Group, broker: RunningBroker, dead: str):
    """Only the bad records are put aside, with where they come from and why; all is committed."""
    group.standbys("w1", dead_letter_topic=dead)
    group.produce(40)
    group.produce(1, b"poison", partition=2)
    group.produce(40)
    group.produce(1, b"poison", partition=2)
    group.produce(20)
    group.open(0)
    group.drained()
    found = letters(broker, dead)
    assert [offset_of(m) for m in found] == [10, 21]
    headers = dict(found[0].headers())
    assert found[0].value() == b"poison"
    assert headers["fleet.topic"].decode() == group.topic
    assert headers["fleet.partition"] == b"2"
    assert headers["fleet.group"].decode() == group.name
    assert headers["fleet.revision"] == b"r1"
    assert int(headers["fleet.attempts"]) > 3
    assert headers["fleet.error"].startswith(b"ValueError: poison (worker_job.py:")
    assert group.store.stopped_partitions(group.name) == ()
    assert len(group.events("dead_letter")) == 2
    assert min(group.times_called()[2, at] for at in range(group.produced[2])) > 0
    # A flood: more than a bounded share of the partition is not poison any more.
    for _ in range(12):
        group.produce(1, b"poison", partition=3)
        group.produce(1, partition=3)
    group.until(lambda: bool(group.store.stopped_partitions(group.name)), "the flood's mark")
    (mark,) = group.store.stopped_partitions(group.name)
    assert mark.tp.partition == 3
    assert "more than 10 of the latest 1000 records" in mark.error
    assert len(letters(broker, dead)) <= 2 + 10


@pytest.mark.long
def test_kill_between_letter_and_commit_repeats_it(group: Group, broker: RunningBroker, dead: str):
    """The letter is acknowledged before the commit: a kill between the two sends it again."""
    env = {"FLEET_COMMIT_DELAY": "20"}
    group.standbys("w1", env=env, dead_letter_topic=dead)
    group.produce(20)
    group.produce(1, b"poison", partition=1)
    # Not waiting until it is active, which is after the commit.
    group.change_targets(
        lambda targets: replace(targets, open=frozenset({0}), open_at=time.time() + 1)
    )
    group.until(lambda: bool(group.events("dead_letter")), "the letter")
    assert group.slot(0).owner == "w1"
    assert not group.events("committed")
    group.processes["w1"].kill()
    group.start("w2", dead_letter_topic=dead)
    group.until(lambda: group.slot(0).phase is Phase.ACTIVE, "the new owner")
    group.drained()
    assert [offset_of(m) for m in letters(broker, dead)] == [5, 5]
    assert {worker["worker"] for worker in group.events("committed")} == {"w2"}
