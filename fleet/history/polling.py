"""The fallback's job: one look at all groups, its differences and lag, one manifest."""

from collections.abc import Callable, Collection

from fleet.history.compaction import compacted
from fleet.history.job import Done, commit
from fleet.history.job_memory import JobMemory
from fleet.history.lag_rows import polled_rows
from fleet.history.polled import compared
from fleet.history.tables.table_columns import LAG, MEMBERSHIPS, REBALANCES
from fleet.history.tables.table_rows import membership_row, rebalance_row
from fleet.history.tables.writing import Writer
from fleet.lag.snapshot import Snapshot
from fleet.model.rebalances import Rebalance


class Poller:
    """Brings the tables up to date by looking. `wanted` says which groups."""

    def __init__(
        self, writer: Writer, *, look: Callable[[], Snapshot], wanted: Callable[[str], bool]
    ) -> None:
        self._writer = writer
        self._look = look
        self._wanted = wanted
        self._memory = JobMemory.read(writer.place, writer.manifest)

    def catch_up(self, *, stopped: Callable[[], bool] = lambda: False) -> Done:
        """One look."""
        writer = self._writer
        began = writer.clock.monotonic()
        seen = self._look().only(self._wanted)
        made = compared(self._memory, seen)
        rebalances = [rebalance_row(each) for each in made if isinstance(each, Rebalance)]
        members = [membership_row(each) for each in made if not isinstance(each, Rebalance)]
        lag = list(polled_rows(self._memory, seen))
        attempt = writer.attempt()
        files = [
            *writer.write(attempt, "rebalances", REBALANCES, rebalances, "ended_at"),
            *writer.write(attempt, "memberships", MEMBERSHIPS, members, "changed_at"),
            *writer.write(attempt, "lag", LAG, lag, "sampled_at"),
        ]
        commit(writer, self._memory, attempt, "polled", files)
        done = Done(batches=1, groups={row["group_id"] for row in rebalances}, polled=True)
        for file in files:
            done.rows[file.table] += file.rows
        done.causes.update(row["cause"] for row in rebalances)
        if not stopped():
            done.compacted = self._compact(there=seen.groups.keys())
        done.seconds = writer.clock.monotonic() - began
        return done

    def _compact(self, *, there: Collection[str]) -> int:
        """As the other job does; there: groups that were just seen, however long unchanged."""
        oldest = self._writer.clock.now() - self._writer.retention
        self._memory.forget_quiet(before=oldest, there=there)
        merged = compacted(self._writer, self._memory)
        self._writer.clear_away_if_due()
        return merged
