"""The history's tables: Delta Lake tables in one folder, and the state that names their versions.

Problem: a batch writes five tables, no table format commits more than one at once, and a process
may be killed between any two commits. Choice: each table is a Delta table, written by delta-rs.
A sixth one, `state`, is committed last: positions in the offsets topic, the job's memory, and the
version of each table that belongs to them. Fleet reads the versions that the state names. A start
restores a table that is ahead of them, so a batch that was cut short is read again. Another job at
the same time loses: a commit is only tried on the version that this one has seen. Cost: some 5 ms a
commit and 80 MB of memory for delta-rs; until a restored start, a reader of the Delta tables alone
sees the tables of a batch that was cut short.

Tasks of Spark write their files here too, without delta-rs: what they use is sent by value.
"""

import json
import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache, partial, reduce
from operator import and_
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from fleet.clock import Clock
from fleet.errors import ConfigError, FleetError, LostLease, SchemaTooNew, Unreachable
from fleet.extras import need
from fleet.model import TopicPartition, require_no_login
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

    from fleet.history.memory import JobMemory

SCHEMA: Final = 1
"""Of the state."""
_TRIES: Final = 5
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_DAY: Final = 86_400
_DAY_MS: Final = 86_400_000
T = TypeVar("T")

# --- columns: the contract of docs/reference/history-tables.md ---------------------------------
# Times named `timestamp` are Kafka's milliseconds, times named `…_at` are seconds. No name is a
# reserved word of DuckDB, Spark or Trino. The UTC day of a row is in its file's path.

_TP: Final = pa.struct([("topic", pa.string()), ("partition", pa.int32())])
_TYPES: Final = {"double": pa.float64()}


def _columns(text: str) -> pa.Schema:
    """Columns written as `name type, name type, …`."""
    pairs = (each.split() for each in text.split(","))
    return pa.schema([(name, _TYPES.get(kind) or pa.type_for_alias(kind)) for name, kind in pairs])


COMMITS: Final = _columns(
    "cluster string, group_id string, topic string, topic_partition int32, committed int64, "
    "leader_epoch int32, metadata string, commit_timestamp int64, expire_timestamp int64, "
    "topic_id string, timestamp int64, first_timestamp int64, previous_timestamp int64, "
    "commits int64, log_partition int32, log_offset int64, first_offset int64"
)
"""`committed` is null if the offset was deleted: it expired, or its group or topic went."""
EVENTS: Final = _columns(
    "cluster string, log_partition int32, log_offset int64, timestamp int64, type int16, "
    "version int16, group_id string, member string, leader_epoch int32, problem string, "
    "key binary, value binary"
)
"""`leader_epoch` is of type -2: the log's leader epoch from this offset on."""
_VALUES: Final[Mapping[type[Any], Mapping[str, str]]] = {
    Rebalance: {"group": "group_id", "left": "departed"},
    MembershipSpan: {"group": "group_id", "at": "changed_at"},
}
"""Field of a value → its column, where they differ."""
_NARROW: Final = frozenset({"members", "aborted", "log_partition"})
_PLAIN: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), TopicPartition: _TP}


def _type_of(hint: Any) -> pa.DataType:
    """The column of a field: its own type, a list of such, or one that may be None."""
    if get_origin(hint) is tuple:
        return pa.list_(_type_of(get_args(hint)[0]))
    if known := [_PLAIN[each] for each in (hint, *get_args(hint)) if each in _PLAIN]:
        return known[0]
    return pa.string()  # a StrEnum


def _columns_of(kind: type[Any]) -> pa.Schema:
    """The columns of a value's fields, but for those that two of them are not compared by."""
    hints = get_type_hints(kind)
    return pa.schema(
        [
            (
                _VALUES[kind].get(each.name, each.name),
                pa.int32() if each.name in _NARROW else _type_of(hints[each.name]),
            )
            for each in fields(kind)
            if each.compare
        ]
    )


_MADE: Final = _columns_of(Rebalance)
REBALANCES: Final = _MADE.insert(_MADE.get_field_index("cause"), pa.field("seconds", pa.float64()))
MEMBERSHIPS: Final = _columns_of(MembershipSpan)
LAG: Final = _columns(
    "cluster string, sampled_at double, group_id string, topic string, topic_partition int32, "
    "committed int64, committed_at double, log_start int64, log_end int64, records int64, "
    "seconds double, lag_case string, known string"
)
TABLES: Final[Mapping[str, pa.Schema]] = {
    "commits": COMMITS,
    "events": EVENTS,
    "rebalances": REBALANCES,
    "memberships": MEMBERSHIPS,
    "lag": LAG,
}
DAY: Final = pa.field("day", pa.date32())
STATE: Final = _columns(
    "number int64, group string, topic string, topic_partition int32, partition int32, "
    "offset int64, timestamp int64, state string, committed int64, leader_epoch int32, "
    "topic_id string, gap int64, early bool, told_committed int64, told_end int64, told_at double"
)
"""Rows of three kinds: `job` (one row; `state` is a State in JSON), `groups` (`state` is the replay
of the group) and `standing` (the last commit of a partition, and what `lag` told of it). Of the
rows of a key the one with the highest `number` counts; without a value it deletes the key."""
KIND: Final = pa.field("kind", pa.string())

_DECODED: Final = {"group_id": "group", "log_partition": "partition", "log_offset": "offset"}
"""Column of `commits` and `events` → as the decoder of the log calls it (fleet.log)."""


def decoded(name: str) -> str:
    """Names a column of `commits` and `events` as the decoder does."""
    return _DECODED.get(name, name)


def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - tasks of Spark have none

    return TypeAdapter(kind)


_codec: Final[Callable[[Any], Any]] = cache(_adapter)


def row_of(made: Rebalance | MembershipSpan) -> dict[str, Any]:
    """Makes the row of `rebalances` or `memberships`."""
    names = _VALUES[type(made)]
    told = _codec(type(made)).dump_python(made, mode="json")
    row = {names.get(name, name): value for name, value in told.items()}
    return {**row, "seconds": made.seconds} if isinstance(made, Rebalance) else row


def value_of(kind: type[T], row: Mapping[str, Any]) -> T:
    """Makes the value of a row. A field that a later release added is null there: its default."""
    names = {column: name for name, column in _VALUES[kind].items()}
    known = {
        names.get(column, column): () if value is None and column in _LISTS else value
        for column, value in row.items()
        if value is not None or names.get(column, column) not in _DEFAULTED[kind]
    }
    return _codec(kind).validate_python(known)  # type: ignore[no-any-return]


_DEFAULTED: Final[Mapping[type[Any], frozenset[str]]] = {
    kind: frozenset(each.name for each in fields(kind) if each.default is not MISSING)
    for kind in _VALUES
}


_LISTS: Final = frozenset(
    each.name for each in (*REBALANCES, *MEMBERSHIPS) if pa.types.is_list(each.type)
)


def day_of(at: float) -> str:
    """The UTC day of a time in seconds."""
    return datetime.fromtimestamp(max(0.0, at), UTC).strftime("%Y-%m-%d")


_TIMES: Final = {"rebalances": "ended_at", "memberships": "changed_at", "lag": "sampled_at"}
"""Columns by which the day of a row is told, in seconds; of others it is `timestamp`, in ms."""


def days_of(table: str, rows: pa.Table) -> pa.Array:
    """UTC days (2026-11-21) of a table's rows; times before 1970 count as its first day."""
    times = np.asarray(rows[_TIMES.get(table, "timestamp")])
    unit = _DAY if table in _TIMES else _DAY_MS
    numbers = np.maximum(times // unit, 0).astype(np.int64)
    distinct, where = np.unique(numbers, return_inverse=True)
    names = [str(np.datetime64(int(day), "D")) for day in distinct]
    return pa.DictionaryArray.from_arrays(
        pa.array(where.astype(np.int32)), pa.array(names, pa.string())
    ).cast(pa.string())


# --- where they are ---------------------------------------------------------------------------


class DataFile(NamedTuple):
    """A Parquet file that was written, and is not in its table yet."""

    table: str
    day: str
    """The partition: a UTC day, of `state` a kind."""
    name: str
    """Below the table's folder."""
    rows: int
    bytes: int


class TablePlace:
    """The folder of the tables, on this machine or in an object store.

    Schemes: none or file://, s3:// (s3a:// is the same), gs://, hdfs://, abfs://, abfss://. Raises
    ConfigError if pyarrow knows no such scheme, or the address holds a login. Every call raises
    Unreachable if the place does not answer or takes nothing (a full disk).
    """

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        scheme, mark, rest = text.partition("://")
        self.fs: Any
        if not mark or scheme == "file":
            self.url = self._root = str(Path(rest if mark else text).absolute())
            self.fs = fs.LocalFileSystem()
            return
        try:
            require_no_login(text)
        except ValueError as error:
            raise ConfigError(f"history.path {error}") from None
        self.url = f"{_SAME.get(scheme, scheme)}://{rest.rstrip('/')}"
        try:
            self.fs, self._root = fs.FileSystem.from_uri(self.url)
        except OSError as error:  # S3 is asked for the bucket's region
            raise self._away(error) from error
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"history.path {text}: {error}; use a local folder, s3://, gs://, hdfs:// or "
                "abfss://"
            ) from error

    def __str__(self) -> str:
        return self.url

    def full(self, name: str) -> str:
        """Names a file below the folder as the file system takes it."""
        return f"{self._root}/{name}"

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turns errors of pyarrow into Fleet's, with the place.

        Unreachable if it may pass by itself, FleetError if a file is gone or damaged.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise FleetError(f"a file of {self} is missing: {error}") from error
        except OSError as error:
            raise self._away(error) from error
        except pa.ArrowException as error:
            raise FleetError(f"the tables in {self} cannot be read: {error}") from error

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Does the same for delta-rs, but for CommitFailedError: another commit came first."""
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415

        try:
            with self.answering():
                yield
        except CommitFailedError:
            raise
        except DeltaError as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self} cannot be read or written: {error}")

    def write(self, table: str, rows: pa.Table, kind: str = "") -> Iterator[DataFile]:
        """Writes rows of a table to new files, one for each day; they are in no table yet.

        kind: that of rows of the state, which have no day.
        """
        column = KIND if kind else DAY
        days = pa.repeat(kind, rows.num_rows) if kind else days_of(table, rows)
        for day in pc.unique(days).to_pylist():
            mine = rows.filter(pc.equal(days, day))
            name = f"{column.name}={day}/{uuid.uuid4().hex}.parquet"
            path = self.full(f"{table}/{name}")
            with self.answering():
                self.fs.create_dir(path.rpartition("/")[0], recursive=True)
                with self.fs.open_output_stream(path) as out:
                    pq.write_table(mine, out, compression="zstd")
                    size = int(out.tell())
            yield DataFile(table, day, name, mine.num_rows, size)

    def missing(self, files: Iterable[DataFile]) -> int:
        """Counts the rows of files that are not here, or not whole."""
        given = list(files)
        with self.answering():
            infos = self.fs.get_file_info([self.full(f"{f.table}/{f.name}") for f in given])
        return sum(
            file.rows
            for file, info in zip(given, infos, strict=True)
            if not info.is_file or info.size != file.bytes
        )

    def open(self, table: str, version: int | None = None) -> "DeltaTable | None":
        """Opens a table; None if there is none."""
        need("deltalake")
        from deltalake import DeltaTable  # noqa: PLC0415 - 80 MB of memory
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        with self.committing():
            try:
                return DeltaTable(f"{self.url}/{table}", version=version)
            except TableNotFoundError:
                return None

    def files(self, delta: "DeltaTable", table: str) -> list[DataFile]:
        """Lists the files of a table's version."""
        column = f"partition.{KIND.name if table == 'state' else DAY.name}"
        rows = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(table, str(r[column]), r["path"], r["num_records"], r["size_bytes"])
            for r in rows
        ]

    def dataset(self, table: str, files: Collection[DataFile], *, day: bool = False) -> Any:
        """Makes a pyarrow dataset of a table's files, `day`: with that column."""
        schema = STATE if table == "state" else TABLES[table]
        schema = schema.append(DAY) if day else schema
        if not files:
            return ds.dataset(schema.empty_table())
        paths = [self.full(f"{table}/{file.name}") for file in files]
        days = ds.partitioning(pa.schema([DAY]), flavor="hive") if day else None
        return ds.dataset(
            paths, schema=schema, format="parquet", filesystem=self.fs, partitioning=days
        )


# --- the state --------------------------------------------------------------------------------


class LeaderEpochStart(NamedTuple):
    """Leader epoch of a partition of the offsets topic, and where its last change was seen."""

    epoch: int
    offset: int = -1
    """-1: it is the first that was ever seen, and no change."""
    timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the tables are at one moment.

    `positions`: next offset to read per partition of the offsets topic. `lost`: stretches that
    were gone before they were read, [partition, from, to). `began` is when the tables were made.
    """

    schema: int = SCHEMA
    number: int
    cluster: str
    at: float
    what: str
    """batch | refresh | polled | compaction."""
    writer: str = ""
    """The process that wrote it."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Table → the version of its Delta log; 0 if it is not named."""
    positions: Mapping[int, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic id → name, as the commits told it."""
    lost: tuple[tuple[int, int, int], ...] = ()
    led: Mapping[int, LeaderEpochStart] = field(default_factory=dict)
    """Who leads each partition of the offsets topic, and so coordinates its groups."""
    began: float = 0.0
    since: Mapping[int, int] = field(default_factory=dict)
    """Where each partition ended when recording it began: what is missing behind that, was lost."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """Up to where commits in transactions are taken, of partitions where that is before their
    position: an open transaction begins there."""
    behind: int = 0
    """Offsets that were there to be read when this was written, and were not."""
    thinned: Mapping[int, str] = field(default_factory=dict)
    """Seconds → the last day of `lag` that holds one row for so many (fleet.history.retention)."""


def _state_in(place: TablePlace, files: Iterable[DataFile]) -> State | None:
    """Reads the state. Raises SchemaTooNew."""
    job = [file for file in files if file.day == "job"]
    if not job:
        return None
    with place.answering():
        text = place.dataset("state", job).to_table(columns=["state"])["state"][0].as_py()
    schema = int(json.loads(text)["schema"])
    if schema > SCHEMA:
        raise SchemaTooNew(
            f"{place} has schema {schema}, but this version reads up to {SCHEMA}: use the newer "
            "version of fleet that wrote it"
        )
    return _codec(State).validate_json(text)  # type: ignore[no-any-return]


# --- reading ----------------------------------------------------------------------------------


class Tables:
    """Reads the history at a path: all tables as the latest state names them.

    Raises FleetError if what is there is damaged, Unreachable if the place does not answer.
    """

    def __init__(self, path: str | Path) -> None:
        self.place = TablePlace(path)

    def state(self) -> State | None:
        """Reads the state; None if nothing was recorded yet."""
        delta = self.place.open("state")
        if delta is None:
            return None
        found = _state_in(self.place, self.place.files(delta, "state"))
        return found if found is not None and found.number else None

    def files(self, state: State | None, table: str) -> list[DataFile]:
        """Lists a table's files."""
        if state is None:
            return []
        delta = self.place.open(table, state.versions.get(table, 0))
        return [] if delta is None else self.place.files(delta, table)

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances that ended in [since, until), in order of their end."""
        where = _where(group=group, at="ended_at", since=since, until=until, cause=cause)
        found = self.read("rebalances", where, since=since, until=until)
        return [value_of(Rebalance, r) for r in _ordered(found, "ended_at").to_pylist()]

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Events of a group's members in [since, until), in order of time."""
        where = _where(group=group, at="changed_at", since=since, until=until)
        found = self.read("memberships", where, since=since, until=until)
        return [value_of(MembershipSpan, r) for r in _ordered(found, "changed_at").to_pylist()]

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Events before a time of those who are members then, since they came; in order of time."""
        where = _where(group=group, at="changed_at", until=at)
        found = _ordered(self.read("memberships", where, until=at), "changed_at")
        # As fleet.model.rebalances.standing, but of a month of stays no row is made.
        order = pa.array(range(len(found)), pa.int64())
        places = pa.table({"member": found["member"], "place": order})
        left = places.filter(pc.equal(found["event"], "left"))
        last = left.group_by("member").aggregate([("place", "max")])
        ended = last["place_max"].take(pc.index_in(found["member"], last["member"]))
        lasts = pc.greater(order, pc.fill_null(ended, -1))
        return [value_of(MembershipSpan, r) for r in found.filter(lasts).to_pylist()]

    def rows(self) -> dict[str, int]:
        """Counts the rows of each table."""
        state = self.state()
        return {name: sum(f.rows for f in self.files(state, name)) for name in TABLES}

    def read(
        self,
        table: str,
        where: Any = None,
        *,
        columns: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> pa.Table:
        """Reads a table's columns of rows that match; days outside of the times are not read.

        `where` is a pyarrow expression.
        """
        names = [n for n in TABLES[table].names if columns is None or n in columns]
        first = "" if since is None else day_of(since)
        last = "~" if until is None else day_of(until)

        def read(state: State | None) -> pa.Table:
            files = [f for f in self.files(state, table) if first <= f.day <= last]
            with self.place.answering():
                return self.place.dataset(table, files).to_table(columns=names, filter=where)

        return self._tried(read)

    def datasets(self, state: State) -> dict[str, Any]:
        """Makes a pyarrow dataset of every table, with its day."""
        return {
            name: self.place.dataset(name, self.files(state, name), day=True) for name in TABLES
        }

    def _tried(self, read: "Callable[[State | None], pa.Table]") -> pa.Table:
        """Reads; again if files or logs of that state were cleared away meanwhile."""
        state = self.state()
        while True:
            try:
                return read(state)
            except FleetError:
                before, state = state, self.state()
                if state == before:
                    raise


def _ordered(found: pa.Table, by: str) -> pa.Table:
    return found.sort_by([(by, "ascending"), ("log_offset", "ascending")])


def _where(
    *,
    group: str | None,
    at: str,
    since: float | None = None,
    until: float | None = None,
    cause: Cause | None = None,
) -> Any:
    """The rows that match, as an expression of pyarrow; None: all."""
    asked = [
        None if group is None else ds.field("group_id") == group,
        None if since is None else ds.field(at) >= since,
        None if until is None else ds.field(at) < until,
        None if cause is None else ds.field("cause") == cause.value,
    ]
    found = [each for each in asked if each is not None]
    return reduce(and_, found) if found else None


# --- writing ----------------------------------------------------------------------------------

_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    # Logs are cut by this writer alone (fleet.history.retention): the state names their versions.
    "delta.enableExpiredLogCleanup": "false",
    # Files that went are deleted after an hour: no time travel.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_MEMORY_FILES: Final = 16
"""Files of a kind of memory that become one."""


def once() -> "CommitProperties":
    """Properties of every commit: on the version that was seen, or CommitFailedError."""
    from deltalake import CommitProperties  # noqa: PLC0415

    return CommitProperties(max_commit_retries=0)


class Writer:
    """Writes the tables: each at the version that it has seen, then the state that names them.

    Opening takes back what a batch that was cut short has committed. Raises FleetError if the
    tables are another cluster's.
    """

    def __init__(self, place: TablePlace, *, cluster: str, clock: Clock, retention: float) -> None:
        self.place = place
        self.clock = clock
        self.retention = retention
        self._deltas = {"state": self._made("state")}
        self._state_files = place.files(self._deltas["state"], "state")
        found = _state_in(place, self._state_files)
        if found is not None and found.cluster != cluster:
            raise FleetError(
                f"{place} holds the history of cluster {found.cluster}, not of {cluster}: "
                "set another history.path for each cluster"
            )
        self._deltas |= {table: self._made(table) for table in TABLES}
        self._seen = {table: delta.version() for table, delta in self._deltas.items()}
        self.cleared: float | None = None
        """When files were last deleted (fleet.history.retention), monotonic."""
        if found is None:
            if any(self._seen[table] for table in TABLES):
                raise FleetError(
                    f"{place} holds tables that this version did not write: set history.path to "
                    "an empty folder"
                )
            now = clock.now()
            self.state = State(number=0, cluster=cluster, at=now, what="none", began=now)
            self._save(self.state)
            return
        self.state = found
        self._seen |= {table: found.versions.get(table, 0) for table in TABLES}
        for table in TABLES:
            self._take_back(table)
            self._add_columns(table)
        if self._versions() != found.versions:
            self._save(found)

    # --- files ------------------------------------------------------------------------------

    def write(self, table: str, rows: Iterable[Mapping[str, Any]]) -> list[DataFile]:
        """Writes rows to files, one for each day."""
        data = pa.Table.from_pylist(list(rows), schema=TABLES[table])
        return list(self.place.write(table, data))

    def files(self, table: str) -> list[DataFile]:
        """Lists the files of a table as this writer sees it."""
        return self.place.files(self._deltas[table], table)

    def memory(self, kind: str) -> Iterator[pa.RecordBatch]:
        """Reads the rows of one kind of the state, the oldest first."""
        mine = [file for file in self._state_files if file.day == kind]
        with self.place.answering():
            yield from (
                self.place.dataset("state", mine)
                .to_table()
                .sort_by("number")
                .to_batches(max_chunksize=10_000)
            )

    # --- commits ----------------------------------------------------------------------------

    def commit(
        self,
        what: str,
        memory: "JobMemory | None" = None,
        *,
        files: Iterable[DataFile] = (),
        **changes: Any,
    ) -> None:
        """Commits files to their tables, then the state with its changes and those of the memory.

        Days past retention are left out. Raises LostLease if another job has written meanwhile:
        then nothing of this is in the tables.
        """
        now = self.clock.now()
        oldest = day_of(now - self.retention)
        kept = [file for file in files if file.day >= oldest]
        for table in TABLES:
            if mine := [file for file in kept if file.table == table]:
                self.change(table, partial(self._transact, mine, ()))
        made = replace(self.state, number=self.state.number + 1, at=now, what=what, **changes)
        self._save(made, memory)

    def change(
        self, table: str, commit: "Callable[[DeltaTable], object]", *, commits: int = 1
    ) -> None:
        """Makes up to `commits` commits to a table, on the version that is known.

        What another one has committed since is taken back, as long as the state is this writer's.
        """
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        delta = self._deltas[table]
        for _ in range(_TRIES):
            with self.place.committing():
                try:
                    commit(delta)
                    delta.update_incremental()
                    if delta.version() <= self._seen[table] + commits:
                        self._seen[table] = delta.version()
                        return
                except CommitFailedError:
                    pass
            if table == "state":
                break
            self._take_back(table)
        raise self._lost()

    @property
    def changed(self) -> bool:
        """Whether tables have versions that the state does not name."""
        return self._versions() != self.state.versions

    def cut_logs(self) -> None:
        """Deletes what is older than an hour and than a checkpoint. All is in the state now."""
        for delta in self._deltas.values():
            with self.place.committing():
                delta.cleanup_metadata()

    # --- the steps --------------------------------------------------------------------------

    def _made(self, table: str) -> "DeltaTable":
        """Opens a table, and creates it if there is none."""
        from deltalake import DeltaTable, Schema  # noqa: PLC0415

        schema, day = (STATE, KIND) if table == "state" else (TABLES[table], DAY)
        with self.place.committing():
            return self.place.open(table) or DeltaTable.create(
                f"{self.place.url}/{table}",
                schema=Schema.from_arrow(schema.append(day)),
                mode="ignore",
                partition_by=[day.name],
                name=table,
                configuration=_SETTINGS,
            )

    def _add_columns(self, table: str) -> None:
        """Adds columns that a release before did not have."""
        from deltalake import Schema  # noqa: PLC0415

        known = {each.name for each in self._deltas[table].schema().fields}
        wanted = Schema.from_arrow(TABLES[table]).fields
        if added := [each for each in wanted if each.name not in known]:
            self.change(
                table, lambda delta: delta.alter.add_columns(added, commit_properties=once())
            )

    def _take_back(self, table: str) -> None:
        """Restores a table to the version that is known, if it is another.

        Raises LostLease if the state is not this writer's any more.
        """
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        delta, known = self._deltas[table], self._seen[table]
        with self.place.committing():
            delta.update_incremental()
            if delta.version() < known:
                raise FleetError(
                    f"{self.place}/{table} is at version {delta.version()}, but the state names "
                    f"{known}: its log is truncated; restore the folder, or set another "
                    "history.path"
                )
            if delta.version() > known:
                self._require_state()
                try:
                    delta.restore(known, commit_properties=once())
                except CommitFailedError as error:
                    raise self._lost() from error
        self._seen[table] = delta.version()

    def _require_state(self) -> None:
        """Raises LostLease if another job has committed the state."""
        delta = self._deltas["state"]
        with self.place.committing():
            delta.update_incremental()
        if delta.version() != self._seen["state"]:
            raise self._lost()

    def _lost(self) -> LostLease:
        found = Tables(self.place.url).state()
        other = found.writer if found and found != self.state else "another program"
        return LostLease(
            f"another `fleet history sync` writes {self.place} ({other}), so this one discarded "
            "its batch; run one at a time"
        )

    def _transact(
        self, added: Sequence[DataFile], removed: Sequence[DataFile], delta: "DeltaTable"
    ) -> None:
        """Commits files of one table to its log."""
        from deltalake import Schema  # noqa: PLC0415
        from deltalake.transaction import AddAction, RemoveAction  # noqa: PLC0415

        table = added[0].table
        schema, day = (STATE, KIND) if table == "state" else (TABLES[table], DAY)
        now = round(self.clock.now() * 1000)
        delta.create_write_transaction(
            [
                *(
                    AddAction(f.name, f.bytes, {day.name: f.day}, now, True, _counted(f.rows))
                    for f in added
                ),
                *(RemoveAction(f.name, True, now, f.bytes, {day.name: f.day}) for f in removed),
            ],
            mode="append",
            schema=Schema.from_arrow(schema.append(day)),
            partition_by=[day.name],
            commit_properties=once(),
        )

    def _versions(self) -> dict[str, int]:
        return {table: self._seen[table] for table in TABLES if self._seen[table]}

    def _save(self, state: State, memory: "JobMemory | None" = None) -> None:
        """Commits the state, which makes everything of it visible."""
        made = replace(state, versions=self._versions(), writer=_this_process())
        text = _codec(State).dump_json(made).decode()
        rows = {"job": pa.Table.from_pylist([{"number": made.number, "state": text}], schema=STATE)}
        gone = {"job"}
        if memory is not None:
            counts = Counter(file.day for file in self._state_files)
            gone |= {kind for kind in memory.kinds if counts[kind] >= _MEMORY_FILES}
            for kind in memory.kinds:
                data = memory.whole(kind) if kind in gone else memory.changed(kind)
                number = pa.repeat(pa.scalar(made.number, pa.int64()), data.num_rows)
                rows |= {kind: data.set_column(0, STATE[0], number)}
        added = [
            file
            for kind, data in rows.items()
            if data.num_rows
            for file in self.place.write("state", data, kind)
        ]
        removed = [file for file in self._state_files if file.day in gone]
        self.change("state", partial(self._transact, added, removed))
        kept = [file for file in self._state_files if file.day not in gone]
        self._state_files, self.state = [*kept, *added], made
        if memory is not None:
            memory.saved()


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _counted(rows: int) -> str:
    """What lets a reader count without opening the file."""
    return json.dumps({"numRecords": rows})
