"""How many members of a group can own anything.

Problem: a worker beyond that number is a member that idles and still costs its rebalance.
Choice: count what each assignor can hand out [30]: range gives out topic by topic, always
to the same first members, so the largest topic is the bound; the others deal from all
partitions together.
"""

from collections.abc import Mapping

from fleet.config.spec import ClassicWorker, GroupSpec
from fleet.config.topic_patterns import is_pattern, matches


def subscribed(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """The topics of the mapping that the group's `topics` name or match, with partitions."""
    return {
        name: count
        for name, count in topics.items()
        if any(matches(entry, name) for entry in group.topics)
    }


def missing_topics(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """Named topics that do not exist; patterns are never missing."""
    return tuple(t for t in group.topics if not is_pattern(t) and not topics.get(t))


def unmatched(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """The entries of `topics` where none of them is there yet; empty where anything is."""
    return () if subscribed(expected_topics(topics, group), group) else group.topics


def expected_topics(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """The topics as they will be once `create:` has made the missing ones."""
    if group.create is None:
        return dict(topics)
    made = dict.fromkeys(missing_topics(topics, group), group.create.partitions)
    return {**topics, **made}


def ownable(topics: Mapping[str, int], group: GroupSpec) -> int:
    """Most members that own at least one partition; a missing topic counts 0."""
    counts = subscribed(topics, group).values()
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        return max(counts, default=0)
    return sum(counts)


def ownable_reason(topics: Mapping[str, int], group: GroupSpec) -> str:
    """Why no more members than `ownable` make sense, for a sentence."""
    counts = subscribed(topics, group)
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        largest = max(counts, key=lambda name: (counts[name], name), default="")
        return f"under range no more than the {ownable(topics, group)} partitions of {largest}"
    return f"there are {ownable(topics, group)} partitions"
