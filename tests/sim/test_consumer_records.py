"""The bytes of KIP-848 records are those of a live broker, and the history reads them."""

import pytest

from fleet.log.records import CurrentAssignment, TargetAssignment, decode
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    PARTITION_METADATA,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    MemberValue,
    OldMetadataValue,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.topic_image import TopicFacts, TopicImage, group_hash
from fleet.sim.hashing import xxh3_64

TOPIC = bytes.fromhex("12d77191ec2c40b2b4e97e94f8ba880d")
GROUP = "000a672d636f6e73756d6572"
FIRST = "00164b31527548514e785248433579396b393459744c7667"


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        pytest.param(
            ConsumerRecord(
                EPOCH, "g-consumer", None, EpochValue(2, 0xB057E521A29946AE - (1 << 64))
            ),
            f"0003{GROUP}",
            "000000000002010008b057e521a29946ae",
            id="epoch",
        ),
        pytest.param(
            ConsumerRecord(TARGET_EPOCH, "g-consumer", None, TargetEpochValue(2, 0x1A1FBA2C2D5)),
            f"0006{GROUP}",
            "000000000002010008000001a1fba2c2d5",
            id="target epoch",
        ),
        pytest.param(
            ConsumerRecord(
                MEMBER,
                "g-consumer",
                "K1RuHQNxRHC5y9k94YtLvg",
                MemberValue(None, None, "c1", "/127.0.0.1", ("t",), "", 300_000, None),
            ),
            f"0005{GROUP}{FIRST}",
            "000000000363310b2f3132372e302e302e31020274" + "01000493e00001000100",
            id="member",
        ),
        pytest.param(
            ConsumerRecord(CURRENT, "g", "m", CurrentValue(3, 0, 2, (), ())),
            "0008000167" + "00016d",
            "0000000000030000000002010100",
            id="current",
        ),
        pytest.param(
            ConsumerRecord(REGEX, "g", "t.*", RegexValue(("t",), 5, 6)),
            "00100001670003742e2a",
            "0000" + "020274" + "0000000000000005" + "0000000000000006" + "00",
            id="expression",
        ),
        pytest.param(
            ConsumerRecord(PARTITION_METADATA, "g", None, OldMetadataValue()),
            "0004000167",
            "00000100",
            id="old metadata",
        ),
        pytest.param(ConsumerRecord(EPOCH, "g", None, None), "0003000167", None, id="tombstone"),
    ],
)
def test_bytes(record, key, value) -> None:
    """As they stand in `__consumer_offsets` (docs/design/protocol.md 3.3)."""
    assert record.key_bytes().hex() == key
    written = record.value_bytes()
    assert (None if written is None else written.hex()) == value


def test_target_and_current_are_read_back() -> None:
    """Partitions of a topic, with the epochs in which they were given."""
    target = ConsumerRecord(TARGET, "g", "m", TargetValue(((TOPIC, tuple(range(12))),)))
    read = decode(target.key_bytes(), target.value_bytes(), offset=0, timestamp=0)
    assert isinstance(read, TargetAssignment)
    assert read.partitions == {TOPIC.hex(): tuple(range(12))}
    owned = ((TOPIC, (0, 1), (3, 4)),)
    current = ConsumerRecord(CURRENT, "g", "m", CurrentValue(5, 4, 1, owned, owned))
    read = decode(current.key_bytes(), current.value_bytes(), offset=0, timestamp=0)
    assert isinstance(read, CurrentAssignment)
    assert (read.epoch, read.state, read.revoking) == (5, 1, {TOPIC.hex(): (0, 1)})


def test_hash_of_a_live_broker() -> None:
    """A group of one topic of 12 partitions, without racks; one that is not there counts not."""
    image = TopicImage(0, [TopicFacts(TOPIC, "t", 12)])
    assert group_hash(["t", "gone"], image) == 0xB057E521A29946AE - (1 << 64)
    assert group_hash(["gone"], image) == 0


def test_hash_of_every_length() -> None:
    """Short, middle and long inputs go different ways; the numbers are those of xxHash."""
    data = bytes((i * 37 + i // 7) & 255 for i in range(1_500))
    known = {
        4: 16433794444654682403,
        8: 10098972016725757848,
        9: 4454528691506392255,
        16: 17929151753889475892,
        17: 12954147669114675815,
        33: 9739396119815673056,
        97: 17871901164144945261,
        128: 9386324110386277567,
        129: 8562353416516955468,
        144: 7291879159200778372,
        240: 333474733559976742,
        241: 16389230817523053419,
        1024: 12054785107441329768,
        1025: 16998456114983871524,
        1499: 1504517644445350882,
    }
    assert {size: xxh3_64(data[:size]) for size in known} == known
    with pytest.raises(ValueError, match="3 bytes to hash"):
        xxh3_64(b"abc")
