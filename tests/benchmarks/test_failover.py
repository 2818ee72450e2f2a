"""What a kill is held to have cost, by the journal."""

from benchmarks.failover import processed_again
from fleet.demo.coverage import JournalEntry, Run
from fleet.model import TopicPartition


def entry(partition: int, worker: str, at: float) -> JournalEntry:
    return JournalEntry(
        group="g",
        tp=TopicPartition("t", partition),
        first=0,
        last=0,
        rows=(Run(0, 1, 1),),
        worker=worker,
        attempt=1,
        revision="r",
        at=at,
    )


def test_the_dead_ones_partitions_until_their_first_call_after_it():
    """Only those that it was the last to read; what others read is no matter of the kill."""
    journal = [
        entry(0, "dead", 1.0),
        entry(1, "dead", 2.0),
        entry(2, "dead", 1.0),
        entry(2, "other", 2.0),
        entry(0, "next", 11.5),
        entry(0, "next", 13.0),
        entry(2, "other", 14.0),
    ]
    assert processed_again(journal, victim="dead", at=10.0) == {
        TopicPartition("t", 0): 1.5,
        TopicPartition("t", 1): None,
    }
