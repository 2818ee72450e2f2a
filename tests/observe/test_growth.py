"""By how much ages grew: of the same partition, over five minutes, and else not said."""

import numpy as np

from fleet.lag.lag_columns import Growth
from fleet.log.readers.positions import Positions, key_to
from fleet.model import TopicPartition


def told(growth: Growth, rows: list[int], ages: list[float], at: float):
    known = np.array(ages)
    gained, over = growth.update(np.array(rows, dtype=np.int64), known, known, at)
    return [None if np.isnan(each) else each for each in gained.tolist()], over


def test_against_the_oldest_look_of_the_window():
    growth = Growth()
    assert told(growth, [7, 3], [1.0, 2.0], 0.0) == ([None, None], 0.0)
    assert told(growth, [3, 7], [12.0, 1.0], 10.0) == ([10.0, 0.0], 10.0)
    for at in range(20, 300, 10):
        told(growth, [3, 7], [float(at), 1.0], float(at))
    assert told(growth, [7, 3, 9], [5.0, 302.0, 9.0], 300.0) == ([4.0, 300.0, None], 300.0)
    assert told(growth, [3], [400.0], 310.0) == ([340.0], 250.0)
    assert told(growth, [3], [900.0], 900.0) == ([None], 0.0)
    assert told(growth, [], [], 910.0) == ([], 10.0)


def test_what_is_new_in_an_old_ones_row_did_not_grow():
    """A group that begins with a backlog, where a deleted one's row was free."""
    kept, growth, tp = Positions(), Growth(), TopicPartition("t", 0)
    kept.put(key_to("old", tp), "old", tp, 5, 1_000)
    told(growth, kept.copy().row.tolist(), [0.0], 0.0)
    assert kept.commit(key_to("old", tp), None, 2_000)
    kept.put(key_to("new", tp), "new", tp, 5, 3_000)
    assert len(kept.copy()) == 1
    assert told(growth, kept.copy().row.tolist(), [5_000.0], 60.0) == ([None], 60.0)
