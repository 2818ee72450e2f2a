"""Share groups are counted: records as a share consumer of Kafka 4.3 left them."""

from fleet.log.records import decode
from fleet.log.replay.causes import Replay
from fleet.model.rebalances import Cause, Rebalance

KEY = b"\x00\x08sh-17202"
MEMBER = KEY + b"\x00\x168ZCDkTEYTv2AFqNb2b2sSg"
TOPIC = b"[\xef\xe5\x13\xfd\xecJ\xe0\x82#c\xd6\x88{[n"
BOTH = b"\x03\x00\x00\x00\x00\x00\x00\x00\x01\x00"
HASH = b'\xb3\xc5Sl"\xc5\xd3t\x00'
ZEROS = b"\x00\x00\x00\x00\x00"
RECORDS: list[tuple[int, bytes, bytes, bytes | None]] = [
    (897, b"\x00\x0a", MEMBER, b"\0\0\0\x17console-share-consumer\x0b/127.0.0.1\x02\tsh-17202\0"),
    (897, b"\x00\x0b", KEY, ZEROS + b"\x02" + HASH),
    (897, b"\x00\x0d", MEMBER, b"\x00\x00\x01\x00"),
    (897, b"\x00\x0c", KEY, ZEROS + b"\x02\x01\x00\x08\x00\x00\x01\xa1\xfe\xfa\xec\xa4"),
    (897, b"\x00\x0e", MEMBER, ZEROS + b"\x02\x00\x00\x00\x00\x00\x01\x00"),
    (897, b"\x00\x0f", KEY, b"\x00\x00\x02" + TOPIC + b"\tsh-17202" + BOTH[:-1] + b"\x01\x01\x00"),
    (2973, b"\x00\x0f", KEY, b"\x00\x00\x01\x02" + TOPIC + b"\tsh-17202" + BOTH + b"\x01\x00"),
    (5943, b"\x00\x0b", KEY, ZEROS + b"\x03" + HASH),
    (5943, b"\x00\x0d", MEMBER, b"\x00\x00\x02" + TOPIC + BOTH + b"\x00"),
    (5943, b"\x00\x0c", KEY, ZEROS + b"\x03\x01\x00\x08\x00\x00\x01\xa1\xfe\xfb\x00n"),
    (5943, b"\x00\x0e", MEMBER, ZEROS + b"\x03\0\0\0\x02\x00\x02" + TOPIC + BOTH + b"\x00"),
    (7102, b"\x00\x0e", MEMBER, None),
    (7102, b"\x00\x0d", MEMBER, None),
    (7102, b"\x00\x0a", MEMBER, None),
    (7102, b"\x00\x0b", KEY, ZEROS + b"\x04" + b"\x00" * 9),
]


def test_a_share_group_rebalances_when_a_member_comes_and_when_partitions_are_ready() -> None:
    replay = Replay("main", "sh-17202")
    rows = []
    for offset, (at, kind, key, value) in enumerate(RECORDS):
        record = decode(kind + key, value, offset=offset, timestamp=1795279219000 + at)
        rows += replay.feed(3, record)
    rebalances = [row for row in rows if isinstance(row, Rebalance)]
    assert [(r.protocol, r.number, r.cause, r.members) for r in rebalances] == [
        ("share", 2, Cause.CREATED, 1),
        ("share", 3, Cause.PARTITIONS, 1),
    ]
    assert [row.event for row in rows if not isinstance(row, Rebalance)] == ["joined", "left"]
    assert replay.members() == ()
    assert replay.pending() == ()
