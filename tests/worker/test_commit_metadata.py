"""Commit metadata, group metadata, and which partitions a late commit may still name."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import TopicPartition
from fleet.worker.offsets.assigning import Partitions, Start
from fleet.worker.offsets.commit_metadata import (
    decode_cluster,
    decode_parts,
    decode_plan,
    decode_topic,
    encode_plan,
    parse_group_metadata,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
NAMES = st.none() | st.text(min_size=1, max_size=12)


@given(st.none() | NUMBERS, st.text(max_size=12), NAMES, NAMES, st.none() | NUMBERS)
def test_what_one_worker_plans_its_successor_reads(
    end: int | None, revision: str, topic: str | None, cluster: str | None, parts: int | None
):
    """Each key alone, and none where nothing is known."""
    text = encode_plan(end, revision, topic, cluster=cluster, parts=parts)
    plan = decode_plan(text, 0)
    assert (plan and (plan.end, plan.revision)) == (None if end is None else (end, revision))
    assert (decode_topic(text), decode_cluster(text), decode_parts(text)) == (topic, cluster, parts)
    assert ('"topic":' in text, '"parts":' in text) == (topic is not None, parts is not None)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "checkpoint 7", "[1]", '{"v":1}', '{"v":2,"next":5,"topic":"a"}'),
        '{"v":1,"next":true,"topic":3}',
    ],
)
def test_foreign_metadata_is_no_plan_and_names_no_topic(text: str | None):
    """Of another program, or of a later version: an offset without a topic id is believed."""
    found = [decode_plan(text, 0), decode_topic(text), decode_cluster(text), decode_parts(text)]
    assert found == [None] * 4


def test_group_metadata_of_librdkafka():
    """Generation, member id and group are read out of librdkafka's opaque bytes."""
    raw = b"CGMDv2:" + struct.pack("=i", 7) + b"g1\0i1-0f6b\0i1\0"
    assert parse_group_metadata(raw) == (7, "i1-0f6b", "g1")


@pytest.mark.parametrize("raw", [None, b"", b"CGMDv2:", b"CGMDv9:\0\0\0\0g\0m\0"])
def test_unknown_group_metadata(raw: bytes | None):
    """Another format is unknown, not a guess."""
    assert parse_group_metadata(raw) is None


def gained(owned: Partitions, *tps: TopicPartition) -> dict[TopicPartition, int]:
    """The tokens of partitions that are assigned now."""
    for tp in tps:
        owned.gain(Start(tp=tp, topic_id="T", position=0, committed=0), member="m", reads=True)
    return owned.tokens(tps)


@pytest.mark.parametrize(
    ("lost", "back", "member", "expected"),
    [
        pytest.param([], [], "m", {P0, P1}, id="still owned"),
        pytest.param([P0], [], "m", {P1}, id="gone"),
        pytest.param([P0], [P0], "m", {P1}, id="gone and back"),
        pytest.param([], [P0], "m", {P1}, id="assigned again"),
        pytest.param([], [], "m2", set(), id="another member id"),
    ],
)
def test_what_a_late_commit_may_name(
    lost: list[TopicPartition], back: list[TopicPartition], member: str, expected: set[object]
):
    """A token does not come back with the partition: somebody else may have been at it [2]."""
    owned = Partitions()
    batch = gained(owned, P0, P1)
    owned.lose(lost)
    gained(owned, *back)
    assert owned.commitable(batch, member_then="m", member_now=member) == expected


def test_a_token_is_never_given_again():
    """What came back is another assignment: a batch of the one before may not be committed [2]."""
    owned = Partitions()
    tokens = [gained(owned, P0)[P0] for _ in range(3)]
    owned.lose([P0])
    assert not owned.held({P0: tokens[-1]})
    tokens.append(gained(owned, P0)[P0])
    assert len(set(tokens)) == 4
    assert [bool(owned.held({P0: each})) for each in tokens] == [False, False, False, True]
