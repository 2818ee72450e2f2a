"""Measures what each step of the demo cost, from the coordinator's records.

Problem: a figure that a worker reports of itself proves little. A rebalance between two steps must
count for one of them. Choice: a step's part of the offsets log begins with the step and ends with
the next step of its group. Cost: a late effect of a step counts for that step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import Record
from fleet.log.replay.counting import count
from fleet.manager.cycle import Fleet
from fleet.model import GroupState, TopicPartition
from fleet.model.rebalances import RebalanceCounts
from fleet.slots import Change, ChangeState

# Waits watch the lag and stop only if it no longer falls: a slow machine takes ten times as long.
# The baseline restarts dynamic workers one by one: each when the one before owns partitions again.
# A restart is a leave and a join (with cooperative-sticky one round more [28]).


_STUCK_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_SETTLING_SECONDS: Final = 90.0
_SETTLED_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25


def await_lag(fleet: Fleet, groups: Sequence[str], most: int, *, clock: Clock) -> None:
    """Waits until each group has at most `most` waiting records.

    Raises FleetError if the lag does not fall for a minute.
    """
    best = float("inf")
    deadline = clock.monotonic() + _STUCK_SECONDS
    while True:
        seen = fleet.snapshot(groups).groups
        lags = [seen[g].lag if g in seen else None for g in groups]
        if all(lag is not None and lag <= most for lag in lags):
            return
        now = clock.monotonic()
        waiting = sum(float("inf") if lag is None else lag for lag in lags)
        if waiting < best:
            best, deadline = waiting, now + _STUCK_SECONDS
        if now > deadline:
            raise FleetError(
                f"the lag of {', '.join(groups)} has not fallen for {_STUCK_SECONDS:g} s "
                f"({waiting:.0f} records); see the workers' logs in {fleet.home / 'workers'}"
            )
        clock.sleep(_LOOK_SECONDS)


def await_settled(fleet: Fleet, group: str, *, clock: Clock) -> None:
    """Waits until the group was Stable for heartbeat + 2 s [25]: no round is still to come."""
    deadline = clock.monotonic() + _SETTLING_SECONDS
    stable_since = clock.monotonic()
    while clock.monotonic() - stable_since < _SETTLED_SECONDS:
        seen = fleet.snapshot([group]).groups.get(group)
        if seen is None or seen.state is not GroupState.STABLE:
            stable_since = clock.monotonic()
        if clock.monotonic() > deadline:
            raise FleetError(
                f"group {group} did not settle within {_SETTLING_SECONDS:g} s; "
                f"see the workers' logs in {fleet.home / 'workers'}"
            )
        clock.sleep(_POLL_SECONDS)


_RESTART_SECONDS: Final = 90.0


def baseline_rebalances(workers: int, assignor: str) -> int:
    """Returns the rebalances that restarting dynamic members one by one usually costs."""
    return workers * (2 if assignor == "range" else 3)


def begin_at_the_end(bootstrap: str, group: str, topic: str) -> dict[TopicPartition, int]:
    """Commits the topic's current end for a new group; returns these offsets.

    A commit, unlike `latest`, makes the start exact.
    """
    from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - loads librdkafka
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10.0).topics[topic].partitions
        places = [
            Place(topic, p, consumer.get_watermark_offsets(Place(topic, p), timeout=10.0)[1])
            for p in sorted(partitions)
        ]
        consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as error:
        raise Unreachable(
            f"the broker at {bootstrap} does not answer ({error}); see `fleet dev broker logs`"
        ) from error
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): int(p.offset) for p in places}


def restart_one_by_one(
    fleet: Fleet, group: str, *, clock: Clock, say: Callable[[str], None]
) -> int:
    """Restarts all workers, each when the one before owns partitions again; returns their number.

    Raises FleetError if a worker owns none in time.
    """
    names = sorted(w.name for w in fleet.workers(group) if w.wanted)
    for name in names:
        began, asked = clock.monotonic(), clock.now()
        say(f"worker {name}: SIGTERM, then started again at once")
        fleet.runtime.restart(name)
        while not _is_back(fleet, group, name, asked):
            if clock.monotonic() > began + _RESTART_SECONDS:
                raise FleetError(
                    f"worker {name} still owns no partitions {_RESTART_SECONDS:g} s after its "
                    f"restart; see its log in {fleet.home / 'workers'}"
                )
            clock.sleep(_POLL_SECONDS)
        say(f"worker {name} owns partitions again after {clock.monotonic() - began:.1f} s")
    return len(names)


def _is_back(fleet: Fleet, group: str, name: str, asked: float) -> bool:
    """Returns whether it joined since and, by the coordinator, every member owns partitions."""
    if not any(
        r.worker == name and r.phase == "active" and (r.joined_at or 0.0) >= asked
        for r in fleet.reports(group)
    ):
        return False
    seen = fleet.snapshot([group]).groups.get(group)
    wanted = sum(w.wanted for w in fleet.workers(group))
    return (
        seen is not None
        and len(seen.members) == wanted
        and all(member.partitions for member in seen.members)
    )


def require_done(change: Change) -> Change:
    """Returns the change if it is done. Raises FleetError with its sentence if not."""
    if change.state is not ChangeState.DONE:
        group = change.plan.group
        raise FleetError(f"group {group}: change {change.state}: {change.sentence}")
    return change


@dataclass(slots=True, kw_only=True)
class MeasuredStep:
    """One measured step. Times are wall-clock seconds."""

    name: str
    group: str
    started_at: float
    position: int
    before: tuple[Record, ...]
    expected: int = 0
    ended_at: float | None = None
    counted: RebalanceCounts | None = None


@dataclass(kw_only=True)
class Meter:
    """Measures the steps, one after the other in each group."""

    log: GroupLog
    clock: Clock
    steps: list[MeasuredStep] = field(default_factory=list)

    def begin_step(self, name: str, group: str) -> MeasuredStep:
        """Begins a step; reads the group's previous step, if any, to its end."""
        for earlier in self.steps:
            if earlier.group == group and earlier.counted is None:
                self.close(earlier)
        position = self.log.position(group)
        opened = MeasuredStep(
            name=name,
            group=group,
            started_at=self.clock.now(),
            position=position,
            before=self.log.last_state(group, position),
        )
        self.steps.append(opened)
        return opened

    def end(self, step: MeasuredStep, *, expected: int) -> None:
        """Ends the change; records until the next step still count for this one."""
        step.ended_at = self.clock.now()
        step.expected = expected

    def so_far(self, step: MeasuredStep) -> RebalanceCounts:
        """Counts what the coordinator recorded since the step began."""
        return count(self.log.read(step.group, step.position), before=step.before)

    def close(self, step: MeasuredStep) -> None:
        """Counts the step for the last time."""
        step.counted = self.so_far(step)

    def close_all(self) -> None:
        """Counts every step that is still open."""
        for step in self.steps:
            if step.counted is None:
                self.close(step)


def generations(steps: Sequence[MeasuredStep]) -> str:
    """Lists the first and last generation of each step, to check them in the log."""
    ranges = [
        f"{s.name} {s.counted.from_generation or 0} to {s.counted.to_generation}"
        for s in steps
        if s.counted is not None
    ]
    return ", ".join(ranges)
