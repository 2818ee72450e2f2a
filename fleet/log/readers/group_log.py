"""Reads one group's records out of `__consumer_offsets` while they are written.

Problem: receipts need one group's records from a position on, again and again within seconds, but
many groups share a partition of the topic. Choice: it reads the range of that partition as
`kafka_source.tasks` reads every range. A comparison of key bytes drops other groups' records before
any decoding, and a repeated read continues where the last one stopped. It joins no group and
commits nothing, so it leaves no trace in the log. Reads are uncommitted: membership records are not
transactional, and another program's open transaction must not hide them. Cost: for a group that has
not changed for long it searches backwards, in the worst case through the whole partition (some
million records a second).
"""

import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kafka_source.batch_fetcher import BatchFetcher
from fleet.kafka_source.bounds import EARLIEST, LATEST
from fleet.kafka_source.failures import (
    ABSENT,
    DENIED,
    RangeRefused,
    RangeTruncated,
    RangeUnread,
    code_named,
)
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges
from fleet.log.records import (
    TOPIC,
    AssignmentEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    Record,
    Tombstone,
    Unreadable,
    decode,
    partition_for,
)
from fleet.system.closing import Closing

_BACKWARDS: Final = (2_000, 20_000)
_COMMITS_KEPT: Final = 21
"""Commits per partition before a position: 20 gaps, for the median gap [27]."""
_COMMIT_TYPES: Final = (0, 1)
_GENERATION_TYPE: Final = 2
_RETRY_PAUSE: Final = 0.2


class ReadTimeout(Unreachable):
    """What `GroupLog.end_within` gave was not enough."""


class GroupLog(Closing):
    """Reads one group at a time. Not for several threads at once.

    `config` is librdkafka's, with bootstrap.servers and security; `timeout` bounds each question
    to a broker, in seconds, and how long a reading may get no further. Raises Unreadable where
    the topic may not be read, Unreachable where no broker answers.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Clock,
        timeout: float = 10.0,
        isolation: str = "read_uncommitted",
    ) -> None:
        self._address = str(config.get("bootstrap.servers", "?"))
        committed = isolation == "read_committed"
        self._fetcher = BatchFetcher(config, client_id="fleet-group-log", committed=committed)
        self._clock = clock
        self._timeout = timeout
        self._partitions = 0
        self._ends = math.inf
        self._seen: tuple[str, int, int, tuple[Record, ...]] | None = None

    def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        self._fetcher.close()

    def end_within(self, seconds: float) -> None:
        """From now on all readings together take no longer: ReadTimeout is raised then."""
        self._ends = self._clock.monotonic() + seconds

    def partition_of(self, group: str) -> int | None:
        """The group's partition; None while the topic does not exist (no group ever was)."""
        deadline = self._clock.monotonic() + self._timeout
        while not self._partitions:
            found = self._fetcher.partitions(TOPIC, self._timeout)
            if isinstance(found, list):
                self._partitions = len(found)
            elif found == ABSENT:
                return None
            else:
                self._wait(found, deadline)
        return partition_for(group, self._partitions)

    def position(self, group: str) -> int:
        """Where the group's partition ends now: the offset of the next record."""
        return self._offset(group, LATEST)

    def position_at(self, group: str, at: float) -> int:
        """The position of the first record written at or after wall time `at`."""
        found = self._offset(group, int(at * 1000))
        return found if found >= 0 else self.position(group)

    def read(self, group: str, since: int, *, until: int | None = None) -> tuple[Record, ...]:
        """The group's records from position `since` up to `until`, or to the end at this call."""
        end = self.position(group) if until is None else until
        if until is not None:
            return self._stretch(group, since, end)
        known: tuple[Record, ...] = ()
        at = since
        if self._seen is not None and self._seen[:2] == (group, since) and self._seen[2] <= end:
            at, known = self._seen[2:]
        records = known + self._stretch(group, at, end)
        self._seen = (group, since, end, records)
        return records

    def last_state(self, group: str, before: int) -> tuple[Record, ...]:
        """The records before a position that say who owned what there, in order of the log.

        A classic group needs its last GroupMetadata; a KIP-848 group needs all that was
        written for its members. With them come the last commits of each partition, against
        which pauses are measured [27]. Empty where the group did not exist.
        """
        start = self._offset(group, EARLIEST)
        before = min(before, self.position(group))
        for back in _BACKWARDS:
            since = max(start, before - back)
            found = self._last(group, since, before)
            if since == start or _is_classic(found):
                return found
        return self._last(group, start, before)

    def last_commits(self, group: str) -> tuple[Record, ...]:
        """The last commits of each partition in all of the log, and what deleted them, in order."""
        return self._last(group, self._offset(group, EARLIEST), self.position(group))

    # --- the reader -------------------------------------------------------------------------

    def _offset(self, group: str, at: int) -> int:
        """Of the group's partition at a time (ms), EARLIEST or LATEST; 0 while there is none."""
        partition = self.partition_of(group)
        if partition is None:
            return 0
        deadline = self._clock.monotonic() + self._timeout
        where = (TOPIC, partition)
        while True:
            found = self._fetcher.list_offsets({where: at}, self._timeout).get(where)
            if found is not None and not found.error:
                return found.offset
            self._wait(self._fetcher.problem if found is None else found.error, deadline)

    def _wait(self, problem: int | str | None, deadline: float) -> None:
        """Before asking again: a topic just born has no leader yet, a broker comes back.

        Raises Unreadable where waiting helps nothing, Unreachable at the deadline.
        """
        why = code_named(problem) if isinstance(problem, int) else problem
        if problem in DENIED:
            raise self._denied(why)
        if self._clock.monotonic() >= deadline:
            raise self._unreachable(why or "its leader does not answer")
        self._clock.sleep(_RETRY_PAUSE)

    def _stretch(self, group: str, since: int, until: int) -> tuple[Record, ...]:
        found: list[Record] = []
        self._walk(group, since, until, lambda raw: found.append(_decoded(raw)))
        return tuple(found)

    def _last(self, group: str, since: int, until: int) -> tuple[Record, ...]:
        last = _Last()
        self._walk(group, since, until, last.add)
        return last.records()

    def _walk(self, group: str, since: int, until: int, keep: Callable[["_Raw"], None]) -> None:
        partition = self.partition_of(group)
        if partition is None or since >= until:
            return
        name = group.encode()
        prefix = struct.pack(">h", len(name)) + name
        left = self._ends - self._clock.monotonic()
        pieces = read_ranges(
            self._fetcher,
            [OffsetRange(TOPIC, partition, since, until)],
            read_timeout=max(0.0, min(self._timeout, left)),
            make=list,
            gone=lambda *_: [],
            keep=True,
        )
        at = since
        try:
            for piece in (each for some in pieces for each in some):
                read = piece.records
                for row, key in enumerate(read.key_list()):
                    if key is not None and key[2 : 2 + len(prefix)] == prefix:
                        place = int(read.offset[row]), int(read.timestamp[row])
                        keep(_Raw(key, read.value(row), *place))
                at = int(read.offset[-1]) + 1
                if self._clock.monotonic() > self._ends and at < until:
                    raise self._late(partition, at, until)
        except RangeRefused as error:
            raise self._denied(error) from error
        except (RangeUnread, RangeTruncated) as error:
            if self._clock.monotonic() > self._ends:
                raise self._late(partition, at, until) from error
            raise self._unreachable(error) from error

    @staticmethod
    def _late(partition: int, at: int, until: int) -> "ReadTimeout":
        return ReadTimeout(
            f"reading {TOPIC}-{partition} took too long: it reached offset {at} of {until}; "
            "`fleet history sync --follow` keeps tables that answer at once"
        )

    def _unreachable(self, why: object) -> Unreachable:
        return Unreachable(
            f"{TOPIC} at {self._address} cannot be read: {why}; check that the broker runs and "
            "that cluster.bootstrap_servers is right"
        )

    def _denied(self, why: object) -> Unreadable:
        return Unreadable(
            f"{TOPIC} at {self._address} may not be read ({why}); grant Read on "
            "this topic, or receipts stay unverified"
        )


def _is_classic(records: tuple[Record, ...]) -> bool:
    """Whether the last word on membership in these records is a classic one."""
    for record in reversed(records):
        if isinstance(record, GroupMetadata):
            return True
        if isinstance(record, Tombstone) and record.type == 2:
            return True
        if isinstance(record, AssignmentEpoch | CurrentAssignment | ConsumerGroupMember):
            return False
    return False


class _Raw(NamedTuple):
    """A record of the group as it was read; most are replaced before anybody looks into them."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp: int


class _Last:
    """What of a stretch nothing in it replaced: no earlier generation, the last few commits."""

    def __init__(self) -> None:
        self._kept: list[_Raw] = []
        self._commits: defaultdict[bytes, deque[_Raw]] = defaultdict(
            lambda: deque(maxlen=_COMMITS_KEPT)
        )
        self._generation: _Raw | None = None

    def add(self, raw: _Raw) -> None:
        """The next one of the log."""
        kind = int.from_bytes(raw.key[:2], "big", signed=True)
        if kind in _COMMIT_TYPES:
            self._commits[raw.key].append(raw)
        elif kind == _GENERATION_TYPE:
            self._generation = raw
        else:
            self._kept.append(raw)

    def records(self) -> tuple[Record, ...]:
        """In order of the log."""
        kept = [*self._kept, *(raw for each in self._commits.values() for raw in each)]
        if self._generation is not None:
            kept.append(self._generation)
        return tuple(map(_decoded, sorted(kept, key=lambda raw: raw.offset)))


def _decoded(raw: _Raw) -> Record:
    return decode(raw.key, raw.value, offset=raw.offset, timestamp=raw.timestamp)
