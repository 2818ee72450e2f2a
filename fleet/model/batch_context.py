"""What an entrypoint is told about its batch: who calls it, and for which records.

Problem: a batch is called again after a failure or by a successor, and a sink must be able to
tell. Choice: a range of offsets has an id that is the same whoever reads it again; the worker
writes the planned end into the commit's metadata before a batch starts, so that a successor
cuts its first batch at the same place [4]. Cost: ids are per partition, so a sink that wants
to be idempotent has to write per partition (`fleet.sinks` does).
"""

from dataclasses import dataclass

from fleet.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Offsets [start, end) of one partition; gaps (compaction, transaction markers) are inside."""

    topic: str
    topic_id: str
    """Kafka's id of this incarnation of the topic, URL-safe base64; its name where unknown."""
    partition: int
    start: int
    end: int

    @property
    def id(self) -> str:
        """`<topic id>-<partition>-<start>-<end>`: the same at every repetition [4]."""
        return f"{self.topic_id}-{self.partition}-{self.start}-{self.end}"

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """The second argument of `process(df, context)`.

    attempt counts from 1 within this worker. warm: a dummy batch without records, called once
    before the worker is ready; touch no sink then. trial: called by `fleet test`, which commits
    nothing: sinks write nothing then.
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
        """The partitions of this batch."""
        return tuple(each.tp for each in self.ranges)
