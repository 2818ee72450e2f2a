"""Messages of Kafka's formats 0 and 1 (before 0.11) as the record batches that came after them.

Problem: brokers before Kafka 4 hand out what was written in an older format as it is, and a topic
may hold both. Choice: kafka-python reads such a message (with all that is packed in it) and writes
it as a batch of format 2, so that everything else knows one format. Cost: 20 µs a record, until
retention has taken the last of them.
"""

_APPEND_TIME = 8
_ATTRIBUTES_AT = 21
_MAX_TIME_AT = 35


def as_batch(message: bytes) -> bytes:
    """One message, packed or not, as a batch; ValueError where it is damaged."""
    import google_crc32c  # noqa: PLC0415
    from kafka.errors import KafkaError  # noqa: PLC0415 - hardly ever needed
    from kafka.record import MemoryRecords  # noqa: PLC0415
    from kafka.record.default_records import DefaultRecordBatchBuilder  # noqa: PLC0415

    try:
        found = MemoryRecords(message).next_batch()
        if found is None or not found.validate_crc():
            raise ValueError("its checksum does not fit")
        records = list(found)
    except (KafkaError, IndexError, AssertionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not records:
        raise ValueError("it holds no message")
    made = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    base = records[0].offset
    for each in records:
        time = -1 if each.timestamp is None else each.timestamp
        made.append(each.offset - base, time, each.key, each.value, [])
    data = bytearray(made.build())
    data[:8] = base.to_bytes(8, "big", signed=True)
    if records[-1].timestamp_type == 1:
        data[_ATTRIBUTES_AT + 1] |= _APPEND_TIME
        data[_MAX_TIME_AT : _MAX_TIME_AT + 8] = records[-1].timestamp.to_bytes(
            8, "big", signed=True
        )
    data[17:21] = google_crc32c.value(bytes(data[_ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(data)
