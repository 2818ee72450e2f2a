"""Tells which floors and restraints of a policy apply now. Pure.

Problem: load and rules of operation follow the clock of a place, and hours may pass midnight.
Choice: hours are read in the policy's time zone, and belong to the day on which they begin. A
restraint holds the policy alone; a person may still scale, and rolls go on. Cost:
when summer time begins or ends, hours that contain the change are an hour shorter or longer.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from fleet.config.spec import DAYS, Floor, GroupSpec, Hours
from fleet.text import duration, plural


def is_within(hours: Hours, timezone: str, now: float) -> bool:
    """Tells whether `now`, in wall-clock seconds, lies in the hours; their end does not."""
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    local = datetime.fromtimestamp(now, tz=zone)
    begin, _, end = hours.hours.partition("-")
    time, today = local.strftime("%H:%M"), DAYS[local.weekday()]
    if begin < end:
        return today in hours.days and begin <= time < end
    yesterday = DAYS[(local - timedelta(days=1)).weekday()]
    return (today in hours.days and time >= begin) or (yesterday in hours.days and time < end)


def describe_hours(hours: Hours, timezone: str) -> str:
    """Returns hours for a sentence: `from 08:00 to 20:00 UTC on mon, tue`."""
    begin, _, end = hours.hours.partition("-")
    on = "" if set(hours.days) == set(DAYS) else f" on {', '.join(hours.days)}"
    return f"from {begin} to {end} {timezone}{on}"


def current_floor(spec: GroupSpec, now: float) -> Floor | None:
    """Returns the highest floor that applies now and is above replicas.min; None if none is."""
    zone = spec.scaling.timezone
    found = [
        floor
        for floor in spec.scaling.floors
        if floor.min > spec.replicas.min and is_within(floor, zone, now)
    ]
    return max(found, key=lambda floor: floor.min, default=None)


def least_slots(spec: GroupSpec, now: float) -> int:
    """Returns the lowest number of slots now: replicas.min or a floor."""
    floor = current_floor(spec, now)
    return spec.replicas.min if floor is None else floor.min


def least_reason(spec: GroupSpec, now: float, unit: str = "slot") -> str:
    """Returns that number for a sentence: `at least 6 slots from 08:00 to 20:00 UTC`."""
    floor = current_floor(spec, now)
    if floor is None:
        return f"at least {spec.replicas.min}"
    return f"at least {plural(floor.min, unit)} {describe_hours(floor, spec.scaling.timezone)}"


_HOUR = 3600.0


def find_restraint(spec: GroupSpec, now: float, changed_at: Iterable[float]) -> str:
    """Returns why the policy may change nothing now; empty if it may.

    changed_at: wall-clock times at which changes of the group began.
    """
    policy = spec.scaling
    for hours in policy.freeze:
        if is_within(hours, policy.timezone, now):
            return f"frozen {describe_hours(hours, policy.timezone)} (scaling.freeze)"
    most = policy.changes_per_hour
    recent = sorted(at for at in changed_at if 0.0 <= now - at < _HOUR)
    if most is None or len(recent) < most:
        return ""
    left = duration(recent[-most] + _HOUR - now)
    return (
        f"{plural(len(recent), 'change')} in the last hour and scaling.changes_per_hour is "
        f"{most}: waits {left} more"
    )
