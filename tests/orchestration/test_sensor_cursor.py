"""Which groups the sensor tells of, what it remembers, and where it keeps that."""

import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from fleet.clock import ManualClock
from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.live import STORE_SECONDS, StateKeeper
from fleet.dagster.watch_sensor import (
    BAND_INTERVAL_SECONDS,
    DISCOVERY_SECONDS,
    EVENTS_A_TICK,
    HEARTBEAT_SECONDS,
    GroupTick,
    SensorMemory,
    WatchRefresh,
    due_groups,
    events_of,
    lag_band,
    topic_observations,
)
from fleet.decide.decision_log import KeptDecision
from fleet.decide.lag_status import LagStatus
from fleet.lag.lag_columns import Commits
from fleet.lag.snapshot import Lag
from fleet.manager.lag_assessment import worst_lag_status
from fleet.model import GroupState, LagCase
from fleet.slots.store import Store
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.seen_groups import group_seen, member_seen, partition_seen
from tests.support.snapshots import snapshot_of

NOW = 1_000_000.0
SPEC = FleetSpec.model_validate({"fleets": [{"group": "orders", "topics": ["orders"]}]})


def refreshed(
    lag: int | None = 10,
    *,
    names: tuple[str, ...] = ("orders",),
    state: GroupState = GroupState.STABLE,
    members: int = 1,
    changed_at: float = NOW - 9000,
    age: float | None = None,
    status: LagStatus = LagStatus.OK,
    at: float = NOW,
    decided_at: float | None = None,
) -> WatchRefresh:
    """What a tick saw of groups that all stand so; `orders` is declared."""
    parts = [partition_seen(0, lag, lag_seconds=age)]
    known = [member_seen(f"m{n}") for n in range(members)]
    groups = [group_seen(name, members=known, partitions=parts, state=state) for name in names]
    seen = snapshot_of(*groups, at=at)
    facts = {name: replace(each, changed_at=changed_at) for name, each in seen.facts.items()}
    return WatchRefresh(
        spec=SPEC, seen=replace(seen, facts=facts), figures=seen.figures(),
        statuses=dict.fromkeys(names, status), changes={},
        decisions={} if decided_at is None else dict.fromkeys(names, decision(decided_at)),
    )  # fmt: skip


def decision(at: float) -> KeptDecision:
    """What a policy decided then."""
    return KeptDecision(
        at=at, wanted=3, current=2, members=2, lag=10, lag_seconds=5.0, member_hours=7.5,
        reason="10 records waiting", refused="group orders is paused",
    )  # fmt: skip


def seen(lag: int | None = 10, **how: object) -> GroupTick:
    """The tick of the declared group."""
    return refreshed(lag, **how).ticks(SensorMemory())[0]  # type: ignore[arg-type]


def after(*ticks: GroupTick, at: float = NOW) -> SensorMemory:
    """A memory in which these were told."""
    return SensorMemory().with_events(ticks, now=at, alive=[tick.group for tick in ticks])


@pytest.mark.parametrize(
    ("changed", "later", "told"),
    [
        pytest.param(seen(), 15, False, id="nothing changed"),
        pytest.param(seen(), HEARTBEAT_SECONDS, True, id="heartbeat"),
        pytest.param(seen(state=GroupState.PREPARING), 15, True, id="state"),
        pytest.param(seen(members=2), 15, True, id="members"),
        pytest.param(seen(changed_at=NOW), 15, True, id="another member in its place"),
        pytest.param(seen(changed_at=0.0), 15, False, id="the log is not readable just now"),
        pytest.param(seen(status=LagStatus.STOP), 15, True, id="lag status"),
        pytest.param(seen(age=601.0), 15, True, id="older than max_lag"),
        pytest.param(seen(decided_at=NOW), 15, True, id="its policy decided"),
        pytest.param(seen(999), 3000, False, id="lag in the same band"),
        pytest.param(seen(50_000), 15, False, id="lag grew just now"),
        pytest.param(seen(50_000), BAND_INTERVAL_SECONDS, True, id="lag grew and an hour passed"),
    ],
)
def test_told_only_on_change(changed, later, told):
    """What matters at once; the size of the lag every hour; else once a day."""
    assert bool(due_groups([changed], after(seen()), now=NOW + later)) is told


def test_a_check_is_stored_only_with_another_outcome():
    """Of a group that gets an event because its state changed."""
    refresh = refreshed(state=GroupState.PREPARING, status=LagStatus.STOP)
    memory = after(seen())
    due = due_groups(refresh.ticks(memory), memory, now=NOW)
    told = [getattr(each, "check_name", "observation") for each in events_of(refresh, due, memory)]
    assert told == ["observation", asset_keys.LAG]


def test_an_observation_has_the_numbers_that_dagster_plots():
    """Wanted and actual members, lag and cost, beside the decision's sentence."""
    refresh = refreshed(age=5.0, decided_at=NOW)
    ticks = refresh.ticks(SensorMemory())
    told = next(iter(events_of(refresh, ticks, SensorMemory()))).metadata
    numbers = ("wanted members", "members", "lag (records)", "lag (s)", "member hours")
    assert [told[name].value for name in numbers] == [3, 1, 10, 5.0, 7.5]
    assert told["decision"].value == "10 records waiting; refused: group orders is paused"


@pytest.mark.parametrize(
    ("lags", "a_day"),
    [
        pytest.param([10], 1, id="nothing happens"),
        pytest.param([999, 1000], 24, id="its lag is in another band at each look"),
    ],
)
def test_what_a_day_stores(lags, a_day):
    """Dagster never deletes an event, and one with its checks takes about 10 kB of its storage."""
    names = tuple(f"g{n}" for n in range(20))
    memory = SensorMemory()
    looks = [refreshed(lag, names=names).ticks(memory)[1:] for lag in lags]
    memory = memory.with_events(looks[0], now=NOW, alive=names)
    events = 0
    for tick in range(1, 24 * 12 + 1):
        now = NOW + 300 * tick
        telling = due_groups(looks[tick % len(lags)], memory, now=now)
        memory = memory.with_events(telling, now=now, alive=names)
        events += len(telling)
    assert events <= a_day * len(names)


def test_five_thousand_groups_are_told_within_five_minutes():
    """Nobody is told twice, and no tick stores more than Dagster takes."""
    names = tuple(f"g{n}" for n in range(5000))
    looks = refreshed(names=names).ticks(SensorMemory())[1:]
    memory, told = SensorMemory(), []
    for tick in range(300 // 15):
        now = NOW + 15 * tick
        telling = due_groups(looks, memory, now=now)
        assert len(telling) <= EVENTS_A_TICK
        told += [look.group for look in telling]
        memory = memory.with_events(telling, now=now, alive=names)
    assert sorted(told) == sorted(names)


def many(count: int, partitions: int = 48) -> WatchRefresh:
    """What a tick saw of so many groups, in columns."""
    parts = [partition_seen(n, 10, lag_seconds=5.0) for n in range(partitions)]
    one = snapshot_of(group_seen("g", partitions=parts), at=NOW)
    names = tuple(f"g{n}" for n in range(count))

    def columns(value: Any, first: int = 0) -> dict[str, Any]:
        return {f.name: np.tile(getattr(value, f.name), count) for f in fields(value)[first:]}

    commits = columns(one.commits, 2)
    commits["group"] = np.repeat(np.arange(count, dtype=np.int32), partitions)
    facts = replace(one.facts["g"], changed_at=NOW - 9000)
    seen = replace(
        one,
        facts=dict.fromkeys(names, facts),
        commits=Commits(names, one.commits.topics, **commits),
        lag=Lag(**columns(one.lag)),
        gained=np.full(count * partitions, np.nan),
        over=np.full(count * partitions, np.nan),
    )
    return WatchRefresh(
        spec=SPEC, seen=seen, figures=seen.figures(), statuses=worst_lag_status(seen), changes={}
    )


def test_a_quiet_tick_is_cheap():
    """At 5,000 groups of 48 partitions: a value for each partition takes seconds."""
    many(5)  # what is loaded once
    began = time.process_time()
    refresh = many(5000)
    ticks = refresh.ticks(SensorMemory())
    memory = SensorMemory().with_events(ticks, now=NOW, alive=[tick.group for tick in ticks])
    quiet = refresh.ticks(memory)
    assert due_groups(quiet, memory, now=NOW + 15) == ()
    assert memory.with_events((), now=NOW, alive=[tick.group for tick in quiet]) is memory
    assert time.process_time() - began < 2.0, "0.6 s where nothing else runs"

    changed = replace(refresh.seen.facts["g7"], members=3)
    seen = replace(refresh.seen, facts={**refresh.seen.facts, "g7": changed})
    refresh = replace(refresh, seen=seen)
    due = due_groups(refresh.ticks(memory), memory, now=NOW + 15)
    (told,) = events_of(refresh, due, memory)
    assert told.metadata["partitions"].value == 48


def test_figures_are_those_of_values():
    """The check, the alert and the page show one lag and one age."""
    parts = [
        partition_seen(0, 7, lag_seconds=90.0),
        partition_seen(1, 0, lag_seconds=0.0),
        partition_seen(2, None, case=LagCase.UNKNOWN),
        partition_seen(3, None, case=LagCase.TOPIC_DELETED),
    ]
    groups = [
        group_seen("all", partitions=parts), group_seen("idle", partitions=parts[1:2]),
        group_seen("unknown", partitions=parts[2:3]), group_seen("none"),
    ]  # fmt: skip
    found = snapshot_of(*groups, at=NOW).figures()
    assert set(found) == {"all", "idle", "unknown"}
    for group in groups[:3]:
        figures = found[group.group]
        assert (figures.lag, figures.age) == (group.lag, group.lag_seconds)
        assert figures.partitions == len(group.partitions)
    assert [found[name].undated for name in ("all", "idle", "unknown")] == [1, 0, 1]


def test_many_topics_are_told_over_several_ticks():
    """Each once, and again when its partitions change."""
    spec = FleetSpec.model_validate(
        {"fleets": [{"group": "g", "topics": [f"t{n}" for n in range(EVENTS_A_TICK + 9)]}]}
    )
    topics = {f"t{n}": 4 for n in range(EVENTS_A_TICK + 9)}
    counts, memory = [], SensorMemory()
    for _ in range(3):
        made, memory = topic_observations(spec, topics, memory)
        counts.append(len(made))
    assert counts == [EVENTS_A_TICK, 9, 0]
    (made,), after = topic_observations(spec, topics | {"t7": 6}, memory)
    assert (made.asset_key.path[-1], made.data_version) == ("t7", "6")
    assert topic_observations(spec, topics | {"t7": 6}, after) == ([], after)


def test_changes_go_before_heartbeats():
    """With more due than fit, what really changed comes first."""
    names = ("a", "b")
    old = refreshed(names=names).ticks(SensorMemory())[1:]
    memory = SensorMemory().with_events(old, now=NOW, alive=names)
    new = refreshed(names=names, members=2).ticks(memory)[2]
    assert due_groups([old[0], new], memory, now=NOW + HEARTBEAT_SECONDS, limit=1) == (new,)


def test_a_group_of_a_moment_gets_no_partition():
    """One that has existed for long does at once, and one that was told of goes on being told."""
    young = refreshed(names=("orders", "console-7"), changed_at=NOW - DISCOVERY_SECONDS + 1)
    assert [tick.group for tick in young.ticks(SensorMemory())] == ["orders"]
    memory = after(*refreshed(names=("console-7",)).ticks(SensorMemory()))
    assert [tick.group for tick in young.ticks(memory)] == ["orders", "console-7"]


def test_gone_groups_are_forgotten():
    """The memory does not grow with groups that came and went, unless some may be hidden."""
    memory = after(seen())
    assert memory.with_events([], now=NOW, alive=[]).groups == {}
    assert memory.with_events([], now=NOW, alive=None) is memory


@pytest.mark.parametrize(
    ("lag", "band"), [(None, -1), (0, 0), (999, 0), (1000, 1), (9999, 1), (10_000, 2)]
)
def test_bands(lag, band):
    """Powers of ten above a thousand records."""
    assert lag_band(lag) == band


# --- where the memory is kept -------------------------------------------------------------------


class Ground:
    """A store, and the keepers of processes that come one after another."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.store = Store(MemoryBackend(Memory(), clock=self.clock), clock=self.clock)

    def keeper(self) -> StateKeeper[SensorMemory]:
        return StateKeeper(
            "dagster-watch", self.store, self.clock, SensorMemory.from_json, SensorMemory.as_json
        )


def states(count: int) -> list[SensorMemory]:
    """Memories that differ."""
    return [after(seen(), at=NOW + n) for n in range(count)]


def test_the_cursor_is_a_token_and_a_quiet_tick_leaves_it():
    """Dagster keeps it in the row of each tick, 5,760 a day."""
    names = tuple(f"g{n}" for n in range(5000))
    looks = refreshed(names=names).ticks(SensorMemory())
    memory = SensorMemory().with_events(looks, now=NOW, alive=names)
    keeper = Ground().keeper()
    cursor = keeper.keep(memory)
    assert len(cursor) < 20
    assert keeper.keep(memory) == cursor
    assert keeper.load(cursor) is memory


def test_a_new_process_reads_what_was_stored():
    """The last state, or after a kill one up to a minute old: that minute's events come twice."""
    ground, (first, second, third) = Ground(), states(3)
    keeper = ground.keeper()
    keeper.keep(first)
    cursor = keeper.keep(second)
    assert ground.keeper().load(cursor) == first
    keeper.put()  # as its process ends
    after_it = ground.keeper()
    assert after_it.load(cursor) == second
    assert after_it.keep(after_it.load(cursor)) == cursor, "a quiet tick"
    told = after_it.keep(third)
    assert after_it.load(cursor) == second, "as long as Dagster has not stored that tick"
    assert ground.keeper().load(told) == third
    assert ground.keeper().load(cursor) is None, "a state after it is stored"


def test_a_changed_state_is_stored_once_a_minute():
    """It has 190 kB at 5,000 groups."""
    ground, (first, second, third) = Ground(), states(3)
    keeper = ground.keeper()
    keeper.keep(first)
    ground.clock.sleep(STORE_SECONDS)
    keeper.keep(second)
    cursor = keeper.keep(third)
    assert ground.keeper().load(cursor) == second


def test_a_tick_whose_result_was_lost_is_told_again():
    """The next one begins with the cursor before it."""
    ground, (first, second) = Ground(), states(2)
    keeper = ground.keeper()
    cursor = keeper.keep(first)
    told = keeper.keep(second)
    assert keeper.load(cursor) is first
    assert keeper.keep(first) not in {cursor, told}
    keeper.put()
    assert ground.keeper().load(cursor) is None, "a state after it is stored"


@pytest.mark.parametrize("cursor", [None, "", "x", "[]", "00000000.1", '{"v":4,"g":"","r":{}}'])
def test_foreign_cursor_is_an_empty_memory(cursor):
    """All is told anew rather than a tick that fails for ever; so it is after another release."""
    ground = Ground()
    known = ground.keeper().keep(states(1)[0])
    assert ground.keeper().load(cursor) is None
    token, _, number = known.partition(".")
    old = {"token": token, "number": int(number), "v": 4}
    ground.store.put_manager_state("", "dagster-watch", old)
    assert ground.keeper().load(known) is None
