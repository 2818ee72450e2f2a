"""The state of a membership, and how it ended.

The consumer thread writes `MemberState`, and other threads read it. Its attributes are plain: a
reader may see one a moment before another, and no reader depends on that.
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


class EntrypointBackoff:
    """Paces a member whose entrypoint fails for every batch [43].

    It keeps nothing in hand and tries again after 1, 2, 4 … 30 s with a newly cut batch, of which a
    part may succeed. It ends after `grace`; at once if it is its revision's canary [22] (may_wait:
    its revision works elsewhere, or it is no canary).
    """

    def __init__(self, *, grace: float, may_wait: Callable[[], bool], clock: Clock) -> None:
        self._grace = grace
        self._may_wait = may_wait
        self._clock = clock
        self._pause = _FIRST
        self._until = 0.0
        self._said: str | None = None
        self._times = 0
        self.since: float | None = None
        """Monotonic time since when nothing goes well."""

    @property
    def is_waiting(self) -> bool:
        """Whether no batch may begin yet."""
        return self.since is not None and self._clock.monotonic() < self._until

    def failed(self, error: str) -> tuple[str, str]:
        """Returns a sentence for the state, and one for the log, after a batch that failed whole.

        The log has the same error once, and then only how often. Raises FleetError after the grace.
        """
        now = self._clock.monotonic()
        self.since = now if self.since is None else self.since
        what = f"the entrypoint fails for every partition of the batch: {error}"
        if not self._may_wait():
            raise FleetError(what)
        lasted = now - self.since
        if lasted >= self._grace:
            raise FleetError(
                f"{what}; for {duration(lasted)} (worker.entrypoint_failure_timeout is "
                f"{self._grace:g} s)"
            )
        self._until, pause = now + self._pause, self._pause
        self._pause = min(_LONGEST, self._pause * 2)
        self._times += 1
        whole = (
            f"{what}; for {duration(lasted)}, next try in {pause:g} s, at most for "
            f"{self._grace:g} s (worker.entrypoint_failure_timeout)"
        )
        if self._said != error:
            self._said = error
            return whole, whole
        return whole, (
            f"the entrypoint failed {self._times} times in {duration(lasted)}, "
            f"next try in {pause:g} s"
        )

    def record_success(self) -> None:
        """Resets the backoff after a success."""
        self.since, self._pause, self._until = None, _FIRST, 0.0
        self._said, self._times = None, 0


@dataclass(slots=True, kw_only=True)
class MemberState:
    """One membership's state, and its counts since it began."""

    phase: Phase = Phase.JOINING
    member_id: str | None = None
    joined_at: float | None = None
    """Wall time of subscribe()."""
    assigned: bool = False
    """Whether an assignment (an empty one too) has arrived."""
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    stopped_partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    reading: str | None = None
    """Reading mode: see AdaptiveReader.way."""
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
    """Whether the last batch failed, in part or whole; a stopped partition is no failure."""
    failing_since: float | None = None
    """Monotonic time since when the entrypoint fails for every batch [43]."""
    unclean: bool = False
    """A batch was interrupted, and none was committed since: its work may still run."""
    asked_to_drain: bool = False
    """Written by the caller, because the thread may learn of it only when brokers answer again."""
    moved_at: float = 0.0
    """Monotonic time of the consumer thread's last turn."""
    waiting_since: float | None = None
    """Monotonic time since when the consumer thread waits for brokers."""

    @property
    def reported_phase(self) -> Phase:
        """Returns the phase for others: draining from the request on."""
        begins = self.asked_to_drain and self.phase in {Phase.JOINING, Phase.ACTIVE}
        return Phase.DRAINING if begins else self.phase

    @contextmanager
    def waiting_for_brokers(self, clock: Clock) -> Iterator[None]:
        """Wraps calls of the consumer thread that return only when brokers answer.

        They also return when their own grace period has ended. Unreachable brokers are no reason to
        restart a worker.
        """
        if self.waiting_since is not None:
            yield
            return
        self.waiting_since = clock.monotonic()
        try:
            yield
        finally:
            self.moved_at, self.waiting_since = clock.monotonic(), None

    def is_moving(self, now: float, *, stalled: float, grace: float) -> bool:
        """Whether the consumer thread moves.

        It turned less than `stalled` seconds ago, or waits for brokers for less than `grace` and
        that.
        """
        since = self.waiting_since  # one read: it may be taken back meanwhile
        if since is not None:
            return now - since < grace + stalled
        return now - self.moved_at < stalled


class End(StrEnum):
    """How a membership ended."""

    CLOSED = "closed"
    FENCED = "fenced"
    UNRELEASED = "unreleased"
    """Refused (111): the coordinator believes that another member has the instance id."""
    STALLED = "stalled"
    """Only a new consumer can read its partitions: see `FetchWatch`."""
    FATAL = "fatal"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipEnd:
    """The end of a membership; `clean`: nothing of this worker still runs."""

    how: End
    sentence: str
    clean: bool
