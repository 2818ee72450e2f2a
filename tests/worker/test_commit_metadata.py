"""Commit metadata, group metadata, and which partitions a late commit may still name."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import TopicPartition
from fleet.worker.offsets.assigning import Partitions, Start
from fleet.worker.offsets.commit_metadata import (
    decode_plan,
    encode_plan,
    parse_group_metadata,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@given(st.none() | st.integers(min_value=0, max_value=2**63 - 1), st.text(max_size=12))
def test_plan_survives_its_json(end: int | None, revision: str):
    """What one worker plans, its successor reads."""
    plan = decode_plan(encode_plan(end, revision), 0)
    assert (plan and plan.end) == end


@pytest.mark.parametrize(
    "metadata",
    [None, "", "checkpoint 7", "[1]", '{"v":2,"next":5}', '{"v":1,"next":true}', '{"v":1}'],
)
def test_foreign_metadata_is_no_plan(metadata: str | None):
    """Metadata of another program (or of a later version) plans nothing."""
    assert decode_plan(metadata, 0) is None


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
