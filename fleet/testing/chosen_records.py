"""Which records `fleet test` gives to the entrypoint: of the topics, or of a file.

Read by offsets, as ranges are: no group is joined, named or asked.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.kafka_source.bounds import bounds
from fleet.kafka_source.columns import SCHEMA
from fleet.kafka_source.failures import RangeTruncated, RangeUnread
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges, reading
from fleet.model import TopicPartition
from fleet.worker.batch.ranges import fair

_READ_SECONDS: Final = 20.0
_MOST: Final = 1_000_000
"""Offsets that one trial may read: all of them are in memory here."""
_RANGE: Final = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+):(?P<start>\d+)-(?P<end>\d+)")


def of_file(path: Path) -> list[dict[str, Any]]:
    """JSON lines with key, value, headers, …, as `fleet.testing.make_batch` takes them."""
    return list(_lines(path))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from {path} cannot be read as text: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number} is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise ConfigError(f'{path}:{number} is no object; a record is {{"key": …, "value": …}}')
        yield record


def parsed(text: str) -> OffsetRange:
    """`TOPIC:PARTITION:A-B`, both ends in it. Raises ConfigError."""
    match = _RANGE.fullmatch(text)
    if match is None or int(match["end"]) < int(match["start"]):
        raise ConfigError(
            f"--offsets {text}: write TOPIC:PARTITION:FIRST-LAST, for example orders:0:100-199"
        )
    start, last = int(match["start"]), int(match["end"])
    return OffsetRange(match["topic"], int(match["partition"]), start, last + 1)


def last_records(
    login: Mapping[str, str], topics: Sequence[str], count: int, *, isolation: str
) -> list[OffsetRange]:
    """Ranges of the last `count` offsets of the topics, the same share of each partition.

    Raises Refused where there are none, Unreachable.
    """
    waiting: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        try:
            found = bounds(login, topic, isolation=isolation, timeout=5.0)
        except RangeUnread as error:
            raise Unreachable(str(error)) from error
        for partition, (first, end) in found.items():
            if end > first:
                tp = TopicPartition(topic, partition)
                waiting[tp], ends[tp] = end - first, end
    if not waiting:
        raise Refused(
            f"{', '.join(topics) or 'no topic'}: there is no record; write some into a file and "
            "name it with --from FILE"
        )
    shares = fair(waiting, count)
    return [
        OffsetRange(tp.topic, tp.partition, ends[tp] - share, ends[tp])
        for tp, share in sorted(shares.items())
        if share > 0
    ]


def read(login: Mapping[str, str], ranges: Sequence[OffsetRange], *, isolation: str) -> pa.Table:
    """Their records. Raises Refused where they are gone, Unreachable."""
    size = sum(each.end - each.start for each in ranges)
    if size > _MOST:
        raise Refused(f"{size:,} offsets are too many for one trial: {_MOST:,} at most")
    try:
        batches = list(
            read_ranges(reading(login, isolation=isolation), ranges, read_timeout=_READ_SECONDS)
        )
    except RangeTruncated as error:
        raise Refused(str(error)) from error
    except RangeUnread as error:
        raise FleetError(str(error)) from error
    return pa.Table.from_batches(batches, schema=SCHEMA).sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )
