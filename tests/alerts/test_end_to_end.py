"""From members that make a storm to the webhook that is called, all of it real."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet.broker import Broker
from fleet.report.dashboard import queries
from tests.alerts.members import member
from tests.alerts.monitoring import Monitoring, monitoring
from tests.support import commits
from tests.support.brokers import OFFSETS_PARTITIONS, running_broker
from tests.support.topics import create_topic
from tests.support.waiting import until

pytestmark = [pytest.mark.prometheus, pytest.mark.broker, pytest.mark.slow]

LIMITS: dict[str, Any] = {
    "storm": {"rebalances": 3, "window": "10s", "cooldown": "2s"},
    "alerts": {"keep_firing_for": "2s", "max_lag": "10m", "stuck_after": "10m"},
}
GROUPS = 50


def spec(bootstrap: str, **more: Any) -> dict[str, Any]:
    """A fleet.yaml with short windows."""
    return {"cluster": {"name": "main", "bootstrap_servers": bootstrap}, **LIMITS, **more}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests alone: it is killed, and other groups' storms would call too."""
    with running_broker(tmp_path_factory.mktemp("alerts")) as made:
        yield made.broker


def test_a_storm_calls_with_its_cause_and_resolves(own, unique, tmp_path) -> None:
    """The alert names who joins and leaves, and ends after the storm; the dashboard's queries."""
    bootstrap, group = own.status().bootstrap_servers, f"orders-{unique}"
    create_topic({"bootstrap.servers": bootstrap, "log_level": 0}, group, 4, records=1)
    declared = [{"group": group, "owner": "pay", "topics": [group], "storm": LIMITS["storm"]}]
    with (
        member(bootstrap, group, group, **{"client.id": f"steady-{unique}"}) as steady,
        monitoring(tmp_path, spec(bootstrap, fleets=declared), groups=group) as running,
    ):
        assert steady.assigned.wait(120)
        assert running.hook.notifications == []
        worst = f"billing-{unique}"

        def storm_until(done: Callable[[], object]) -> None:
            begun = time.monotonic()
            while not done():
                assert time.monotonic() - begun < 300, why(running)
                with member(bootstrap, group, group, **{"client.id": worst}) as flapping:
                    flapping.assigned.wait(10)

        storm_until(lambda: running.hook.alerts("FleetGroupStorm", "firing"))
        with ThreadPoolExecutor(1) as beside:  # the storm lasts until a slow machine has answered
            asked = beside.submit(running.fleet, "status", group, "-o", "json")
            storm_until(asked.done)
        check_dashboard(running)
        (shown,) = asked.result()["groups"]
        assert shown["storm"]["top_offender"] == f"client {worst}"
        (alert,) = running.hook.alerts("FleetGroupStorm", "firing")
        assert alert["labels"]["group"] == group
        assert alert["labels"]["owner"] == "pay"
        assert alert["labels"]["severity"] == "page"
        texts = alert["annotations"]
        assert texts["cause"] == "join and leave"
        assert texts["top_offender"] == f"client {worst}"
        assert re.search(rf"client {worst} joins and leaves every [\d.]+ s", texts["summary"]), (
            texts
        )
        assert texts["runbook_url"] == "http://127.0.0.1:9309/runbooks/group-storm.md"
        until(
            lambda: running.hook.alerts("FleetGroupStorm", "resolved"),
            "the alert to resolve",
        )
        assert {
            a["labels"]["alertname"] for n in running.hook.notifications for a in n["alerts"]
        } == {"FleetGroupStorm"}


def test_statuses_call_where_no_age_was_ever_seen_to_grow(own, unique, tmp_path) -> None:
    """Stood still before the exporter began; undeclared and all members gone; records gone unread.

    One of two partitions is idle each time: it makes no group fresh.
    """
    bootstrap = own.status().bootstrap_servers
    still, gone, lost = groups = [f"{name}-{unique}" for name in ("still", "gone", "lost")]
    for group in groups:
        create_topic({"bootstrap.servers": bootstrap, "log_level": 0}, group, 2, records=5)
        client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        commits.commit(client, [TopicPartition(group, 0, 1), TopicPartition(group, 1, 5)])
        client.close()
    idle = {"enable.auto.commit": False}
    with member(bootstrap, gone, gone, **idle) as last:
        assert last.assigned.wait(120)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for taken in admin.delete_records([TopicPartition(lost, 0, 3)]).values():
        taken.result(timeout=120)
    times = {"keep_firing_for": "2s", "stuck_after": "5s", "max_lag": "20s"}
    limits = {**spec(bootstrap), "alerts": times}
    with (
        member(bootstrap, still, still, **idle) as one,
        monitoring(tmp_path, limits, groups=f"(still|gone|lost)-{unique}") as running,
    ):
        assert one.assigned.wait(120)
        wanted = {
            ("FleetGroupLag", still, "page", ""),
            ("FleetGroupStuck", still, "page", "no progress"),
            ("FleetGroupStuck", gone, "ticket", "no members"),
            ("FleetGroupLoss", lost, "page", ""),
        }

        def told() -> set[tuple[str, ...]]:
            firing = [a["labels"] for n in running.hook.firing for a in n["alerts"]]
            return {
                (each["alertname"], each["group"], each["severity"], each.get("reason", ""))
                for each in firing
            }

        until(lambda: told() >= wanted, f"{wanted}, told {told()}")
        assert {name for name, group, *_ in told() if group == lost} == {"FleetGroupLoss"}


def check_dashboard(running: Monitoring) -> None:
    """Prometheus answers every query; those of groups have series."""
    answers = {}
    for query in queries():
        filled = query.replace("$cluster", "main").replace("$group", ".*")
        answers[query] = running.query(filled)
    empty = {query for query, answer in answers.items() if not answer}
    for name in ("fleet_group_lag_records", "fleet_group_members", "fleet_group_state",
                 "fleet_group_storm_info", "fleet_snapshot_age_seconds"):  # fmt: skip
        assert not [query for query in empty if name in query], empty


def why(running: Monitoring) -> str:
    """What is known when nothing arrives."""
    return "\n".join(
        [
            str(running.query("fleet_group_storm")),
            str(running.query("ALERTS")),
            *(path.read_text()[-2000:] for path in running.folder.glob("*.log")),
        ]
    )


def test_a_broker_killed_under_fifty_groups_is_one_notification(own, unique, tmp_path) -> None:
    """Coordinators that start again are one cause: one call, whatever the groups do."""

    def bounced() -> None:
        own.kill()
        own.start()

    summary = fifty_groups(own, unique, tmp_path, during=bounced, copies=1)
    assert f"{OFFSETS_PARTITIONS} of {OFFSETS_PARTITIONS} coordinators started again" in summary


@pytest.mark.long
def test_one_broker_of_three_killed_is_one_notification(unique, tmp_path) -> None:
    """Its coordinators move to the others; the alert says from where to where."""
    three = Broker(tmp_path / "three", brokers=3)
    try:
        three.start()
        summary = fifty_groups(
            three,
            unique,
            tmp_path,
            during=lambda: three.kill(three.status().nodes[-1].id),
            copies=3,
        )
        assert re.search(r"of 50 coordinators moved from broker \d to brokers? \d", summary), (
            summary
        )
    finally:
        three.purge()


def called(running: Monitoring) -> list[dict[str, Any]]:
    """Notifications, without those that nothing was seen: brokers may take long to start."""
    return [
        sent
        for sent in running.hook.firing
        if {alert["labels"]["alertname"] for alert in sent["alerts"]} != {"FleetExporterBlind"}
    ]


def fifty_groups(
    broker: Broker, unique: str, folder: Path, *, during: Callable[[], None], copies: int
) -> str:
    """Fifty groups see it happen: the description of the one alert that is told."""
    bootstrap, topic = broker.status().bootstrap_servers, f"t-{unique}"
    create_topic(
        {"bootstrap.servers": bootstrap, "log_level": 0}, topic, 2, copies=copies, records=1
    )
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(member(bootstrap, f"g{n}-{unique}", topic)) for n in range(GROUPS)
        ]
        for each in members:
            assert each.assigned.wait(120)
        running = stack.enter_context(monitoring(folder, spec(bootstrap), groups=f".*{unique}"))

        def all_seen() -> bool:
            return len(running.query("fleet_group_members > 0")) >= GROUPS

        until(all_seen, "all groups to be seen")
        during()
        until(lambda: called(running), "a notification")
        time.sleep(8)  # twice the interval in which Alertmanager would tell more
        (only,) = called(running)
        (alert,) = only["alerts"]
        assert alert["labels"]["alertname"] == "FleetClusterStorm"
        assert alert["annotations"]["cause"] == "coordinator move"
        until(all_seen, "all members to be there as before")
        return str(alert["annotations"]["description"])
