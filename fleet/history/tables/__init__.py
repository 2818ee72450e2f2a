"""The tables as anybody reads them: by pyarrow, without Spark.

Only files that the latest manifest names are read, so a batch that is being written is not
seen, and one that was seen stays whole. What a manifest replaced stays for some minutes
(`fleet.history.tables.writing`); a reader that is slower than that begins again with the new one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import DataFile, Manifest, latest
from fleet.history.tables.table_rows import membership_of, rebalance_of
from fleet.model import LagCase, TopicPartition
from fleet.model.rebalances import Cause, Known, MembershipSpan, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """Lag of one partition of one group at one moment; None where it cannot be said."""

    at: float
    tp: TopicPartition
    committed: int | None
    committed_at: float | None
    log_end: int | None
    records: int | None
    seconds: float | None
    case: LagCase
    known: Known


class Tables:
    """The history at a path.

    Raises FleetError where what is there is no history or is damaged, Unreachable where the place
    does not answer.
    """

    def __init__(self, path: str | Path) -> None:
        self.place = TableFolder(path)

    def manifest(self) -> Manifest | None:
        """What there is now; None where nothing was recorded yet."""
        return latest(self.place)

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances that ended in [since, until), in order of their end."""
        where = _where(group=group, at="ended_at", since=since, until=until)
        if cause is not None:
            where = _and(where, _field("cause") == cause.value)
        found = self.read("rebalances", where, since=since, until=until)
        return [rebalance_of(r) for r in _ordered(found, "ended_at").to_pylist()]

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Events of a group's members in [since, until), in order of time."""
        where = _where(group=group, at="changed_at", since=since, until=until)
        found = self.read("memberships", where, since=since, until=until)
        return [membership_of(r) for r in _ordered(found, "changed_at").to_pylist()]

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Events before a time of those who are members then, since they came; in order of time."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        where = _where(group=group, at="changed_at", since=None, until=at)
        found = _ordered(self.read("memberships", where, until=at), "changed_at")
        # As fleet.model.rebalances.standing, but of a month of stays no row is made.
        order = pa.array(range(len(found)), pa.int64())
        places = pa.table({"member": found["member"], "place": order})
        left = places.filter(pc.equal(found["event"], "left"))
        last = left.group_by("member").aggregate([("place", "max")])
        ended = last["place_max"].take(pc.index_in(found["member"], last["member"]))
        lasts = pc.greater(order, pc.fill_null(ended, -1))
        return [membership_of(r) for r in found.filter(lasts).to_pylist()]

    def lag(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[LagPoint]:
        """The group's lag by partition in [since, until), in order of time."""
        where = _where(group=group, at="sampled_at", since=since, until=until)
        found = self.read("lag", where, since=since, until=until).sort_by("sampled_at")
        return [
            LagPoint(
                at=r["sampled_at"],
                tp=TopicPartition(r["topic"], r["topic_partition"]),
                committed=r["committed"],
                committed_at=r["committed_at"],
                log_end=r["log_end"],
                records=r["records"],
                seconds=r["seconds"],
                case=LagCase(r["lag_case"]),
                known=Known(r["known"]),
            )
            for r in found.to_pylist()
        ]

    def rows(self) -> dict[str, int]:
        """Rows of each table, by the manifest."""
        from fleet.history.tables.table_columns import TABLES  # noqa: PLC0415 - loads pyarrow

        manifest = self.manifest()
        files = () if manifest is None else manifest.files
        return {name: sum(f.rows for f in files if f.table == name) for name in TABLES}

    def files(self, table: str) -> list[str]:
        """Addresses of a table's files, for `spark.read.parquet(*files)` or any other reader."""
        manifest = self.manifest()
        return [self.place.for_spark(f.name) for f in (manifest.of(table) if manifest else ())]

    def read(
        self,
        table: str,
        where: Any = None,
        *,
        columns: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> "pa.Table":
        """A table's columns as Arrow, of rows that match; days outside of the times are not read.

        `where` is a pyarrow expression.
        """
        import pyarrow as pa  # noqa: PLC0415

        from fleet.history.tables.table_columns import TABLES  # noqa: PLC0415

        schema = TABLES[table]
        names = [n for n in schema.names if columns is None or n in columns]
        first = "" if since is None else day_of(since)
        last = "~" if until is None else day_of(until)

        def read(manifest: Manifest) -> "pa.Table":
            files = [f for f in manifest.of(table) if first <= f.day <= last]
            now = self._dataset([f for f in files if not f.old], schema)
            found = now.to_table(columns=names, filter=where)
            old = [f for f in files if f.old]
            return pa.concat_tables([found, self._old(table, old, where).select(names)])

        return self._tried(read)

    def datasets(self, manifest: Manifest) -> dict[str, Any]:
        """Every table with its day as a pyarrow dataset; files of the first layout left out."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.dataset as ds  # noqa: PLC0415

        from fleet.history.tables.table_columns import DAY, TABLES  # noqa: PLC0415

        days = ds.partitioning(pa.schema([DAY]), flavor="hive")
        with self.place.reading():
            return {
                name: self._dataset(
                    [f for f in manifest.of(name) if not f.old],
                    schema.append(DAY),
                    partitioning=days,
                )
                for name, schema in TABLES.items()
            }

    def _dataset(self, files: Collection[DataFile], schema: "pa.Schema", **more: Any) -> Any:
        import pyarrow.dataset as ds  # noqa: PLC0415

        if not files:
            return ds.dataset(schema.empty_table())
        paths = [self.place.full(f.name) for f in files]
        return ds.dataset(paths, schema=schema, format="parquet", filesystem=self.place.fs, **more)

    def _old(self, table: str, files: Collection[DataFile], where: Any) -> "pa.Table":
        """Rows of files that compaction has not yet brought into the present layout."""
        from fleet.history.tables.table_columns import TABLES, before  # noqa: PLC0415

        found = self._dataset(files, before(table)).to_table().rename_columns(TABLES[table].names)
        return found if where is None else found.filter(where)

    def _tried(self, read: "Callable[[Manifest], pa.Table]") -> "pa.Table":
        empty = Manifest(number=0, cluster="", at=0.0, what="none")
        for left in reversed(range(_TRIES)):
            manifest = self.manifest() or empty
            with self.place.reading():
                try:
                    return read(manifest)
                except FileNotFoundError:  # compacted away meanwhile: the next manifest knows
                    if not left:
                        raise
        raise AssertionError


def day_of(at: float) -> str:
    """The UTC day of a time in seconds."""
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(max(0.0, at), UTC).strftime("%Y-%m-%d")


def _ordered(found: "pa.Table", by: str) -> "pa.Table":
    return found.sort_by([(by, "ascending"), ("log_offset", "ascending")])


def _field(name: str) -> Any:
    import pyarrow.dataset as ds  # noqa: PLC0415

    return ds.field(name)


def _and(one: Any, other: Any) -> Any:
    return other if one is None else one & other


def _where(*, group: str | None, at: str, since: float | None, until: float | None) -> Any:
    made = None
    if group is not None:
        made = _field("group_id") == group
    if since is not None:
        made = _and(made, _field(at) >= since)
    if until is not None:
        made = _and(made, _field(at) < until)
    return made
