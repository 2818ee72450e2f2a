"""Tracks the usual gap between the commits of a partition, to tell usual silence from unusual.

Problem: each consumer commits in its own rhythm, and the rhythm changes. Choice: a moving average
over advancing commits, in which the newest gap weighs a third: one number per partition. Cost: it
needs some five commits to follow a change of rhythm.
"""

from typing import Any, Final

_NEWEST: Final = 0.3
_EARLY: Final = 0.5


def usual_gap(usual: Any, newest: Any, *, times: int = 1) -> Any:
    """The usual gap after `times` more gaps of the length `newest`; None or below 0: none yet.

    Of one partition, or of many (numpy arrays).
    """
    if usual is None:
        return newest
    return newest + (usual >= 0) * (1 - _NEWEST) ** times * (usual - newest)


def is_early(gap: Any, usual: Any) -> Any:
    """Whether a commit came too soon for the rhythm: a revocation, a drain. As `usual_gap`."""
    return usual is not None and (usual >= 0) & (gap < _EARLY * usual)
