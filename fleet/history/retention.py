"""Merges files, thins lag, and deletes old days and files of the history. All by Delta.

Problem: a batch every ten seconds leaves some 20,000 files a day, and every reader pays for each.
If records wait, every look writes a row of `lag` for every partition: 1,000 groups that wait on 48
partitions are 400 million rows, 3 GB, a day. Choice: if a table's day has 16 small files, delta-rs
merges them. A day of `lag` keeps after a day the last row of each minute, and after a week that of
each ten minutes, of each partition and case. Days past retention are deleted. Files that no version
names any more are vacuumed after an hour, so that readers under way keep theirs. The state names
the new versions afterwards. Cost: a row is rewritten a few times, a day of `lag` twice.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from fleet.history.digest import codes, runs
from fleet.history.memory import JobMemory
from fleet.history.tables import DAY, LAG, TABLES, DataFile, Writer, day_of, once

if TYPE_CHECKING:
    from deltalake import DeltaTable

MANY: Final = 16
SMALL: Final = 32 << 20
KEPT_HOURS: Final = 1
"""How long replaced files stay for readers that are under way."""
_LARGE: Final = 128 << 20
_DAY: Final = 86_400.0
AGES: Final = ((600, 7 * _DAY), (60, _DAY))
"""Seconds of which `lag` keeps one row, of days that are older than that."""
_HOUR: Final = 3600.0


def tidy(
    writer: Writer,
    memory: JobMemory | None = None,
    *,
    there: Collection[str] = (),
    thoroughly: bool = False,
) -> int:
    """Does what is due and commits it; how many files were merged.

    there: groups that are not to be forgotten, as they were just seen. `thoroughly`: merges
    whatever is more than one file, and thins all days at once.
    """
    before, merged = writer.clock.now() - writer.retention, 0
    oldest = day_of(before)
    if memory is not None:
        memory.forget_quiet(before=before, there=there)
    for table in TABLES:
        files = writer.files(table)
        if any(file.day < oldest for file in files):
            writer.change(table, partial(_delete, oldest))
        for day in _crowded(files, oldest, thoroughly=thoroughly):
            count = len(writer.files(table))
            writer.change(table, partial(_compact, day, _LARGE if thoroughly else SMALL))
            merged += count - len(writer.files(table)) + 1
    done = _thin(writer, every_day=thoroughly)
    if writer.changed or done != writer.state.thinned:
        writer.commit("compaction", memory, thinned=done)
    now = writer.clock.monotonic()
    if thoroughly or writer.cleared is None or now - writer.cleared >= KEPT_HOURS * _HOUR:
        clear_old_days(writer)
        writer.cleared = now
    return merged


def clear_old_days(writer: Writer, *, hours: int = KEPT_HOURS) -> int:
    """Deletes files that no version has named for so many hours; how many."""
    gone: list[str] = []
    for table in ("state", *TABLES):
        writer.change(table, partial(_vacuum, gone, hours), commits=2)
    if writer.changed:
        writer.commit("compaction")
    writer.cut_logs()
    return len(gone)


def _vacuum(gone: list[str], hours: int, delta: "DeltaTable") -> None:
    how: Any = {"dry_run": False, "enforce_retention_duration": False, "full": True}
    gone += delta.vacuum(hours, **how, commit_properties=once())


def _delete(oldest: str, delta: "DeltaTable") -> None:
    delta.delete(f"day < '{oldest}'", commit_properties=once())


def _compact(day: str, size: int, delta: "DeltaTable") -> None:
    where: Any = [("day", "=", day)]
    delta.optimize.compact(
        where, target_size=size, writer_properties=_zstd(), commit_properties=once()
    )


def _zstd() -> Any:
    from deltalake import WriterProperties  # noqa: PLC0415

    return WriterProperties(compression="ZSTD")


def _crowded(files: Sequence[DataFile], oldest: str, *, thoroughly: bool) -> list[str]:
    """Days with many small files, or with two, the newest first."""
    most, many = (_LARGE, 2) if thoroughly else (SMALL, MANY)
    counts = Counter(f.day for f in files if f.bytes < most and f.day >= oldest)
    return sorted((day for day, count in counts.items() if count >= many), reverse=True)


def _thin(writer: Writer, *, every_day: bool) -> dict[int, str]:
    """Thins the oldest days of `lag` that are due; up to which days it is done."""
    now, done = writer.clock.now(), dict(writer.state.thinned)
    days = sorted({file.day for file in writer.files("lag")})
    last = ""
    for every, age in AGES:
        last = max(last, done.get(every, ""))
        due = [day for day in days if last < day < day_of(now - age)]
        for day in due if every_day else due[:1]:
            writer.change("lag", partial(_rewrite, writer, day, every))
            last = done[every] = day
    return done


def _rewrite(writer: Writer, day: str, every: int, delta: "DeltaTable") -> None:
    """Replaces a day of `lag` by the last row of each stretch; an hour of it is held."""
    from deltalake import write_deltalake  # noqa: PLC0415

    place = writer.place
    files = [file for file in place.files(delta, "lag") if file.day == day]
    with place.answering():
        rows = place.dataset("lag", files)
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
        kept = []
        for hour in range(24):
            start = begin + hour * _HOUR
            at = ds.field("sampled_at")
            kept.append(
                thin_rows(rows.to_table(filter=(at >= start) & (at < start + _HOUR)), every)
            )
    data = pa.concat_tables(kept)
    days = pa.repeat(pa.scalar(datetime.fromisoformat(day).date()), data.num_rows)
    write_deltalake(
        delta,
        data.append_column(DAY, days),
        mode="overwrite",
        predicate=f"day = '{day}'",
        partition_by=[DAY.name],
        writer_properties=_zstd(),
        commit_properties=once(),
    )


def thin_rows(rows: pa.Table, every: int) -> pa.Table:
    """Of rows of `lag` the last of each partition, case and stretch of `every` s, by time."""
    if not rows.num_rows:
        return LAG.empty_table()
    rows = rows.sort_by("sampled_at").combine_chunks()
    keys = [codes(rows[name]) for name in ("group_id", "topic", "lag_case")]
    stretch = (np.asarray(rows["sampled_at"]) // every).astype(np.int64)
    order, begins = runs([*keys, np.asarray(rows["topic_partition"]), stretch])
    ends = np.append(begins[1:], len(order))
    return rows.take(pa.array(np.sort(order[ends - 1])))
