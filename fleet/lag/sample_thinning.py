"""Stored end offsets grow fewer as they grow old, some hundred partitions at a time.

Problem: all samples of 16,000 partitions are seconds of work, during which nobody else can write;
a command lives for one look and cannot know what was done before. Choice: a row for each portion
of the partitions says when it was last thinned, for every process that reads the file: a look does
only what nobody did within the minute, of that only the oldest few portions, each in a transaction
of its own, and each looks only at what grew too old since. What no look has seen for as long as a
sample is kept is forgotten, name and all. Cost: a partition keeps the samples of a few looks more
where there are thousands of partitions and few looks.
"""

import sqlite3
from typing import Final

KEEP: Final = 32 * 86_400.0
"""Seconds a sample is kept: longer than any `max_lag` or `alerts.lag` can be, 30 days."""
THINNED: Final = (
    (300.0, 60.0),
    (1800.0, 300.0),
    (7200.0, 3600.0),
    (28_800.0, 14_400.0),
    (86_400.0, 86_400.0),
    (345_600.0, 345_600.0),
)
"""(older than, the first and the last sample in), seconds: an age is known to a fraction of itself.

Both, since a log may stop and go on: where it began to stand is the last of its time, and where it
was last seen to stand the first.
"""
PORTION: Final = 512
"""Partitions, by number in the file, that are thinned at once: some 10 ms, the first time 50."""
_PORTIONS: Final = 4
"""Portions that one look thins: whoever looks at the same time does not wait for all of them."""
_EVERY: Final = 60.0

# Beside the tables of schema 1: a release that does not know it thins as if nobody had.
TABLE: Final = """
CREATE TABLE IF NOT EXISTS thinned (
    portion INTEGER PRIMARY KEY, at REAL NOT NULL, forgotten INTEGER NOT NULL
)
"""

# Rows are chosen before any is deleted: SQLite 3.40 skips some of a table WITHOUT ROWID whose rows
# it deletes while it walks through the partitions.
_OF_PORTION: Final = (
    "DELETE FROM sample WHERE (partition, at) IN (SELECT old.partition, old.at"
    " FROM partition AS p CROSS JOIN sample AS old"
    " WHERE p.id >= :first AND p.id < :beyond AND old.partition = p.id AND old.at < :older"
)
_TOO_OLD: Final = f"{_OF_PORTION})"
_TOO_MANY: Final = (
    f"{_OF_PORTION} AND old.at >= :since"  # noqa: S608 - our own text
    " AND EXISTS (SELECT 1 FROM sample AS kept"
    " WHERE kept.partition = old.partition AND kept.at < old.at"
    " AND kept.at >= CAST(old.at / :one AS INTEGER) * :one)"
    " AND EXISTS (SELECT 1 FROM sample AS kept"
    " WHERE kept.partition = old.partition AND kept.at > old.at"
    " AND kept.at < CAST(old.at / :one + 1 AS INTEGER) * :one))"
)
# The largest number stays: numbers are given upwards from it, and none is given twice, so that
# nobody who remembers one writes to another partition.
_UNSEEN: Final = (
    "DELETE FROM partition WHERE id >= :first AND id < :beyond"
    " AND id < (SELECT MAX(id) FROM partition)"
    " AND NOT EXISTS (SELECT 1 FROM sample WHERE sample.partition = partition.id)"
)


def due(db: sqlite3.Connection, now: float) -> list[int]:
    """The few portions that were thinned longest ago, none of them within the last minute."""
    last = dict(db.execute("SELECT portion, at FROM thinned").fetchall())
    rows = db.execute("SELECT DISTINCT id / ? FROM partition", (PORTION,)).fetchall()
    waited = {portion: abs(now - last.get(portion, float("-inf"))) for (portion,) in rows}
    waiting = [portion for portion, seconds in waited.items() if seconds >= _EVERY]
    return sorted(waiting, key=lambda portion: -waited[portion])[:_PORTIONS]


def thin(db: sqlite3.Connection, portion: int, now: float) -> None:
    """Thin one portion, in the transaction that is open. Wall time.

    Of the rows that grew too old since the last time, or of all at first and where the clock was
    set back.
    """
    row = db.execute("SELECT at, forgotten FROM thinned WHERE portion = ?", (portion,)).fetchone()
    last, forgotten = row or (float("-inf"), 0)
    if abs(now - last) < _EVERY:
        return  # another process was faster
    before = last if last <= now else float("-inf")
    of = {"first": portion * PORTION, "beyond": (portion + 1) * PORTION}
    if db.execute(_TOO_OLD, {**of, "older": now - KEEP}).rowcount:
        forgotten += db.execute(_UNSEEN, of).rowcount
    for older, one_in in THINNED:
        since = before - older - one_in
        db.execute(_TOO_MANY, {**of, "since": since, "older": now - older, "one": one_in})
    db.execute("INSERT OR REPLACE INTO thinned VALUES (?, ?, ?)", (portion, now, forgotten))


def marks(db: sqlite3.Connection) -> tuple[float, float]:
    """Two figures: one is another as soon as anything was thinned, the other as soon as a
    partition was forgotten, by whichever process.
    """
    thinned, forgotten = db.execute("SELECT TOTAL(at), TOTAL(forgotten) FROM thinned").fetchone()
    return float(thinned), float(forgotten)
