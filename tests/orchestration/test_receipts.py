"""What a rollout leaves in Dagster: the receipt, its check, and failures that say why."""

import re
from dataclasses import replace

import pytest
from dagster import AssetCheckSeverity, AssetKey, DagsterInstance, Failure, asset, materialize

from fleet.config.spec import FleetSpec
from fleet.dagster.change_assets import record_result
from fleet.dagster.change_metadata import (
    bullet_list,
    change_metadata,
    code_block,
    plan_metadata,
    plan_sentence,
)
from fleet.dagster.check_outcomes import (
    freshness_outcome,
    lag_outcome,
    receipt_outcome,
    storm_outcome,
)
from fleet.dagster.resources import fleet_errors_as_failures
from fleet.decide.lag_status import GroupLagStatus, LagStatus
from fleet.decide.storms import Storm
from fleet.errors import Refused
from fleet.model import Alternative, ExpectedCost, LagCase, ReceiptResult
from fleet.report.alert_rules import rules
from fleet.slots import ChangeState
from tests.orchestration.made import change, group, plan, receipt, step
from tests.support.seen_groups import group_seen, member_seen, partition_seen

KEY = AssetKey(["main", "groups", "orders-enrichment"])


@pytest.fixture
def instance():
    """Dagster's storage: a page shows what is in it, and not what a result tells."""
    with DagsterInstance.ephemeral() as made:
        yield made


def ran(instance, done):
    """Run an asset that records this change; the run's result."""

    @asset(key=["main", "rollout"])
    def rollout(context):
        return record_result(context, "main", done)

    return materialize([rollout], instance=instance, raise_on_error=False)


@pytest.mark.parametrize(
    ("done", "succeeded", "materialised", "check"),
    [
        pytest.param(
            change(ChangeState.DONE, receipt(ReceiptResult.EQUAL)), True, 1, True, id="as priced"
        ),
        pytest.param(
            change(ChangeState.DONE, receipt(ReceiptResult.UNVERIFIED)),
            True,
            1,
            True,
            id="unverified",
        ),
        pytest.param(
            change(ChangeState.DONE, receipt(ReceiptResult.DIFFERS, rebalances=3)),
            True,
            1,
            False,
            id="differs",
        ),
        pytest.param(
            change(ChangeState.FAILED, receipt(ReceiptResult.DIFFERS, rebalances=3)),
            False,
            0,
            False,
            id="differs and held",
        ),
        pytest.param(
            change(ChangeState.ROLLED_BACK, receipt(ReceiptResult.EQUAL)),
            False,
            0,
            False,
            id="rolled back",
        ),
        pytest.param(change(ChangeState.FAILED), False, 0, False, id="failed before any step"),
        pytest.param(change(ChangeState.DONE), True, 1, None, id="nothing to do"),
    ],
)
def test_recorded(instance, done, succeeded, materialised, check):
    """Green only what ended well; the group's check says the rest, also where the run fails."""
    result = ran(instance, done)
    assert result.success is succeeded
    assert len(result.get_asset_materialization_events()) == materialised
    kept = instance.get_records_for_run(result.run_id).records
    found = [
        (e.asset_key, e.passed)
        for record in kept
        if (e := record.event_log_entry.asset_check_evaluation) is not None
    ]
    assert found == ([] if check is None else [(KEY, check)])


def test_failure_says_why_and_shows_receipt_and_the_workers_error(instance):
    """Dagster's retries are not ours [35]; the sentence is the change's."""
    result = ran(instance, change(ChangeState.ROLLED_BACK, receipt(ReceiptResult.EQUAL)))
    (event,) = [e for e in result.all_events if e.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert "rolled back. Opened 2 slots. Expected 1-2 rebalances, recorded 1" in failure.description
    assert cells(failure.metadata["receipt"], "step", "expected", "recorded") == [(1, "1-2", 1)]
    assert failure.metadata["error"].value == "```text\nOpened 2 slots.\nJoined within 12 ms.\n```"


def cells(table, *columns):
    """These cells of each row."""
    return [tuple(row.data[column] for column in columns) for row in table.records]


def test_refusal_becomes_a_failure_with_its_sentence():
    """Refused: the op fails once, with the words of the refusal."""
    with pytest.raises(Failure, match="paused by ann") as caught, fleet_errors_as_failures():
        raise Refused("orders is paused by ann: deploy freeze")
    assert caught.value.allow_retries is False
    assert caught.value.metadata["kind"].value == "Refused"


def test_metadata_of_a_receipt():
    """Numbers are numbers (Dagster plots them), expected stands beside recorded."""
    shown = change_metadata(change(ChangeState.DONE, receipt(ReceiptResult.EQUAL)))
    assert shown["expected rebalances"] == "1-2"
    assert shown["recorded rebalances"] == 1
    assert shown["partitions moved"] == 6
    assert shown["longest downtime (s)"] == 0.25
    (row,) = shown["receipt"].records
    assert [*row.data.values()][:11] == [1, "open", "1-2", 1, 0, 0, 6, 0.25, 1.2, 3.0, "equal"]
    kinds = {column.name: column.type for column in shown["receipt"].schema.columns}
    assert kinds["recorded"] == "int"
    assert kinds["longest downtime (s)"] == "float"


def test_metadata_of_a_plan():
    """Steps with expected costs as a table, refusals in words, the plan itself as JSON."""
    shown = plan_metadata(plan(step(), refusals=("It is paused.",)))
    assert shown["sentence"] == "Refused: It is paused."
    assert shown["plan json"].value["id"] == "plan-1"
    assert plan_sentence(plan(step())) == "Do open. Expected rebalances: 1-2."
    assert plan_sentence(plan()).startswith("Nothing to do")
    frozen = (
        "frozen from 08:00 to 09:00 UTC (scaling.freeze), stays at 2 slots; otherwise: 9 wanted"
    )
    assert plan_sentence(replace(plan(), notes=(frozen,))) == f"F{frozen[1:]}."
    without = "no number from sizer:80 (it answers 503; check scaling.url): 3 slots"
    assert plan_sentence(replace(plan(), notes=(without,))) == f"N{without[1:]}."


def test_what_is_expected_stands_in_plan_and_receipt():
    """Expected costs and other ways as tables; a receipt has its expected cost beside what was
    recorded.
    """
    expected_cost = ExpectedCost(
        rebalances_min=1, rebalances_max=2, rebalances_expected=2, moved_expected=4,
        downtime_s=0.525, downtime_p95_s=0.532, settled_s=0.796, backlog=1200,
    )  # fmt: skip
    way = Alternative(
        step=0, way="one by one", starts_in_s=40.0, rebalances=6, moved=9, downtime_s=None,
        downtime_p95_s=None, settled_s=4.0, backlog=None, keeps_limits=False, cheapest=False,
        chosen=True,
    )  # fmt: skip
    shown = plan_metadata(
        replace(plan(replace(step(), expected_cost=expected_cost)), alternatives=(way,))
    )
    assert shown["expected rebalances, at most"] == 2
    of_step = ("rebalances", "moved", "downtime p50 (s)", "downtime p95 (s)", "settled after (s)")
    assert cells(shown["plan"], *of_step, "backlog then") == [
        ("2 (1-2)", "4", 0.53, 0.53, 0.8, 1200)
    ]
    (row,) = shown["other ways"].records
    told = [1, "one by one", 40.0, 6, 9, None, None, 4.0, None, False, True, False]
    assert [*row.data.values()] == told

    done = change(
        ChangeState.DONE, replace(receipt(ReceiptResult.EQUAL), expected_cost=expected_cost)
    )
    noted = change_metadata(done)["notes"].value
    assert "Expected cost: 2 rebalances, 4 partitions moved, downtime 0.53 s (p95 0.53 s)" in noted
    assert "Joined within 12 ms." in noted


def test_what_a_member_is_called_is_no_picture_and_no_link():
    """Its client id is anybody's choice, and stands in notes."""
    odd = "![x](http://a/b)\n# <img src=http://a/c>\\[d](http://a)"
    shown = "!&#91;x](http://a/b) # &lt;img src=http://a/c>\\&#91;d](http://a)"
    assert bullet_list([odd]).value == f"- {shown}"


def test_a_traceback_ends_no_fence_of_its_own():
    """Its source lines, and what it quotes of a record, may hold any number of marks."""
    assert code_block("x").value == "```\nx\n```"
    assert code_block("a\n`````\n![x](http://a/b)").value.splitlines()[0] == "``````"


@pytest.mark.parametrize(
    ("recorded_rebalances", "passed", "severity"),
    [
        pytest.param(5, True, AssetCheckSeverity.ERROR, id="at the budget"),
        pytest.param(6, True, AssetCheckSeverity.ERROR, id="within a plan's expected cost"),
        pytest.param(None, True, AssetCheckSeverity.WARN, id="unreadable"),
    ],
)
def test_no_storm_passes(recorded_rebalances, passed, severity):
    """What our own changes were to cost is no storm, and what nobody can count neither."""
    judged = storm_outcome(group(), recorded_rebalances, None)
    assert (judged.passed, judged.severity) == (passed, severity)
    if recorded_rebalances == 5:
        assert judged.sentence == f"{group().group}: 5 rebalances in the last 600 s, budget 5."


def test_a_storm_fails_its_check():
    """With its words, its cause and its top offender."""
    storm = Storm(
        cluster="main", group="orders", since=0.0, seen_at=90.0, rebalances=9, moved=0, budget=5,
        budget_moved=None, window=600.0, cause="join and leave", top_offender="orders-3",
        summary="orders-3 joins and leaves every 40 s",
    )  # fmt: skip
    judged = storm_outcome(group(), 9, storm)
    assert (judged.passed, judged.severity) == (False, AssetCheckSeverity.ERROR)
    assert "orders-3 joins and leaves every 40 s" in judged.sentence
    assert judged.metadata["top offender"] == "orders-3"


def test_no_receipt_is_no_alarm():
    """A group that was never changed passes, and says so."""
    assert receipt_outcome(None).passed


def look(*, lag: int | None, members: int = 1, exists: bool = True, case: LagCase = LagCase.OK):
    """A group that stands so."""
    known = [member_seen(f"m{n}") for n in range(members)]
    parts = [partition_seen(0, lag, committed=0, case=case)]
    return group_seen("orders-enrichment", members=known, partitions=parts, exists=exists)


@pytest.mark.parametrize(
    ("seen", "passed", "outcome"),
    [
        pytest.param(look(lag=5_000_000), True, "well", id="records alone are no limit"),
        pytest.param(look(lag=5, members=0), True, "well", id="assign only"),
        pytest.param(look(lag=None), True, "well", id="cannot be said"),
        pytest.param(
            look(lag=None, members=0, exists=False), False, "does not exist", id="missing"
        ),
    ],
)
def test_lag_without_a_status(seen, passed, outcome):
    """A number of records is no limit; a group that uses assign() has no members."""
    judged = lag_outcome(seen, None)
    assert (judged.passed, judged.severity.name, judged.outcome) == (passed, "WARN", outcome)


@pytest.mark.parametrize(
    ("own", "age", "passed", "outcome"),
    [
        pytest.param(None, 600.0, True, "well", id="at the limit of the file"),
        pytest.param(None, 600.1, False, "over the limit", id="over the limit of the file"),
        pytest.param(120.0, 600.0, False, "over the limit", id="over its own limit"),
        pytest.param(7200.0, 600.1, True, "well", id="its own limit is larger"),
        pytest.param(None, None, True, "unknown", id="unknown"),
    ],
)
def test_freshness_is_max_lag_as_in_the_alert(own, age, passed, outcome):
    """The check fails exactly where the rendered rule FleetGroupLag fires."""
    groups = [{"group": "orders", "topics": ["orders"], "max_lag": own}]
    declared = FleetSpec.model_validate({"fleets": groups})
    limit = declared.max_lag_of(declared.fleet("orders"))
    judged = freshness_outcome("orders", age, max_lag=limit)
    assert (judged.passed, judged.outcome) == (passed, outcome)
    (of_groups,) = rules(declared)["groups"]
    limits = [
        float(re.findall(r"fleet_group_lag_seconds.* > (\S+)\)", rule["expr"])[0])
        for rule in of_groups["rules"]
        if rule["alert"] == "FleetGroupLag"
        and ('group!~"orders"' not in rule["expr"].partition("\n")[0])
    ]
    assert limits == [limit]


def keeps_up(status: LagStatus) -> GroupLagStatus:
    """A outcome as `fleet status` gives it."""
    return GroupLagStatus(group="orders-enrichment", status=status, sentence="no commit for 7200 s")


@pytest.mark.parametrize(
    ("seen", "found", "passed", "severity", "outcome"),
    [
        pytest.param(
            look(lag=5_000_000), LagStatus.STOP, False, "ERROR", "STOP", id="nobody commits"
        ),
        pytest.param(look(lag=9), LagStatus.STALL, False, "ERROR", "STALL", id="stands still"),
        pytest.param(look(lag=9), LagStatus.WARN, False, "WARN", "WARN", id="falls behind"),
        pytest.param(look(lag=5_000_000), LagStatus.OK, True, "WARN", "well", id="keeps up"),
        pytest.param(
            look(lag=9, members=0), LagStatus.ABANDONED, False, "ERROR", "ABANDONED",
            id="abandoned, and declared",
        ),
        pytest.param(
            look(lag=9, case=LagCase.BELOW_START), LagStatus.LOSS, False, "ERROR", "LOSS",
            id="retention took records",
        ),
        pytest.param(
            look(lag=5, members=0), LagStatus.OK, True, "WARN", "well",
            id="commits without members",
        ),
        pytest.param(
            look(lag=None, case=LagCase.TOPIC_DELETED), LagStatus.UNSCORED, True, "WARN", "well",
            id="its topic was deleted",
        ),
    ],
)  # fmt: skip
def test_lag_is_judged_as_by_status(seen, found, passed, severity, outcome):
    """As `fleet status` shows it."""
    judged = lag_outcome(seen, keeps_up(found))
    assert (judged.passed, judged.severity.name, judged.outcome) == (passed, severity, outcome)
    assert judged.metadata["lag status"] == str(found)
    assert ("no commit for 7200 s" in judged.sentence) == (outcome == str(found))
