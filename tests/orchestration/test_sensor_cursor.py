"""Which groups the sensor tells of, and what it remembers."""

import pytest

from fleet.dagster.watch_sensor import (
    BAND_INTERVAL_SECONDS,
    EVENTS_A_TICK,
    HEARTBEAT_SECONDS,
    GroupTick,
    SensorMemory,
    due_groups,
    lag_band,
)
from fleet.model import GroupState, TopicPartition
from tests.support.seen_groups import group_seen, member_seen, partition_seen

NOW = 1_000_000.0


def seen(
    lag: int | None = 10,
    *,
    name: str = "orders",
    state: GroupState = GroupState.STABLE,
    owner: str = "m1",
):
    """A group of one member."""
    tp = TopicPartition("orders", 0)
    parts = [partition_seen(0, lag)]
    members = [member_seen(owner, [tp])]
    return GroupTick(state=group_seen(name, members=members, partitions=parts, state=state))


def after(look: GroupTick, *, at: float = NOW) -> SensorMemory:
    """A memory in which this look was told."""
    return SensorMemory().with_events([look], now=at, alive=[look.group])


@pytest.mark.parametrize(
    ("changed", "later", "told"),
    [
        pytest.param(seen(), 15, False, id="nothing changed"),
        pytest.param(seen(), HEARTBEAT_SECONDS, True, id="heartbeat"),
        pytest.param(seen(state=GroupState.PREPARING), 15, True, id="state"),
        pytest.param(seen(owner="m2"), 15, True, id="members"),
        pytest.param(seen(999), 3000, False, id="lag in the same band"),
        pytest.param(seen(50_000), 15, False, id="lag grew just now"),
        pytest.param(seen(50_000), BAND_INTERVAL_SECONDS, True, id="lag grew and an hour passed"),
    ],
)
def test_told_only_on_change(changed, later, told):
    """State, members and verdict at once; the size of the lag every hour; else once a day."""
    memory = after(seen())
    assert bool(due_groups([changed], memory, now=NOW + later)) is told


@pytest.mark.parametrize(
    ("lags", "a_day"),
    [
        pytest.param([10], 1, id="nothing happens"),
        pytest.param([999, 1000], 24, id="its lag is in another band at each look"),
    ],
)
def test_what_a_day_stores(lags, a_day):
    """Dagster never deletes an event, and one with its checks takes about 10 kB of its storage."""
    looks = {lag: [seen(lag, name=f"g{n}") for n in range(20)] for lag in lags}
    alive = [look.group for look in looks[lags[0]]]
    memory = SensorMemory().with_events(looks[lags[0]], now=NOW, alive=alive)
    events = 0
    for tick in range(1, 24 * 12 + 1):
        now = NOW + 300 * tick
        telling = due_groups(looks[lags[tick % len(lags)]], memory, now=now)
        memory = memory.with_events(telling, now=now, alive=alive)
        events += len(telling)
    assert events <= a_day * len(alive)


def test_at_most_fifty_and_the_rest_next():
    """A first tick over 120 groups takes three ticks, and nobody is told twice."""
    looks = [seen(name=f"g{n}") for n in range(120)]
    memory, told = SensorMemory(), []
    alive = [look.group for look in looks]
    for tick in range(4):
        now = NOW + 15 * tick
        telling = due_groups(looks, memory, now=now)
        assert len(telling) <= EVENTS_A_TICK
        told += [look.group for look in telling]
        memory = memory.with_events(telling, now=now, alive=alive)
    assert sorted(told) == sorted(alive)


def test_changes_go_before_heartbeats():
    """With more due than fit, what really changed comes first."""
    old, new = seen(), seen(owner="m2", name="other")
    memory = SensorMemory().with_events(
        [old, seen(name="other")], now=NOW, alive=[old.group, "other"]
    )
    assert due_groups([old, new], memory, now=NOW + HEARTBEAT_SECONDS, limit=1) == (new,)


def test_cursor_round_trip_and_size():
    """What was told comes back from the cursor; 1,000 groups stay below 20 kB."""
    looks = [seen((10, None, 10**18)[n % 3], name=f"g{n}") for n in range(1000)]
    memory = SensorMemory().with_events(looks, now=NOW, alive=[look.group for look in looks])
    cursor = memory.as_cursor()
    assert SensorMemory.from_cursor(cursor) == memory
    assert len(cursor) < 20_000, "Dagster keeps it in the row of each tick, 5,760 a day"


@pytest.mark.parametrize(
    "cursor",
    [None, "", "x", "[]", '{"v":0}', '{"v":2,"g":{"81f80e46":["e1a6b7d2","0c5e2a11",1,0]},"r":{}}'],
)
def test_foreign_cursor_is_an_empty_memory(cursor):
    """All is told anew rather than a tick that fails for ever."""
    assert SensorMemory.from_cursor(cursor) == SensorMemory()


def test_gone_groups_are_forgotten():
    """The cursor does not grow with groups that came and went."""
    memory = after(seen()).with_events([], now=NOW, alive=[])
    assert memory.groups == {}


@pytest.mark.parametrize(
    ("lag", "band"), [(None, -1), (0, 0), (999, 0), (1000, 1), (9999, 1), (10_000, 2)]
)
def test_bands(lag, band):
    """Powers of ten above a thousand records."""
    assert lag_band(lag) == band
