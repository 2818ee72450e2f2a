"""What the sensor on storms tells, of declared groups, strangers and the whole cluster."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from dagster import AssetCheckEvaluation, AssetObservation

from fleet.clock import ManualClock
from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.storm_sensor import (
    RecentRebalances,
    StormRefresh,
    changed_groups,
    events_of,
    moved_groups,
    recent_rebalances,
    tick_sentence,
    watch_storms,
    without_unreported,
)
from fleet.decide.storms import ClusterStorm, Storm, StormWatch
from fleet.model.rebalances import Rebalance
from tests.asking.worlds import rebalance

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet

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


def test_changes_are_read_of_groups_that_moved_alone():
    """Of a thousand calm ones a tick read twenty each, every 15 s."""
    names = ("cooldown", "moved", "stormy")
    spec = FleetSpec.model_validate({"fleets": [{"group": g, "topics": ["t"]} for g in names]})
    found = [rebalance(1, 0.0, group=group) for group in ("moved", "stranger")]
    before = watch(storm("stormy"), storm("another stranger"))
    assert moved_groups(spec, found, before) == ["moved", "stormy"]
    assert moved_groups(spec, [], watch()) == []


class Log:
    """What the log tells of declared groups; of one of them nothing can be read."""

    clock = ManualClock(100.0)
    spec = FleetSpec.model_validate(
        {"fleets": [{"group": g, "topics": ["t"]} for g in ("read", "denied")]}
    )

    def recorded(self, group: str, *, since: float) -> list[Rebalance] | None:
        return [rebalance(1, since, group=group)] if group == "read" else None


def test_what_is_read_is_told_beside_what_was_found():
    """From the log alone, and where the tables hold one of the groups."""
    cycle = cast("Fleet", Log())
    found, read = recent_rebalances(cycle, watch(), None, since=0.0)
    assert ([each.group for each in found], read) == (["read"], {"read"})
    tables = RecentRebalances(
        takes=lambda group: group == "read", groups={"read": [rebalance(2, 0.0, group="read")]},
        at=100.0,
    )  # fmt: skip
    found, read = recent_rebalances(cycle, watch(), tables, since=0.0)
    assert ([each.number for each in found], read) == ([2], set())


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
    over, passed, begun, cluster = events
    assert isinstance(over, AssetObservation)
    assert over.description == "orders: the storm is over."
    assert isinstance(passed, AssetCheckEvaluation)
    assert (passed.check_name, passed.passed) == (asset_keys.STORM, True)
    assert isinstance(begun, AssetObservation)
    assert (begun.asset_key, begun.partition) == (asset_keys.discovered_key("main"), "stranger")
    assert "orders-3 joins and leaves every 40 s" in str(begun.description)
    assert "12 groups in a storm at once" in str(cluster.description)


def test_a_tick_without_the_tables_says_whom_it_did_not_see():
    """No storm among a few groups is no calm of the cluster."""
    assert tick_sentence([], "") == "No group is in a storm."
    away = tick_sentence(["orders: 9 rebalances"], "the history tables cannot be read: s3 is away")
    assert away.startswith("orders: 9 rebalances. Only declared groups were checked: the history")


def test_each_declared_group_gets_its_check_once_a_day():
    """Fifty a tick; by the log where the tables are away, which each tick says."""
    spec = FleetSpec.model_validate(
        {"fleets": [{"group": f"g{n}", "topics": ["t"]} for n in range(120)]}
    )

    class Calm(Log):
        history_path = "nowhere://bucket/history"

        def recorded(self, group: str, *, since: float) -> list[Rebalance]:
            return [rebalance(1, since, group=group)]

        def readable_changes(self, group: str) -> tuple[()]:
            return ()

    made, told, cursor = Calm(), [], None
    made.spec = spec
    resource = SimpleNamespace(open=lambda: nullcontext(made))
    for tick in range(8):
        if tick == 4:
            assert len(told) == len(set(told)) == 120
            made.clock.sleep(86_400.0)
        context = SimpleNamespace(cursor=cursor, log=None)
        found = watch_storms(context, resource)
        cursor = found.cursor
        assert "the history tables cannot be read" in found.skip_reason.skip_message
        told += [each.asset_key for each in found.asset_events]
    assert len(told) == 2 * len(set(told)) == 240
