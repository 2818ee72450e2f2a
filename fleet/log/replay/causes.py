"""Derives one group's rebalances with their causes, and its members over time. Incremental, pure.

Problem: no record names the cause of a rebalance. The records only show the state afterwards, and
a reader may stop at any record. Choice: one `Replay` per group takes records in log order and
returns rows as soon as they are certain. Its whole state is a small JSON value, so that another
process may continue. State keeping (`group_state`, `classic`, `epochs`) is separate from the rules
that name a cause (`reasons`). Cost: a reader that starts in the middle of the log cannot explain
the first rebalance that it sees, and says so.

What each cause rests on, and what the log cannot tell, is in docs/concepts/causes.md; the records
are in docs/contributing/protocol.md 3.4 to 3.6.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.errors import SchemaTooNew
from fleet.log.records import GroupMetadata, OffsetCommit, Record, Tombstone, Undecoded
from fleet.log.replay.classic import ClassicReplay
from fleet.log.replay.epochs import Epochs
from fleet.log.replay.group_state import (
    AskedCommits,
    ReplayedCommit,
    ReplayedGroup,
    ReplayedMember,
    StartBounds,
)
from fleet.model import TopicPartition
from fleet.model.rebalances import MembershipSpan, Rebalance, TimeSource
from fleet.model.sessions import SessionLookup

__all__ = ["SCHEMA", "Replay", "ReplayedCommit", "ReplayedMember"]

SCHEMA: Final = 1


class Replay:
    """One group's rebalances and members, as its records tell them.

    Records are fed in order of the log; of one that was fed before (same partition, no higher
    offset) nothing comes, so that a reader may start again a little earlier. No record raises,
    whatever it holds.
    """

    def __init__(self, cluster: str, group: str) -> None:
        self._state = ReplayedGroup(cluster, group)
        self._classic = ClassicReplay()
        self._epochs = Epochs()
        self._offset = -1

    def feed(self, partition: int, record: Record) -> list[Rebalance | MembershipSpan]:
        """What this record completes, oldest first; often nothing.

        `partition` is that of `__consumer_offsets`. A KIP-848 rebalance comes once its end is
        known; until then it is `pending`.
        """
        if partition != self._state.log_partition:
            self._state.log_partition, self._offset = partition, -1
        if record.offset <= self._offset:
            return []
        self._offset = record.offset
        self._state.moved = []
        if isinstance(record, OffsetCommit):
            self._state.commit(record)
            return []
        if isinstance(record, GroupMetadata):
            return self._classic.feed(self._state, record)
        if isinstance(record, Undecoded):
            return []
        if isinstance(record, Tombstone) and record.type <= 2:
            return self._deleted(record)
        return self._epochs.feed(self._state, record)

    def note_commit(
        self,
        tp: TopicPartition,
        committed: int | None,
        *,
        at: float,
        gap: float | None,
        early: bool,
        topic_id: str | None,
    ) -> None:
        """The last commit of a partition before the next record, for who feeds no commits.

        at in seconds; gap is the usual time between two, `early` whether this one came sooner
        than half of it; committed None: the offset was deleted.
        """
        if committed is None:
            self._state.commits.pop(tp, None)
            return
        if topic_id is not None and topic_id not in self._state.learnt:
            self._state.learn(topic_id, tp.topic)
        self._state.commits[tp] = ReplayedCommit(committed, at, gap, early)

    def _deleted(self, record: Tombstone) -> list[Rebalance | MembershipSpan]:
        if record.type == 2:
            if self._state.protocol == "classic":
                self._state.closed_at = record.timestamp_ms / 1000
                self._classic = ClassicReplay()
        elif record.tp is not None:
            self._state.commits.pop(record.tp, None)
        return []

    def name_topics(self, names: Mapping[str, str]) -> None:
        """Topic names by topic id, for KIP-848 records; give them again after `from_json`.

        The first mapping is kept by reference, for many groups may share one; a few more names
        may come later.

        Commits name the ids of their own topics, so that only what never was committed to
        needs this.
        """
        self._state.give(names)

    def ask_commits(self, find: Callable[[TopicPartition], ReplayedCommit | None]) -> None:
        """Commits are asked for here when a cause needs them, instead of being fed.

        For a reader that keeps them for other ends; `as_json` and `commits` are without them.
        """
        self._state.commits = AskedCommits(find)

    def ask_start(self, find: Callable[..., StartBounds | None]) -> None:
        """Where bounds of a classic round's start are asked for: `find(after=, ended=)`.

        See `fleet.log.replay.group_state`; not kept.
        """
        self._state.round_start = find

    @property
    def log_partition(self) -> int:
        """The partition of `__consumer_offsets` that was last fed from; -1 before."""
        return self._state.log_partition

    def coordinator_moved(self, at: float) -> None:
        """Another broker leads the group's partition since then (seconds).

        The records do not tell; a reader sees it by the leader epoch of their batches.
        """
        self._state.coordinator_at = at

    def ask_session(self, find: SessionLookup) -> None:
        """Where a KIP-848 group's session timeout is asked for: by protocol and time of a removal.

        The records do not hold it. Where nobody tells it, whether a member left or expired is
        not told either. It is not kept: give it again after `from_json`.
        """
        self._state.session = find

    def pending(self) -> tuple[Rebalance, ...]:
        """Rebalances that have begun and not ended; their `ended_at` is the last record's."""
        return tuple(each.ended(self._epochs.last_at, TimeSource.NOT) for each in self._epochs.open)

    # --- the state now ----------------------------------------------------------------------

    @property
    def protocol(self) -> str | None:
        """One of classic, consumer, share, streams; None while no membership was seen."""
        return self._state.protocol

    @property
    def number(self) -> int | None:
        """Last generation or assignment epoch; None where there was none, or the group is gone."""
        return None if self._state.closed_at is not None else self._state.number

    @property
    def exists(self) -> bool:
        """Its membership was told of, and not deleted since."""
        return self._state.protocol is not None and self._state.closed_at is None

    @property
    def moved(self) -> tuple[TopicPartition, ...]:
        """What got another owner with the last record."""
        return tuple(self._state.moved)

    def had(self, member: str) -> list[TopicPartition]:
        """What a member has, or had last and nobody has got since."""
        return [tp for tp, who in self._state.last_owner.items() if who == member]

    @property
    def incarnation(self) -> int:
        """How often the group was made anew."""
        return self._state.incarnation

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self._state.members)

    def members(self) -> tuple[ReplayedMember, ...]:
        """Who is in the group after the last record, by name; for reading only."""
        return tuple(self._state.members[who] for who in sorted(self._state.members))

    def commits(self) -> dict[TopicPartition, int]:
        """The committed offset of every partition that has one."""
        return {tp: each.offset for tp, each in self._state.commits.items()}

    # --- keeping it -------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """The whole state as a JSON value; its size follows the members and partitions of now."""
        return {
            "schema": SCHEMA,
            "offset": self._offset,
            "group": self._state.as_json(),
            "classic": self._classic.as_json(),
            "epochs": self._epochs.as_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Replay":
        """Reads the output of `as_json`. Raises SchemaTooNew if a newer version wrote it."""
        if kept["schema"] > SCHEMA:
            raise SchemaTooNew(
                f"a group's replay has schema {kept['schema']}, but this version knows {SCHEMA}: "
                "use the version that wrote it, or delete the history and build it again"
            )
        state = ReplayedGroup.from_json(kept["group"])
        replay = cls(state.cluster, state.group)
        replay._state, replay._offset = state, kept["offset"]
        replay._classic = ClassicReplay.from_json(kept["classic"])
        replay._epochs = Epochs.from_json(kept["epochs"], state)
        return replay
