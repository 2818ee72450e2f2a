"""The model of classic groups does what Kafka's own coordinator does, event by event.

`make conformance` plays 50,000 stories on two cores, `make test` 1,500; a seed makes the same ones
each time. Whatever differs is told as the shortest story that shows it, to be pasted into
tests/sim/test_classic_stories.py with what Kafka does.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import pytest

from tests.conformance.classic_acts import Act, Story, Turn, act, played, scenario
from tests.conformance.classic_stories import coverage, stories
from tests.conformance.differences import as_test, find, first_difference, shortest
from tests.conformance.kafka_group_manager import KafkaGroupManager, Scenario

pytestmark = pytest.mark.broker

_SHARE = 2_500
"""Stories that one process plays before it tells of them; its JVM is quick after some hundred."""
_WHOLE = 50_000


def _compare(seed: int, count: int) -> tuple[int, Counter[tuple[str, str]], str]:
    """(events, what was met, the first difference as a test, or nothing)."""
    events, met = 0, Counter[tuple[str, str]]()
    sent = deque[tuple[Story, Sequence[Turn]]]()

    def coming() -> Iterator[Scenario]:
        for each in stories(seed, count):
            sent.append(each)
            yield scenario(*each)

    with KafkaGroupManager() as kafka:
        for steps in kafka.play(coming()):
            story, turns = sent.popleft()
            events += len(turns)
            met += coverage(turns)
            found = first_difference(turns, steps)
            if found is not None:
                return events, met, _told(story, found.number)
    assert not sent
    return events, met, ""


def _told(story: Story, last: int) -> str:
    with KafkaGroupManager() as kafka:
        acts = shortest(
            story.acts[: last + 1],
            lambda each: find(kafka, story._replace(acts=tuple(each))) is not None,
        )
        least = story._replace(acts=tuple(acts))
        found = find(kafka, least)
        assert found is not None
        return as_test(least, found)


@pytest.mark.parametrize(("seed", "count"), [(1, 1_000), (2, 500)])
def test_random_stories(seed, count) -> None:
    """Answers, states, members, timers and records, after every event of every story."""
    _, met, difference = _compare(seed, count)
    assert not difference, difference
    assert len(met) >= count // 10, _table(met)


def test_a_difference_is_found_and_shortened() -> None:
    """A group of another maximal size than the model's: two acts are left of a long story."""
    joins = tuple(act("join", number, identity="new", version=3) for number in range(4))
    beats = tuple(act("heartbeat", number) for number in range(4))
    story = Story(1, (*joins, *beats, act("advance", ms=3_000)))
    with KafkaGroupManager() as kafka:

        def differs(acts: Sequence[Act]) -> bool:
            """Kafka's has room for one only."""
            turns = played(story._replace(acts=tuple(acts)))
            small = story._replace(config=story.config._replace(max_size=1))
            (steps,) = kafka.play([scenario(small, turns)])
            return first_difference(turns, steps) is not None

        assert find(kafka, story) is None
        assert [each.kind for each in shortest(story.acts, differs)] == ["join", "join"]


@pytest.mark.long
@pytest.mark.slow
def test_all_stories(capsys) -> None:
    """50,000 of them, with what was met and how long it took."""
    began, events, met, done = time.monotonic(), 0, Counter[tuple[str, str]](), 0
    with ProcessPoolExecutor(2) as pool, capsys.disabled():
        parts = [pool.submit(_compare, 1_000 + n, _SHARE) for n in range(_WHOLE // _SHARE)]
        for part in as_completed(parts):
            more, found, difference = part.result()
            if difference:
                pool.shutdown(cancel_futures=True)
            assert not difference, difference
            events, met, done = events + more, met + found, done + _SHARE
            passed = time.monotonic() - began
            print(
                f"\r{done:,} classic stories, {events:,} events, {passed:.0f} s",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
        print(f"\n{_table(met)}", file=sys.stderr)


def _table(met: Counter[tuple[str, str]]) -> str:
    lines = [f"{state:20} {event:16} {n:9,}" for (state, event), n in sorted(met.items())]
    return "\n".join([*lines, f"{len(met)} pairs of state and event"])
