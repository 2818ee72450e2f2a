"""The seam between a member and how records reach Spark.

Three ways wait behind it [8]: inline (the member consumes into an Arrow table, `batches.py`),
ranges (the member names offsets, Spark's tasks read them) and columnar (the same ranges, gathered
in memory that Spark reads, `columnar.py`). All methods of a Reading run on the
thread that owns the Consumer [1]; a Prepared batch is handed to the batch thread.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange


class Prepared(Protocol):
    """A closed batch: its ranges, and the records as a DataFrame when asked."""

    @property
    def ranges(self) -> tuple[BatchRange, ...]:
        """One range per partition, each with start < end."""
        ...

    @property
    def records(self) -> int:
        """Number of records (an estimate where a reading does not know)."""
        ...

    def gathered(self, seconds: float) -> bool:
        """Whether `frame` has nothing to wait for; waits at most so long for that."""
        ...

    def frame(self, spark: Any) -> Any:
        """The records as a DataFrame with the columns of Spark's Kafka source."""
        ...

    def only(self, tps: Iterable[TopicPartition]) -> "Prepared":
        """The same batch with just these partitions."""
        ...

    def part(self, tp: TopicPartition, start: int, end: int) -> "Prepared":
        """Just the records of [start, end) of one partition; that range lies within its own."""
        ...

    def holds_records(self, spark: Any) -> bool:
        """Whether there is a record in it at all: offsets may be markers, or compacted away."""
        ...

    def rows(self, spark: Any) -> pa.Table:
        """The records themselves; asked only of a part of very few."""
        ...


class BatchReader(Protocol):
    """Collects what the assigned partitions hold, and closes batches."""

    @property
    def way(self) -> str:
        """How records are read now: inline, ranges or columnar."""
        ...

    def add_partition(
        self, tp: TopicPartition, *, topic_id: str, start: int, replay_to: int | None
    ) -> None:
        """A partition is assigned (or unquarantined); records come from `start` on.

        Where `replay_to` > start, the first batch of the partition ends exactly there [4].
        """
        ...

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions and whatever was read of them."""
        ...

    def take(self, consumer: Any, *, timeout: float) -> tuple[Any, ...]:
        """Poll once; errors other than EOF as (KafkaError, TopicPartition | None, offset)."""
        ...

    def to_pause(self) -> frozenset[TopicPartition]:
        """Partitions that shall not be fetched now: full, or waiting for a replay to end."""
        ...

    def close(self, now: float, *, busy: bool = False) -> Prepared | None:
        """A batch, if one is due at monotonic `now`; its partitions go on behind it.

        busy: Spark runs another one. Only a full batch (or a replay, or what is gathered meanwhile)
        is closed then: into any other goes along what arrives until it can run.
        """
        ...

    def rest(self, now: float) -> None:
        """What trickles in waits `max_wait` from monotonic `now` on, as after a batch."""
        ...

    def hurry(self) -> bool:
        """Let the next `close` wait for nothing, where a batch of what trickled in takes no longer
        than twice `max_wait`; whether it does.
        """
        ...

    def gaps(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Read partitions whose position moved over no record: (start, position); now past it."""
        ...

    def seen_all_ends(self) -> bool:
        """Whether every partition was once read to its end; True where there is none."""
        ...

    def silent(self) -> Mapping[TopicPartition, int]:
        """Partitions of topics made again since they were begun first, that are to be fetched now
        and of which nothing has come since, not even that they have no records; their positions.
        """
        ...

    def took(self, batch: Prepared, seconds: float) -> None:
        """A batch that it closed ran so long: adapt the bound to the target."""
        ...
