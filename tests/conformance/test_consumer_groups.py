"""The model of KIP-848 groups and Kafka's own coordinator make the same of every story.

1,500 stories of a fixed seed; in the long form 50,000 (`make conformance`), on two cores.
FLEET_STORIES=N plays N of them, FLEET_SEED where they begin. A story that differs is shrunk to
the shortest that does and printed as it would stand among NAMED.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from tests.conformance.consumer_sides import difference, played, scenario, told_by_model
from tests.conformance.consumer_stories import Setting, Told
from tests.conformance.differences import shortest
from tests.conformance.kafka_group_manager import KafkaGroupManager, Scenario

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("FLEET_SEED") or 1)
COUNT = int(os.environ.get("FLEET_STORIES") or 1_500)
WHOLE = 50_000
LENGTH = 24
SHARES = 2
"""Each with a JVM of its own."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaGroupManager]:
    """One JVM."""
    with KafkaGroupManager() as made:
        yield made


def played_beside(kafka: KafkaGroupManager, seeds: Iterable[int]) -> tuple[Counter[str], str]:
    """(what was done to members in which state, the first difference or nothing)."""
    sent = {}
    reached: Counter[str] = Counter()

    def coming() -> Iterator[Scenario]:
        for seed in seeds:
            sent[seed] = told_by_model(seed, LENGTH)
            yield scenario(*sent[seed][:2])

    for theirs in kafka.play(coming()):
        seed = next(iter(sent))
        setting, events, steps = sent.pop(seed)
        for event, before in zip(events[1:], steps, strict=False):
            reached.update(
                f"{member['state']} {event.op}"
                for group in before.groups.values()
                for member in group["members"]
            )
        if difference(events, steps, theirs) is not None:
            fewest = shortest(events, partial(found_again, kafka, setting))
            found = found_again(kafka, setting, fewest)
            return reached, f"seed {seed}:\n{fewest}\n{found}"
    assert not sent
    return reached, ""


def found_again(kafka: KafkaGroupManager, setting: Setting, events: Sequence[Told]) -> str | None:
    """Play events on both sides: the first difference."""
    (theirs,) = kafka.play([scenario(setting, events)])
    return difference(events, played(setting, events), theirs)


def hardly(reached: Counter[str], stories: int) -> dict[str, int]:
    """What should have been done often, and was not."""
    states = ("STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS")
    kinds = ("ConsumerGroupHeartbeat", "LeaveGroup", "advance", "topics", "failover")
    pairs = (f"{state} {op}" for state in states for op in kinds)
    return {pair: reached[pair] for pair in pairs if reached[pair] < stories // 250}


@pytest.mark.parametrize("share", range(SHARES))
def test_stories(kafka: KafkaGroupManager, share: int) -> None:
    """No answer, record, group or timer differs, and the deep states were reached."""
    reached, found = played_beside(kafka, range(SEED + share, SEED + COUNT, SHARES))
    assert not found, found
    assert not hardly(reached, COUNT), f"of {COUNT} stories"


def _share(share: int) -> tuple[Counter[str], str]:
    with KafkaGroupManager() as kafka:
        return played_beside(kafka, range(SEED + share, SEED + WHOLE, SHARES))


@pytest.mark.long
@pytest.mark.slow
def test_all_stories() -> None:
    """50,000 of them, a core for each share."""
    with ProcessPoolExecutor(SHARES) as pool:
        for reached, found in pool.map(_share, range(SHARES)):
            assert not found, found
            assert not hardly(reached, WHOLE), f"of {WHOLE} stories"


def test_one_seed_is_one_story() -> None:
    """The same events and the same steps, twice."""
    first, again = told_by_model(3, LENGTH), told_by_model(3, LENGTH)
    assert first == again
    assert played(first[0], first[1]) == first[2]
