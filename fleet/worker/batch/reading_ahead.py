"""A worker reads a batch's ranges as Spark's tasks do, and hears meanwhile that nobody wants them.

Loaded by the first backlog that goes by column: a standby does without kafka-python.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fleet.kafka_source.batch_fetcher import BatchFetcher, Fetched
from fleet.kafka_source.bounds import Where
from fleet.kafka_source.columns import Tell, table_of_pieces
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import READ_TIMEOUT, read_ranges


class _Attentive(BatchFetcher):
    """One that hears while it waits that it is not wanted any more."""

    check: Callable[[], None] = staticmethod(lambda: None)

    def fetch(self, positions: Mapping[Where, int], timeout: float) -> list[Fetched]:
        """See BatchFetcher."""
        self.check()
        return super().fetch(positions, timeout)


def tables_of(
    login: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    *,
    isolation: str,
    tell: Tell,
    check: Callable[[], None],
) -> Any:
    """The records of the ranges as tables with the columns of Spark's Kafka source.

    login: librdkafka's options. Raises what `read_ranges` does, and what `check` does.
    """
    fetching = _Attentive(login, client_id="fleet-ranges", committed=isolation == "read_committed")
    fetching.check = check

    def make(pieces: Any) -> pa.Table:
        return table_of_pieces(pieces, tell)

    return read_ranges(fetching, ranges, read_timeout=READ_TIMEOUT, make=make)
