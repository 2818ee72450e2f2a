"""Which STARTED runs are dead: pure judgement over what the group's lease shows.

Problem: after a power cut a run stays STARTED in Dagster's storage for ever; nothing of
Dagster's own notices a local run worker that is gone with its code server [36]. Choice: an
acting run shows life through its change's counter, which it raises every third of a lease.
A run whose change stands still for a lease, or that has no running change for two minutes,
is over. Times are counted in ticks as well as in seconds, of which a tick adds no more than ticks
are apart: a machine that slept does not wake to a mass ending, and no setting of the clock ends or
keeps a run. A tick whose own writes are refused begins the count anew: the run's would have been
as well [38]. Cost: a dead run is seen after a minute or two, not at once; one that makes other
assets too, before or after its change, is left to Dagster's `run_monitoring` and to people.
"""

from fleet.dagster.asset_keys import actor
from fleet.dagster.watch.sensor_cursor import StartedRun
from fleet.slots import Change, ChangeState
from fleet.text import duration

STILL_TICKS = 3
IDLE_TICKS = 6
IDLE_SECONDS = 120.0
"""A run plans, waits for a dead actor's lease, checks: with no change of its own that long."""
MARGIN = 5.0
LONGEST_TICK = 30.0
"""Seconds that one tick may add: they are 15 s apart, and what lies between is not watched."""

IDLE = "idle"


def mark_of(run_id: str, change: Change | None) -> str:
    """What the run shows of itself in the store now."""
    if change is None or change.actor != actor(run_id) or change.state is not ChangeState.RUNNING:
        return IDLE
    return f"{change.token}.{change.counter}"


def seen_again(
    known: StartedRun | None, mark: str, *, now: float, provable: bool = True
) -> StartedRun:
    """The memory of a run after one more tick. provable: whether a renewal would be stored."""
    if known is None or known.mark != mark or not provable:
        return StartedRun(mark=mark, still=0.0, ticks=1, at=now)
    passed = min(max(0.0, now - known.at), LONGEST_TICK)
    return StartedRun(mark=mark, still=known.still + passed, ticks=known.ticks + 1, at=now)


def why_dead(run: StartedRun, *, lease: float) -> str | None:
    """Why the run is over, in a sentence; None while it may be alive."""
    still = run.still
    if run.mark == IDLE:
        if run.ticks >= IDLE_TICKS and still >= max(IDLE_SECONDS, 3 * lease):
            return (
                f"no change of this run is being carried out for {duration(still)}: its process is "
                "gone; the next run of the group goes on from what Kafka shows"
            )
        return None
    if run.ticks >= STILL_TICKS and still >= lease + MARGIN:
        return (
            f"the group's lease was not renewed for {duration(still)} (lease {lease:g} s): its "
            "process is gone; the next run of the group resumes the change"
        )
    return None
