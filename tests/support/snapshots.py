"""A snapshot made from values, for tests of what reads one."""

import numpy as np

from fleet.lag.lag_columns import NONE, Commits
from fleet.lag.snapshot import CASES, GroupFacts, Lag, Snapshot
from fleet.model import GroupSnapshot


def snapshot_of(*groups: GroupSnapshot, at: float = 1.0, **more: object) -> Snapshot:
    """A cluster with these groups; a lag in seconds is also the least that it can be."""
    parts = [(group.group, part) for group in groups for part in group.partitions]

    def offsets(*values: int | None) -> np.ndarray:
        return np.array([NONE if each is None else each for each in values], dtype=np.int64)

    seconds = np.array(
        [np.nan if part.lag_seconds is None else part.lag_seconds for _, part in parts]
    )
    known = {
        "cluster": "main",
        "took": 0.02,
        "topics": {},
        "facts": {
            group.group: GroupFacts(
                state=group.state,
                type=group.type,
                members=len(group.members),
                exists=group.exists,
                assignor=group.assignor,
            )
            for group in groups
        },
        "members": {group.group: group.members for group in groups},
        "commits": Commits.of((name, part.tp, part.committed) for name, part in parts),
        "lag": Lag(
            start=offsets(*(part.log_start for _, part in parts)),
            end=offsets(*(part.log_end for _, part in parts)),
            case=np.array([CASES.index(part.case) for _, part in parts], dtype=np.int8),
            records=offsets(*(part.lag for _, part in parts)),
            seconds=seconds,
            waited=seconds,
        ),
        "gained": np.full(len(parts), np.nan),
        "over": np.full(len(parts), np.nan),
    }
    return Snapshot(at=at, **{**known, **more})  # type: ignore[arg-type]
