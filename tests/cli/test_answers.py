"""What changing and reading commands print: the JSON contract and the tables."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console

from fleet.commands.answers import (
    as_answer,
    change_answer,
    failed_answer,
    good,
    print_change,
    print_plan,
)
from fleet.commands.change.session import GroupOutcome
from fleet.commands.doctor import as_json, guarded
from fleet.commands.groups.group_status import (
    GroupStatus,
    Managed,
    error_of,
    last_change,
    status_answer,
    with_failing,
    with_problems,
)
from fleet.commands.groups.reading import print_status
from fleet.decide.lag_status import GroupLagStatus, LagStatus, Level, PartitionLagStatus
from fleet.decide.scaling import Pin
from fleet.decide.storms import Storm
from fleet.errors import FleetError
from fleet.manager.past import Recent
from fleet.model import (
    Alternative,
    ExpectedCost,
    Finding,
    GroupSnapshot,
    GroupState,
    LagCase,
    Member,
    PartitionState,
    Plan,
    Receipt,
    ReceiptResult,
    Severity,
    Step,
    StepKind,
    TopicPartition,
)
from fleet.slots import (
    Change,
    ChangeState,
    Pause,
    Phase,
    Slot,
    SlotTargets,
    WorkerProcess,
    WorkerReport,
)
from tests.asking.worlds import rebalance
from tests.support.command import answer
from tests.support.json_contract import documented, shape
from tests.support.snapshots import snapshot_of

TP = TopicPartition("orders", 0)
EXPECTED_COST = ExpectedCost(
    rebalances_min=1, rebalances_max=2, moved_min=3, moved_max=6, note="moves [6] of 12",
    rebalances_expected=2, moved_expected=4, downtime_s=0.525, downtime_p95_s=0.532,
    settled_s=0.796, backlog=120,
)  # fmt: skip
PLAN = Plan(
    id="main-orders-17", cluster="main", group="orders", created_at=100.0, snapshot_at=99.5,
    wanted=4, revision="0a1b2c3d4e",
    steps=(
        Step(kind=StepKind.OPEN, slots=(2, 3), revision="0a1b2c3d4e", expected_cost=EXPECTED_COST,
             sentence="slots 2 and 3 open together"),
    ),
    notes=("the hot partition orders-0 is not scaled for",),
    alternatives=(
        Alternative(step=0, way="all at once", rebalances=2, moved=4, downtime_s=0.525,
                    downtime_p95_s=0.532, settled_s=0.796, backlog=120, keeps_limits=True,
                    cheapest=True, chosen=True),
    ),
)  # fmt: skip
RECEIPT = Receipt(
    plan_id=PLAN.id, group="orders", step=0, kind=StepKind.OPEN, expected_cost=EXPECTED_COST,
    rebalances=2, external_rebalances=0, aborted=1, moved=6, longest_downtime_s=0.4,
    from_generation=7, to_generation=9, started_at=101.0, seconds=6.5,
    result=ReceiptResult.EQUAL, settled_s=0.9,
    sentences=("join spread 0.03 s",),
)  # fmt: skip
CHANGE = Change(
    group="orders", plan=PLAN, state=ChangeState.DONE, actor="deploy@ci:4711", token=1, counter=9,
    step=1, started_at=101.0, ended_at=108.0, receipts=(RECEIPT,), sentence="2 slots more",
)  # fmt: skip
FAILS = "KeyError: 'id' (orders.py:12 in process)"
TRACEBACK = f'Traceback (most recent call last):\n  File "orders.py", line 12, in process\n{FAILS}'
FAILED = dataclasses.replace(CHANGE, state=ChangeState.ROLLED_BACK, traceback=TRACEBACK)
RECENT = Recent(kind="log", sentence="from __consumer_offsets, read just now")
LAST = dataclasses.replace(rebalance(7, 0), ended_at=120.0)
PAUSE = Pause(group=None, reason="incident", by="deploy@ci", at=90.0)
STORM = Storm(
    cluster="main", group="orders", since=50.0, seen_at=200.0, rebalances=9, moved=24, budget=5,
    budget_moved=None, window=600.0, cause="join and leave", top_offender="orders-3",
    summary="orders-3 joins and leaves every 40 s",
)  # fmt: skip
STOPPED = "no commit for 90 s: 7 records wait, the oldest for 95 s"
GAP = (
    "Kafka had deleted the group's commit of orders-0: it goes on at 100, the last that it "
    "committed, and not at the end 200 (worker.start_from: latest)"
)
STATUS = GroupStatus(
    group="orders",
    storm=STORM,
    lag_status=GroupLagStatus(
        group="orders", status=LagStatus.STOP, partitions=1,
        sentence=f"1 of 1 partitions, the worst orders-0: {STOPPED}",
        worse=(PartitionLagStatus(tp=TP, status=LagStatus.STOP, sentence=STOPPED),),
    ),
    seen=GroupSnapshot(
        group="orders", exists=True, state=GroupState.STABLE, type="classic",
        assignor="cooperative-sticky",
        members=(Member(member_id="w-1", instance_id="orders-0", client_id="w", host="/127.0.0.1",
                        partitions=frozenset({TP})),),
        partitions=(PartitionState(tp=TP, committed=5, log_start=0, log_end=12, lag=7,
                                   lag_seconds=0.5, case=LagCase.OK, owner="w-1"),),
    ),
    managed=Managed(
        mode="act", owner="team", has_worker=True,
        targets=SlotTargets(group="orders", open=frozenset({0})),
        slots=(Slot(group="orders", number=0, owner="w-1", phase=Phase.ACTIVE,
                    revision="0a1b2c3d4e", batches=3),),
        workers=(WorkerProcess(name="w-1", group="orders", revision="0a1b2c3d4e", wanted=True,
                               running=True, restarts=0),
                 WorkerProcess(name="w-2", group="orders", revision="0a1b2c3d4e", wanted=True,
                               running=True, restarts=2),
                 WorkerProcess(name="w-3", group="orders", revision="0a1b2c3d4e", wanted=True,
                               running=False, restarts=28, failures=28,
                               exit_reason="killed by SIGKILL: batch 7")),
        reports=(WorkerReport(worker="w-1", group="orders", revision="0a1b2c3d4e", phase="active",
                              slot=0, counter=4, http_port=None, batches=3, records=40,
                              reading="columnar", gap=GAP),
                 WorkerReport(worker="w-2", group="orders", revision="0a1b2c3d4e", phase="standby",
                              slot=None, counter=4, http_port=None,
                              error=FAILS, traceback=TRACEBACK,
                              spark_ui="http://127.0.0.1:4040")),
        change=CHANGE, pin=Pin(wanted=6, until=7500.0, by="ann@host:4711"),
    ),
    pauses=(PAUSE,), rebalances=2, window=600.0, per_hour=2, last_rebalance=LAST,
)  # fmt: skip
FOREIGN = GroupStatus(
    group="theirs",
    seen=GroupSnapshot(group="theirs", exists=True, state=GroupState.EMPTY, type="classic",
                       assignor=None, members=(), partitions=()),
    managed=None, pauses=(),
)  # fmt: skip
NEW = GroupStatus(group="new", seen=None, managed=None, pauses=())
SNAPSHOT = snapshot_of(at=200.0, topics={"orders": 12})


def printed(show, *args, width=100, **kwargs) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, highlight=False), *args, **kwargs)
    return out.getvalue()


@pytest.mark.parametrize(
    ("heading", "answer"),
    [
        (
            "fleet status -o json",
            status_answer(SNAPSHOT, [STATUS], [PAUSE], recent=RECENT, detail=False),
        ),
        (
            "fleet status GROUP -o json",
            status_answer(SNAPSHOT, [STATUS], [PAUSE], recent=RECENT, detail=True),
        ),
        (
            "fleet plan -o json",
            {"schema_version": 1, "cluster": "main",
             "plans": [{**as_answer(PLAN), "previous_failure": failed_answer(FAILED)}]},
        ),
        (
            "fleet scale|roll|drain -o json",
            {"schema_version": 1, **GroupOutcome("orders", plan=PLAN, change=CHANGE).as_json()},
        ),
        (
            "fleet apply -o json",
            {"schema_version": 1,
             "results": [GroupOutcome("orders", plan=PLAN, change=CHANGE).as_json()]},
        ),
        (
            "fleet doctor -o json",
            as_json([Finding("java", Severity.WARN, "Java 11", "install 17")]),
        ),
    ],
    ids=["status", "status of a group", "plan", "change", "apply", "doctor"],
)  # fmt: skip
def test_json_answers_have_the_documented_shape(heading, answer):
    """Every key that is printed stands in docs/reference/json.md with its kind, and no other."""
    assert answer["schema_version"] == 1
    assert shape(json.loads(json.dumps(answer))) == shape(documented(heading))


def test_workers_that_end_again_and_again_are_told():
    """In the table of slots and in the group's lag status: the lag alone does not show it."""
    (managed,) = (STATUS.managed,)
    assert managed is not None
    told = "w-3 exited 28 times in a row: killed by SIGKILL: batch 7"
    out = printed(print_status, SNAPSHOT, [STATUS], now=200.0, detail=True, width=200)
    assert "exited 28 times in a row: killed by SIGKILL: batch 7" in out
    well = GroupLagStatus(group="orders", status=LagStatus.OK, sentence="keeps up", partitions=1)
    one = with_failing("orders", well, managed)
    assert one is not None
    assert (one.level, one.sentence) == (Level.WARN, f"1 of 3 workers cannot run: {told}")
    none_runs = dataclasses.replace(managed, workers=managed.workers[2:], slots=())
    for lag_status in (well, None, dataclasses.replace(well, status=LagStatus.UNSCORED)):
        worst = with_failing("orders", lag_status, none_runs)
        assert worst is not None
        assert (worst.level, told in worst.sentence) == (Level.ERR, True)
    holds = dataclasses.replace(managed.slots[0], owner="w-3", owner_ended=True)
    held = dataclasses.replace(managed, slots=(holds,))
    assert error_of(holds, held) == told.removeprefix("w-3 ")
    assert held.active == 0
    steady = dataclasses.replace(managed.workers[2], running=True, failures=0)
    assert with_failing("orders", well, dataclasses.replace(managed, workers=(steady,))) is well


def test_the_brokers_answer_has_the_documented_shape(tmp_path, monkeypatch, capsys):
    """Of one that was stopped."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))
    node = {"id": 1, "port": 1, "controller_port": 2, "process": None}
    (tmp_path / "broker").mkdir()
    stored = {"cluster_id": "c", "overrides": {}, "nodes": [node]}
    (tmp_path / "broker" / "state.json").write_text(json.dumps(stored))
    found = answer(capsys, "dev", "broker", "status")
    assert shape(found) == shape(documented("fleet dev broker status -o json"))
    assert (found["running"], found["nodes"][0]["pid"]) == (False, None)


def test_unverified_counts_are_null():
    """Where the coordinator's records cannot be read, no number is claimed."""
    receipt = dataclasses.replace(RECEIPT, result=ReceiptResult.UNVERIFIED)
    answer = change_answer(dataclasses.replace(CHANGE, receipts=(receipt,)))["receipts"][0]
    assert [answer[key] for key in ("rebalances", "external_rebalances", "aborted", "moved")] == [
        None
    ] * 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(CHANGE, True, id="done"),
        pytest.param(dataclasses.replace(CHANGE, receipts=()), True, id="nothing to do"),
        pytest.param(
            dataclasses.replace(
                CHANGE, receipts=(dataclasses.replace(RECEIPT, result=ReceiptResult.UNVERIFIED),)
            ),
            True,
            id="unverified",
        ),
        pytest.param(
            dataclasses.replace(
                CHANGE, receipts=(dataclasses.replace(RECEIPT, result=ReceiptResult.DIFFERS),)
            ),
            False,
            id="differs",
        ),
        *[
            pytest.param(dataclasses.replace(CHANGE, state=state), False, id=state.value)
            for state in ChangeState
            if state is not ChangeState.DONE
        ],
    ],
)
def test_only_a_change_as_planned_is_good(change, expected):
    """The exit code is 0 only for a change that is done and whose receipts do not differ."""
    assert good(change) is expected


def test_a_plan_states_its_expected_cost_before_anything_is_done():
    """Steps, slots, rebalances, moved partitions, notes; brackets are no markup."""
    text = printed(print_plan, PLAN, width=160)
    for part in (
        "orders: 4 slots",
        "open",
        "2-3",
        "1-2",
        "3-6",
        "(moves [6] of 12)",
        "note: the hot",
    ):
        assert part in text
    assert re.search(r"2 \(1-2\)\s+4 \(3-6\)\s+0\.53 s\s+0\.53 s\s+0\.80 s\s+120", text)
    assert re.search(r"all at once\s+now\s+2\s+4\s.*120\s+chosen, cheapest", text)
    later = dataclasses.replace(
        PLAN.alternatives[0],
        starts_in_s=40.0,
        backlog=None,
        keeps_limits=False,
        exceeded=("storm.moved",),
        chosen=False,
    )
    text = printed(print_plan, dataclasses.replace(PLAN, alternatives=(later,)), width=160)
    assert re.search(r"in 40 s .* - +cheapest, exceeds storm.moved", text)


def test_an_empty_plan_says_so():
    """Nothing to do is an answer."""
    assert "nothing to do" in printed(print_plan, dataclasses.replace(PLAN, steps=()))


def test_a_refused_plan_says_why():
    """Refusals are printed, each a sentence."""
    plan = dataclasses.replace(PLAN, steps=(), refusals=("group orders is in a storm",))
    text = printed(print_plan, plan)
    assert "refused: group orders is in a storm" in text
    assert "nothing to do" not in text


def test_a_receipt_that_differs_stands_out():
    """DIFFERS is spelled in capitals beside what was expected and what was recorded."""
    receipt = dataclasses.replace(RECEIPT, result=ReceiptResult.DIFFERS, rebalances=5)
    text = printed(print_change, dataclasses.replace(CHANGE, receipts=(receipt,)))
    assert re.search(r"1\s+open\s+1-2\s+5\s+0\s+1\s+6\s+0\.40 s\s+6\.5 s\s+DIFFERS", text)
    assert "step 1: join spread 0.03 s" in text
    assert (
        "step 1: expected 2 rebalances, 4 partitions moved, downtime 0.53 s (p95 0.53 s), "
        "settled after 0.8 s, 120 records waiting then"
    ) in " ".join(text.split())


def test_status_lists_every_group_with_what_is_known():
    """Managed, external and not yet existing groups stand in one table."""
    text = printed(print_status, SNAPSHOT, [STATUS, FOREIGN, NEW], now=300.0, detail=False)
    assert re.search(
        r"orders\s+Stable\s+1\s+7\s+0\.50 s\s+2\s+join 3 min\s+act paused\s+1/1\s+1\+1\s+"
        r"done 3 min ago",
        text,
    )
    assert re.search(r"theirs\s+Empty\s+0\s+-\s+-\s+-\s+-\s+-\s+-\s+-\s+-", text)
    assert re.search(r"new\s+none yet", text)
    assert "paused all groups: incident" in text
    assert "pinned orders: 6 slots pinned by ann@host:4711 for 2 h more, until" in text
    assert "STOP orders: 1 of 1 partitions, the worst orders-0: no commit for 90 s" in " ".join(
        text.split()
    )
    assert "storm orders: for 2 min: 9 rebalances in the last 10 min, budget 5; orders-3" in (
        " ".join(text.split())
    )
    assert max(map(len, text.splitlines())) <= 100


def test_a_terminal_shows_names_in_one_piece():
    """Of 300 groups, a person looks for three; a very long name would squeeze the other columns."""
    names = ["payments-settlement", "team-07-service-0167", "x" * 40]
    many = [dataclasses.replace(STATUS, group=name) for name in names]
    text = printed(print_status, SNAPSHOT, many[:2], now=300.0, detail=False)
    assert re.search("^team-07-service-0167 +Stable", text, re.MULTILINE)
    text = printed(print_status, SNAPSHOT, many, now=300.0, detail=False)
    assert not re.search("^team-07-service-0167 +Stable", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100


def test_groups_with_a_problem_come_worst_first():
    """Storm, no commits, quarantined slot, failed change, falling behind; a pause is no problem."""
    well = dataclasses.replace(STATUS, storm=None, lag_status=None)

    def managed(**fields) -> GroupStatus:
        return dataclasses.replace(well, managed=dataclasses.replace(well.managed, **fields))

    def late(status: LagStatus) -> GroupStatus:
        known = GroupLagStatus(group="orders", status=status, sentence="why")
        return dataclasses.replace(well, lag_status=known)

    shut = SlotTargets(group="orders", quarantined=frozenset({0}))
    worst = [
        dataclasses.replace(well, storm=STORM),
        late(LagStatus.STALL),
        managed(targets=shut),
        managed(change=FAILED),
        late(LagStatus.WARN),
    ]
    changing = dataclasses.replace(CHANGE, state=ChangeState.RUNNING)
    others = [well, FOREIGN, NEW, managed(change=changing), late(LagStatus.UNSCORED)]
    assert with_problems([*others, *reversed(worst)]) == worst
    text = printed(print_status, SNAPSHOT, worst, now=300.0, detail=False, width=200)
    assert "last change rolled back orders: 2 slots more" in text


@pytest.mark.parametrize("detail", [False, True])
def test_an_external_owner_is_shown_with_its_host(detail):
    """Where the coordinator still knows the member; one that is gone has none."""
    shut = dataclasses.replace(STATUS.managed.targets, quarantined=frozenset({0, 7}))
    status = dataclasses.replace(STATUS, managed=dataclasses.replace(STATUS.managed, targets=shut))
    text = printed(print_status, SNAPSHOT, [status], now=300.0, detail=detail, width=200)
    for who, number in (("another process at 127.0.0.1", 0), ("another process", 7)):
        member = f"{who} is a member with the instance id orders-{number}"
        assert f"{member}, so slot {number} is quarantined" in text


def test_status_of_one_group_shows_partitions_and_slots():
    """Detail: protocol, recent rebalances, owner of each partition, owner of each slot."""
    text = printed(print_status, SNAPSHOT, [STATUS], now=300.0, detail=True, width=120)
    assert (
        "classic group, assignor cooperative-sticky, lag status STOP, "
        "rebalances in the last 10 min: 2, the last: join" in text
    )
    assert re.search(r"orders-0\s+5\s+12\s+7\s+0\.50 s\s+w-1", text)
    assert re.search(r"0\s+active\s+w-1\s+0a1b2c3d4e\s+3\s+40", text)
    assert re.search(r"-\s+standby\s+w-2", text)
    assert "last change done 3 min ago: 2 slots more" in text
    assert re.search(r"1\s+open\s+1-2\s+2\s+0\s+1\s+6\s+0\.40 s\s+6\.5 s\s+equal", text)


@pytest.mark.parametrize("detail", [True, False])
@pytest.mark.parametrize(("workers", "worst"), [(1, LagStatus.WARN), (0, LagStatus.STOP)])
def test_what_refuses_workers_is_shown(detail, workers, worst):
    """A pod that is not made has no row of its own; without it the group is not OK."""
    told = "0 of 3 pods were made: minimum memory usage per Container is 1Gi"
    there = STATUS.managed.workers[:workers]
    managed = dataclasses.replace(STATUS.managed, refusal=told, workers=there)
    well = GroupLagStatus(group="orders", status=LagStatus.OK, sentence="")
    lag_status = with_failing("orders", well, managed)
    status = dataclasses.replace(STATUS, managed=managed, lag_status=lag_status)
    text = printed(print_status, SNAPSHOT, [status], now=200.0, detail=detail)
    said = f"{worst} orders: the cluster refuses workers: {told}"
    assert " ".join(text.split()).count(said) == 1
    assert lag_status.level is not Level.OK
    answer = status_answer(SNAPSHOT, [status], (), recent=RECENT, detail=detail)
    assert answer["groups"][0]["managed"]["workers"]["refusal"] == told


def test_a_running_change_names_its_step():
    """Somebody looking in from another shell sees how far it is."""
    running = dataclasses.replace(CHANGE, state=ChangeState.RUNNING, step=0, ended_at=None)
    assert last_change(running, 120.0) == "running, step 1 of 1"
    assert last_change(None, 120.0) == "-"


def test_a_check_that_fails_is_a_finding():
    """A FleetError of a check is a FAIL with its sentence; what was found before stays."""

    def look():
        yield Finding("java", Severity.OK, "found")
        raise FleetError("too old")

    assert [(f.level, f.found) for f in guarded("java", look)] == [
        (Severity.OK, "found"),
        (Severity.FAIL, "too old"),
    ]
