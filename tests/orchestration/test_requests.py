"""What the reconciling schedule asks for."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunsFilter,
    asset,
    define_asset_job,
    instance_for_test,
    materialize,
    validate_run_config,
)
from dagster._core.events import EngineEventData
from dagster._core.launcher import CheckRunHealthResult, RunLauncher, WorkerStatus
from dagster._core.utils import make_new_run_id
from dagster._serdes import ConfigurableClass

from fleet.act.lease import this_machine
from fleet.config.spec import GroupSpec
from fleet.dagster import asset_keys, build_definitions, change_assets, dead_runs
from fleet.dagster.change_assets import group_partitions
from fleet.dagster.dead_runs import (
    IDLE,
    STEP_GOES_ON,
    GroupChange,
    StartedRun,
    death_reason,
    end_dead_runs,
    end_ended_runs,
    progress_mark,
    update_run,
)
from fleet.dagster.reconcile_schedule import (
    TickOutcome,
    busy_groups,
    failures_of,
    max_runtime,
    request_for,
    summary,
)
from fleet.dagster.resources import FleetResource
from fleet.errors import Refused
from fleet.model import StepKind
from fleet.slots import ChangeState
from tests.orchestration.made import change, group, plan, spec, step

JOB = asset_keys.definition_name("main", asset_keys.CHANGE_JOB)


def test_requests_partition_is_the_group():
    """Its key is the plan's id [35], its runtime comes from the plan [36]."""
    asked = request_for(plan(step()), group())
    assert asked.run_key == "plan-1"
    assert asked.partition_key == "orders-enrichment"
    assert int(asked.tags[asset_keys.MAX_RUNTIME_TAG]) >= 120


@pytest.mark.parametrize("resume", [False, True])
def test_request_fits_the_job(resume):
    """The op's name and its config are those that Dagster knows."""
    asked = request_for(plan(step()), group(), resume=resume)
    job = build_definitions(FleetResource.of(spec())).resolve_job_def(JOB)
    assert validate_run_config(job, asked.run_config)
    assert asked.partition_key in job.partitions_def.get_partition_keys()


def working(**worker: object) -> GroupSpec:
    """The group, with workers that are so."""
    made = group()
    assert made.worker is not None
    return made.model_copy(update={"worker": made.worker.model_copy(update=worker)})


def test_runtime_grows_with_the_steps():
    """A roll of many slots may take longer than one that is parallel."""
    slots = tuple(range(12))
    short = max_runtime(plan(step(StepKind.WARM)), group())
    long = max_runtime(plan(step(StepKind.ROLL, slots)), group())
    wide = group().model_copy(
        update={"rollout": group().rollout.model_copy(update={"max_parallel": 12})}
    )
    assert short < max_runtime(plan(step(StepKind.ROLL, slots)), wide) < long


@pytest.mark.parametrize(
    ("kind", "batches"), [(StepKind.OPEN, 1), (StepKind.ROLL, 3 + 12), (StepKind.LEAVE, 0)]
)
def test_a_run_may_wait_for_batches(kind, batches):
    """Of each slot's new owner the first, of a canary as many as prove it: none is ended by
    Dagster while a batch takes its time.
    """
    slots = tuple(range(12))
    quick, slow = (
        max_runtime(plan(step(kind, slots)), working(batch_timeout=seconds))
        for seconds in (60.0, 160.0)
    )
    assert slow - quick == batches * 100


def test_a_rolling_batch_may_be_proven_twice():
    """Where beside the old ones it had nothing to read."""
    slots = tuple(range(12))
    static, dynamic = (
        max_runtime(plan(step(StepKind.ROLL, slots)), working(membership=how))
        for how in ("static", "dynamic")
    )
    assert dynamic - static == int(group().canary_limit)


def test_skipped_tick_says_why():
    """Quiet groups are counted, others named, ten at most."""
    said = [TickOutcome(group="a", sentence="no change needed")]
    said += [TickOutcome(group=f"g{n}", sentence="refused: paused") for n in range(12)]
    text = summary(said)
    assert text.startswith("1 of 13 groups need no change; g0: refused: paused;")
    assert text.endswith("g9: refused: paused; and 2 more.")


# --- which STARTED runs are ended, and which are left alone -----------------------------------


OVER = {group().group: GroupChange(fleet=group(), change=change(ChangeState.DONE))}
"""The group's change is over."""


@pytest.mark.parametrize(
    ("seen", "mark"),
    [
        pytest.param(None, IDLE, id="no change"),
        pytest.param(change(ChangeState.RUNNING), "1.3", id="its own, running"),
        pytest.param(change(ChangeState.DONE), IDLE, id="its own, over"),
        pytest.param(change(ChangeState.RUNNING, actor="fleet apply"), IDLE, id="adopted"),
    ],
)
def test_mark(seen, mark):
    """A run shows life only through a running change that it signs."""
    assert progress_mark("r1", seen) == mark


@pytest.mark.parametrize(
    ("mark", "ticks", "still", "dead"),
    [
        pytest.param("1.3", 3, 45, True, id="lease not renewed"),
        pytest.param("1.3", 3, 12, False, id="within the lease and its margin"),
        pytest.param("1.3", 2, 4000, False, id="the machine slept"),
        pytest.param("step.7", 4, 45, True, id="a step without an event for 45 s"),
        pytest.param("step.7", 4, 44, False, id="within four of its events"),
        pytest.param("step.7", 3, 4000, False, id="the machine slept while it planned"),
        pytest.param("idle.7", 6, 120, True, id="no change and no event for two minutes"),
        pytest.param("idle.7", 6, 119, False, id="a step's process may start"),
        pytest.param("idle.7", 5, 4000, False, id="the machine slept while it started"),
    ],
)
def test_dead(mark, ticks, still, dead):
    """Both the ticks and the seconds must be over."""
    run = StartedRun(mark=mark, still=still, ticks=ticks, at=1000.0)
    assert (death_reason(run, lease=10.0) is not None) is dead


@pytest.mark.parametrize(
    ("chosen", "more"),
    [
        (None, False),
        ({asset_keys.rollout_key("main"), asset_keys.plan_key("main")}, False),
        ({asset_keys.rollout_key("main"), AssetKey(["enriched_orders"])}, True),
        ({asset_keys.rollout_key("main"), asset_keys.history_key("main", "lag")}, True),
    ],
)
def test_a_run_that_makes_other_assets_too(chosen, more):
    """Nobody here sees whether it works on those: that no change runs is no sign of its end."""
    run = SimpleNamespace(job_name="__ASSET_JOB", asset_selection=chosen, tags={})
    assert asset_keys.makes_other_assets(run, "main") is more


def silent(instance: DagsterInstance, ticks: int, meanwhile: Callable[[], object] = int) -> bool:
    """Whether so many ticks, 15 s apart, end all runs; what happens before each."""
    kept: dict[str, StartedRun] = {}
    for tick in range(ticks):
        meanwhile()
        kept, _ = end_dead_runs(instance, "main", OVER, kept, now=15.0 * tick, writable=True)
    return not kept and instance.get_runs_count(RunsFilter(statuses=[DagsterRunStatus.FAILURE])) > 0


@pytest.mark.parametrize("other", [[], [AssetKey(["enriched_orders"])]])
def test_a_run_is_ended_only_where_it_is_seen_whole(other):
    """Its change has been over for ten minutes: with nothing else to make, its process is gone."""
    chosen = frozenset({asset_keys.rollout_key("main"), *other})
    with DagsterInstance.ephemeral() as instance:
        started(instance, group().group, job_name="__ASSET_JOB", asset_selection=chosen)
        assert silent(instance, 40) == (not other)


def test_a_run_without_a_change_lives_as_long_as_it_stores_events():
    """It plans, or waits for the lease of a dead actor, for ten minutes; then it is silent."""
    with DagsterInstance.ephemeral() as instance:
        run = started(instance, group().group)
        assert not silent(instance, 40, lambda: instance.report_engine_event(STEP_GOES_ON, run))
        assert not silent(instance, 3)
        assert silent(instance, 4)


def test_a_run_between_its_steps_has_longer():
    """A process starts meanwhile, which takes a minute on a slow machine."""
    with DagsterInstance.ephemeral() as instance:
        run = started(instance, group().group)
        instance.report_engine_event(STEP_GOES_ON, run)
        instance.report_engine_event("starts the next step", run)
        assert not silent(instance, 8)
        assert silent(instance, 9)


def test_long_lease_waits_longer():
    """A run of an older release, without these events, may wait for another actor's lease."""
    run = StartedRun(mark=IDLE, still=150.0, ticks=9, at=1000.0)
    assert death_reason(run, lease=60.0) is None
    assert death_reason(replace(run, still=190.0), lease=60.0)


@pytest.mark.parametrize("name", ["plan", "rollout"])
def test_a_step_that_takes_long_stores_events(monkeypatch, name):
    """Even while it only waits for the cluster; it goes on if one of them is not stored."""
    stored: list[str] = []
    twice = threading.Event()

    def store(_: object, message: str, run: DagsterRun) -> None:
        stored.append(f"{run.tags[asset_keys.PARTITION_TAG]}: {message}")
        if len(stored) == 1:
            raise ConnectionError("the storage is away")
        twice.set()

    @contextmanager
    def opens(_: FleetResource) -> Iterator[None]:
        assert twice.wait(60)
        raise Refused("that is all")
        yield

    monkeypatch.setattr(change_assets, "EVENT_SECONDS", 0.01)
    monkeypatch.setattr(FleetResource, "open", opens)
    monkeypatch.setattr(DagsterInstance, "report_engine_event", store)
    made = change_assets.build_change_assets(FleetResource.of(spec()))
    done = materialize(
        made,
        selection=[AssetKey(["main", name])],
        partition_key=group().group,
        raise_on_error=False,
    )
    (failed,) = done.get_step_failure_events()
    assert "that is all" in failed.message or "that is all" in str(failed.step_failure_data.error)
    assert set(stored) == {f"{group().group}: the step goes on"}


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as made:
        yield made
        made.kill()


HERE = {asset_keys.MACHINE_TAG: this_machine(), asset_keys.SERVER_TAG: '{"host": "127.0.0.1"}'}
"""Tags of a run that a tick on this machine requested."""


def with_process(instance: DagsterInstance, pid: int, **fields: Any) -> DagsterRun:
    """A run of the group that has this process, as Dagster stores it."""
    run = started(instance, group().group, **{"tags": HERE, **fields})
    instance.report_engine_event("waited in a queue", run)
    instance.report_engine_event("Started process", run, EngineEventData.in_process(pid))
    return run


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
def test_a_run_whose_process_is_gone_is_ended_at_once(process, status):
    """By the first look after it, and by none before."""
    with DagsterInstance.ephemeral() as instance:
        run = with_process(instance, process.pid, status=status)
        assert end_ended_runs(instance, "main") == []
        process.kill()
        process.wait()
        assert end_ended_runs(instance, "other") == []
        (said,) = end_ended_runs(instance, "main")
        assert said == (
            f"ended run {run.run_id}: its process {process.pid} has ended before it stored a result"
        )
        assert busy_groups(instance, "main") == set()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tags": {**HERE, asset_keys.MACHINE_TAG: "b 1 pid:[1]"}}, id="elsewhere"),
        pytest.param({"tags": {**HERE, asset_keys.MACHINE_TAG: ""}}, id="not known where"),
        pytest.param({"tags": {**HERE, asset_keys.SERVER_TAG: '{"host": "code"}'}}, id="service"),
        pytest.param({"tags": {}}, id="by hand"),
        pytest.param({"parent_run_id": make_new_run_id(), "root_run_id": "r"}, id="once more"),
        pytest.param({"status": DagsterRunStatus.NOT_STARTED}, id="not started"),
    ],
)
def test_a_process_that_may_run_elsewhere_is_not_called_gone(process, fields):
    """The same number names another process there."""
    process.kill()
    process.wait()
    with DagsterInstance.ephemeral() as instance:
        with_process(instance, process.pid, **fields)
        assert end_ended_runs(instance, "main") == []


def test_a_run_that_ends_meanwhile_keeps_its_result(process, monkeypatch):
    """A process stores how its run ended before it ends."""
    with DagsterInstance.ephemeral() as instance:
        run = with_process(instance, process.pid)

        def ends(pid: int) -> None:
            assert pid == process.pid
            instance.report_run_canceled(run)

        monkeypatch.setattr(dead_runs, "identify", ends)
        assert end_ended_runs(instance, "main") == []
        assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.CANCELED


class Jobs(RunLauncher, ConfigurableClass):
    """A launcher that knows how its Jobs are."""

    health = WorkerStatus.RUNNING
    asked: ClassVar[list[DagsterRun]] = []
    supports_check_run_worker_health = True
    inst_data = None

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        self.asked.append(run)
        return CheckRunHealthResult(self.health, "K8s job failed")

    def launch_run(self, context: object) -> None:
        raise NotImplementedError

    def terminate(self, run_id: str) -> bool:
        return False

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: object, config_value: object) -> "Jobs":
        return cls()


@pytest.mark.parametrize("health", WorkerStatus)
def test_a_run_is_ended_once_its_launcher_says_that_its_job_failed(monkeypatch, health):
    """A pid in another pod's namespace says nothing. No answer is no evidence, and no other run is
    asked about: a tick has a minute.
    """
    launcher = {"module": Jobs.__module__, "class": "Jobs"}
    monkeypatch.setattr(Jobs, "health", health)
    monkeypatch.setattr(Jobs, "asked", asked := [])
    with instance_for_test(overrides={"run_launcher": launcher}) as instance:
        for status in (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
            with_process(instance, 2**22 + 1, status=status)
        ended = end_ended_runs(instance, "main")
    failed = health is WorkerStatus.FAILED
    assert [said.endswith("Jobs reports: K8s job failed") for said in ended] == [True] * 2 * failed
    assert len(asked) == (1 if health is WorkerStatus.UNKNOWN else 2)


def test_a_teams_own_assets_do_not_hold_the_group():
    """Behind the rollout its run changes the group no more; killed there, it stays STARTED."""
    seen: dict[str, set[str]] = {}

    @asset(key=asset_keys.rollout_key("main"), partitions_def=group_partitions(spec()))
    def rollout(context: AssetExecutionContext) -> None:
        seen["changing"] = busy_groups(context.instance, "main")

    @asset(deps=[rollout], partitions_def=group_partitions(spec()))
    def enriched_orders(context: AssetExecutionContext) -> None:
        seen["behind"] = busy_groups(context.instance, "main")

    made = Definitions(assets=[rollout, enriched_orders], jobs=[define_asset_job("own")])
    chosen = [rollout.key, enriched_orders.key]
    with DagsterInstance.ephemeral() as instance:
        job = made.resolve_job_def("own")
        job.execute_in_process(
            instance=instance, partition_key="orders-enrichment", asset_selection=chosen
        )
    assert seen == {"changing": {"orders-enrichment"}, "behind": set()}


def started(instance: DagsterInstance, name: str, **fields: Any) -> DagsterRun:
    """A run of the group's job, begun and not over."""
    usual = {"job_name": JOB, "run_id": make_new_run_id(), "status": DagsterRunStatus.STARTED}
    tags = {asset_keys.PARTITION_TAG: name, **fields.pop("tags", {})}
    return instance.add_run(DagsterRun(**{**usual, "tags": tags, **fields}))


def test_a_run_of_another_clusters_group_of_that_name_is_none_of_ours():
    """Its failures do not delay this cluster's group, and its work does not hold it."""
    asked = request_for(plan(step()), group())
    theirs = {**asked.tags, asset_keys.CLUSTER_TAG: "other"}
    with DagsterInstance.ephemeral() as instance:
        for status in (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE):
            instance.add_run(
                DagsterRun(
                    job_name=asset_keys.definition_name("other", asset_keys.CHANGE_JOB),
                    run_id=make_new_run_id(),
                    status=status,
                    tags={**theirs, asset_keys.PARTITION_TAG: str(asked.partition_key)},
                )
            )
        assert busy_groups(instance, "main") == set()
        assert busy_groups(instance, "other") == {asked.partition_key}
        assert failures_of(instance, asked) == (0, 0.0)


@pytest.mark.parametrize(
    ("ends", "failures"),
    [
        pytest.param("", 0, id="none"),
        pytest.param("k", 0, id="killed"),
        pytest.param("kk", 1, id="killed twice: it may need too much memory"),
        pytest.param("ff", 2, id="failed twice"),
        pytest.param("fk", 1, id="killed after a failure"),
        pytest.param("kf", 1, id="failed after a kill"),
        pytest.param("fcf", 1, id="a cancelled one between"),
    ],
)
def test_a_run_that_was_killed_once_is_no_failure_of_its_target(ends, failures):
    """The group's next run starts at once. k: killed, f: failed in a step, c: cancelled."""
    asked = request_for(plan(step()), group())
    tags = {**asked.tags, asset_keys.PARTITION_TAG: str(asked.partition_key)}

    @asset
    def broken() -> None:
        raise ValueError

    with DagsterInstance.ephemeral() as instance:
        for end in ends:
            if end == "f":
                materialize([broken], instance=instance, tags=tags, raise_on_error=False)
                continue
            run = started(instance, group().group, tags=tags)
            (instance.report_run_failed if end == "k" else instance.report_run_canceled)(run)
        assert failures_of(instance, asked)[0] == failures


def test_all_runs_that_are_not_over_are_seen(monkeypatch):
    """However many wait: a group that is not seen busy is asked for again every minute."""
    monkeypatch.setattr(dead_runs, "PAGE", 3)
    groups = {f"g{n}" for n in range(10)}
    with DagsterInstance.ephemeral() as instance:
        for name in sorted(groups):
            started(instance, name)
        assert busy_groups(instance, "main") == groups


def test_a_dead_run_is_found_behind_any_number_of_others(monkeypatch):
    """Those of other people in the same Dagster, too, begun before it and after it."""
    monkeypatch.setattr(dead_runs, "PAGE", 3)
    with DagsterInstance.ephemeral() as instance:
        for name in [*["theirs"] * 5, group().group, *["theirs"] * 5]:
            started(instance, name)
        kept, said = end_dead_runs(instance, "main", OVER, {}, now=0.0, writable=True)
    assert len(kept) == 1
    assert said == []


def test_a_renewal_starts_the_count_again():
    """The count is of looks that saw the same."""
    run = update_run(None, "1.3", now=0.0)
    run = update_run(run, "1.3", now=15.0)
    assert (run.ticks, run.still) == (2, 15.0)
    assert update_run(run, "1.4", now=30.0) == StartedRun(mark="1.4", still=0.0, ticks=1, at=30.0)


def after(*times: float, provable: bool = True) -> StartedRun:
    """A run that looked the same at ticks of these wall times."""
    run = None
    for now in times:
        run = update_run(run, "1.3", now=now, provable=provable)
    assert run is not None
    return run


def test_a_clock_that_is_set_neither_ends_a_run_nor_keeps_it():
    """A tick counts for what ticks are apart, at most."""
    assert death_reason(after(0.0, 15.0, 3600.0), lease=60.0) is None
    back = after(7200.0, 7215.0, 3600.0, 3615.0)
    assert (back.ticks, back.still) == (4, 30.0)
    assert death_reason(back, lease=10.0)


def test_who_could_not_renew_is_not_dead():
    """Ticks that find the store refusing what they write say nothing of anybody [38]."""
    times = [15.0 * n for n in range(20)]
    assert death_reason(after(*times, provable=False), lease=10.0) is None
    assert death_reason(after(*times), lease=10.0)
