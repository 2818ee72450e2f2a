"""What a place that keeps slots has to be able to do: read, compare and swap, list, merge.

Problem: the rules of slots, slot targets and changes must not be written anew for every place that
can keep them. Choice: a back end knows objects of three kinds and four maps of small values, and no
rule at all; `fleet.slots.store` has the rules, over any of them. Each object is swapped by itself:
there is no transaction over two of them, since an API server has none. Cost: the store has to order
its writes so that a process may die between any two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from fleet.model import TopicPartition
from fleet.slots import Change, ChangeState, Pause, Quarantine, Slot, SlotTargets, WorkerReport
from fleet.slots.evidence import Writes

# All that is stored with a group's slot targets: what its slots' new owners and a change's actors
# compare.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The one slot of another revision that a revision without a good canary may take now."""

    slot: int
    token: int
    """Which the slot has once it is taken."""
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTargetsRecord:
    """The slot targets as it is stored."""

    targets: SlotTargets
    opened: frozenset[int] = frozenset()
    """Slots that were ever open."""
    canaries: Mapping[str, Claim] = field(default_factory=dict)
    """By revision."""
    going: frozenset[str] = frozenset()
    """Workers that were asked to go: they live until they are removed, and take nothing."""
    committed: frozenset[str] = frozenset()
    """Topics that the group has committed offsets of, whether Kafka keeps them or not [53]."""
    token: int = 0
    """The latest of the changes whose actors wrote here: who has an older one is stale."""


Value = Slot | SlotTargetsRecord | Change
"""What is compared and swapped."""
Note = Mapping[str, object]
Remark = WorkerReport | Note | Quarantine | Pause
"""What is only replaced: the last writer of a key wins."""
Remarks = Mapping[str, Remark | None]
"""By key; None removes."""


KEPT_CHANGES: Final = 200
"""Changes that a back end keeps per group where room is no matter, the present one included."""


class Kind(StrEnum):
    """Of an object."""

    TARGETS = "targets"
    SLOT = "slot"
    CHANGE = "change"


class Space(StrEnum):
    """Of a map."""

    REPORTS = "reports"
    """By worker."""
    NOTES = "notes"
    MARKS = "marks"
    """Stopped partitions, by `mark_key`."""
    PAUSES = "pauses"
    """By group, of the group ""; "" is the pause of all groups."""


@dataclass(frozen=True, slots=True)
class Key:
    """One object of a group."""

    group: str
    kind: Kind
    number: int = 0
    """Of a slot."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it was read."""

    value: Value | None
    """None where the object is there and nothing was written into it yet."""
    version: object
    """Equal to another one's only where nobody wrote in between; means nothing else."""


class Moved(Exception):
    """Somebody else has written since."""


def mark_key(tp: TopicPartition) -> str:
    """Of a stopped partition."""
    return f"{tp.topic} {tp.partition}"


def is_next(before: Value | None, after: Value) -> bool:
    """Whether a change is another one than the one before it: that one had ended."""
    if not isinstance(before, Change) or not isinstance(after, Change):
        return False
    running = ChangeState.RUNNING
    return before.state is not running and after.state is running


class Backend(Protocol):
    """One cluster's objects in one place. Thread-safe.

    Methods raise Unreachable where the place does not answer in bounded time; a write that ended
    so may have been stored or not.
    """

    @property
    def writes(self) -> Writes:
        """What became of this process' own writes of objects."""
        ...

    @property
    def hears(self) -> bool:
        """Whether a reading that need not be fresh may be old: what was last heard of."""
        ...

    def beat(self, group: str) -> None:
        """A write that nobody reads, by the way that a slot's goes."""
        ...

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """The object; None where there is none. fresh: not only as last heard of."""
        ...

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """The slot targets and all slots of a group as they stood at one moment."""
        ...

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Store `value` if the object is still as `seen` (None: not there); as stored.

        Raises Moved where it is not. The change before the next one (`is_next`) is kept among
        those that ended.
        """
        ...

    def ended(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """The changes before the present one, latest first."""
        ...

    def entries(self, space: Space, group: str) -> Mapping[str, Remark]:
        """A map of small values."""
        ...

    def merge(self, space: Space, group: str | None, values: Remarks | None) -> int:
        """Replace these keys, None removes; how many were there before.

        group None: wherever the key is. values None: all that the group has are removed.
        """
        ...

    def version(self) -> int:
        """Differs whenever anything has changed; for those who poll."""
        ...

    def known_since(self) -> float | None:
        """Monotonic time since when what is read is known to be true; None: it is not now."""
        ...

    def close(self) -> None:
        """Give back connections and threads."""
        ...
