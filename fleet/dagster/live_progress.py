"""A change's progress while its run goes: observations of the rollout, shown and plotted live.

Problem: a roll of many slots takes minutes in one step, and a page that shows nothing until its end
is not watched. Choice: a thread beside the change looks every two seconds and stores an observation
(slots done, records waiting, rebalances, longest pause so far) when a slot more is done, else every
ten seconds: an op with thousands of events is slow in Dagster. The change itself stays in the main
thread, where a cancelled run interrupts it. Cost: a second Fleet, open for as long as the change.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dagster import AssetExecutionContext, AssetObservation

from fleet.dagster.resources import FleetResource
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.manager.change_progress import ChangeProgress

LOOK: Final = 2.0
"""Seconds between two looks."""
TELL: Final = 5
"""Looks after which figures are told though no slot more is done."""
_END: Final = 30.0


def observation(
    context: AssetExecutionContext, group: str, seen: "ChangeProgress"
) -> AssetObservation:
    """What the page shows; numbers are plotted."""
    figures: dict[str, Any] = {
        "slots done": seen.slots_done,
        "slots": seen.slots,
        "lag (records)": seen.lag,
        "rebalances so far": seen.rebalances,
        "longest pause so far (s)": seen.longest_pause,
    }
    known = {name: value for name, value in figures.items() if value is not None}
    return AssetObservation(
        asset_key=context.asset_key,
        partition=context.partition_key,
        description=f"{group}: {seen.sentence}.",
        metadata={"sentence": f"{group}: {seen.sentence}.", **known},
    )


def watch(
    context: AssetExecutionContext, resource: FleetResource, group: str, over: threading.Event
) -> None:
    """Tell the change's progress until it is over; a look that fails is left out."""
    from fleet.manager.change_progress import change_progress  # noqa: PLC0415  imports Kafka

    told: tuple[object, ...] | None = None
    looks = 0
    with resource.open() as cycle:
        while not over.wait(LOOK):
            try:
                seen = change_progress(cycle, group)
            except FleetError as error:
                context.log.debug("no look at %s: %s", group, error)
                continue
            looks += 1
            if seen is None:
                continue
            mark = (seen.step, seen.slots_done)
            if mark != told or looks >= TELL:
                context.log.info(seen.sentence)  # an observation's own line holds no words
                context.log_event(observation(context, group, seen))
                told, looks = mark, 0


@contextmanager
def told_live(
    context: AssetExecutionContext, resource: FleetResource, group: str
) -> Iterator[None]:
    """Progress is told while the body runs; what becomes of telling it does not touch the body."""
    over = threading.Event()

    def run() -> None:
        try:
            watch(context, resource, group, over)
        except Exception as error:  # noqa: BLE001  a page without figures ends no change
            context.log.warning("progress of %s is not shown: %s", group, error)

    thread = threading.Thread(target=run, name="fleet-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END)
