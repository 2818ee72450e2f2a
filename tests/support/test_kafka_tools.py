"""The judge itself: Kafka's tools are read right."""

import pytest

from tests.support.kafka_tools import (
    DUMP,
    parse_dump,
    partition_of,
)
from tests.support.tool_server import ToolServer


@pytest.mark.parametrize(
    ("group", "code"),
    [
        pytest.param("hello", 99162322, id="ascii"),
        pytest.param("", 0, id="empty"),
        pytest.param("polygenelubricants", 0, id="least-integer"),
    ],
)
def test_partition_is_javas_hash(group, code) -> None:
    """String.hashCode, made positive; the one value without a positive counts as 0."""
    assert partition_of(group, 2**31) == code
    assert 0 <= partition_of(group, 50) < 50


def test_dump_is_parsed() -> None:
    """Records, tombstones and lines that are neither."""
    text = (
        "Dumping x.log\nLog starting offset: 0\n"
        "baseOffset: 0 lastOffset: 0 count: 1 CreateTime: 5 size: 105 magic: 2\n"
        "| offset: 7 CreateTime: 5 keySize: 13 valueSize: 24 sequence: 0 headerKeys: [] key: "
        '{"type":"2","data":{"group":"g payload: key: "}} payload: {"version":"3","data":'
        '{"generation":4}}\n'
        "| offset: 8 CreateTime: 6 keySize: 13 valueSize: -1 sequence: 3 headerKeys: [] key: "
        '{"type":"3","data":{"groupId":"h"}} payload: <DELETE>\n'
        "| offset: 9 CreateTime: 6 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: COMMIT coordinatorEpoch: 0\n"
    )
    first, second = parse_dump(text)
    assert (first.offset, first.timestamp, first.type, first.version) == (7, 5, 2, 3)
    assert first.group == "g payload: key: "
    assert first.value == {"generation": 4}
    assert (second.type, second.group, second.value, second.version) == (3, "h", None, None)


@pytest.mark.broker
def test_what_ends_a_tool_is_told_and_the_next_one_works(tmp_path) -> None:
    """As a file that is no segment; the tool itself ends its JVM then."""
    server = ToolServer()
    try:
        with pytest.raises(AssertionError, match="no-number"):
            server.ask(DUMP, "--files", str(tmp_path / "no-number.log"))
        segment = tmp_path / "00000000000000000000.log"
        segment.write_bytes(b"")
        for _ in range(2):
            assert segment.name in server.ask(DUMP, "--files", str(segment))
    finally:
        server.close()
