"""How far the partitions of a topic reach, asked once for all of them.

Problem: whoever plans ranges needs the first and the last offset of every partition, and the end
that a reader of committed records can reach is not the end of the log [7]; while a leader moves,
its partitions have no answer. Choice: two ListOffsets for all partitions together, with the
isolation level that reads later; after a failure the metadata is asked again, until the time is
up. Cost: one short-lived connection per question.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import ABSENT, DENIED, RangeUnread, code_named
from fleet.kafka_source.list_offsets import EARLIEST, LATEST, ListedOffset, leaders_of, list_offsets

_PAUSE: Final = 0.3


class Bounds(NamedTuple):
    """Offsets that can be read: from `first` to before `end`."""

    first: int
    end: int


class LogBounds(NamedTuple):
    """A partition's whole log: transactions that begin at `stable` or later may be open."""

    first: int
    stable: int
    end: int


def bounds(
    options: Mapping[str, Any], topic: str, *, isolation: str, timeout: float = 20.0
) -> dict[int, Bounds]:
    """Of every partition of the topic; {} where there is no such topic.

    options are librdkafka's, with bootstrap.servers and security. Raises RangeUnread where no
    broker answers within about `timeout` seconds, or refuses.
    """
    committed = isolation == "read_committed"
    deadline = time.monotonic() + timeout
    with Connections(options, client_id="fleet-bounds") as net:
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                found, why = _asked(net, topic, committed=committed, timeout=left)
            except NoAnswer as error:
                found, why = None, str(error)
            if found is not None:
                return found
            if time.monotonic() + _PAUSE > deadline:
                raise RangeUnread(f"{topic}: its offsets cannot be asked: {why}")
            net.pause(_PAUSE)


def log_bounds(options: Mapping[str, Any], topic: str) -> dict[int, LogBounds]:
    """Of every partition of the topic; raises as `bounds` does."""
    # In this order: a transaction that begins meanwhile is behind `stable`.
    stable = bounds(options, topic, isolation="read_committed")
    found = bounds(options, topic, isolation="read_uncommitted")
    return {
        n: LogBounds(first, stable[n].end, end) for n, (first, end) in found.items() if n in stable
    }


def _asked(
    net: Connections, topic: str, *, committed: bool, timeout: float
) -> tuple[dict[int, Bounds] | None, str]:
    """The bounds, or None and why there are none just now."""
    metadata = net.metadata([topic], timeout)
    told = metadata.topics[0]
    if told.error_code == ABSENT:
        return {}, ""
    if told.error_code:
        return None, _refused(topic, told.error_code)
    places = [(topic, part.partition_index) for part in told.partitions]
    leaders = leaders_of(metadata)
    answers: list[dict[tuple[str, int], ListedOffset]] = []
    for each in (EARLIEST, LATEST):
        wanted = dict.fromkeys(places, each)
        answers.append(list_offsets(net, leaders, wanted, committed=committed, timeout=timeout))
        for where in places:
            error = answers[-1][where].error if where in answers[-1] else 5  # no leader
            if error:
                return None, _refused(f"{topic}-{where[1]}", error)
    first, end = answers
    return {w[1]: Bounds(first[w].offset, end[w].offset) for w in sorted(places)}, ""


def _refused(what: str, code: int) -> str:
    """In words; raises RangeUnread where waiting helps nothing."""
    if code in DENIED:
        raise RangeUnread(f"{what}: the brokers refuse: {code_named(code)}")
    return code_named(code)
