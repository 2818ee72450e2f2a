"""Finds the batches of a Fetch answer that belong to aborted transactions.

Source: KIP-98: an aborted transaction's batches lie between its first offset, which the answer
names, and its abort marker in the log.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fleet.kafka_source.record_batches import Cut


def select_committed(
    found: Cut, aborted: Sequence[tuple[int, int]]
) -> npt.NDArray[np.bool_] | None:
    """Returns for each batch whether it stays; None if all do.

    aborted: producer and first offset of each aborted transaction, as the broker answers.
    """
    if not aborted:
        return None
    batches = found.batches
    to_come = sorted(aborted, key=lambda each: each[1])
    ends = [(marker.offset, marker.producer) for marker in found.markers if not marker.committed]
    open_now: set[int] = set()
    stays = np.ones(len(batches.base), np.bool_)
    rows = zip(
        batches.base.tolist(), batches.after.tolist(), batches.producer.tolist(), strict=True
    )
    for row, (base, after, producer) in enumerate(rows):
        while ends and ends[0][0] < base:
            offset, ended = ends.pop(0)
            _begin(open_now, to_come, before=offset)
            open_now.discard(ended)
        _begin(open_now, to_come, before=after)
        stays[row] = producer not in open_now
    return stays


def _begin(open_now: set[int], to_come: list[tuple[int, int]], *, before: int) -> None:
    while to_come and to_come[0][1] < before:
        open_now.add(to_come.pop(0)[0])
