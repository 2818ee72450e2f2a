"""A damaged batch in the offsets topic costs its own records: what lies around it is read."""

from fleet.clock import SystemClock
from fleet.kafka_source.batch_fetcher import BatchFetcher, FetchedPart
from fleet.log.readers.tail import Tail
from tests.observe.test_tail import commit_of
from tests.support.written_log import batch, signed


def test_reading_goes_on_behind_a_damaged_batch():
    """Be it that its checksum does not fit, or that a record in it is none."""
    fine = [batch(n, [(*commit_of("g", n, 10 + n), ())]) for n in range(4)]
    torn = fine[1][:-1] + bytes([fine[1][-1] ^ 1])
    odd = bytearray(fine[2])
    odd[61] = 0xF0  # the record says that it is longer than its batch
    config = {"bootstrap.servers": "memory:1"}
    tail = Tail(config, cluster="test", clock=SystemClock())
    nobody = BatchFetcher(config, client_id="test", committed=False)
    log = {0: fine[0], 1: torn, 2: signed(bytes(odd)), 3: fine[3]}
    tail._next[0] = 0
    for _ in range(6):
        at = tail._next[0]
        data = b"".join(each for number, each in log.items() if number >= at)
        tail._take(nobody, FetchedPart(("__consumer_offsets", 0), data, 0, ()))
    seen = {tp.partition: offset for tp, (offset, _) in tail.committed("g").items()}
    assert seen == {0: 10, 3: 13}
    assert tail.decode_errors() == {(-1, -1): 2}
    assert "partition 0: the record batch at offset 2 is damaged" in (tail.problem or "")
