"""The judge itself: a sound life gives nothing, each broken invariant gives its own sentence."""

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.invariants import Evidence, Trouble, broken, rebalances
from tests.support.kafka_tools import Record

FOREVER = float("inf")


def generation(offset: int, number: int, **owners: list[int]) -> Record:
    """A classic group's record: worker → partitions of topic t."""
    members = [
        {
            "groupInstanceId": f"g-{'ab'.index(name)}",
            "assignment": {"assignedPartitions": [{"topic": "t", "partitions": has}]},
        }
        for name, has in owners.items()
    ]
    return record(offset, 2, {}, {"generation": number, "members": members})


def commit(offset: int, partition: int, to: int) -> Record:
    return record(offset, 1, {"partition": partition}, {"offset": to})


def record(offset: int, kind: int, key: dict[str, Any], value: dict[str, Any]) -> Record:
    return Record(
        offset=offset, timestamp=0, type=kind, key={"group": "g", **key}, version=3, value=value
    )


def event(at: float, worker: str, kind: str, **facts: Any) -> dict[str, Any]:
    return {"at": at, "worker": worker, "event": kind, **facts}


def call(at: float, worker: str, partition: int, start: int, end: int) -> dict[str, Any]:
    rows = [1000 * partition + each for each in range(start, end)]
    return {
        "at": at,
        "worker": worker,
        "ranges": [["t", partition, start, end, "id"]],
        "rows": rows,
    }


SOUND = Evidence(
    topic="t",
    records=[
        generation(0, 1, a=[0, 1]),
        commit(1, 0, 5),
        generation(2, 2, a=[0], b=[1]),
        commit(3, 1, 4),
        commit(4, 0, 9),
    ],
    events=[
        event(0, "a", "slot", slot=0),
        event(0, "b", "slot", slot=1),
        event(1, "a", "assigned", partitions={"t-0": 0, "t-1": 0}, generation=1),
        event(2, "a", "committed", offsets={"t-0": 5}, generation=1),
        event(3, "a", "revoked", partitions=["t-1"]),
        event(4, "b", "assigned", partitions={"t-1": 0}, generation=2),
        event(5, "b", "committed", offsets={"t-1": 4}, generation=2),
        event(6, "a", "committed", offsets={"t-0": 9}, generation=2),
    ],
    journal=[call(1.5, "a", 0, 0, 5), call(4.5, "b", 1, 0, 4), call(5.5, "a", 0, 5, 9)],
    held={1000 * p + each: (p, each) for p, end in ((0, 9), (1, 4)) for each in range(end)},
    ends={0: 9, 1: 4},
    troubles=[],
)


def test_a_sound_life():
    """Nothing to say."""
    assert broken(SOUND) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"records": [*SOUND.records, generation(5, 3, a=[0, 1], b=[1])]}, "I1", id="two owners"
        ),
        pytest.param(
            {"events": [e for e in SOUND.events if e["event"] != "revoked"]}, "I1", id="overlap"
        ),
        pytest.param({"records": [*SOUND.records, generation(5, 3, a=[0])]}, "I2", id="nobody's"),
        pytest.param(
            {"records": [*SOUND.records, commit(5, 0, 5), commit(6, 0, 9)]}, "I3", id="back"
        ),
        pytest.param(
            {
                "events": [
                    *SOUND.events,
                    event(7, "b", "committed", offsets={"t-0": 9}, generation=2),
                ]
            },
            "I4",
            id="a stranger's commit",
        ),
        pytest.param({"journal": SOUND.journal[:2]}, "I5", id="lost"),
        pytest.param({"ends": {0: 12, 1: 4}}, "I5", id="behind"),
        pytest.param({"journal": [*SOUND.journal, call(7, "a", 0, 11, 12)]}, "I7", id="a jump"),
        pytest.param({"records": [*SOUND.records, generation(5, 1, a=[0, 1])]}, "I9", id="shrinks"),
    ],
)
def test_a_broken_one_is_named(change: dict[str, Any], words: str):
    """By its number."""
    assert words in {sentence.partition(":")[0] for sentence in broken(replace(SOUND, **change))}


def member(offset: int, name: str) -> Record:
    """Whose process a KIP-848 member is."""
    return record(offset, 5, {"memberId": f"id-{name}"}, {"clientId": name})


def has(
    offset: int, name: str, assigned: list[int], pending: tuple[int, ...] = (), topic_id: str = "x"
) -> Record:
    """What the coordinator lets a KIP-848 member have, and what it waits for it to give up."""

    def parts(numbers):
        return [{"topicId": topic_id, "partitions": list(numbers)}]

    value = {"assignedPartitions": parts(assigned), "partitionsPendingRevocation": parts(pending)}
    return record(offset, 8, {"memberId": f"id-{name}"}, value)


def epoch(offset: int, number: int) -> Record:
    """A computed assignment."""
    return record(offset, 6, {}, {"assignmentEpoch": number})


def gone(offset: int, name: str) -> Record:
    """A member's tombstone."""
    return record(offset, 8, {"memberId": f"id-{name}"}, None)


CONSUMER = replace(
    SOUND,
    protocol="consumer",
    records=[
        *(member(0, "a"), epoch(1, 1), has(2, "a", [0, 1]), commit(3, 0, 5)),
        *(member(4, "b"), epoch(5, 2), has(6, "a", [0], (1,)), has(7, "a", [0])),
        *(has(8, "b", [1]), commit(9, 1, 4), commit(10, 0, 9)),
    ],
)


def test_a_sound_life_under_the_consumer_protocol():
    """Nothing to say, and two assignments."""
    assert broken(CONSUMER) == []
    assert rebalances(CONSUMER) == 2
    assert rebalances(SOUND) == 2


@pytest.mark.parametrize(
    ("records", "words"),
    [
        pytest.param([has(11, "b", [0, 1])], "I1", id="two owners"),
        pytest.param([has(11, "a", [])], "I2", id="nobody's"),
        pytest.param([gone(11, "a")], "I2", id="its owner has left"),
        pytest.param([commit(11, 0, 5), commit(12, 0, 9)], "I3", id="back"),
        pytest.param([epoch(11, 1)], "I9", id="shrinks"),
    ],
)
def test_broken_under_the_consumer_protocol(records: list[Record], words: str):
    """By its number, from the coordinator's own records of who has what."""
    seen = replace(CONSUMER, records=[*CONSUMER.records, *records])
    assert words in {sentence.partition(":")[0] for sentence in broken(seen)}


@pytest.mark.parametrize(
    ("records", "sentences"),
    [
        pytest.param([has(12, "a", [0], topic_id="y")], set(), id="each to one"),
        pytest.param([has(12, "a", [0, 1], topic_id="y")], {"I1"}, id="one to two"),
        pytest.param([], {"I2"}, id="the old one's owner does not count"),
    ],
)
def test_a_topic_made_again_under_the_consumer_protocol(records: list[Record], sentences: set[str]):
    """Another's partition of that number in the deleted topic is another partition."""
    again = [has(11, "b", [1], topic_id="y"), *records]
    seen = replace(CONSUMER, records=[*CONSUMER.records, *again])
    assert {sentence.partition(":")[0] for sentence in broken(seen)} == sentences


def test_a_strangers_commit_under_the_consumer_protocol():
    """By the owner at its place in the log; a plan, which does not go ahead, is no such commit."""
    moved = [has(10, "a", []), has(11, "b", [0, 1]), commit(12, 0, 9)]
    late = replace(CONSUMER, records=[*CONSUMER.records[:-1], *moved])
    assert [each.partition(":")[0] for each in broken(late)] == ["I4"]
    assert broken(replace(CONSUMER, records=[*CONSUMER.records, *moved])) == []


def test_an_overlap_in_processing_is_explained_by_a_stop():
    """A stopped or killed owner knows nothing of its successor: its commits are what counts."""
    events = [e for e in SOUND.events if e["event"] != "revoked"]
    for until in (5.0, FOREVER):
        stopped = Trouble("a", 2.5, until)
        assert broken(replace(SOUND, events=events, troubles=[stopped])) == []
