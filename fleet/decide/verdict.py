"""Is a group well? Verdicts for checks, each with its sentence."""

from fleet.decide.finding import Finding
from fleet.model import GroupSnapshot, LagCase
from fleet.spec import Storm

_NAMED = {LagCase.BELOW_START, LagCase.BEYOND_END, LagCase.TOPIC_DELETED}


def lag_verdict(
    group: GroupSnapshot, *, limit_records: int | None = None, limit_seconds: float | None = None
) -> Finding:
    """Well where the group's lag is within both limits; None = no such limit.

    A group that does not exist, and one whose lag cannot be said, are ok False where a limit
    is set: nobody knows that all is well.
    """
    if not group.exists:
        return Finding(ok=False, sentence=f"{group.group} does not exist")
    lag, age = group.lag, group.lag_seconds
    limited = limit_records is not None or limit_seconds is not None
    if lag is None:
        why = "never committed" if _all_never_committed(group) else "unknown"
        return Finding(ok=not limited, sentence=f"the lag of {group.group} is {why}")
    said = f"{group.group} has {lag:,} records waiting"
    if age is not None:
        said += f", the oldest for {age:.1f} s"
    cases = sorted({str(p.case) for p in group.partitions if p.case in _NAMED})
    named = f" ({', '.join(cases)})" if cases else ""
    if limit_records is not None and lag > limit_records:
        return Finding(ok=False, sentence=f"{said}{named}; the limit is {limit_records:,} records")
    if limit_seconds is not None and age is not None and age > limit_seconds:
        return Finding(ok=False, sentence=f"{said}{named}; the limit is {limit_seconds:g} s")
    return Finding(ok=True, sentence=f"{said}{named}")


def budget_verdict(count: int | None, storm: Storm) -> Finding:
    """Well where the rebalances counted in the storm's window are within its budget."""
    if count is None:
        return Finding(
            ok=True, sentence="rebalances are not counted here: __consumer_offsets is not readable"
        )
    word = "rebalance" if count == 1 else "rebalances"
    said = f"{count} {word} in the last {storm.window:g} s, budget {storm.rebalances}"
    return Finding(ok=count <= storm.rebalances, sentence=said)


def _all_never_committed(group: GroupSnapshot) -> bool:
    parts = group.partitions
    return bool(parts) and all(p.case is LagCase.NEVER_COMMITTED for p in parts)
