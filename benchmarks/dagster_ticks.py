"""What a tick of Dagster's sensor costs, and how long the first telling of all groups takes.

`python -m benchmarks.dagster_ticks 1000 5000`: groups with 48 committed partitions each on the
embedded broker, 20 of them with a member that commits every second; fleet.yaml declares none. The
ticks are called as Dagster's code server calls them, and their events are stored in an SQLite
instance as its daemon stores them. CPU seconds are those of this process: the tick's own thread,
and all threads in 15 s, which read commits too.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient
from dagster import SensorResult, build_sensor_context, instance_for_test

from benchmarks.observe import ObserveOptions, commit_offsets, create_topics, members
from fleet.broker import Broker
from fleet.dagster import FleetResource, live, watch_sensor

QUIET_TICKS = 8


def main() -> None:
    """Each number of groups in turn, on one broker."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("groups", nargs="*", type=int, default=[1_000, 5_000])
    told = options.parse_args()
    watch_sensor.DISCOVERY_SECONDS = 0.0  # type: ignore[misc]  # else each group waits 5 minutes
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        broker = Broker(Path(folder))
        stack.callback(broker.purge)
        bootstrap = broker.start().bootstrap_servers
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        admin, made = AdminClient(config), 0
        create_topics(config, admin, ObserveOptions())
        with members(config, ObserveOptions()):
            for groups in sorted(told.groups):
                commit_offsets(admin, ObserveOptions(), range(made, groups))
                made = groups
                _measure(Path(folder), bootstrap, groups)
                live.close_all()


def _measure(home: Path, bootstrap: str, groups: int) -> None:
    path = home / f"fleet-{groups}.yaml"
    path.write_text(yaml.safe_dump({"cluster": {"bootstrap_servers": bootstrap}, "fleets": []}))
    resource = FleetResource(config=str(path), home=str(home / "state"))
    cursor: str | None = None
    with instance_for_test() as instance:

        def tick() -> int:
            nonlocal cursor
            done = watch_sensor.watch(
                build_sensor_context(instance=instance, cursor=cursor), resource
            )
            if not isinstance(done, SensorResult):  # a busy machine's broker
                sys.stdout.write(f"{done.skip_message}\n")
                return 0
            cursor = done.cursor
            for event in done.asset_events:
                instance.report_runless_asset_event(event)
            return len(done.asset_events)

        stored, ticks, seconds, cpu = 0, 0, 0.0, time.process_time()
        while stored < groups:
            began = time.monotonic()
            stored += tick()
            seconds += max(float(live.INTERVAL_SECONDS), time.monotonic() - began)
            ticks += 1
        sys.stdout.write(
            f"{groups:,} groups told in {ticks} ticks, {seconds:.0f} s, "
            f"{time.process_time() - cpu:.0f} s of CPU\n"
        )
        for _ in range(QUIET_TICKS):
            began, whole, own = time.monotonic(), time.process_time(), time.thread_time()
            events, took = tick(), time.thread_time() - own
            time.sleep(max(0.0, live.INTERVAL_SECONDS - (time.monotonic() - began)))
            sys.stdout.write(
                f"{groups:,} groups, {events} events: tick {took:.2f} s of CPU, process "
                f"{time.process_time() - whole:.2f} s in 15 s; load {os.getloadavg()[0]:.0f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
