"""`python -m tests.asking.draw_storm docs/images/rebalances.png` draws README's picture anew.

Four static members of a cooperative-sticky group on a real broker, for five minutes: one is away
for longer than its session six times, another is replaced within its session. `fleet ui` watches
them, because only a view that polls the group knows how long each rebalance took.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from fleet.report.timeline_html import stylesheet
from tests.page.conftest import ask
from tests.page.test_real import running
from tests.support.brokers import running_broker
from tests.support.lane import Lane
from tests.support.waiting import meanwhile

GROUP = "orders"
MEMBER = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 9000,
    "heartbeat.interval.ms": 3000,
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 1000,
}
ROUNDS = 6
WIDTH = 1200
SCALE = 1.5
"""Pixels of the picture for each of the page."""
PAGE = """<!DOCTYPE html>
<style>
{styles}
body {{ margin: 0; background: var(--paper); font-family: sans-serif; }}
svg {{ display: block; }}
svg text {{ dominant-baseline: central; }}
</style>
{svg}
"""


def play(lane: Lane) -> None:
    """The group's five minutes."""
    lane.start(*(f"{GROUP}-{number}" for number in range(4)), static=True)
    lane.run(30)
    for number in range(ROUNDS):
        lane.close(f"{GROUP}-3")
        lane.run(17)
        lane.start(f"{GROUP}-3", static=True)
        lane.run(10)
        if number % 2:
            lane.close(f"{GROUP}-1")
            lane.start(f"{GROUP}-1", static=True)
        lane.run(15)


def watched(url: str) -> AbstractContextManager[None]:
    """Requests the groups, as a browser does: without one the page stops its refreshes."""

    def watch(ending: threading.Event) -> None:
        while not ending.wait(1.0):
            ask(f"{url}/api/groups")

    return meanwhile(watch)


def timeline(folder: Path) -> str:
    """The SVG of the group's five minutes."""
    with running_broker(folder / "broker") as broker:
        cluster = {"name": "main", "bootstrap_servers": broker.bootstrap_servers}
        config = folder / "fleet.yaml"
        config.write_text(yaml.safe_dump({"cluster": cluster}))
        with running(folder, config) as (url, interrupt), watched(url):
            began = time.time()
            lane = Lane(broker.bootstrap_servers, GROUP, {"orders": 24}, **MEMBER)
            try:
                play(lane)
                seconds = time.time() - began
                answer = ask(f"{url}/api/timeline?name={GROUP}&seconds={seconds:.0f}&width={WIDTH}")
            finally:
                lane.end()
            interrupt()
    return str(json.loads(answer.body)["svg"])


def draw(svg: str, folder: Path, png: Path) -> None:
    """The page of an SVG, as a PNG."""
    found = re.search(r'viewBox="0 0 \d+ ([\d.]+)"', svg)
    assert found, "the timeline has a size"
    html = folder / "timeline.html"
    html.write_text(PAGE.format(styles=stylesheet(), svg=svg), encoding="utf-8")
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--force-device-scale-factor={SCALE}",
            f"--window-size={WIDTH},{round(float(found[1]))}",
            f"--user-data-dir={folder / 'profile'}",
            f"--screenshot={png.resolve()}",
            html.as_uri(),
        ],
        check=True,
        stderr=subprocess.DEVNULL,  # the buses that this machine lacks
    )


def main(png: Path) -> None:
    """Play, then draw."""
    with tempfile.TemporaryDirectory() as name:
        svg = timeline(Path(name))
        draw(svg, Path(name), png)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
