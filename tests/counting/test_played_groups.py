"""Whatever a group goes through, what is counted is what its coordinator did [26]."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.log.replay.counting import count
from fleet.model import TopicPartition
from fleet.model.rebalances import RebalanceCounts
from tests.support.played_group import TOPIC, TOPIC_ID, PlayedGroup, compacted, played_groups
from tests.support.sampling import examples

NAMES = {TOPIC_ID: TOPIC}


def told(found: RebalanceCounts) -> list[tuple[object, ...]]:
    return [
        (
            *(g.log_offset, g.number, g.joined, g.left, g.replaced, g.resubscribed, g.aborted),
            tuple(tp.partition for tp in g.added),
            {tp.partition for tp in g.moved},
        )
        for g in found.generations
    ]


def done(group: PlayedGroup, since: int = 0) -> list[tuple[object, ...]]:
    return [
        (
            *(r.place, r.number, r.joined, r.left, r.replaced, r.resubscribed, r.aborted),
            *(r.added, r.moved),
        )
        for r in group.rebalances
        if r.place >= since
    ]


def replaced(group: PlayedGroup, since: int = 0) -> int:
    return sum(place >= since for place in group.replacements)


@examples(100)
@given(played_groups(converts=True), st.floats(0, 1))
def test_what_is_counted_is_what_happened_wherever_the_count_begins(
    group: PlayedGroup, share: float
) -> None:
    cut = int(share * len(group.records))
    found = count(group.records[cut:], before=group.records[:cut], topics=NAMES)
    assert [each[0] for each in told(found)] == [each[0] for each in done(group, cut)]
    assert found.to_generation == group.number


@examples(100)
@given(played_groups(converts=True))
def test_every_rebalance_is_told_as_it_was(group: PlayedGroup) -> None:
    found = count(group.records, topics=NAMES)
    assert told(found) == done(group)
    assert found.replacements == replaced(group)
    owners = {TopicPartition(TOPIC, n): m.name for m in group.members.values() for n in m.owns}
    assert found.owners == owners
    assert found.to_generation == group.number


@examples(100)
@given(played_groups(), st.data())
def test_a_state_that_compaction_left_is_as_good_as_the_whole_log(
    group: PlayedGroup, data: st.DataObject
) -> None:
    if not group.whole:
        return
    cut = data.draw(st.sampled_from(group.whole))
    found = count(group.records[cut:], before=compacted(group.records[:cut]), topics=NAMES)
    assert told(found) == done(group, cut)
    assert found.replacements == replaced(group, cut)
