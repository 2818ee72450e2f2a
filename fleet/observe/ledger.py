"""Reads what the coordinator recorded, for receipts and budgets."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fleet.kafka_source.broker_settings import SessionQueries
from fleet.log.records import Record, Unreadable
from fleet.log.replay.causes import Replay
from fleet.log.replay.counting import count
from fleet.model import GroupState
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.model.sessions import SessionLookup, no_session_lookup
from fleet.observe.admin import Observer

if TYPE_CHECKING:
    from fleet.log.readers.group_log import GroupLog


class CoordinatorLedger:
    """Reads `__consumer_offsets`; every answer is None if Fleet may not read it.

    `sessions` distinguishes a removal of a KIP-848 member from an expiry; None: unknown.
    """

    def __init__(
        self, log: "GroupLog", observer: Observer, sessions: SessionQueries | None = None
    ) -> None:
        self._log = log
        self._observer = observer
        self._sessions = sessions
        self._before: dict[tuple[str, int], tuple[Record, ...]] = {}

    def close(self) -> None:
        """Closes the log's connection."""
        self._log.close()

    def position(self, group: str) -> int | None:
        """Returns where the group's records end now."""
        try:
            return self._log.position(group)
        except Unreadable:
            return None

    def counted(self, group: str, since: int) -> RebalanceCounts | None:
        """What was recorded from the position `since` to now."""
        try:
            key = (group, since)
            if key not in self._before:
                self._before = {key: self._log.last_state(group, since)}
            return self._count(group, self._log.read(group, since), self._before[key])
        except Unreadable:
            return None

    def recorded_since(self, group: str, at: float) -> int | None:
        """Counts the rebalances since a wall time."""
        try:
            records, before = self._since(group, at)
            return self._count(group, records, before).rebalances
        except Unreadable:
            return None

    def rebalances(self, group: str, *, cluster: str, since: float) -> list[Rebalance] | None:
        """The rebalances since a wall time, with the causes that the history gives them.

        Those that have begun and not ended come last.
        """
        try:
            records, before = self._since(group, since)
            partition = self._log.partition_of(group)
        except Unreadable:
            return None
        replay, place = Replay(cluster, group), -1 if partition is None else partition
        replay.ask_session(self._session_of(group))
        for record in before:
            replay.feed(place, record)
        made = [row for record in records for row in replay.feed(place, record)]
        ended = [row for row in made if isinstance(row, Rebalance)]
        return [*ended, *replay.pending()]

    def _count(
        self, group: str, records: Sequence[Record], before: Sequence[Record]
    ) -> RebalanceCounts:
        return count(records, before=before, session=self._session_of(group))

    def _session_of(self, group: str) -> SessionLookup:
        return no_session_lookup if self._sessions is None else partial(self._sessions.of, group)

    def _since(self, group: str, at: float) -> tuple[Sequence[Record], tuple[Record, ...]]:
        """The group's records since a wall time, and the state before them."""
        first = self._log.position_at(group, at)
        before = self._log.last_state(group, first)
        return self._log.read(group, first), before

    def state(self, group: str) -> GroupState:
        """The group's state now; Dead where it does not exist."""
        return self._observer.state(group)
