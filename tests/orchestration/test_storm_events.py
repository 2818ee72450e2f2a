"""What the sensor tells of storms: of declared groups, of others, and of the whole cluster."""

from dataclasses import replace

from dagster import AssetCheckEvaluation, AssetObservation

from fleet.dagster import asset_keys
from fleet.dagster.storm_events import StormRefresh
from fleet.dagster.watch_sensor import SensorMemory, due_groups, events_of
from fleet.decide.storms import ClusterStorm, Storm, StormWatch
from tests.orchestration.test_sensor_cursor import NOW, refreshed


def storm(group: str, **changes: object) -> Storm:
    """A storm of that group."""
    known: dict[str, object] = {
        "cluster": "main", "group": group, "since": 10.0, "seen_at": 90.0, "rebalances": 9,
        "moved": 0, "budget": 5, "budget_moved": None, "window": 600.0, "cause": "join and leave",
        "top_offender": "orders-3", "summary": "orders-3 joins and leaves every 40 s",
    }  # fmt: skip
    return Storm(**{**known, **changes})  # type: ignore[arg-type]


def watch(*storms: Storm, cluster: ClusterStorm | None = None) -> StormWatch:
    return StormWatch(storms={each.group: each for each in storms}, cluster=cluster)


NAMES = ("orders", "a")
"""A declared group and another one."""


def told(before: StormRefresh, after: StormRefresh) -> list[str]:
    """Which groups get an event after a tick that saw this."""
    looked = refreshed(names=NAMES)
    ticks = replace(looked, storms=before).ticks(SensorMemory())
    memory = SensorMemory().with_events(ticks, now=NOW, alive=NAMES)
    later = replace(looked, storms=after).ticks(memory)
    return sorted(tick.group for tick in due_groups(later, memory, now=NOW + 15))


def test_only_what_changed_is_told():
    """A count that grows is no event; a beginning, a calm, another member and an end are."""
    known = StormRefresh(watch=watch(storm("orders"), storm("a")))

    def then(*storms: Storm) -> list[str]:
        return told(known, StormRefresh(watch=watch(*storms)))

    assert then(storm("orders", rebalances=12), storm("a", seen_at=99.0)) == []
    assert told(StormRefresh(), known) == ["a", "orders"]
    assert then(storm("orders", cooldown_since=95.0), storm("a")) == ["orders"]
    assert then(storm("orders"), storm("a", top_offender="x")) == ["a"]
    assert then(storm("orders")) == ["a"]


def test_a_log_that_was_not_read_ends_no_storm_and_is_no_calm():
    """A login that may not read it gets its check once, which says so."""
    away = StormRefresh(problem="not read in time")
    denied = StormRefresh(problem="may not be read", denied=True)
    unread = StormRefresh(errors={"orders": "the store does not answer"})
    assert told(StormRefresh(watch=watch(storm("orders"))), unread) == []
    assert told(StormRefresh(), away) == told(away, away) == told(denied, denied) == []
    assert told(StormRefresh(), denied) == told(away, denied) == ["orders"]
    assert away.sentences() == ["Storms are unknown: not read in time."]
    assert StormRefresh().sentences() == []


def test_a_declared_group_has_its_check_and_another_its_partition():
    """And a storm of the cluster stands on its own asset."""
    whole = ClusterStorm(
        cluster="main", since=10.0, seen_at=90.0, cooldown_since=None, cause="many groups",
        groups=12, summary="12 groups in a storm at once",
    )  # fmt: skip
    storms = StormRefresh(watch=watch(storm("a"), cluster=whole))
    seen = replace(refreshed(names=NAMES), storms=storms)
    events = list(events_of(seen, seen.ticks(SensorMemory()), SensorMemory()))
    (passed,) = [
        each
        for each in events
        if isinstance(each, AssetCheckEvaluation) and each.check_name == asset_keys.STORM
    ]
    assert passed.passed
    (begun,) = [each for each in events if isinstance(each, AssetObservation) and each.partition]
    assert (begun.asset_key, begun.partition) == (asset_keys.discovered_key("main"), "a")
    assert "orders-3 joins and leaves every 40 s" in str(begun.description)
    (cluster,) = storms.of_cluster("main", StormWatch())
    assert "12 groups in a storm at once" in str(cluster.description)
    assert storms.of_cluster("main", storms.watch) == []
