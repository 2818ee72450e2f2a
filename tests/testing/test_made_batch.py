"""Records written by hand are the batch that a worker would make of them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.commands.operate.trial import of_file
from fleet.errors import ConfigError
from fleet.kafka_source.columns import SCHEMA
from fleet.testing import make_batch


def test_what_is_not_said_is_counted_up() -> None:
    """Offsets run per partition, the ranges hold them; columns as of Spark's Kafka source."""
    made = make_batch(
        [
            {"key": "a", "value": {"n": 1}, "headers": {"trace": "t1"}},
            {"value": b"\xff", "partition": 3, "offset": 7, "timestamp": 5_000},
            {"value": None, "partition": 3, "offset": 9},
            {"value_base64": "/w=="},
        ],
        topic="orders",
    )
    assert made.table.schema == SCHEMA
    rows = made.table.to_pylist()
    assert [row["value"] for row in rows] == [b'{"n": 1}', b"\xff", None, b"\xff"]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (3, 7), (3, 9), (0, 1)]
    assert rows[0]["headers"] == [{"key": "trace", "value": b"t1"}]
    assert rows[1]["timestamp"] == datetime.fromtimestamp(5, UTC)
    assert [each.id for each in made.context.ranges] == ["orders-0-0-2", "orders-3-7-10"]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        pytest.param({"vlaue": 1}, "record 2 has vlaue; it may have", id="unknown-key"),
        pytest.param({"offset": 0}, "record 2 has offset 0, and partition 0", id="going-back"),
        pytest.param({"partition": "x"}, "partition 'x' of record 2 is no number", id="no-number"),
        pytest.param({"value_base64": "?"}, "value_base64 of record 2", id="no-base64"),
        pytest.param({"headers": "h"}, "headers of record 2", id="no-headers"),
        pytest.param({"timestamp": "now"}, "timestamp 'now' of record 2", id="no-time"),
    ],
)
def test_a_wrong_record_is_named(record: dict[str, Any], told: str) -> None:
    """By its number, as it stands in the file or the list."""
    with pytest.raises(ConfigError, match=told):
        make_batch([{}, record])


def test_a_record_of_a_file_ends_with_its_line(tmp_path):
    """What else breaks a line on a screen is text: a separator of JavaScript's, a form feed."""
    value = "one\u2028two\u0085three"
    path = tmp_path / "records"
    path.write_text(f'{{"value": "{value}"}}\r\n\n{{"value": "last"}}', encoding="utf-8")
    assert [each["value"] for each in of_file(path)] == [value, "last"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"timestamp": 1e20}', "timestamp 1e+20 of record 1 is no time"),
        ('{"timestamp": NaN}', "timestamp nan of record 1 is no time"),
        ('{"timestamp": 1e400}', "timestamp inf of record 1 is no time"),
        ('{"partition": 3000000000}', "partition 3000000000 of record 1 is no number"),
        ('{"offset": 99999999999999999999}', "offset 99999999999999999999 of record 1 is no"),
        ('{"offset": 9223372036854775807}', "offset 9223372036854775807 of record 1 is no"),
        ('{"value": "\\ud800"}', "value of record 1 is no text"),
        ('{"key": "\\udcff"}', "key of record 1 is no text"),
        ('{"key_base64": "é"}', "key_base64 of record 1: "),
        ('{"headers": {"a": "\\ud800"}}', "header of record 1 is no text"),
        ('{"headers": {"\\ud800": "1"}}', "a header's name of record 1 is no text"),
        ('{"topic": "\\ud800"}', "topic of record 1 is no text"),
        ("[" * 100_000, "is not JSON"),
        ('{"value": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_what_no_record_can_have_is_told_with_its_number(tmp_path, line, told):
    """Of a file that a person wrote: never a traceback."""
    path = tmp_path / "records"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        make_batch(of_file(path))
    assert told in str(caught.value)
