"""What each step of a story cost, from the coordinator's records.

Problem: a figure that a step's actor reports of itself proves little, and a rebalance between
two steps belongs to somebody. Choice: a step's stretch of the offsets log begins where the step
begins and ends where the next one of its group begins, so nothing falls between. Cost: what a
step sets off late is charged to it, never hidden.
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
from fleet.model.rebalances import Counted
from fleet.slots import Change, ChangeState

# Waits watch the lag and give up only where it comes no nearer: a slow machine takes ten times as
# long. The ordinary way, for comparison: each dynamic worker is restarted when the one before owns
# partitions again, a leave and a join each (with cooperative-sticky one round more [28]).


_STUCK_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_SETTLING_SECONDS: Final = 90.0
_SETTLED_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25


def await_lag(fleet: Fleet, groups: Sequence[str], most: int, *, clock: Clock) -> None:
    """Wait until each group has at most so many records waiting.

    Raises FleetError where that comes no nearer for a minute.
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
                f"{waiting:.0f} records of {', '.join(groups)} wait and become no fewer for "
                f"{_STUCK_SECONDS:g} s; see the workers' logs in {fleet.home / 'workers'}"
            )
        clock.sleep(_LOOK_SECONDS)


def await_settled(fleet: Fleet, group: str, *, clock: Clock) -> None:
    """Wait until the group was Stable for heartbeat + 2 s [25]: no round is still to come."""
    deadline = clock.monotonic() + _SETTLING_SECONDS
    cooldown = clock.monotonic()
    while clock.monotonic() - cooldown < _SETTLED_SECONDS:
        seen = fleet.snapshot([group]).groups.get(group)
        if seen is None or seen.state is not GroupState.STABLE:
            cooldown = clock.monotonic()
        if clock.monotonic() > deadline:
            raise FleetError(f"group {group} does not settle within {_SETTLING_SECONDS:g} s")
        clock.sleep(_POLL_SECONDS)


_RESTART_SECONDS: Final = 90.0


def usual_rebalances(workers: int, assignor: str) -> int:
    """What restarting this many dynamic members one by one usually costs."""
    return workers * (2 if assignor == "range" else 3)


def begin_at_the_end(bootstrap: str, group: str, topic: str) -> dict[TopicPartition, int]:
    """Let a group that does not exist yet begin where the topic ends now; the offsets.

    Committed and not `latest`, so that where it began is known exactly.
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
            f"the broker at {bootstrap} does not answer ({error}); see its log"
        ) from error
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): int(p.offset) for p in places}


@dataclass(frozen=True, kw_only=True)
class OneByOne:
    """Restarts the workers of a group, the next when the last owns partitions."""

    fleet: Fleet
    group: str
    clock: Clock
    say: Callable[[str], None]

    def run(self) -> int:
        """Restart all; how many there were."""
        names = sorted(w.name for w in self.fleet.workers(self.group) if w.wanted)
        for name in names:
            began = self.clock.monotonic()
            asked = self.clock.now()
            self.say(f"worker {name}: SIGTERM, and started again at once")
            self.fleet.runtime.restart(name)
            self._await_back(name, asked)
            took = self.clock.monotonic() - began
            self.say(f"worker {name} owns partitions again after {took:.1f} s")
        return len(names)

    def _await_back(self, name: str, asked: float) -> None:
        deadline = self.clock.monotonic() + _RESTART_SECONDS
        while not (self._active_since(name, asked) and self._all_own(len(self._owners()))):
            if self.clock.monotonic() > deadline:
                raise FleetError(
                    f"worker {name} owns no partitions {_RESTART_SECONDS:g} s after its restart; "
                    f"see its log under {self.fleet.home}"
                )
            self.clock.sleep(_POLL_SECONDS)

    def _active_since(self, name: str, asked: float) -> bool:
        return any(
            r.worker == name
            and r.phase == "active"
            and r.joined_at is not None
            and r.joined_at >= asked
            for r in self.fleet.reports(self.group)
        )

    def _owners(self) -> list[str]:
        return [w.name for w in self.fleet.workers(self.group) if w.wanted]

    def _all_own(self, members: int) -> bool:
        """Every member owns partitions, by the coordinator's word."""
        seen = self.fleet.snapshot([self.group]).groups.get(self.group)
        return (
            seen is not None
            and len(seen.members) == members
            and all(member.partitions for member in seen.members)
        )


def ended_well(change: Change) -> Change:
    """The change, done. Raises FleetError with its sentence where it is not."""
    if change.state is not ChangeState.DONE:
        group = change.plan.group
        raise FleetError(f"group {group}: the change is {change.state}: {change.sentence}")
    return change


@dataclass(slots=True, kw_only=True)
class Stretch:
    """One step while it is measured. Times are wall-clock seconds."""

    name: str
    group: str
    started_at: float
    position: int
    before: tuple[Record, ...]
    expected: int = 0
    ended_at: float | None = None
    counted: Counted | None = None


@dataclass(kw_only=True)
class Meter:
    """Opens and closes the stretches of all steps."""

    log: GroupLog
    clock: Clock
    stretches: list[Stretch] = field(default_factory=list)

    def open_stretch(self, name: str, group: str) -> Stretch:
        """Begin a step where the group's last one, if any, is read to its end."""
        for earlier in self.stretches:
            if earlier.group == group and earlier.counted is None:
                self.close(earlier)
        position = self.log.position(group)
        opened = Stretch(
            name=name,
            group=group,
            started_at=self.clock.now(),
            position=position,
            before=self.log.last_state(group, position),
        )
        self.stretches.append(opened)
        return opened

    def end(self, stretch: Stretch, *, expected: int) -> None:
        """The change is over; what is recorded until the next step still counts for this one."""
        stretch.ended_at = self.clock.now()
        stretch.expected = expected

    def so_far(self, stretch: Stretch) -> Counted:
        """What was recorded from the beginning of the step to now."""
        return count(self.log.read(stretch.group, stretch.position), before=stretch.before)

    def close(self, stretch: Stretch) -> None:
        """Read the stretch for the last time."""
        stretch.counted = self.so_far(stretch)

    def close_all(self) -> None:
        """Read every stretch that is still open."""
        for stretch in self.stretches:
            if stretch.counted is None:
                self.close(stretch)


def generations(stretches: Sequence[Stretch]) -> str:
    """Where each step's generations begin and end, for whoever counts again in the log."""
    told = [
        f"{s.name} {s.counted.from_generation or 0} to {s.counted.to_generation}"
        for s in stretches
        if s.counted is not None
    ]
    return ", ".join(told)
