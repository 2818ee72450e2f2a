"""The check on lag says of a group what `fleet status` says of it."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from dagster import (
    AssetCheckEvaluation,
    AssetSelection,
    build_sensor_context,
    instance_for_test,
    materialize,
)

from fleet.clock import ManualClock, SystemClock
from fleet.commands.groups.group_status import gather
from fleet.dagster import asset_keys
from fleet.dagster.definitions import build_group_checks
from fleet.dagster.group_assets import build_group_assets
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch_sensor import watch
from fleet.history.tables import TablePlace, Writer
from fleet.lag.end_history import EndStore
from fleet.manager.cycle import Fleet
from fleet.manager.lag_assessment import with_past
from fleet.manager.past import read_last_minutes, read_recent
from fleet.model import TopicPartition
from tests.orchestration.conftest import PARTITIONS, RECORDS
from tests.support import commits
from tests.support.waiting import until

pytestmark = pytest.mark.broker
SILENT = 7200.0 - 60.0


@pytest.fixture
def instance():
    """Dagster's storage in a temporary folder."""
    with instance_for_test() as made:
        yield made


@contextmanager
def stuck(scene):
    """A member of the declared group that has all partitions and commits no more."""
    settings = {"bootstrap.servers": scene.bootstrap, "group.id": scene.plain}
    client = Consumer({**settings, "enable.auto.commit": False})
    commits.commit(client, [KafkaPartition(scene.topic, n, 1) for n in range(PARTITIONS)])
    client.subscribe([scene.topic])
    until(lambda: client.poll(0.1) is None and client.assignment(), "an assignment")
    try:
        yield
    finally:
        client.close()


def recorded(scene):
    """The last commit was two hours ago, by the tables and by the ends of the logs then."""
    home, now = scene.folder / "home", time.time()
    end = RECORDS // PARTITIONS
    ends = {TopicPartition(scene.topic, number): end for number in range(PARTITIONS)}
    for ago in (SILENT + 10, SILENT):
        samples = EndStore(home / "samples.db")
        samples.record("main", now - ago, dict.fromkeys(ends, 0) if ago > SILENT else ends)
        samples.close()
    writer = Writer(
        TablePlace(home / "history"), cluster="main", clock=ManualClock(at=now), retention=1e6
    )
    rows = [
        {
            "cluster": "main", "sampled_at": now - 100.0, "group_id": scene.plain,
            "topic": scene.topic, "topic_partition": number, "committed": 1,
            "committed_at": now - SILENT, "seconds": SILENT - 100.0, "lag_case": "ok",
            "known": "commits",
        }
        for number in range(PARTITIONS)
    ]  # fmt: skip
    files = writer.write("lag", rows)
    writer.commit("batch", files=files, positions={0: 1})


class Late(SystemClock):
    """A clock two hours ahead: what was just committed is as old as that."""

    def now(self) -> float:
        return super().now() + SILENT


class LateFleet(FleetResource):
    """Opens the fleet with that clock."""

    @contextmanager
    def open(self):
        with Fleet.open(Path(self.config), home=Path(self.home), clock=Late()) as opened:
            yield opened


def checked(scene, instance):
    """The check as a person runs it, and by the sensor's tick."""
    key = asset_keys.group_key("main", scene.plain)
    run = materialize(
        [*build_group_assets(scene.resource), *build_group_checks(scene.resource)],
        selection=AssetSelection.checks_for_assets(key),
        instance=instance,
    )
    told = [each for each in run.get_asset_check_evaluations() if each.check_name == asset_keys.LAG]
    late = LateFleet(config=scene.resource.config, home=scene.resource.home)
    told += [
        event
        for event in watch(build_sensor_context(instance=instance), late).asset_events
        if isinstance(event, AssetCheckEvaluation)
        and (event.asset_key, event.check_name) == (key, asset_keys.LAG)
    ]
    return told


def test_a_group_that_commits_no_more_fails_its_check(scene, instance):
    """Two hours of silence: by the log to the sensor, by the tables to who asks once."""
    recorded(scene)
    with stuck(scene):
        with scene.resource.open() as cycle:
            _, (status,), *_ = gather(cycle, [scene.plain])
        told = checked(scene, instance)
    assert status.lag_status is not None
    assert (status.lag_status.status, status.lag_status.level) == ("STOP", "ERR")
    assert len(told) == 2
    for check in told:
        assert (check.passed, check.severity.name) == (False, "ERROR"), check.description
        assert check.metadata["lag status"].value == "STOP"
        assert "no commit for 7" in check.description


def test_a_groups_own_partition_tells_what_the_whole_topic_does(scene):
    """Without tables: who asks for one group does not read what all the others committed."""

    def told(cycle, recent):
        assert recent.kind == "log", recent.sentence
        seen = cycle.snapshot([scene.plain])
        past = with_past(seen, recent.commits, reaches=recent.reaches, until=seen.at).commits
        columns = (past.partition, past.committed, past.at, past.moved, past.peak, past.gap)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return sorted(rows), recent.last[scene.plain].ended_at

    with scene.member(scene.plain), scene.resource.open() as cycle:
        mine = told(cycle, read_last_minutes(cycle, [scene.plain]))
        assert mine == told(cycle, read_recent(cycle))
    assert len(mine[0]) == PARTITIONS
    assert {committed for _, committed, *_ in mine[0]} == {RECORDS // PARTITIONS}
