"""Tells which hours of fleet.yaml apply now. Pure.

Problem: load and rules of operation follow the clock of a place, and hours may pass midnight.
Choice: hours are read in the policy's time zone, and belong to the day on which they begin. Cost:
when summer time begins or ends, hours that contain the change are an hour shorter or longer.
"""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fleet.config.spec import DAYS, Floor, GroupSpec
from fleet.text import plural


def is_within(hours: str, days: tuple[str, ...], timezone: str, now: float) -> bool:
    """Tells whether `now`, in wall-clock seconds, lies in the hours; their end does not."""
    local = datetime.fromtimestamp(now, tz=ZoneInfo(timezone))
    begin, _, end = hours.partition("-")
    time, today = local.strftime("%H:%M"), DAYS[local.weekday()]
    if begin < end:
        return today in days and begin <= time < end
    yesterday = DAYS[(local - timedelta(days=1)).weekday()]
    return (today in days and time >= begin) or (yesterday in days and time < end)


def describe_hours(hours: str, days: tuple[str, ...], timezone: str) -> str:
    """Returns hours for a sentence: `from 08:00 to 20:00 UTC on mon, tue`."""
    begin, _, end = hours.partition("-")
    on = "" if set(days) == set(DAYS) else f" on {', '.join(days)}"
    return f"from {begin} to {end} {timezone}{on}"


def current_floor(spec: GroupSpec, now: float) -> Floor | None:
    """Returns the highest floor that applies now and is above replicas.min; None if none is."""
    zone = spec.scaling.timezone
    found = [
        floor
        for floor in spec.scaling.floors
        if floor.min > spec.replicas.min and is_within(floor.hours, floor.days, zone, now)
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
    hours = describe_hours(floor.hours, floor.days, spec.scaling.timezone)
    return f"at least {plural(floor.min, unit)} {hours}"
