"""What the sensor on storms tells, of declared groups, strangers and the whole cluster."""

from dagster import AssetCheckEvaluation, AssetObservation

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.storm_sensor import (
    StormMemory,
    StormRefresh,
    changed_groups,
    events_of,
    tick_sentence,
    without_unreported,
)
from fleet.decide.storms import ClusterStorm, Storm, StormWatch

SPEC = FleetSpec.model_validate({"fleets": [{"group": "orders", "topics": ["orders"]}]})


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


def test_only_what_changed_is_told():
    """A count that grows is no event; a beginning, a calm, another member and an end are."""
    known = watch(storm("orders"), storm("a"))
    assert (
        changed_groups(known, watch(storm("orders", rebalances=12), storm("a", seen_at=99.0))) == []
    )
    assert changed_groups(watch(), known) == ["a", "orders"]
    assert changed_groups(known, watch(storm("orders", cooldown_since=95.0), storm("a"))) == [
        "orders"
    ]
    assert changed_groups(known, watch(storm("orders"), storm("a", top_offender="x"))) == ["a"]
    assert changed_groups(known, watch(storm("orders"))) == ["a"]


def test_what_is_too_much_for_one_tick_is_told_by_the_next():
    """A broker's end puts hundreds of groups into a storm at once; each is told, and each end."""
    storms = watch(*(storm(f"g{number}") for number in range(80)))
    for before, after in ((watch(), storms), (storms, watch())):
        news = changed_groups(before, after)
        assert len(news) == 80
        remembered = without_unreported(before, after, news[50:])
        assert changed_groups(before, remembered) == news[:50]
        assert changed_groups(remembered, after) == news[50:]


def test_a_declared_group_has_its_check_and_a_stranger_its_partition():
    """And a storm of the cluster stands on its own asset."""
    whole = ClusterStorm(
        cluster="main", since=10.0, seen_at=90.0, cooldown_since=None, cause="many groups",
        groups=12, summary="12 groups in a storm at once",
    )  # fmt: skip
    seen = StormRefresh(spec=SPEC, now=90.0, watch=watch(storm("stranger"), cluster=whole))
    events = list(events_of(seen, ["orders", "stranger"], whole=True))
    passed, begun, cluster = events
    assert isinstance(passed, AssetCheckEvaluation)
    assert (passed.check_name, passed.passed) == (asset_keys.STORM, True)
    assert isinstance(begun, AssetObservation)
    assert (begun.asset_key, begun.partition) == (asset_keys.discovered_key("main"), "stranger")
    assert "orders-3 joins and leaves every 40 s" in str(begun.description)
    assert "12 groups in a storm at once" in str(cluster.description)


def test_a_tick_that_read_nothing_says_so():
    """Silence is no calm of the cluster."""
    assert tick_sentence([], "") == "No group is in a storm."
    away = tick_sentence([], "__consumer_offsets may not be read")
    assert away == "Storms are unknown: __consumer_offsets may not be read."


def test_each_declared_group_gets_its_check_once_a_day():
    """So many a tick; a group that is new in the file makes all of them due."""
    declared, memory, now = [f"g{n}" for n in range(120)], StormMemory(), 0.0
    told: list[str] = []
    for tick in range(8):
        if tick == 4:
            assert sorted(told) == sorted(declared)
            now += 86_400.0
        due, memory = memory.due_checks(declared, now=now, room=50)
        told += due
    assert len(told) == 2 * len(declared)
    assert memory.due_checks([*declared, "new"], now=now, room=999)[0] == [*declared, "new"]
