"""A watcher of a cluster that is in memory: what its brokers would answer is set by a test."""

from collections.abc import Collection, Sequence

from fleet.clock import Clock
from fleet.kafka_source.connections import NoAnswer
from fleet.lag.end_history import EndHistory
from fleet.log.readers.tail import Tail
from fleet.model import GroupState, TopicPartition
from fleet.observe.poll_answers import DescribedGroup, ListedGroup, Poll
from fleet.observe.topic_questions import Topics
from fleet.observe.watcher import GroupWatcher


class Answers:
    """Of one broker: what groups committed, and where the logs end."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.at: dict[TopicPartition, int] = {}
        """The end of each log; all begin at 0."""
        self.silent: set[str] = set()
        """Groups whose offsets are not told."""
        self.unlisted: set[str] = set()
        """Groups of another broker, which does not list them."""

    def list_groups(self, look: Poll) -> tuple[dict[str, ListedGroup], list[NoAnswer]]:
        listed = ListedGroup(type="classic", state=GroupState.STABLE)
        failed = [NoAnswer("no answer in time")] if self.unlisted else []
        return dict.fromkeys(self.committed.keys() - self.unlisted, listed), failed

    def describe_with_offsets(
        self, groups: Sequence[str], look: Poll
    ) -> tuple[dict[str, DescribedGroup], dict[str, dict[TopicPartition, int]]]:
        described = DescribedGroup(type="classic", state=GroupState.STABLE)
        found = {g: dict(self.committed[g]) for g in groups if g not in self.silent}
        return dict.fromkeys(groups, described), found

    def topics(self, look: Poll) -> Topics:
        partitions: dict[str, int] = {}
        for tp in self.at:
            partitions[tp.topic] = max(partitions.get(tp.topic, 0), tp.partition + 1)
        return Topics(partitions=partitions, leaders={}, names={})

    def offsets(
        self, tps: Collection[TopicPartition], topics: Topics, look: Poll
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        return dict.fromkeys(tps, 0), {tp: self.at[tp] for tp in tps}

    def deleted_topics(self, topics: Collection[str], look: Poll) -> frozenset[str]:
        return frozenset(topics)


class Answered(GroupWatcher):
    """A watcher that is told `answers`."""

    def __init__(
        self, clock: Clock, *, tail: Tail | None = None, ends: EndHistory | None = None
    ) -> None:
        config = {"bootstrap.servers": "memory:1"}
        super().__init__(cluster="c", config=config, clock=clock, tail=tail, ends=ends)
        self.answers = self._about_topics = self._about_groups = Answers()
