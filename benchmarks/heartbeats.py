"""What heartbeats cost a broker: CPU seconds per member and second, by their interval.

`python -m benchmarks.heartbeats [--members 200] [--seconds 30] 3 1 0.5 0.3`: members of one
classic group on the embedded broker's one partition, so that all but one fetch nothing. What is
there besides heartbeats is the same at each interval: the cost of one heartbeat is the slope.
"""

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.figures import CpuUsage
from fleet.broker import Broker

SETTLES = 12.0
"""Seconds after the last member is there, before anything is counted."""


def members(bootstrap: str, group: str, count: int, interval: float) -> None:
    """So many members, until standard input is closed."""
    made = []
    for number in range(count):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.instance.id": f"{os.getpid()}-{number}",
                "session.timeout.ms": 180_000,
                "heartbeat.interval.ms": int(interval * 1000),
                "partition.assignment.strategy": "range",
                "fetch.wait.max.ms": 5000,
                "log_level": 0,
            }
        )
        consumer.subscribe(["beats"])
        made.append(consumer)
    os.set_blocking(0, False)
    while os.read(0, 1) if _readable() else True:
        for consumer in made:
            consumer.poll(0)
        time.sleep(0.25)
    os._exit(0)


def _readable() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def main() -> None:
    """Each interval in turn, on one broker."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("intervals", nargs="*", type=float, default=[3.0, 1.0, 0.5, 0.3])
    options.add_argument("--members", type=int, default=200)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--as-members", nargs=4, default=None, help=argparse.SUPPRESS)
    told = options.parse_args()
    if told.as_members:
        bootstrap, group, count, interval = told.as_members
        members(bootstrap, group, int(count), float(interval))
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        try:
            _measure(broker, told)
        finally:
            broker.purge()


def _measure(broker: Broker, told: argparse.Namespace) -> None:
    status = broker.start()
    bootstrap = status.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("beats", 1, 1)])["beats"].result(120)
    pids = [node.pid for node in status.nodes if node.pid is not None]
    for number, interval in enumerate(told.intervals):
        group, share = f"beats-{number}", 50
        command = [sys.executable, "-m", "benchmarks.heartbeats", "--as-members", bootstrap]
        processes = [
            subprocess.Popen([*command, group, str(share), str(interval)], stdin=subprocess.PIPE)
            for _ in range(told.members // share)
        ]
        try:
            _await_stable(admin, group, told.members)
            time.sleep(SETTLES)
            theirs = [process.pid for process in processes]
            spent = CpuUsage({"broker": pids.copy, "members": theirs.copy})
            began = time.monotonic()
            time.sleep(told.seconds)
            took, found = time.monotonic() - began, spent.seconds()
        finally:
            for process in processes:
                process.kill()
                process.wait()
        each = {who: seconds / took / told.members * 1e6 for who, seconds in found.items()}
        sys.stdout.write(
            f"every {interval:g} s, {told.members} members, {took:.0f} s: broker "
            f"{found['broker'] / took:.3f} cores, {each['broker']:.0f} us a member and second; "
            f"clients {each['members']:.0f} us; load {os.getloadavg()[0]:.1f}\n"
        )
        sys.stdout.flush()


def _await_stable(admin: AdminClient, group: str, count: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        time.sleep(1)
        with suppress(KafkaException, TimeoutError):  # a new broker has no coordinator yet
            seen = admin.describe_consumer_groups([group])[group].result(120)
            if seen.state.name == "STABLE" and len(seen.members) == count:
                return
    raise SystemExit(f"{group} has not its {count} members")


if __name__ == "__main__":
    main()
