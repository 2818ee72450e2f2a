"""What is written is what Kafka 4.3.1 writes, and what the history reads."""

from fleet.log import encoding
from fleet.log.records import GroupMetadata, OffsetCommit, decode


def test_offset_commit() -> None:
    """The bytes of a live broker (docs/design/protocol.md 3.3)."""
    key = encoding.offset_commit_key("g-classic", "t", 0)
    assert key.hex() == "00010009672d636c617373696300017400000000"
    topic = bytes.fromhex("12d77191ec2c40b2b4e97e94f8ba880d")
    value = encoding.offset_commit(
        76, leader_epoch=0, commit_timestamp=0x1A1FBA29688, topic_id=topic
    )
    assert value.hex() == (
        "0004000000000000004c0000000001000001a1fba2968801001012d77191ec2c40b2b4e97e94f8ba880d"
    )
    read = decode(key, value, offset=0, timestamp=0)
    assert isinstance(read, OffsetCommit)
    assert read.committed == 76


def test_group_metadata() -> None:
    """An empty group of a live broker, and one with a member."""
    key = encoding.key(encoding.GROUP_METADATA, "g-classic")
    assert key.hex() == "00020009672d636c6173736963"
    empty = encoding.group_metadata(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=0x1A1FBA28EAB,
        members=(),
    )
    assert empty.hex() == "0003000000000000ffffffff000001a1fba28eab00000000"
    member = encoding.WrittenMember("m-é", None, "c", "/h", 300, 45, b"", b"\1")
    full = encoding.group_metadata(
        protocol_type="connect",
        generation=7,
        protocol="p",
        leader="m-é",
        current_state_timestamp=5,
        members=[member],
    )
    read = decode(key, full, offset=0, timestamp=0)
    assert isinstance(read, GroupMetadata)
    assert (read.generation, read.leader) == (7, "m-é")
    assert read.members[0].assignment == b"\1"


def test_varints() -> None:
    """Seven bits a byte, the lowest first."""
    assert [encoding.uvarint(n).hex() for n in (0, 127, 128, 300)] == ["00", "7f", "8001", "ac02"]
    assert encoding.tags([(0, b"ab")]).hex() == "0100026162"
