"""Real members that play a part: many light consumers in one process, each on a thread.

`python -m tests.scenarios.cast` reads lives from standard input as JSON and lives them until it is
killed; a member that shall crash is in a process of its own kind that is killed earlier. Nobody is
closed at the end: that would cost as much as the play.
"""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from fleet.sim.scenarios.group_scenario import Scenario, ScenarioEvent


class Life(NamedTuple):
    """One process of one member: from when to when, in ms; no end: until all is over."""

    group: str
    number: int
    start: int
    end: int | None
    crashes: bool
    config: Mapping[str, Any]
    topic: str
    stuck: tuple[int, int] | None
    """From when on it does not poll, and for how long."""


def lives(group: str, topic: str, servers: str, scenario: Scenario) -> list[Life]:
    """What its members live through."""
    found: list[Life] = []
    began: dict[int, int] = {}
    stucks: dict[int, tuple[int, int]] = {}

    def ends(number: int, at: int | None, *, crashes: bool = False) -> None:
        if number in began:
            config = _config(group, servers, scenario, number)
            start, stuck = began.pop(number), stucks.pop(number, None)
            found.append(Life(group, number, start, at, crashes, config, topic, stuck))

    for each in sorted(scenario.events, key=lambda happening: happening.at):
        for number in range(each.member, each.member + each.together):
            if each.do == "slow":
                stucks[number] = (each.at, each.lasts)
            else:
                _live(each, number, began, ends)
    for number in list(began):
        ends(number, None)
    return found


def _live(each: ScenarioEvent, number: int, began: dict[int, int], ends: Any) -> None:
    if each.do == "start":
        began[number] = each.at
    elif each.do == "restart":
        ends(number, each.at)
        began[number] = each.at + each.lasts
    else:
        ends(number, each.at, crashes=each.do == "crash")


def _config(group: str, servers: str, scenario: Scenario, number: int) -> dict[str, Any]:
    name = f"member-{number:05d}"
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "client.id": name,
        "enable.auto.commit": False,
        "max.poll.interval.ms": scenario.max_poll_interval,
        "log_level": 0,
        # Fetches of empty topics cost more than the membership.
        "fetch.wait.max.ms": 20_000,
        "topic.metadata.refresh.interval.ms": -1,
    }
    if scenario.protocol == "consumer":
        config["group.protocol"] = "consumer"
    else:
        config["partition.assignment.strategy"] = scenario.protocol
        config["session.timeout.ms"] = scenario.session_timeout
        config["heartbeat.interval.ms"] = scenario.heartbeat_interval
    if scenario.static:
        config["group.instance.id"] = name
    return config


class Cast:
    """Processes of members, on a clock that begins at `began` (monotonic seconds)."""

    def __init__(self, parts: Iterable[Life], began: float) -> None:
        self.processes: dict[int | None, subprocess.Popen[bytes]] = {}
        together: dict[int | None, list[Life]] = defaultdict(list)
        for each in parts:
            together[each.end if each.crashes else None].append(each)
        for end, members in together.items():
            self.processes[end] = subprocess.Popen(
                [sys.executable, "-m", "tests.scenarios.cast"], stdin=subprocess.PIPE
            )
            stream = self.processes[end].stdin
            stream.write(json.dumps([began, members]).encode())
            stream.close()

    def kill(self, at: int | None) -> None:
        """Those who crash then; None: all that are left."""
        process = self.processes.pop(at, None)
        if process is not None:
            process.kill()
            process.wait()


def _lived(life: Sequence[Any], began: float) -> None:
    _, _, start, end, crashes, config, topic, stuck = life
    _sleep_until(began + start / 1000)
    consumer = Consumer(config)
    consumer.subscribe([topic])
    if stuck is not None:
        _poll(consumer, began + stuck[0] / 1000)
        _sleep_until(began + sum(stuck) / 1000)
    _poll(consumer, None if end is None or crashes else began + end / 1000)
    consumer.close()


def _poll(consumer: Consumer, until: float | None) -> None:
    """All the time until then."""
    while until is None or (left := until - time.monotonic()) > 0:
        consumer.poll(3600.0 if until is None else left)


def _sleep_until(at: float) -> None:
    if (left := at - time.monotonic()) > 0:
        time.sleep(left)


def main() -> None:
    """Everybody on a thread of their own."""
    began, parts = json.load(sys.stdin)
    threads = [threading.Thread(target=_lived, args=(each, began)) for each in parts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main()
