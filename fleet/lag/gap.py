"""The usual gap between the commits of a partition: what is ordinary silence, and what is not.

Problem: a consumer commits in a rhythm of its own, and it changes. Choice: a moving average over
commits that go forward, the newest gap weighing a third: one number to keep for each partition.
Cost: after a change of rhythm it takes some five commits to follow.
"""

from typing import Any, Final

import numpy as np

_NEWEST: Final = 0.3
_EARLY: Final = 0.5


def usual_gap(usual: float | None, newest: float, *, times: int = 1) -> float:
    """The usual gap after `times` more gaps of the length `newest`; None: there was none yet."""
    if usual is None:
        return newest
    return newest + (1 - _NEWEST) ** times * (usual - newest)


def usual_gaps(usual: Any, newest: Any) -> Any:
    """`usual_gap` of many partitions (numpy); below 0 there was none yet."""
    return np.where(usual < 0, newest, newest + (1 - _NEWEST) * (usual - newest))


def are_early(gaps: Any, usual: Any) -> Any:
    """`is_early` of many partitions (numpy); below 0 none is usual yet."""
    return (usual >= 0) & (gaps < _EARLY * usual)


def is_early(gap: float, usual: float | None) -> bool:
    """Whether a commit came too soon for the rhythm: a revocation, a drain."""
    return usual is not None and gap < _EARLY * usual
