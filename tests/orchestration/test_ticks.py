"""The sensor's and the schedule's ticks and the checks, with a real broker and consumers."""

import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetObservation,
    AssetSelection,
    DagsterRunStatus,
    RunRequest,
    SensorResult,
    SkipReason,
    build_schedule_context,
    build_sensor_context,
    instance_for_test,
    materialize,
)
from dagster._core.events import EngineEventData

from fleet.dagster import asset_keys, build_definitions, watch_sensor
from fleet.dagster.dead_runs import StartedRun, end_dead_runs
from fleet.dagster.definitions import build_group_checks
from fleet.dagster.group_assets import build_group_assets
from fleet.dagster.live import close_all, live_cluster
from fleet.dagster.reconcile_schedule import tick
from fleet.dagster.watch_sensor import refresh_groups, watch
from fleet.decide.storms import Storm, StormWatch
from fleet.errors import Unreachable
from fleet.log.readers.group_log import GroupLog
from fleet.manager.cycle import STORM_NOTE
from fleet.slots.codec import as_json
from fleet.slots.sqlite import DATABASE
from fleet.slots.store import Store
from tests.support.plans import plan_of

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def _discovered_at_once(monkeypatch):
    """A group of these tests is younger than the sensor waits for."""
    monkeypatch.setattr(watch_sensor, "DISCOVERY_SECONDS", 0.0)


@pytest.fixture
def instance():
    """Dagster's storage in a temporary folder."""
    with instance_for_test() as made:
        yield made


def watched(scene, instance, cursor=None):
    """One tick of the sensor."""
    return watch(build_sensor_context(instance=instance, cursor=cursor), scene.resource)


def planned(scene, instance):
    """One tick of the schedule; a quiet one writes no log file."""
    now = datetime.now(UTC)
    context = build_schedule_context(instance=instance, scheduled_execution_time=now)
    asked = tick(context, scene.resource, [scene.managed])
    assert context.has_captured_logs() is not isinstance(asked, SkipReason)
    return asked


def by_hand(scene, instance):
    """The checks of the plain group as a person runs them."""
    result = materialize(
        [*build_group_assets(scene.resource), *build_group_checks(scene.resource)],
        selection=AssetSelection.checks_for_assets(asset_keys.group_key("main", scene.plain)),
        instance=instance,
    )
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_first_tick_tells_all_the_next_one_nothing(scene, instance):
    """Declared groups are observed and checked, a stranger is a partition, no change no event."""
    with scene.member(scene.plain), scene.member(scene.stranger):
        first = watched(scene, instance)
        assert isinstance(first, SensorResult)
        seen = {
            event.partition or event.asset_key.path[-1]: event
            for event in first.asset_events
            if isinstance(event, AssetObservation)
        }
        assert {scene.plain, scene.managed, scene.stranger} <= set(seen)
        assert seen[scene.plain].metadata["members"].value == 1
        assert seen[scene.plain].metadata["state"].value == "Stable"
        assert seen[scene.stranger].asset_key == asset_keys.discovered_key("main")
        (added,) = first.dynamic_partitions_requests
        assert scene.stranger in added.partition_keys
        assert scene.plain not in added.partition_keys

        key = asset_keys.group_key("main", scene.plain)
        checks = {
            event.check_name: event
            for event in first.asset_events
            if isinstance(event, AssetCheckEvaluation) and event.asset_key == key
        }
        assert set(checks) == {asset_keys.LAG, asset_keys.FRESHNESS, asset_keys.STORM}

        second = watched(scene, instance, first.cursor)
        told = {event.asset_key for event in second.asset_events}
        assert key not in told, second.asset_events
        assert asset_keys.discovered_key("main") not in told or scene.stranger not in {
            event.partition for event in second.asset_events
        }


def test_a_code_server_that_ends_leaves_no_event_to_be_told_twice(scene, instance):
    """Also those of the last minute, whose state was not stored before."""
    key = asset_keys.group_key("main", scene.plain)
    first = watched(scene, instance)
    with scene.member(scene.plain):
        second = watched(scene, instance, first.cursor)
        assert key in {event.asset_key for event in second.asset_events}
        close_all()
        third = watched(scene, instance, second.cursor)
    assert third.asset_events == []


def test_a_group_that_is_not_selected_is_not_told(scene, instance):
    """As the history selects; a declared group always is."""
    deny = f"dagster: {{groups: {{deny: ['{scene.stranger}', '{scene.plain}']}}}}"
    scene.config.write_text(f"{scene.config.read_text()}{deny}\n")
    with scene.member(scene.plain), scene.member(scene.stranger):
        told = watched(scene, instance)
    seen = {event.partition or event.asset_key.path[-1] for event in told.asset_events}
    assert scene.plain in seen
    assert scene.stranger not in seen


def test_a_tick_sees_what_was_written_to_the_file_meanwhile(scene, instance):
    """The live cluster is opened anew; the memory of what was told stays."""
    first = watched(scene, instance)
    text = scene.config.read_text()
    more = f"  - group: later.{scene.unique}\n    topics: [{scene.topic}]\n"
    scene.config.write_text(f"{text}{more}")
    second = watched(scene, instance, first.cursor)
    assert {event.asset_key.path[-1] for event in second.asset_events} == {f"later.{scene.unique}"}
    scene.config.write_text("cluster: {nmae: x}\n")
    broken = watched(scene, instance, second.cursor)
    assert "nmae" in broken.skip_message
    scene.config.unlink()
    assert "fleet.yaml" in watched(scene, instance, second.cursor).skip_message


def test_a_person_may_test_a_sensor_beside_the_daemon(scene, instance):
    """Ticks at the same moment share the connections and tell the same."""
    with ThreadPoolExecutor(4) as pool:
        ticks = [pool.submit(watched, scene, instance) for _ in range(4)]
    keys = [sorted(event.asset_key.path[-1] for event in tick.result().asset_events)
            for tick in ticks]  # fmt: skip
    assert {tuple(each) for each in keys} == {tuple(keys[0])}


def test_a_store_that_is_away_takes_nothing_from_the_rest(scene, instance, monkeypatch):
    """The tick says what it did not read, and tells what it has."""
    first = watched(scene, instance)

    def away(*_: object) -> None:
        raise Unreachable("the store does not answer")

    monkeypatch.setattr(Store, "change", away)
    with scene.member(scene.plain):
        second = watched(scene, instance, first.cursor)
    said = second.skip_reason.skip_message
    assert said.startswith("Checked ")
    assert said.endswith("the store does not answer")
    assert scene.plain in {event.asset_key.path[-1] for event in second.asset_events}


def test_a_tick_tries_whether_those_who_change_could_renew(scene, monkeypatch):
    """Where a change runs; not where nobody could be told dead."""
    tried: list[str] = []

    def refused(self: Store, group: str) -> None:
        tried.append(group)
        raise Unreachable("the disk is full")

    monkeypatch.setattr(Store, "beat", refused)
    with live_cluster(scene.resource) as live:
        assert refresh_groups(live, StormWatch()).writable
        assert tried == []
        plan = plan_of(group=scene.managed, id="p")
        assert live.fleet.store.begin_change(plan, actor="a", started_at=0.0)
        assert not refresh_groups(live, StormWatch()).writable
    assert tried == [scene.managed]


def test_a_member_that_joins_is_told(scene, instance):
    """The next tick observes the group again."""
    with scene.member(scene.plain):
        first = watched(scene, instance)
        with scene.member(scene.plain):
            second = watched(scene, instance, first.cursor)
    key = asset_keys.group_key("main", scene.plain)
    mine = [event for event in second.asset_events if event.asset_key == key]
    assert [type(event) for event in mine][:1] == [AssetObservation]
    assert mine[0].metadata["members"].value == 2


def test_what_the_schedule_decides_is_in_the_groups_event(scene, instance):
    """The number that the policy wants, and why; a tick that decides the same tells nothing."""
    planned(scene, instance)
    first = watched(scene, instance)
    key = asset_keys.group_key("main", scene.managed)
    (told,) = [e for e in first.asset_events
               if isinstance(e, AssetObservation) and e.asset_key == key]  # fmt: skip
    assert told.metadata["wanted members"].value == 2
    assert told.metadata["decision"].value.startswith("fixed at 2: 2 slots")
    planned(scene, instance)
    with live_cluster(scene.resource) as live:
        live.decisions_at -= watch_sensor.DECISIONS_SECONDS
        (kept,) = live.fleet.decisions(scene.managed)
    assert (kept.wanted, kept.current, kept.members) == (2, 0, 0)
    second = watched(scene, instance, first.cursor)
    assert key not in {event.asset_key for event in second.asset_events}


def storms_of(tick):
    """The storm checks of a tick."""
    return [e for e in tick.asset_events if getattr(e, "check_name", "") == asset_keys.STORM]


def test_a_storm_is_told_once_and_holds_the_schedule(scene, instance):
    """The sensor tells its beginning with who makes it; the schedule says what it holds."""
    text = scene.config.read_text()
    scene.config.write_text(
        text.replace("mode: act", "mode: act\n    storm: {rebalances: 1, window: 10m}")
    )
    calm = watched(scene, instance)
    assert [check.passed for check in storms_of(calm)] == [True] * len(scene.spec.fleets)
    with scene.member(scene.managed), scene.member(scene.managed):
        begun = watched(scene, instance, calm.cursor)
        held = planned(scene, instance)
        (checked,) = storms_of(begun)
        assert "client rdkafka joins every" in checked.metadata["sentence"].value
        assert (checked.check_name, checked.passed) == (asset_keys.STORM, False)
        assert checked.metadata["top offender"].value == "client rdkafka"
        assert scene.managed in begun.skip_reason.skip_message
        assert storms_of(watched(scene, instance, begun.cursor)) == []
    assert isinstance(held, SkipReason)
    assert f"{scene.managed}: refused: " in str(held.skip_message)
    assert "storm for" in str(held.skip_message)
    assert "client rdkafka joins every" in str(held.skip_message)
    with live_cluster(scene.resource) as live:
        kept = live.fleet.last_decision(scene.managed)
    assert kept is not None
    assert "storm for" in kept.refused


def test_the_storm_check_has_one_memory(scene, instance):
    """The sensor knows a storm that a plan has stored, and so does the check that a person runs.

    By its window alone there would be none: it holds no more than the budget.
    """
    scene.config.write_text(scene.config.read_text().replace("rebalances: 1", "rebalances: 2"))
    with scene.member(scene.plain), scene.member(scene.plain), scene.resource.open() as fleet:
        assert fleet.storm(scene.plain) is None
        now = fleet.clock.now()
        storm = Storm(
            cluster="main", group=scene.plain, since=now - 900, seen_at=now - 5, rebalances=3,
            moved=0, budget=2, budget_moved=None, window=600.0, cause="join", top_offender=None,
            summary="members join",
        )  # fmt: skip
        fleet.store.put_manager_state(scene.plain, STORM_NOTE, as_json(storm))
        told = watched(scene, instance)
        found = by_hand(scene, instance)[asset_keys.STORM]
    (checked,) = [e for e in storms_of(told) if e.asset_key.path[-1] == scene.plain]
    assert (checked.passed, found.passed) == (False, False)
    assert "storm for 15 min" in told.skip_reason.skip_message


def test_checks_can_be_run_by_hand(scene, instance):
    """The page's Execute button reads the same cluster."""
    with scene.member(scene.plain):
        found = by_hand(scene, instance)
    assert found[asset_keys.LAG].passed
    assert found[asset_keys.FRESHNESS].passed
    assert found[asset_keys.STORM].passed


def test_schedule_asks_only_for_groups_that_act_and_need_it(scene, instance, monkeypatch):
    """A group in mode act without workers gets one run; one whose run is not over gets none.

    No plan reads its group's log: 300 of them took longer than a tick may.
    """

    def read(*_: object, **__: object) -> None:
        pytest.fail("a plan reads the log of its group")

    monkeypatch.setattr(GroupLog, "read", read)
    (asked,) = planned(scene, instance)
    assert isinstance(asked, RunRequest)
    assert asked.run_key == asked.tags[asset_keys.PLAN_TAG]
    assert asked.partition_key == scene.managed

    run = started(scene, instance, {**asked.tags, asset_keys.PARTITION_TAG: scene.managed})
    skipped = planned(scene, instance)
    assert isinstance(skipped, SkipReason)
    assert "its last run has not ended" in str(skipped.skip_message)

    instance.report_run_failed(run, "killed")
    (asked,) = planned(scene, instance)
    again = started(scene, instance, {**asked.tags, asset_keys.PARTITION_TAG: scene.managed})
    instance.report_run_failed(again, "killed too")
    waiting = planned(scene, instance)
    assert "1 run with this target failed; next in 5 min" in str(waiting.skip_message)


def test_pause_is_obeyed(scene, instance):
    """A pause is a refusal in the plan: no run, and the tick says who paused."""
    with scene.resource.open() as fleet:
        fleet.pause(None, reason="deploy freeze", by="ann")
    skipped = planned(scene, instance)
    assert isinstance(skipped, SkipReason)
    assert "deploy freeze" in str(skipped.skip_message)


def test_cluster_away_is_a_skipped_tick_with_the_sentence(scene, instance):
    """Both say where they looked; neither fails with a stack trace."""
    scene.config.write_text(scene.config.read_text().replace(scene.bootstrap, "127.0.0.1:9"))
    skipped = watched(scene, instance)
    assert isinstance(skipped, SkipReason)
    assert "127.0.0.1:9" in str(skipped.skip_message) or "longer" in str(skipped.skip_message)


JOB = asset_keys.definition_name("main", asset_keys.CHANGE_JOB)


def started(scene, instance, tags):
    """A run of the managed group that Dagster believes to be running."""
    job = build_definitions(scene.resource).resolve_job_def(JOB)
    run = instance.create_run_for_job(job, tags=tags, status=DagsterRunStatus.STARTED)
    assert run.status is DagsterRunStatus.STARTED
    return run


def test_what_is_stored_of_one_group_and_cannot_be_read_stops_no_tick(scene, instance):
    """A newer release wrote it: the others are told of, and a run of it is not called dead."""
    run = started(scene, instance, {asset_keys.PARTITION_TAG: scene.managed})
    with live_cluster(scene.resource) as live:
        plan = plan_of(group=scene.managed, id="p")
        assert live.fleet.store.begin_change(plan, actor="a", started_at=0.0)
        with closing(sqlite3.connect(live.fleet.home / DATABASE)) as db, db:
            db.execute(
                "UPDATE objects SET body = json_set(body, '$.state', 'of-tomorrow')"
                " WHERE kind = 'change'"
            )
        looked = refresh_groups(live, StormWatch())
    unread = looked.changes[scene.managed].unread
    assert "cannot be read by this release" in unread
    assert unread in looked.problems
    old = StartedRun(mark="idle", still=130.0, ticks=8, at=looked.seen.at)
    kept, said = ended(instance, looked, {run.run_id: old})
    assert (kept, said) == ({run.run_id: old}, [])
    assert isinstance(watched(scene, instance), SensorResult)


def ended(instance, looked, before):
    """Which runs are left after a tick that saw this, and what was said of the others."""
    now, writable = looked.seen.at, looked.writable
    return end_dead_runs(instance, "main", looked.changes, before, now=now, writable=writable)


def test_dead_run_is_ended_and_a_young_one_left(scene, instance):
    """A STARTED run without a change or an event for two minutes is failed, and says why [36]."""
    run = started(scene, instance, {asset_keys.PARTITION_TAG: scene.managed})
    with live_cluster(scene.resource) as live:
        looked = refresh_groups(live, StormWatch())
    kept, said = ended(instance, looked, {})
    assert (set(kept), said) == ({run.run_id}, [])

    old = replace(kept[run.run_id], still=130.0, ticks=8)
    silent = replace(looked, writable=False)
    kept, said = ended(instance, silent, {run.run_id: old})
    assert (kept[run.run_id].ticks, said) == (1, []), "nobody could have written anything"
    kept, said = ended(instance, looked, {run.run_id: old})
    assert kept == {}
    assert "its process has died" in said[0]
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.FAILURE


def test_a_run_whose_process_is_gone_does_not_hold_the_next_one(scene, instance):
    """The tick that finds it ends it and asks for another run: its group waits for no more."""
    asked = planned(scene, instance)[0]
    tags = {**asked.tags, asset_keys.PARTITION_TAG: scene.managed}
    run = started(scene, instance, {**tags, asset_keys.SERVER_TAG: '{"host": "localhost"}'})
    with subprocess.Popen(["true"]) as process:
        process.wait()
    instance.report_engine_event("Started process", run, EngineEventData.in_process(process.pid))
    (again,) = planned(scene, instance)
    assert again.partition_key == scene.managed
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.FAILURE
