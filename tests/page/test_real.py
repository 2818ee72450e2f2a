"""`fleet ui` as a process: on a real broker with a roll, a storm and a lag; where nobody answers.

With FLEET_SCREENSHOTS naming a folder pictures are kept there; docs/images holds some.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.dagster_ui.browser import Browser
from tests.page.conftest import ask
from tests.support.commits import commit_groups
from tests.support.lane import CLASSIC, Lane
from tests.support.needs import repository
from tests.support.waiting import until
from tests.support.workshop import Workshop, ending


@contextmanager
def running(folder: Path, config: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and Ctrl-C, which gives the exit code."""
    log = folder / "ui.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet", "ui", "--config", config, "--listen", "127.0.0.1:0"],
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
        return process.wait(120)

    try:
        yield str(until(address, "the page's address")), interrupt
    finally:
        process.kill()
        process.wait(120)


def told(url: str) -> dict:
    return json.loads(ask(f"{url}/api/groups").body)


def test_a_cluster_that_is_away_is_told_and_ctrl_c_ends_at_once(tmp_path):
    """While a look at it hangs for ten seconds, as after that."""
    config = tmp_path / "fleet.yaml"
    config.write_text('cluster: {name: main, bootstrap_servers: "127.0.0.1:1"}\n')
    with running(tmp_path, config) as (url, interrupt):
        assert told(url)["status"] is None
        problem = until(lambda: told(url)["problem"], "the failure")
        assert "127.0.0.1:1" in problem["sentence"]
        assert told(url)["problem"]["since"] == problem["since"]
        assert interrupt() == 0


ROLLING, STORMY, LATE = "checkout", "payments", "audit-log"


@pytest.fixture
def rolling(broker, spark_address, tmp_path, monkeypatch) -> Iterator[Workshop]:
    """A group with two workers, whose next roll takes its time."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    shop = Workshop(tmp_path / "home", broker.bootstrap_servers, ROLLING, spark=spark_address)
    shop.declare(rollout={"canary_batches": 4, "bake": "5s", "warm_timeout": "5m"})
    shop.create_topic(4)
    with ending(shop), shop.stream():
        shop.apply()
        yield shop


@pytest.fixture
def others(broker) -> Iterator[None]:
    """Consumers of other people: a guest that comes and goes, and nobody where records wait."""
    lane = Lane(broker.bootstrap_servers, STORMY, {f"{STORMY}-topic": 4}, **CLASSIC)
    late = Lane(broker.bootstrap_servers, LATE, {f"{LATE}-topic": 2})
    try:
        lane.step(lambda: lane.start(f"{STORMY}-0", f"{STORMY}-1", static=True), "created")
        for _ in range(3):
            lane.step(lambda: lane.start("guest"), "join")
            lane.step(lambda: lane.close("guest"), "leave")
        for number in range(1200):
            late.producer.produce(f"{LATE}-topic", b"x", partition=number % 2)
        assert late.producer.flush(120) == 0
        wanted = [TopicPartition(f"{LATE}-topic", 0, 100), TopicPartition(f"{LATE}-topic", 1, 600)]
        commit_groups(late.admin, [LATE], wanted)
        yield
    finally:
        lane.end()
        late.end()


@pytest.mark.browser
@pytest.mark.spark
@pytest.mark.long
def test_a_roll_a_storm_and_a_lag_are_seen(
    rolling: Workshop, others: None, page_browser: Browser, tmp_path: Path
):
    """Each on the list with what somebody should know, and on its own page, while they go on."""
    kept = Path(os.environ.get("FLEET_SCREENSHOTS") or tmp_path)
    rolling.new_code()
    change = threading.Thread(target=rolling.apply)
    with running(tmp_path, rolling.config) as (url, interrupt):
        page_browser.resize(1280, 420)
        page_browser.open(f"{url}/")
        page_browser.wait_for(ROLLING, STORMY, LATE)
        change.start()
        try:
            page_browser.wait_for(ROLLING, STORMY, LATE, "change runs", "storm: client guest")
            page_browser.screenshot(kept / "ui-groups.png")
            page_browser.resize(1280, 1100)
            page_browser.open(f"{url}/#/groups/{ROLLING}")
            page_browser.wait_for("slots on revision", "running", "Rebalances")
            page_browser.click("10 min")
            page_browser.wait_for("1 of 2 slots on revision", "created 1", "keeps up")
            page_browser.screenshot(kept / "ui-group.png")
        finally:
            change.join()
        page_browser.wait_for("last change done", "equal")
        page_browser.open(f"{url}/#/groups/{STORMY}")
        shown = page_browser.wait_for("join 3", "leave 3", "guest")
        assert "classic group, Stable" in shown
        page_browser.click("10 min")
        page_browser.screenshot(kept / "ui-storm.png")
        page_browser.open(f"{url}/#/groups/{LATE}")
        shown = page_browser.wait_for("classic group, Empty", f"{LATE}-topic-0")
        assert "500" in shown
        page_browser.screenshot(kept / "ui-lag.png")
        assert interrupt() == 0
