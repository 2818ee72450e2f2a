"""What a batch is while it runs, and what became of it: values that two threads speak."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from fleet.model import TopicPartition
from fleet.worker.batch.batch_reader import Prepared

_LOOK: Final = 0.05
"""Seconds between two looks at whether a batch whose records are awaited is wanted still."""


class Why(StrEnum):
    """Why a running batch was interrupted."""

    TIMEOUT = "batch_timeout"
    VOID = "void"
    """Its partitions are lost, or a drain ran out of time: nobody waits for it."""


class Void(Exception):
    """The batch in hand is not wanted any more."""


class Damage(NamedTuple):
    """A record batch that cannot be read; `after` is None if its end is not known."""

    tp: TopicPartition
    offset: int
    after: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the worker is, as its contexts tell it."""

    cluster: str
    group: str
    worker: str
    revision: str
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What became of a batch. What is not `failed` or `damaged` was written, unless `void`."""

    batch: Prepared
    seconds: float
    attempts: int
    failed: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition → the entrypoint's error, after its last attempt alone."""
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of a failed partition: the offset that fails, where every record before it was written."""
    damaged: Mapping[TopicPartition, Damage] = field(default_factory=dict)
    """Partition → a record batch that cannot be read; every record before it was written."""
    ill: str | None = None
    """The entrypoint's error where nothing of the batch went well: nobody's poison [43]."""
    letters: int = 0
    """Records that went to the dead-letter topic instead of the sink."""
    void: bool = False
    fatal: str | None = None
    """Why the worker has to end: a sentence."""

    @property
    def stops(self) -> dict[TopicPartition, int]:
        """Of partitions that are not written whole: the offset up to which they are."""
        starts = {each.tp: each.start for each in self.batch.ranges}
        failed = {tp: self.reached.get(tp, starts[tp]) for tp in self.failed}
        return {tp: found.offset for tp, found in self.damaged.items()} | failed


@dataclass(slots=True)
class Running:
    """A batch that its thread has, waiting or at work."""

    tag: str
    since: float | None = None
    """Monotonic start of the attempt in hand; None while Spark is connected again."""
    why: Why | None = None
    interrupted_at: float | None = None
    void: bool = False

    def await_records(self, batch: Prepared) -> None:
        """Wait until they are at hand. Raises Void where it is interrupted before."""
        while not (batch.gathered(_LOOK) or self.why):
            pass
        if self.why or self.void:
            raise Void
