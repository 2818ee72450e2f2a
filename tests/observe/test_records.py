"""Records of `__consumer_offsets` are read by a version table; nothing is guessed or raised."""

import struct

import pytest

from fleet.log.records import (
    AssignmentEpoch,
    ClassicMember,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Record,
    TargetAssignment,
    Undecoded,
    decode,
    record_key,
    record_value,
    uvarint,
)
from fleet.model import TopicPartition

# Written by a 4.3.1 broker.
COMMIT = (
    "00010009672d636c617373696300017400000000",
    "0004000000000000004c0000000001000001a1fba2968801001012d77191ec2c40b2b4e97e94f8ba880d",
)
CREATED = (
    "00020009672d636c6173736963",
    "0003000000000000ffffffff000001a1fba28eab00000000",
)
EPOCH = ("0003000a672d636f6e73756d6572", "000000000002010008b057e521a29946ae")
ASSIGNED = ("0006000a672d636f6e73756d6572", "000000000002010008000001a1fba2c2d5")
JOINED = (
    "0005000a672d636f6e73756d657200164b31527548514e785248433579396b393459744c7667",
    "000000000363310b2f3132372e302e302e3102027401000493e00001000100",
)
TARGET_MEMBER = "K1RuHQNxRHC5y9k94YtLvg"
TWELVE = "".join(f"{number:08x}" for number in range(12))
TARGET = (
    JOINED[0].replace("0005", "0007", 1),
    f"00000212d77191ec2c40b2b4e97e94f8ba880d0d{TWELVE}0000",
)
CURRENT = (
    "0008000a672d636f6e73756d65720016355968674655314d53796d4f304b59586d434f706f77",
    "0000000000030000000002010100",
)


def read(vector: tuple[str, str | None], offset: int = 7, timestamp: int = 1000) -> Record:
    key, value = vector
    return decode(
        bytes.fromhex(key),
        None if value is None else bytes.fromhex(value),
        offset=offset,
        timestamp=timestamp,
    )


def test_an_offset_commit_names_the_next_offset_and_its_topic_id():
    """Type 1, value version 4 (KIP-848 brokers write the topic id as a tag)."""
    found = read(COMMIT)
    assert isinstance(found, OffsetCommit)
    assert (found.group, found.tp, found.committed) == ("g-classic", TopicPartition("t", 0), 76)
    assert (found.leader_epoch, found.metadata, found.offset, found.timestamp_ms) == (
        0,
        "",
        7,
        1000,
    )
    assert found.topic_id == "12d77191ec2c40b2b4e97e94f8ba880d"


def test_a_created_group_is_a_generation_zero_without_members():
    """Type 2, version 3, as written by the first JoinGroup."""
    found = read(CREATED)
    assert isinstance(found, GroupMetadata)
    assert (found.group, found.generation, found.members) == ("g-classic", 0, ())
    assert (found.protocol_type, found.protocol, found.leader) == ("", None, None)


def test_kip_848_records_carry_epochs_members_and_assignments_by_topic_id():
    """Types 3, 5, 6, 7 and 8, version 0, with their tagged fields."""
    epoch, joined, assigned = read(EPOCH), read(JOINED), read(ASSIGNED)
    target, current = read(TARGET), read(CURRENT)
    assert isinstance(epoch, ConsumerGroupEpoch)
    assert (epoch.epoch, epoch.metadata_hash != 0) == (2, True)
    assert isinstance(joined, ConsumerGroupMember)
    assert (joined.client_id, joined.client_host, joined.topics) == ("c1", "/127.0.0.1", ("t",))
    assert (joined.instance_id, joined.regex, joined.rebalance_timeout_ms) == (None, "", 300_000)
    assert isinstance(assigned, AssignmentEpoch)
    assert assigned.epoch == 2
    assert isinstance(target, TargetAssignment)
    assert target.partitions == {"12d77191ec2c40b2b4e97e94f8ba880d": tuple(range(12))}
    assert isinstance(current, CurrentAssignment)
    assert (current.epoch, current.previous_epoch, current.state) == (3, 0, 2)
    assert (current.assigned, current.revoking) == ({}, {})


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def compact(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value.encode()) + 1]) + value.encode()


SUBSCRIPTION = (
    struct.pack(">h", 3)
    + struct.pack(">i", 1)
    + text("t")
    + struct.pack(">i", -1)
    + struct.pack(">i", 1)
    + text("t")
    + struct.pack(">ii", 1, 4)
    + struct.pack(">i", 9)
    + text("rack")
)
ASSIGNMENT = (
    struct.pack(">h", 0)
    + struct.pack(">i", 1)
    + text("t")
    + struct.pack(">iii", 2, 0, 3)
    + struct.pack(">i", -1)
)


def classic_value(version: int) -> bytes:
    """A GroupMetadata value of a version, written field by field from Kafka's message JSON."""
    flexible = version >= 4
    string = compact if flexible else text

    def count(number: int) -> bytes:
        return bytes([number + 1]) if flexible else struct.pack(">i", number)

    def data(value: bytes) -> bytes:
        return bytes([len(value) + 1]) + value if flexible else blob(value)

    out = struct.pack(">h", version) + string("consumer") + struct.pack(">i", 5)
    out += string("range") + string("m-1")
    if version >= 2:
        out += struct.pack(">q", 42)
    out += count(1) + string("m-1")
    if version >= 3:
        out += string("g-0")
    out += string("client") + string("/10.0.0.1")
    if version >= 1:
        out += struct.pack(">i", 300_000)
    out += struct.pack(">i", 45_000) + data(SUBSCRIPTION) + data(ASSIGNMENT)
    return out + (b"\0\0" if flexible else b"")


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_group_metadata_gives_the_same_member(version):
    """Versions 0-4: fields that a version lacks are None or fall back to the session timeout."""
    key = struct.pack(">h", 2) + text("g")
    found = decode(key, classic_value(version), offset=1, timestamp=2)
    assert isinstance(found, GroupMetadata)
    assert (found.generation, found.protocol, found.leader) == (5, "range", "m-1")
    assert found.state_timestamp_ms == (42 if version >= 2 else None)
    member = found.members[0]
    assert isinstance(member, ClassicMember)
    assert member.instance_id == ("g-0" if version >= 3 else None)
    assert member.rebalance_timeout_ms == (300_000 if version >= 1 else 45_000)
    assert (member.topics, member.owned, member.assigned) == (("t",), {"t": (4,)}, {"t": (0, 3)})


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_offset_commit_gives_the_same_offset(version):
    """Versions 0-4 differ in expiry, leader epoch and encoding only."""
    value = struct.pack(">hq", version, 99)
    if version >= 3:
        value += struct.pack(">i", 4)
    value += (compact("note") if version >= 4 else text("note")) + struct.pack(">q", 1234)
    if version == 1:
        value += struct.pack(">q", 5678)
    if version >= 4:
        value += b"\0"
    found = decode(struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 2), value,
                   offset=0, timestamp=0)  # fmt: skip
    assert isinstance(found, OffsetCommit)
    assert (found.committed, found.metadata, found.commit_timestamp_ms) == (99, "note", 1234)
    assert found.leader_epoch == (4 if version >= 3 else -1)
    assert found.expire_timestamp_ms == (5678 if version == 1 else None)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(
    ("spoilt", "topics", "assigned"),
    [
        pytest.param(ASSIGNMENT, ("t",), {}, id="assignment"),
        pytest.param(SUBSCRIPTION, (), {"t": (0, 3)}, id="subscription"),
    ],
)
def test_a_members_malformed_blob_costs_that_member_alone(version, spoilt, topics, assigned):
    """The coordinator takes any bytes from a client; the group has its generation and members."""
    value = classic_value(version).replace(spoilt, b"\0\0".ljust(len(spoilt), b"\x7f"))
    found = decode(struct.pack(">h", 2) + text("g"), value, offset=1, timestamp=2)
    assert isinstance(found, GroupMetadata)
    (member,) = found.members
    assert (found.generation, member.member_id, member.session_timeout_ms) == (5, "m-1", 45_000)
    assert (member.topics, member.assigned) == (topics, assigned)
    assert member.problem
    assert decode(struct.pack(">h", 2) + text("g"), classic_value(version), offset=1, timestamp=2
                  ).members[0].problem is None  # fmt: skip


def test_blobs_of_other_protocol_types_are_left_unread():
    """Kafka Connect puts its own format into subscription and assignment."""
    value = classic_value(3).replace(text("consumer"), text("connect"))
    found = decode(struct.pack(">h", 2) + text("g"), value, offset=0, timestamp=0)
    assert isinstance(found, GroupMetadata)
    assert (found.members[0].topics, found.members[0].assigned) == ((), {})
    assert found.members[0].assignment == ASSIGNMENT


def test_unknown_tags_are_skipped_by_their_size():
    """KIP-915: newer brokers may add tagged fields."""
    key, value = EPOCH
    longer = bytes.fromhex(value).replace(b"\x01\x00\x08", b"\x02\x00\x08", 1) + b"\x07\x02zz"
    found = decode(bytes.fromhex(key), longer, offset=0, timestamp=0)
    assert isinstance(found, ConsumerGroupEpoch)
    assert found.epoch == 2


def test_share_and_streams_groups_tell_their_epochs_and_members():
    """Their records are those of KIP-848's groups; what follows the fields in use is not read."""
    group, member = struct.pack(">h", 17) + text("s"), struct.pack(">h", 10) + text("s") + text("m")
    value = b"\0\0" + struct.pack(">iq", 7, 99) + b"\x01\x00\x04" + struct.pack(">i", 3)
    epoch = decode(group, value, offset=0, timestamp=0)
    assert isinstance(epoch, ConsumerGroupEpoch)
    assert (epoch.type, epoch.group, epoch.epoch, epoch.metadata_hash) == (17, "s", 7, 99)
    value = b"\0\0\0" + compact("c") + compact("/h") + b"\x02" + compact("t") + b"\0"
    joined = decode(member, value, offset=0, timestamp=0)
    assert isinstance(joined, ConsumerGroupMember)
    assert (joined.member_id, joined.client_id, joined.topics) == ("m", "c", ("t",))


def test_what_is_written_are_the_bytes_of_a_live_broker():
    """The same table of fields writes records; docs/contributing/protocol.md 3.3."""
    topic = "12d77191ec2c40b2b4e97e94f8ba880d"
    commit = record_value(
        1, 4, committed=76, leader_epoch=0, metadata="", commit_timestamp_ms=0x1A1FBA29688,
        topic_id=topic,
    )  # fmt: skip
    assert (record_key(1, "g-classic", "t", 0).hex(), commit.hex()) == COMMIT
    empty = record_value(
        2, 3, protocol_type="", generation=0, protocol=None, leader=None,
        state_timestamp_ms=0x1A1FBA28EAB, members=(),
    )  # fmt: skip
    assert (record_key(2, "g-classic").hex(), empty.hex()) == CREATED
    target = record_value(7, 0, partitions={topic: range(12)})
    assert (record_key(7, "g-consumer", TARGET_MEMBER).hex(), target.hex()) == TARGET
    for version in range(5):
        member = {
            "member_id": "m-1", "instance_id": "g-0", "client_id": "client",
            "client_host": "/10.0.0.1", "rebalance_timeout_ms": 300_000,
            "session_timeout_ms": 45_000, "subscription": SUBSCRIPTION, "assignment": ASSIGNMENT,
        }  # fmt: skip
        group = record_value(
            2, version, protocol_type="consumer", generation=5, protocol="range", leader="m-1",
            state_timestamp_ms=42, members=[member],
        )  # fmt: skip
        assert group == classic_value(version)
    assert [uvarint(n).hex() for n in (0, 127, 128, 300)] == ["00", "7f", "8001", "ac02"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        pytest.param(None, b"", "no key", id="no-key"),
        pytest.param(b"\0", b"", "2 bytes wanted", id="short-key"),
        pytest.param(b"\x03\xe7" + text("g"), b"", "record type 999", id="unknown-type"),
        pytest.param(b"\0\x02" + text("g"), b"\0\x09", "value version 9", id="unknown-version"),
        pytest.param(b"\0\x02" + text("g"), b"\xff\xff", "value version -1", id="negative-version"),
        pytest.param(b"\0\x02" + text("g"), classic_value(3)[:-9], "wanted", id="truncated"),
        pytest.param(b"\0\x02" + text(None), b"\0\0", "null", id="null-group"),
        pytest.param(b"\0\x02\0\x01\xff", b"\0\0", "UTF-8", id="not-utf8"),
        pytest.param(bytes.fromhex(CURRENT[0]), b"\0\0" + b"\xff" * 30, "", id="huge-array"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_reason(key, value, reason):
    """Unknown types and versions and truncated bytes are outcomes, with the bytes kept."""
    found = decode(key, value, offset=3, timestamp=4)
    assert isinstance(found, Undecoded)
    assert reason in found.reason
    assert (found.key, found.value, found.offset) == (key, value, 3)
