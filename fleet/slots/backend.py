"""What a place that stores slots has to do: read, compare and swap, list, merge.

Problem: the rules of slots, slot targets and changes must not be written again for every place.
Choice: a back end has objects of three kinds and four maps of small values, and no rules.
`fleet.slots.store` applies the rules to any back end. Each object is swapped by itself: an API
server has no transaction over two. Cost: the store has to order its writes so that a process may
die between any two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from fleet.model import TopicPartition
from fleet.slots import (
    Change,
    ChangeState,
    Pause,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerReport,
)
from fleet.slots.evidence import WriteLog

# What is stored with a group's slot targets, for new owners and actors of changes to compare.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The one slot of another revision that a revision without a good canary may take now."""

    slot: int
    token: int
    """The slot's token once it is taken."""
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTargetsRecord:
    """The slot targets as stored."""

    targets: SlotTargets
    opened: frozenset[int] = frozenset()
    """Slots that were ever open."""
    canaries: Mapping[str, Claim] = field(default_factory=dict)
    """Claims by revision."""
    going: frozenset[str] = frozenset()
    """Workers that were asked to go: they live until they are removed, and take no slot."""
    committed: frozenset[str] = frozenset()
    """Topics that the group has committed offsets of, even if Kafka deleted them [53]."""
    token: int = 0
    """The latest token of the changes that wrote here; an actor with an older one is stale."""


Value = Slot | SlotTargetsRecord | Change
"""An object that is compared and swapped."""
ManagerState = Mapping[str, object]
MapValue = WorkerReport | ManagerState | StoppedPartition | Pause
"""A value that is only replaced: the last writer of a key wins."""
MapValues = Mapping[str, MapValue | None]
"""Values by key; None removes the key."""


KEPT_CHANGES: Final = 200
"""Number of changes that a back end with enough space keeps per group, with the present one."""


class Kind(StrEnum):
    """The kind of an object."""

    TARGETS = "targets"
    SLOT = "slot"
    CHANGE = "change"


class Space(StrEnum):
    """The name of a map."""

    WORKER_REPORTS = "reports"
    """By name of the worker."""
    MANAGER_STATE = "notes"
    STOPPED_PARTITIONS = "marks"
    """Stopped partitions, by `partition_key`."""
    PAUSES = "pauses"
    """By group, stored under the group ""; the key "" is the pause of all groups."""


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies one object of a group."""

    group: str
    kind: Kind
    number: int = 0
    """Number of the slot."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it was read."""

    value: Value | None
    """None if the object exists and is still empty."""
    version: object
    """Equal to another version only if no write came between; it has no other meaning."""


class ConcurrentWrite(Exception):
    """Another process has written the object since it was read."""


def partition_key(tp: TopicPartition) -> str:
    """Returns the key of a stopped partition."""
    return f"{tp.topic} {tp.partition}"


def is_new_change(before: Value | None, after: Value) -> bool:
    """Whether `after` is a new change and `before` had ended."""
    if not isinstance(before, Change) or not isinstance(after, Change):
        return False
    running = ChangeState.RUNNING
    return before.state is not running and after.state is running


class Backend(Protocol):
    """One cluster's objects in one place. Thread-safe.

    Methods raise Unreachable if the place does not answer in bounded time. A write that ends so may
    or may not have been stored.
    """

    @property
    def writes(self) -> WriteLog:
        """Returns the log of this process's own writes of objects."""
        ...

    @property
    def reads_cache(self) -> bool:
        """Whether reads that need not be fresh come from a cache."""
        ...

    def beat(self, group: str) -> None:
        """Writes something that no reader uses, by the same path as a slot's renewal."""
        ...

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """Returns the object; None if it does not exist. fresh: do not read from a cache."""
        ...

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """Returns the slot targets and all slots of a group as of one moment."""
        ...

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Stores `value` if the object is still as `seen` (None: missing) and returns it as stored.

        Raises ConcurrentWrite if it is not. Before a new change (`is_new_change`), the last one is
        kept among those that ended.
        """
        ...

    def ended_changes(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Returns the changes before the present one, latest first."""
        ...

    def entries(self, space: Space, group: str) -> Mapping[str, MapValue]:
        """Returns one map of small values."""
        ...

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys and returns how many existed; None as a value removes the key.

        group None: in all groups that have the key. values None: removes all values of the group.
        """
        ...

    def version(self) -> int:
        """Returns a value that differs after any change, for pollers."""
        ...

    def known_since(self) -> float | None:
        """Returns the monotonic time since when reads are current; None: they are not now."""
        ...

    def close(self) -> None:
        """Closes connections and threads."""
        ...
