"""Refreshes all groups of a cluster every few seconds.

Problem: `Observer.snapshot` describes every group and fetches its offsets: 0.2 s of a core for
1,000 groups of 48 partitions, and more of the brokers. Choice: members, generations and commits
come from the tail, which reads the offsets topic. Only the listing with each group's state, and the
starts and ends of the logs, need requests. If the tail is not current (a first read, a login
without Read), the watcher asks the coordinators, and the snapshot says so. Between refreshes it
keeps what lag statuses need: the times of commits and the growth of ages. A lost answer of a
coordinator does not reset them. Cost: two ways to the same figures; a test compares them.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from fleet.clock import Clock
from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import Commits, Growth
from fleet.lag.snapshot import GroupFacts, Snapshot
from fleet.log.readers.positions import Positions, group_of, key_to
from fleet.log.readers.tail import Tail
from fleet.log.records import Unreadable
from fleet.model import GroupState, TopicPartition
from fleet.observe.admin import Observer
from fleet.observe.poll_answers import ListedGroup, Offsets, Poll, PollAnswers

_WAIT: Final = 0.25
"""Seconds that a refresh waits for the tail to catch up."""
_FIRST: Final = 5.0
"""Seconds for the first refresh: asking the coordinators costs far more than waiting (150 MB for
5,000 groups of 48 partitions)."""
_STALE: Final = 30.0
"""Seconds after which a tail is too old, so that the watcher asks the coordinators."""


class GroupWatcher(Observer):
    """An observer of all groups that uses a tail. One thread refreshes it.

    `tail` None: it always asks the coordinators. Raises Unreachable as an observer does.
    """

    def __init__(
        self,
        *,
        cluster: str,
        config: Mapping[str, Any],
        clock: Clock,
        tail: Tail | None,
        ends: EndHistory | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(cluster=cluster, config=config, clock=clock, ends=ends, timeout=timeout)
        self._ends.load()
        self._tail = tail
        self._polled = Positions()
        self._told_at: dict[str, float] = {}
        """Group → when its coordinator last returned its offsets, by the monotonic clock."""
        self._share_numbers: dict[tuple[str, TopicPartition], int] = {}
        self._numbers = itertools.count(-2, -1)
        self._growth, self._growth_by_log = Growth(), False

    def refresh(self) -> Snapshot:
        """Takes a snapshot of all groups and their committed partitions."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> Snapshot:
        poll = self._new_poll()
        topics = self._topics(poll)
        listed = self._list_groups(poll)
        from_log = self._current()  # so that it has every group of the listing
        if from_log and self._tail is not None:
            facts, commits = self._by_log(listed, self._tail)
            if self._tail.unnamed_topics():  # of groups that never committed (KIP-848)
                self._tail.name_topics(topics.names)
            untold: frozenset[str] = frozenset()
            shares = [group for group, fact in facts.items() if fact.type == "share"]
            committed: Mapping[str, Offsets] = {}
            if shares:
                _, committed = self._groups.describe_with_offsets(shares, poll)
        else:
            facts, commits, untold, committed = self._by_coordinators(listed, poll)
        shared = PollAnswers(descriptions={}, committed=committed)
        commits = commits.plus(self._share_rows(shared))
        rows = commits.of_groups(facts)  # a group's tombstones may come after its end
        shown = commits if rows.all() else commits.where(rows)
        seen = self._measure(poll, facts, shown, topics, untold=untold, counted=shared.counted())
        if from_log != self._growth_by_log:  # the row numbers differ
            self._growth, self._growth_by_log = Growth(), from_log
        lag = seen.lag
        gained, over = self._growth.update(seen.commits.row, lag.waited, lag.seconds, poll.began)
        return replace(
            seen,
            from_log=from_log,
            gained=gained,
            over=np.broadcast_to(over, len(gained)),
        )

    # --- members and commits ----------------------------------------------------------------

    def _current(self) -> bool:
        """Returns whether the tail has, or had a moment ago, all records written so far."""
        if self._tail is None:
            return False
        try:
            if self._tail.catch_up(_FIRST if self._tail.age() is None else _WAIT):
                return not self._tail.absent
        except Unreadable:
            return False
        age = self._tail.age()
        return age is not None and age <= _STALE and not self._tail.absent

    def _by_log(
        self, listed: Mapping[str, ListedGroup], tail: Tail
    ) -> tuple[dict[str, GroupFacts], Commits]:
        summaries, changed = tail.summaries(), tail.changed()
        subscribed = tail.subscriptions()
        seen = PollAnswers(descriptions={}, listed=listed)
        groups = {}
        for group in listed:
            state, summary = seen.state(group), summaries.get(group)
            members = summary.members if summary else None
            groups[group] = GroupFacts(
                state=state,
                type=seen.kind(group),
                members=0 if state is GroupState.EMPTY else members,
                generation=summary.generation if summary else None,
                changed_at=changed.get(group),
                topics=subscribed.get(group),
            )
        chosen = tail.chosen
        return {g: facts for g, facts in groups.items() if chosen(g)}, tail.commits()

    def _share_rows(self, seen: PollAnswers) -> Commits:
        """Returns the rows of share groups, whose offsets are not in the offsets topic.

        Each row keeps its number, which differs from those of the tail.
        """
        rows = [row for group in sorted(seen.counted()) for row in seen.rows(group)]
        known = self._share_numbers
        self._share_numbers = {
            (group, tp): known.get((group, tp)) or next(self._numbers) for group, tp, _ in rows
        }
        numbers = np.fromiter(self._share_numbers.values(), dtype=np.int64, count=len(rows))
        return replace(Commits.of(rows), row=numbers)

    def _by_coordinators(
        self, listed: Mapping[str, ListedGroup], poll: Poll
    ) -> tuple[dict[str, GroupFacts], Commits, frozenset[str], Mapping[str, Offsets]]:
        """Describes all groups and fetches all offsets; a changed offset counts as a commit.

        Also returns groups whose offsets are missing for long; before, the last ones count.
        """
        chosen = self._tail.chosen if self._tail is not None else (lambda _: True)
        wanted = sorted(filter(chosen, listed))
        described, all_offsets = self._groups.describe_with_offsets(wanted, poll)
        seen = PollAnswers(descriptions=described, listed=listed, committed=all_offsets)
        now, kept = int(self._clock.now() * 1000), set()
        shared = seen.counted()
        for group, offsets in seen.committed.items():
            if group in shared:
                continue
            for tp, committed in offsets.items():
                key = key_to(group, tp)
                kept.add(key)
                if self._polled.last(key) != committed:
                    self._polled.put(key, group, tp, committed, now)
        silent = {
            group
            for group in wanted
            if group not in seen.committed and seen.state(group) is not GroupState.DEAD
        }
        for key in self._polled.keys() - kept:
            group = group_of(key)
            if group not in silent and (group in listed or not poll.partial):
                self._polled.commit(key, None, now)
        known = self._polled.groups()
        self._told_at = {g: at for g, at in self._told_at.items() if g in known}
        self._told_at |= dict.fromkeys(seen.committed, poll.began)
        untold = {g for g in silent if poll.began - self._told_at.get(g, poll.began) > _STALE}
        groups = {group: seen.facts(group) for group in wanted}
        shares = {group: seen.committed[group] for group in shared}
        return groups, self._polled.copy(), frozenset(untold), shares
