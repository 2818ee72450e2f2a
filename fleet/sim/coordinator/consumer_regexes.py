"""When a group's regular expressions are resolved, and what follows from it.

Problem: matching every topic's name with every member's expression takes long, so it must not
hold up heartbeats. Choice: Kafka's: a heartbeat that finds a new expression, new topics, or an old
answer (`regex_refresh_ms`) asks for all expressions of the group to be resolved, at most every
ten seconds; the answer comes later and raises the group epoch if it is another. Cost: a topic
that is made is seen with a delay.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from fleet.sim.coordinator.consumer_group import EpochGroup, Resolved, counted, recount
from fleet.sim.coordinator.consumer_member import ConsumerMember
from fleet.sim.coordinator.consumer_records import (
    EPOCH,
    REGEX,
    ConsumerRecord,
    EpochValue,
    RegexValue,
)
from fleet.sim.coordinator.topic_image import TopicImage, group_hash
from fleet.sim.coordinator.topic_regexes import compiled, matching
from fleet.sim.hashing.hash_order import HashOrder

_AT_MOST_EVERY_MS: Final = 10_000
_NEVER: Final = -(1 << 63)


class RegexChange(Enum):
    """What a heartbeat changed of its member's expression.

    NONE: nothing. TOLD: another one, of which nobody knows the topics yet. KNOWN: another one
    whose topics are known, or none any more: the group's topics are others at once.
    """

    NONE = "none"
    TOLD = "told"
    KNOWN = "known"


def changed(
    group: EpochGroup, old: ConsumerMember, new: ConsumerMember
) -> tuple[RegexChange, list[ConsumerRecord]]:
    """(what changed, the tombstone of an expression that nobody uses any more).

    Raises RequestRefused (INVALID_REGULAR_EXPRESSION) for a new one that cannot be read.
    """
    if old.regex == new.regex:
        return RegexChange.NONE, []
    records: list[ConsumerRecord] = []
    if old.subscribed_regex and group.regexes.get(old.subscribed_regex) == 1:
        records.append(ConsumerRecord(REGEX, group.id, old.subscribed_regex, None))
    known = False
    if not new.subscribed_regex:
        known = old.subscribed_regex is not None
    elif new.subscribed_regex not in group.regexes:
        compiled(new.subscribed_regex)
    else:
        known = new.subscribed_regex in group.resolved
    return RegexChange.KNOWN if known else RegexChange.TOLD, records


def to_resolve(
    group: EpochGroup,
    old: ConsumerMember,
    new: ConsumerMember,
    now: int,
    *,
    newest_topics: int,
    refresh_ms: int,
) -> tuple[str, ...]:
    """The expressions to resolve now; none where it is not time.

    `newest_topics` is the version of the metadata at which a topic was last made.
    """
    asks = new.subscribed_regex
    is_new = asks is not None and old.regex != new.regex and asks not in group.regexes
    if not is_new and not group.regexes:
        return ()
    first = next(iter(group.resolved.values()), None)
    last_ms = _NEVER if first is None else first.at_ms
    if now <= last_ms + _AT_MOST_EVERY_MS:
        return ()
    counts = HashOrder.copied(group.regexes)
    recount(counts, old.subscribed_regex, new.subscribed_regex)
    due = (
        is_new
        or len(counts) != len(group.resolved)
        or (0 if first is None else first.version) < newest_topics
        or now > last_ms + refresh_ms
    )
    return tuple(counts) if due else ()


def resolved(regexes: tuple[str, ...], image: TopicImage, now: int) -> Mapping[str, RegexValue]:
    """The topics of each expression, in the order in which Java walks the answer."""
    found: Mapping[str, None] = _sized(regexes)
    return {
        regex: RegexValue(matching(regex, image.by_name), image.version, now)
        for regex in _sized(tuple(found))
    }


def _sized(keys: tuple[str, ...]) -> HashOrder[str, None]:
    table: HashOrder[str, None] = HashOrder(len(keys))
    for key in keys:
        table[key] = None
    return table


def taken_up(
    group: EpochGroup, answers: Mapping[str, RegexValue], image: TopicImage
) -> tuple[int | None, list[ConsumerRecord]]:
    """(the new group epoch if it rises, the records) for what came of resolving."""
    topics = dict(group.topics)
    records: list[ConsumerRecord] = []
    rises = False
    for regex, value in answers.items():
        if regex not in group.regexes:
            continue
        old = group.resolved.get(regex, Resolved(HashOrder(), -1, -1))
        if set(old.topics) != set(value.topics):
            rises = True
            counted(topics, old.topics, by_regex=-1)
            counted(topics, value.topics, by_regex=1)
        records.append(ConsumerRecord(REGEX, group.id, regex, value))
    hashed = group_hash(topics, image)
    if not rises and hashed == group.metadata_hash:
        return None, records
    value_of_epoch = EpochValue(group.epoch + 1, hashed)
    records.append(ConsumerRecord(EPOCH, group.id, None, value_of_epoch))
    return group.epoch + 1, records
