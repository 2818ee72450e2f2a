"""Commit metadata, group metadata, and which partitions a late commit may still name."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import TopicPartition
from fleet.worker.offsets.commit_metadata import (
    Finished,
    Ownership,
    commitable,
    decode_plan,
    encode_plan,
    parse_group_metadata,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@given(st.none() | st.integers(min_value=0, max_value=2**63 - 1), st.text(max_size=12))
def test_plan_survives_its_json(end: int | None, revision: str):
    """What one worker plans, its successor reads."""
    assert decode_plan(encode_plan(end, revision)) == end


@pytest.mark.parametrize(
    "metadata",
    [None, "", "checkpoint 7", "[1]", '{"v":2,"next":5}', '{"v":1,"next":true}', '{"v":1}'],
)
def test_foreign_metadata_is_no_plan(metadata: str | None):
    """Metadata of another program (or of a later version) plans nothing."""
    assert decode_plan(metadata) is None


def test_group_metadata_of_librdkafka():
    """Generation, member id and group are read out of librdkafka's opaque bytes."""
    raw = b"CGMDv2:" + struct.pack("=i", 7) + b"g1\0i1-0f6b\0i1\0"
    assert parse_group_metadata(raw) == (7, "i1-0f6b", "g1")


@pytest.mark.parametrize("raw", [None, b"", b"CGMDv2:", b"CGMDv9:\0\0\0\0g\0m\0"])
def test_unknown_group_metadata(raw: bytes | None):
    """Another format is unknown, not a guess."""
    assert parse_group_metadata(raw) is None


def finished(owned: Ownership) -> list[Finished]:
    return [
        Finished(tp=P0, token=owned.gain(P0), end=10),
        Finished(tp=P1, token=owned.gain(P1), end=20),
    ]


def test_commit_names_what_is_still_owned():
    """Without any change all of the batch is committed."""
    owned = Ownership()
    batch = finished(owned)
    assert commitable(batch, owned, member_then="m", member_now="m") == tuple(batch)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "gone and back"])
def test_late_commit_is_dropped_where_the_partition_went(back: bool):
    """A token does not come back with the partition: somebody else may have been at it [2]."""
    owned = Ownership()
    batch = finished(owned)
    owned.lose([P0])
    if back:
        owned.gain(P0)
    named = commitable(batch, owned, member_then="m", member_now="m")
    assert [each.tp for each in named] == [P1]


def test_another_member_id_voids_all():
    """The member was dropped and joined anew: nothing of the old life is committed [2]."""
    owned = Ownership()
    batch = finished(owned)
    assert commitable(batch, owned, member_then="m1", member_now="m2") == ()


def test_a_token_is_never_given_again():
    """What came back is another assignment: a batch of the one before may not be committed [2]."""
    owned = Ownership()
    tokens = [owned.gain(P0), owned.gain(P0), owned.gain(P0)]
    owned.lose([P0])
    assert not owned.holds(P0, tokens[-1])
    tokens.append(owned.gain(P0))
    assert len(set(tokens)) == 4
    assert [owned.holds(P0, token) for token in tokens] == [False, False, False, True]
