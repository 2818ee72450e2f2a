"""How a membership stands, and how it ended.

`MemberState` is written by the consumer thread and read by the others: plain attributes; a reader
may see one a moment before another, which no reader minds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.slots import Phase
from fleet.text import duration

_FIRST: Final = 1.0
_LONGEST: Final = 30.0


class BackingOff:
    """How long a member goes on trying where its entrypoint fails for whatever it is given [43].

    It holds nothing in hand and tries again after 1, 2, 4 … 30 s with a batch cut anew, of which a
    part may go well and be the witness. It ends after `grace`; at once where it is its
    revision's canary [22] (may_wait: its revision works elsewhere, or it is none).
    """

    def __init__(self, *, grace: float, may_wait: Callable[[], bool], clock: Clock) -> None:
        self._grace = grace
        self._may_wait = may_wait
        self._clock = clock
        self._pause = _FIRST
        self._until = 0.0
        self.since: float | None = None
        """Monotonic time since when nothing goes well."""

    @property
    def holds(self) -> bool:
        """Whether no batch shall begin yet."""
        return self.since is not None and self._clock.monotonic() < self._until

    def failed(self, error: str) -> str:
        """Nothing of a batch went well: a sentence, and FleetError where grace period is at its
        end.
        """
        now = self._clock.monotonic()
        self.since = now if self.since is None else self.since
        what = f"the entrypoint fails for every partition of its batch: {error}"
        if not self._may_wait():
            raise FleetError(what)
        lasted = now - self.since
        if lasted >= self._grace:
            raise FleetError(
                f"{what}; so for {duration(lasted)} (worker.entrypoint_failure_timeout "
                f"{self._grace:g} s)"
            )
        self._until, pause = now + self._pause, self._pause
        self._pause = min(_LONGEST, self._pause * 2)
        return (
            f"{what}; so for {duration(lasted)}, tried again in {pause:g} s, at most for "
            f"{self._grace:g} s (worker.entrypoint_failure_timeout)"
        )

    def worked(self) -> None:
        """Something went well."""
        self.since, self._pause, self._until = None, _FIRST, 0.0


@dataclass(slots=True, kw_only=True)
class MemberState:
    """One membership's state and counts since it began."""

    phase: Phase = Phase.JOINING
    member_id: str | None = None
    joined_at: float | None = None
    """Wall time of subscribe()."""
    assigned: bool = False
    """Whether an assignment (an empty one too) has arrived."""
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    quarantined: frozenset[TopicPartition] = field(default_factory=frozenset)
    reading: str | None = None
    """How records are read now: see AdaptiveReader.way."""
    batches: int = 0
    records: int = 0
    busy_seconds: float = 0.0
    in_hand: bool = False
    """A batch runs, or its commit is due."""
    lost_records: int = 0
    dead_letters: int = 0
    gap: str | None = None
    """Where partitions went on whose commits Kafka had deleted."""
    last_commit_at: float | None = None
    committed: frozenset[str] = frozenset()
    """Topics of which this member has committed offsets, or found the group's."""
    error: str | None = None
    failed: bool = False
    """The last batch failed, in part or whole; that a partition is stopped since is no failure."""
    failing_since: float | None = None
    """Monotonic time since when nothing that the entrypoint is given goes well [43]."""
    unclean: bool = False
    """A batch was cut short, and none was committed since: what it began may run on."""
    asked_to_drain: bool = False
    """Written by who asks: the thread itself may hear of it only when brokers answer again."""
    moved_at: float = 0.0
    """Monotonic time of the consumer thread's last turn."""
    waiting_since: float | None = None
    """Monotonic time since when the consumer thread waits for brokers."""

    @property
    def told(self) -> Phase:
        """The phase that others shall know: draining from the moment that it is asked for."""
        begins = self.asked_to_drain and self.phase in {Phase.JOINING, Phase.ACTIVE}
        return Phase.DRAINING if begins else self.phase

    @contextmanager
    def waits(self, clock: Clock) -> Iterator[None]:
        """Around every call of the consumer thread that returns only when brokers answer, or when
        its own grace period has ended: brokers that are away are no reason to restart a worker.
        """
        if self.waiting_since is not None:
            yield
            return
        self.waiting_since = clock.monotonic()
        try:
            yield
        finally:
            self.moved_at, self.waiting_since = clock.monotonic(), None

    def moves(self, now: float, *, stalled: float, grace: float) -> bool:
        """Whether the consumer thread moves: it turned less than `stalled` seconds ago, or waits
        for brokers for less than `grace` and that.
        """
        since = self.waiting_since  # once: it may be taken back meanwhile
        if since is not None:
            return now - since < grace + stalled
        return now - self.moved_at < stalled


class End(StrEnum):
    """How a membership ended."""

    CLOSED = "closed"
    FENCED = "fenced"
    UNRELEASED = "unreleased"
    """Refused (111): the coordinator believes that the instance id has another owner."""
    STALLED = "stalled"
    """What it owns can be read by a new consumer only: see `fetch_watch`."""
    FATAL = "fatal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a membership; `clean`: nothing of ours is still running."""

    how: End
    sentence: str
    clean: bool
