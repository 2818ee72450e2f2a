"""What a kill is held to have cost, by the journal."""

import json

from benchmarks.command import of_protocols
from benchmarks.failover import FailoverOptions, FailoverResult, FailoverStats, processed_again
from benchmarks.figures import spread
from fleet.demo.coverage import JournalEntry, Run
from fleet.model import TopicPartition
from tests.support.json_contract import BENCHMARKS, documented, shape


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


def test_json_has_the_documented_shape():
    """Every key that is printed stands in benchmarks/json.md with its kind, and no other."""
    kills = FailoverStats(kills=2, seconds=spread([0.9, 1.4]), rebalances=2)
    found = FailoverResult(
        protocol="consumer",
        options=FailoverOptions(),
        seen=kills,
        lease=kills,
        lost=0,
        duplicates=90,
    )
    assert found.met
    told = json.loads(json.dumps(of_protocols("failover", [found], None)))
    assert shape(told) == shape(documented("python -m benchmarks failover -o json", BENCHMARKS))
