"""drain_time: by rate, backlog and capacity, under the group's assignor."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet.decide.drain_time import DrainMemory
from fleet.decide.scaling import Decision, ScalingMemory, wanted_slots
from fleet.model import GroupSnapshot, GroupState, LagCase, TopicPartition
from fleet.slots import WorkerReport
from fleet.slots.codec import as_json, from_json
from tests.decide.worlds import GROUP, NOW, group_of, member, spec
from tests.support.seen_groups import partition_seen

POLICY = {"policy": "drain_time", "target": "60s", "records_per_second": 1000, "idle": "10m"}
EVERY = 30.0


class Group:
    """A group of `members` whose partitions get and lose records between two checks."""

    def __init__(self, members: int, partitions: int = 12, **changes: Any) -> None:
        self.spec = spec(**{"scaling": POLICY, "worker": {"assignor": "range"}, **changes})
        self.members = members
        self.end = [0.0] * partitions
        self.done = [0.0] * partitions
        self.now = NOW
        self.memory = ScalingMemory()
        self.records, self.busy = 0.0, 0.0
        self.look()

    def look(self, **changes: Any) -> Decision:
        """One check now."""
        found = wanted_slots(**{**self._seen(), **changes})
        self.memory = found.memory
        return found

    def after(
        self, rates: Sequence[float], *, reads: Sequence[float] | None = None, **changes: Any
    ) -> Decision:
        """A check, EVERY seconds in which these records/s arrived, and all or `reads` were read."""
        self.now += EVERY
        for number, rate in enumerate(rates):
            done = rate if reads is None else reads[number]
            self.end[number] += rate * EVERY
            self.done[number] = min(self.end[number], self.done[number] + done * EVERY)
        return self.look(**changes)

    def _seen(self) -> dict[str, Any]:
        return {
            "spec": self.spec,
            "group": self.snapshot(),
            "topics": {"orders": len(self.end)},
            "current": self.members,
            "memory": self.memory,
            "now": self.now,
        }

    def snapshot(self, **changes: Any) -> GroupSnapshot:
        """The group as Kafka shows it, in ranges."""
        count, partitions = len(self.end), []
        each, more = divmod(count, max(1, self.members))
        owners = [n for n in range(self.members) for _ in range(each + (n < more))]
        for number in range(count):
            owner = f"{GROUP}-{owners[number]}-uuid" if owners else None
            lag = int(self.end[number] - self.done[number])
            partitions.append(
                partition_seen(
                    number,
                    lag,
                    log_end=int(self.end[number]),
                    committed=int(self.done[number]),
                    owner=owner,
                )
            )
        members = tuple(member(f"{GROUP}-{n}") for n in range(self.members))
        return replace(group_of(members, partitions=tuple(partitions)), **changes)


def even(total: float, partitions: int = 12) -> list[float]:
    """That rate over all partitions."""
    return [total / partitions] * partitions


def test_the_first_check_and_a_restart_change_nothing() -> None:
    """A rate needs two checks; what is older than a quarter of an hour is no first one."""
    group = Group(2)
    assert "the first check only measures rates" in group.look().sentence
    group.after(even(5_000), reads=even(2_000))
    group.now += 3_600
    late = group.after(even(5_000), reads=even(2_000))
    assert late.wanted == 2
    assert "the first check" in late.sentence


@pytest.mark.parametrize(
    ("rates", "reads", "wanted"),
    [
        pytest.param(even(1_900), None, 2, id="keeps-up"),
        pytest.param(even(2_080), even(2_000), 2, id="a-little-more-for-a-while"),
        pytest.param(even(5_400), even(2_000), 6, id="right-size-at-once"),
        pytest.param(even(11_000), even(2_000), 12, id="all-partitions"),
        pytest.param(even(90_000), even(2_000), 12, id="more-than-all-can-read"),
        pytest.param([900] * 3 + [10] * 9, [333] * 3 + [10] * 9, 12, id="skewed-under-range"),
    ],
)
def test_growth_goes_to_the_right_size_at_once(
    rates: Sequence[float], reads: Sequence[float] | None, wanted: int
) -> None:
    """The least number under which each member reads its share; a small excess may wait."""
    assert Group(2).after(rates, reads=reads).wanted == wanted


def test_a_hot_partition_is_named_and_not_scaled_for() -> None:
    """Alone on its member, no other number helps."""
    group = Group(12)
    rates = [3_000, *[50] * 11]
    found = group.after(rates, reads=[1_000, *[50] * 11])
    assert found.wanted == 12
    assert "orders-0 gets more than one worker reads: add partitions" in found.sentence


def test_a_hot_partition_gets_a_member_of_its_own_for_half_an_hour_of_backlog() -> None:
    """What it shares its member with would slow it; further behind, no number helps."""
    group, rates, reads = Group(2), [1_300, *[90.0] * 11], [550, *[90.0] * 11]
    asked = [group.after(rates, reads=reads).wanted for _ in range(100)]
    assert (asked[0], asked[-1]) == (12, 2)


def test_a_member_with_one_partition_needs_no_other_number() -> None:
    """The third partition of three is alone on the second member, so a third would not help it."""
    found = Group(1, partitions=3).after([100, 500, 980], reads=[100, 500, 0])
    assert found.wanted == 2


def test_a_group_that_reads_nothing_does_not_grow() -> None:
    """Its sink is stuck: more members would be stuck, too."""
    found = Group(2).after(even(5_400), reads=even(0))
    assert found.wanted == 2
    assert "no worker has read a record since the last check" in found.sentence


def test_a_stopped_partition_does_not_count() -> None:
    """Nobody reads it, however many there are."""
    stopped = {TopicPartition("orders", 0)}
    group = Group(2)
    found = group.after([3_000, *[50] * 11], reads=[0, *[50] * 11], quarantined=stopped)
    assert found.wanted == 2
    assert "orders-0 is stopped and does not count" in found.sentence


def test_unknown_lag_never_shrinks() -> None:
    """All unknown: nothing happens; a part: growth only."""
    group = Group(4)
    for _ in range(60):
        seen = group.snapshot()
        hidden = replace(seen.partitions[0], lag=None, case=LagCase.UNKNOWN)
        part = replace(seen, partitions=(hidden, *seen.partitions[1:]))
        assert group.after(even(100), group=part).wanted == 4
    none = replace(seen, partitions=tuple(replace(p, lag=None) for p in seen.partitions))
    assert "lag unknown" in group.after(even(100), group=none).sentence
    assert group.after(even(100), group=None).wanted == 4


def test_an_unsettled_group_holds() -> None:
    """Its lag is that of the rebalance."""
    group = Group(2)
    unsettled = group.snapshot(state=GroupState.PREPARING)
    found = group.after(even(9_000), reads=even(0), group=unsettled)
    assert (found.wanted, "not settled" in found.sentence) == (2, True)


def test_shrinking_waits_until_idle_slots_cost_as_much_as_a_rebalance() -> None:
    """Four surplus slots cost 600 s in five checks of 30 s; down_after then is over, too."""
    group = Group(6, scaling={**POLICY, "down_after": "60s"})
    asked = [group.after(even(1_700)) for _ in range(6)]
    assert [each.wanted for each in asked] == [6, 6, 6, 6, 2, 2]
    assert "4 surplus slots cost 8 min so far and a rebalance is worth 10 min" in asked[3].sentence


def drain_of(group: Group) -> DrainMemory:
    """What the policy remembers."""
    assert group.memory.drain is not None
    return group.memory.drain


def test_a_step_up_that_brought_nothing_is_undone_and_remembered() -> None:
    """The sink is the limit: 4 read no more than 2 did."""
    group = Group(2, scaling={**POLICY, "down_after": "0s"})
    reads = even(1_000)
    assert group.after(even(3_600), reads=reads).wanted == 4
    group.members = 4
    asked = [group.after(even(3_600), reads=reads) for _ in range(10)]
    undone = [each for each in asked if each.wanted == 2]
    assert undone, [each.sentence for each in asked]
    assert "did not raise the throughput above" in undone[0].sentence
    group.members = 2
    again = group.after(even(3_600), reads=reads)
    assert again.wanted == 2
    assert "brought nothing" in again.sentence


def test_a_step_up_that_helped_is_kept() -> None:
    """The backlog is still there, but twice as much is read."""
    group = Group(2)
    group.after(even(3_600), reads=even(2_000))
    group.members = 4
    asked = [group.after(even(3_600), reads=even(3_900)) for _ in range(20)]
    assert {each.wanted for each in asked} == {4}


def report(records: float, busy: float) -> WorkerReport:
    """What a worker has read since its start."""
    return WorkerReport(
        worker="w0",
        group=GROUP,
        revision="r1",
        phase="active",
        slot=0,
        counter=1,
        http_port=None,
        records=int(records),
        busy_seconds=busy,
    )


def test_capacity_is_learnt_from_busy_seconds() -> None:
    """A worker that keeps up shows a lower bound; one that is behind shows its capacity."""
    scaling = {key: value for key, value in POLICY.items() if key != "records_per_second"}
    group = Group(2, scaling=scaling)
    nobody = group.after(even(100))
    assert (nobody.wanted, "has reported" in nobody.sentence) == (2, True)
    group.after(even(100), reports=(report(800, 1.0),))
    assert drain_of(group).capacity == 800
    group.after(even(100), reports=(report(900, 2.0),))
    assert drain_of(group).capacity == 800
    group.after(even(9_000), reads=even(1_000), reports=(report(30_900, 32.0),))
    assert drain_of(group).capacity == 1_000
    group.after(even(9_000), reads=even(1_000), reports=(report(45_900, 62.0),))
    assert drain_of(group).capacity == pytest.approx(950)


def test_capacity_without_reports_is_what_a_member_that_is_behind_reads() -> None:
    """Not what an idle one reads, nor what came before a first commit; a short start is made up."""
    scaling = {key: value for key, value in POLICY.items() if key != "records_per_second"}
    group = Group(2, scaling=scaling, replicas={"min": 2, "max": 2})
    seen = group.snapshot()
    fresh = replace(seen.partitions[0], committed=None)
    group.look(group=replace(seen, partitions=(fresh, *seen.partitions[1:])))
    rates, reads = [900.0, *[0.0] * 5, *[10.0] * 6], [500.0, *[0.0] * 5, *[10.0] * 6]
    started = group.after(rates, reads=reads)
    assert "has reported" in started.sentence, "its first commit says nothing about its rate"
    for rate, capacity in ((100.0, 100), (600.0, 600), (500.0, 590), (0.0, 590)):
        group.after(rates, reads=[rate, *reads[1:]])
        assert drain_of(group).capacity == pytest.approx(capacity)


def test_scale_to_zero_and_back() -> None:
    """Without records none stays; the first record brings one back."""
    scaling = {**POLICY, "down_after": "0s", "idle": "60s"}
    group = Group(1, scaling=scaling, replicas={"min": 0, "max": 12})
    asked = [group.after(even(0)).wanted for _ in range(40)]
    assert asked[-1] == 0
    group.members = 0
    assert group.after(even(0)).wanted == 0
    assert group.after(even(12), reads=even(0)).wanted == 1
    group.members = 1
    assert group.after(even(12)).wanted == 1


def test_more_partitions_are_just_more() -> None:
    """A partition count that changes needs no new memory."""
    group = Group(2)
    group.after(even(1_000))
    group.end += [0.0] * 4
    group.done += [0.0] * 4
    assert group.after(even(1_000, 16)).wanted == 2
    assert group.after([*even(900), *[900.0] * 4], reads=[75] * 12 + [200] * 4).wanted > 2


def test_the_memory_is_json() -> None:
    """It is stored beside the slots, and what an older release wrote is read."""
    group = Group(2)
    group.after(even(9_000), reads=even(2_000))
    assert from_json(ScalingMemory, as_json(group.memory)) == group.memory
    old = {key: value for key, value in as_json(group.memory).items() if key != "drain"}
    assert from_json(ScalingMemory, old).drain is None


def test_a_decision_shows_inputs_and_alternatives() -> None:
    """What `--explain` prints."""
    found = Group(2).after(even(5_400), reads=even(2_000), explain=True)
    assert found.inputs["records per second of a worker"] == 1_000
    assert found.inputs["records that wait"] == pytest.approx(3_400 * EVERY, rel=0.01)
    assert any(each.startswith("6 slots: every member keeps up") for each in found.alternatives)
    assert any(each.startswith("2 slots: a member would need") for each in found.alternatives), (
        found.alternatives
    )


def test_a_thousand_groups_are_decided_in_a_second() -> None:
    """48 partitions each, of which half need another size; in processor time."""
    groups = [Group(2 + n % 7, 48) for n in range(40)]
    asked: list[Decision] = []
    began = time.process_time()
    for n, group in enumerate(groups):
        asked.append(group.after(even(900 + 200 * n, 48), reads=even(2_000, 48)))
    assert time.process_time() - began < 40 / 1_000 * 5  # a busy machine is slower
    assert len({each.wanted for each in asked}) > 3


def test_slots_of_a_floor_are_not_idle() -> None:
    """What they cost counts against a rebalance only after the floor's hours."""
    midnight = NOW - NOW % 86_400
    hours = {"hours": "00:00-12:00", "min": 4}
    group = Group(4, scaling={**POLICY, "down_after": "0s", "floors": [hours]})
    group.now = midnight + 12 * 3_600 - 40 * EVERY
    idle = [group.after(even(900)).inputs.get("idle seconds of surplus slots") for _ in range(42)]
    assert idle[1:39] == [0.0] * 38
    assert idle[-1]


PACKED = {"policy": "packed", "records_per_second": 1000, "down_after": "0s"}
SKEWED = [900.0, 10, 10, 10, 900, 10, 10, 10, 100, 10, 10, 10]
"""Under range, one of two members has 1,860 records/s; packed by rate, two would do."""


def test_packed_sizes_by_the_assignor_and_names_what_a_packing_would_save() -> None:
    """900 and 900 share a member until there are three."""
    found = Group(2, scaling=PACKED).after(SKEWED, reads=[1_000, 0, 0, 0, 800, *[0] * 7])
    assert found.wanted == 3
    assert "a packing by rate: 2 slots instead of 3, since range would give one of 2" in (
        found.sentence
    )
    assert "185% of its capacity: orders-4, orders-0, orders-1 and 3 more" in found.sentence


def test_packed_shrinks_when_idle_slots_cost_as_much_as_a_rebalance() -> None:
    """Four surplus slots cost the declared 4 minutes in two checks."""
    group = Group(6, scaling={**PACKED, "idle": "4m"})
    assert [group.after(even(1_700)).wanted for _ in range(3)] == [6, 2, 2]


def test_packed_does_not_grow_for_a_stuck_sink_or_a_hot_partition() -> None:
    """More members would not read more."""
    assert Group(2, scaling=PACKED).after(even(5_400), reads=even(0)).wanted == 2
    hot = Group(12, scaling=PACKED).after([3_000, *[50] * 11], reads=[1_000, *[50] * 11])
    assert (hot.wanted, "add partitions" in hot.sentence) == (12, True)


def test_an_explanation_has_the_packing() -> None:
    """An even load has nothing to save."""
    found = Group(2).after(even(5_400), reads=even(2_000), explain=True)
    assert found.alternatives[-1] == "a packing by rate: 6 slots, no fewer than by range"
