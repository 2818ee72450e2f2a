"""The tables as other programs open them, by name: a Delta Lake log beside each table's files.

Problem: DuckDB, pandas, Spark and Trino know no manifest of ours; from a folder they take every
Parquet file in it, those too that compaction has replaced or that a killed attempt left. And a
batch writes five tables, while no table format commits more than one at once. Choice: the
manifest stays the one commit of all tables; after it, what it names is put into the Delta log of
each table in which something changed: one Delta commit with the files that came and those that
went, written by delta-rs (`deltalake`), with the manifest's number as its transaction version.
What a log says is never guessed from what was done, but compared with the manifest: a process
that is killed between the two, at any step, leaves logs one manifest old, and whoever writes next
makes up for it first. Two writers cannot both do so: delta-rs refuses a commit on top of a
transaction of the same application that it has not read.

Tried: Iceberg (pyiceberg 0.12) takes existing files and removals in one commit too, at 100 ms each;
but its tables are found by a catalog and not by their folder: one more database beside the store.
A writer of our own would have to write checkpoints as well. PySpark 4.3 without further jars reads
neither format: with Delta's it does by name, without them by the files that the log lists.

Cost: 15 to 20 ms for each table of a batch, 50 MB of a package that is optional
(EXTRA), some 80 MB of memory of the writing process; a Delta reader sees the tables of one batch
one after the other, within a second.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fleet.errors import FleetError, LostLease, Unreachable
from fleet.extras import pip_line
from fleet.history.tables.table_columns import DAY, TABLES
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import DataFile, Manifest

EXTRA: Final = pip_line("history")
APPLICATION: Final = "fleet-history"
"""Of the transactions in the logs; their versions are numbers of manifests."""
_TRIES: Final = 3
_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    # Files that went are deleted after minutes (fleet.history.tables.writing): no time travel.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}


def installed() -> bool:
    """Whether tables can be published here."""
    try:
        import deltalake  # noqa: F401, PLC0415 - 80 MB of memory, only for who writes
    except ImportError:
        return False
    return True


class Published:
    """The logs of all tables of a folder. Only for the one that holds its lock or lease."""

    def __init__(self, place: TableFolder) -> None:
        self._place = place
        self._logs: dict[str, _Log] = {}
        self._number = -1

    def follow(self, manifest: Manifest) -> None:
        """Make every log say what a manifest names; nothing where it does already.

        Without the package nothing is done, as long as nothing was ever published. Raises
        LostLease where somebody else publishes, Unreachable where the logs cannot be written.
        """
        if not installed():
            self._refuse_to_fall_behind()
            return
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415

        for left in reversed(range(_TRIES)):
            try:
                self._follow(manifest)
            except CommitFailedError as error:  # somebody wrote a log since we read it
                self._forget()
                if not left:
                    raise LostLease(
                        f"somebody else publishes the tables of {self._place} ({error}): look who "
                        "runs `fleet history` there, and start again"
                    ) from error
            except (DeltaError, OSError) as error:
                self._forget()
                raise Unreachable(
                    f"the tables of {self._place} cannot be published as Delta tables: {error}; "
                    "what was recorded is safe, and the next run publishes it"
                ) from error
            else:
                return

    def _follow(self, manifest: Manifest) -> None:
        merged = manifest.what == "compaction" and manifest.number == self._number + 1
        commit = _Commit(manifest.number, round(manifest.at * 1000), merged)
        for table in TABLES:
            if table not in self._logs:
                self._logs[table] = _Log(self._place, table)
            files = {f.name: f for f in manifest.of(table) if not f.old}
            self._logs[table].follow(files, commit)
        self._number = manifest.number

    def _forget(self) -> None:
        """Read the logs anew before the next commit."""
        self._logs.clear()
        self._number = -1

    def _refuse_to_fall_behind(self) -> None:
        for table in TABLES:
            log = self._place.full(f"{table}/_delta_log")
            with self._place.answering():
                kind = self._place.fs.get_file_info(log).type.name
            if kind == "Directory":
                raise FleetError(
                    f"{self._place} is published as Delta tables, and this Python has no package "
                    f"to go on with it: {EXTRA}"
                )


class _Commit(NamedTuple):
    """A manifest as a log takes it."""

    number: int
    at_ms: int
    merged: bool
    """Compaction alone: where rows became no more, those who follow a log need not look."""


class _Listed(NamedTuple):
    """A file as a log has it."""

    bytes: int
    day: str
    rows: int


class _Log:
    """The log of one table, made where there is none."""

    def __init__(self, place: TableFolder, table: str) -> None:
        from deltalake import DeltaTable, Schema  # noqa: PLC0415

        self._table = table
        self._schema = Schema.from_arrow(TABLES[table].append(DAY))
        self._delta: Any = DeltaTable.create(
            place.for_delta(table),
            schema=self._schema,
            mode="ignore",
            partition_by=[DAY.name],
            name=table,
            configuration=_SETTINGS,
        )
        known = {field.name for field in self._delta.schema().fields}
        if added := [field for field in self._schema.fields if field.name not in known]:
            self._delta.alter.add_columns(added)
        self._number = self._delta.transaction_version(APPLICATION) or 0
        self._files: Mapping[str, _Listed] = {
            f"{table}/{row['path']}": _Listed(
                row["size_bytes"], str(row["partition.day"]), row["num_records"]
            )
            for row in pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        }

    def follow(self, files: Mapping[str, DataFile], commit: _Commit) -> None:
        """One commit of what differs, if anything does."""
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction  # noqa: PLC0415

        if self._number > commit.number:
            raise LostLease(
                f"table {self._table} is published up to manifest {self._number} already, and this "
                f"is manifest {commit.number}: somebody else writes there, or manifests were "
                "taken away; look who runs `fleet history` there"
            )
        now = {name: _Listed(f.bytes, f.day, f.rows) for name, f in files.items()}
        came = {name: f for name, f in now.items() if name not in self._files}
        gone = {name: f for name, f in self._files.items() if name not in now}
        if not came and not gone:
            return
        more = sum(f.rows for f in came.values()) > sum(f.rows for f in gone.values())
        root, at_ms, changed = len(self._table) + 1, commit.at_ms, more or not commit.merged
        added = [
            AddAction(name[root:], f.bytes, {DAY.name: f.day}, at_ms, changed, _statistics(f.rows))
            for name, f in came.items()
        ]
        removed = [
            RemoveAction(name[root:], changed, at_ms, f.bytes, {DAY.name: f.day})
            for name, f in gone.items()
        ]
        self._delta.create_write_transaction(
            [*added, *removed],
            mode="append",
            schema=self._schema,
            partition_by=[DAY.name],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(APPLICATION, commit.number, at_ms)]
            ),
        )
        self._delta.update_incremental()
        self._number = commit.number
        self._files = now


def _statistics(rows: int) -> str:
    """What lets a reader count without opening the file."""
    return json.dumps({"numRecords": rows})
