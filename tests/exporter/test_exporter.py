"""`fleet exporter` on a real broker: what Prometheus gets."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import yaml
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.exporter import Exporter
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.observe.watcher import GroupWatcher
from fleet.slots import SlotTargets
from fleet.slots.store import Store
from tests.exporter.conftest import Scraped, commit
from tests.support.needs import repository
from tests.support.waiting import meanwhile, until


def polling(bootstrap: str, group: str, topic: str) -> AbstractContextManager[None]:
    """A member that polls on a thread of its own."""
    client = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    client.subscribe([topic])

    def poll(ending: threading.Event) -> None:
        while not ending.is_set():
            client.poll(0.05)
        client.close()

    return meanwhile(poll)


def fleet(*arguments: str, config: Path) -> subprocess.Popen:
    home = config.parent / "home"
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", "--config", str(config), *arguments],
        env={**os.environ, "PYTHONPATH": str(repository()), "FLEET_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_groups_life_in_metrics(bootstrap, topic, unique, config):
    """Lag, members, rebalances by cause, owner; a deleted group is gone; SIGTERM ends it well."""
    group, other, denied = f"seen-{unique}", f"gone-{unique}", f"denied-{unique}"
    for each in (group, other, denied):
        commit(bootstrap, each, topic, 2)
    running = fleet("exporter", config=config)
    try:
        url = line_with(running, "metrics of cluster main at http://").split(" at ")[1].strip()

        def scrape(whose: str = group) -> Scraped:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return Scraped(answer.read().decode(), whose)

        until(lambda: scrape().get("fleet_group_lag_records") == 6, "the lag to be told")
        until(lambda: scrape()["fleet_exporter_reads_offsets_topic"] == 1, "the log to be read")
        first = scrape()
        assert first.labels["fleet_group_lag_records"] == {
            "cluster": "main", "group": group, "topic": topic, "owner": "team-a",
        }  # fmt: skip
        assert first["fleet_group_members"] == 0
        assert first.labels["fleet_group_state"]["state"] == "Empty"
        assert first["fleet_snapshot_age_seconds"] < 5
        assert scrape(other)["fleet_group_lag_records"] == 6
        assert "fleet_group_lag_records" not in scrape(denied)
        with polling(bootstrap, group, topic):
            until(lambda: scrape().get("fleet_group_members") == 1, "a member")
            until(lambda: scrape().get("fleet_group_rebalances_total") == 1, "its rebalance")
            until(lambda: scrape().labels["fleet_group_state"]["state"] == "Stable", "its sync")
            assert scrape()["fleet_group_generation"] == 1
        until(lambda: scrape().get("fleet_group_members") == 0, "the member to be gone")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_consumer_groups([other])[other].result(120)
        until(lambda: "fleet_group_state" not in scrape(other), "the group to be gone")
        taken = url.split("//")[1].split("/")[0]
        second = fleet("exporter", "--listen", taken, config=config)
        out, err = second.communicate(timeout=300)
        assert (second.returncode, out) == (2, "")
        assert f"cannot bind exporter.listen {taken}" in err
        url = renewed(running, config, config.read_text())
        until(lambda: scrape().labels.get("fleet_group_lag_records", {}).get("owner") == "team-b",
              "the changed fleet.yaml to count")  # fmt: skip
        # A request to a coordinator may end its process (librdkafka #4605), and it takes 8 MB.
        assert "librdkafka" not in Path(f"/proc/{running.pid}/maps").read_text()
        asked = time.monotonic()
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=300)
        assert (running.returncode, out) == (0, ""), err
        assert time.monotonic() - asked < 60
    finally:
        running.kill()
        running.communicate()  # its pipes are closed here, not in a later test


def renewed(running: subprocess.Popen, config: Path, text: str) -> str:
    """A fleet.yaml that is wrong, then one with another owner: where its metrics are."""
    config.write_text(text.replace("owner:", "owned_by:"))
    assert "owned_by" in line_with(running, "the changed fleet.yaml is not used: ")
    config.write_text(text.replace("team-a", "team-b"))
    return line_with(running, " at http://").split(" at ")[1].strip()


def line_with(running: subprocess.Popen, text: str) -> str:
    """Its next line with this text; it may also warn of what other tests do on this broker."""
    assert running.stderr is not None
    return next(line for line in running.stderr if text in line)


def test_once_prints_and_ends(bootstrap, topic, unique, config):
    """For a cron job, or to look at."""
    group = f"seen-{unique}"
    commit(bootstrap, group, topic, 4)
    done = fleet("exporter", "--once", config=config)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert Scraped(out, group)["fleet_group_lag_records"] == 2


def test_a_place_of_slots_that_is_away_hides_nothing_else(bootstrap, unique, config, monkeypatch):
    """Of Kafka all is told on schedule; slots are absent until they can be read, and told so."""
    spec = yaml.safe_load(config.read_text())
    (topic,) = spec["fleets"][0]["topics"]
    spec["fleets"] = [
        {"group": f"seen-{unique}", "topics": [topic], "worker": {"entrypoint": "jobs:process"}}
    ]
    config.write_text(yaml.safe_dump(spec))
    commit(bootstrap, f"seen-{unique}", topic, 2)
    lines: list[str] = []
    with Fleet.open(config, home=config.parent / "home", clock=SystemClock()) as opened:
        opened.store.write_targets(SlotTargets(group=f"seen-{unique}", open=frozenset({0})))
        with Exporter.of(opened, listen="127.0.0.1:0", say=lines.append) as exporter:
            exporter.wait_for_log()

            def told() -> Scraped:
                exporter.refresh()
                return Scraped(exporter.text(), f"seen-{unique}")

            assert told()["fleet_slot_state"] == 1

            def away(*_: object, **__: object) -> None:
                raise Unreachable("the API server does not answer")

            with monkeypatch.context() as patch:
                for name in ("slots", "targets", "change"):
                    patch.setattr(Store, name, away)
                found = told()
                assert found["fleet_group_lag_records"] == 6
                assert found["fleet_group_storm"] == 0
                assert "fleet_slot_state" not in found
                assert found["fleet_exporter_problems"] == 1
                untold = [each for each in lines if each.endswith("API server does not answer")]
                assert " cannot be read: " in untold[-1]
            found = told()
            assert (found["fleet_slot_state"], found["fleet_exporter_problems"]) == (1, 0)
            assert f"resolved: {untold[-1]}" in lines


class OneSilent(GroupWatcher):
    """Sees a cluster of which one broker does not list its groups, while `partial`."""

    partial = True

    def refresh(self):
        """As it is, but for that."""
        return replace(super().refresh(), partial=self.partial)


def test_it_is_ready_after_a_look_at_every_broker(broker, config, tmp_path):
    """Before, groups that were not seen would read as deleted ones; figures are told anyway."""

    def ready() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{exporter.address}/readyz", timeout=20) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode().strip()

    with Fleet.open(config, home=tmp_path / "home", clock=SystemClock()) as opened:
        tail = Tail(opened.client, cluster="main", clock=opened.clock)
        looking = OneSilent(cluster="main", config=opened.client, clock=opened.clock, tail=tail)
        with Exporter(
            opened, listen="127.0.0.1:0", tail=tail, watcher=looking, say=lambda _: None
        ) as exporter:
            assert ready() == (503, "no complete refresh yet")
            exporter.refresh()
            assert ready() == (503, "no refresh of all brokers yet")
            looking.partial = False
            exporter.refresh()
            assert ready() == (200, "ok")
            looking.partial = True
            exporter.refresh()
            assert ready() == (200, "ok")
