"""Describes a batch to its entrypoint: who calls it, and for which records.

Problem: a batch is called again after a failure or by a new owner, and a sink must recognize that.
Choice: an offset range has the same id at every read. The worker writes the planned end
into the commit's metadata before a batch starts, so that a new owner ends its first batch at the
same offset [4]. Cost: ids are per partition, so an idempotent sink has to write per partition
(`fleet.sinks` does).
"""

from dataclasses import dataclass

from fleet.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Offsets [start, end) of one partition; compacted offsets and markers are inside."""

    topic: str
    topic_id: str
    """Kafka's id of this incarnation of the topic, URL-safe base64; else the topic's name."""
    partition: int
    start: int
    end: int

    @property
    def id(self) -> str:
        """Returns `<topic id>-<partition>-<start>-<end>`, the same at every repetition [4]."""
        return f"{self.topic_id}-{self.partition}-{self.start}-{self.end}"

    @property
    def tp(self) -> TopicPartition:
        """Returns the partition of this range."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """The second argument of `process(df, context)`.

    attempt counts from 1 within this worker. warm: a batch without records, called once before the
    worker is ready; write to no sink then. trial: called by `fleet test`, which commits nothing;
    sinks write nothing then.
    """

    cluster: str
    group: str
    slot: int | None
    worker: str
    revision: str
    attempt: int
    warm: bool
    ranges: tuple[BatchRange, ...]
    trial: bool = False

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Returns the partitions of this batch."""
        return tuple(each.tp for each in self.ranges)
