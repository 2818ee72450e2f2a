"""The model of KIP-848 groups and Kafka's own coordinator make the same of every story.

1,500 stories of a fixed seed, in the long form 50,000 (`make conformance`), on both cores;
FLEET_STORIES=N plays N of them, FLEET_SEED where they begin. A story that differs is shrunk to
the shortest that does and printed as it would stand among NAMED.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conformance.consumer_shrinking import first_difference, shrunk
from tests.conformance.consumer_sides import difference, played, scenario, told_by_model
from tests.conformance.kafka_group_manager import KafkaGroupManager
from tests.support.sampling import LONG

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600)]

COUNT = int(os.environ.get("FLEET_STORIES") or (50_000 if LONG else 1_500))
SEED = int(os.environ.get("FLEET_SEED") or 1)
LENGTH = 24
SHARES = 2
"""Each with a JVM of its own."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaGroupManager]:
    """One JVM."""
    with KafkaGroupManager() as made:
        yield made


@pytest.mark.parametrize("share", range(SHARES))
def test_stories(kafka, share) -> None:
    """No answer, record, group or timer differs, and the deep states were reached."""
    seeds = range(SEED + share, SEED + COUNT, SHARES)
    told = {}
    reached: Counter[str] = Counter()

    def coming():
        for seed in seeds:
            told[seed] = told_by_model(seed, LENGTH)
            yield scenario(*told[seed][:2])

    for seed, theirs in zip(seeds, kafka.play(coming()), strict=True):
        setting, events, steps = told.pop(seed)
        for event, before in zip(events[1:], steps, strict=False):
            reached.update(
                f"{member['state']} {event.op}"
                for group in before.groups.values()
                for member in group["members"]
            )
        if difference(events, steps, theirs) is not None:
            fewest = shrunk(kafka, setting, events)
            pytest.fail(f"seed {seed}:\n{fewest}\n{first_difference(kafka, setting, fewest)}")
    states = ("STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS")
    rare = {
        f"{state} {op}": reached[f"{state} {op}"]
        for state in states
        for op in ("ConsumerGroupHeartbeat", "LeaveGroup", "advance", "tasks", "topics", "failover")
        if reached[f"{state} {op}"] < COUNT // 250
    }
    assert not rare, f"hardly played: {rare} of {COUNT} stories"


def test_one_seed_is_one_story() -> None:
    """The same events and the same steps, twice."""
    first, again = told_by_model(3, LENGTH), told_by_model(3, LENGTH)
    assert first == again
    assert played(first[0], first[1]) == first[2]
