"""`fleet top`: all groups, live. Looks are taken on a thread, so that keys answer at once."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import Invocation, common, output_option

if TYPE_CHECKING:
    from fleet.commands.groups.top_frame import Frame
    from fleet.manager.cycle import Fleet

_KEYS_EVERY: Final = 0.2
_FIRST: Final = 10.0
"""Seconds that a single frame waits for the offsets topic to be read."""
_APART: Final = 1.0
"""Seconds between the two looks of a single frame: rates need two."""


@click.command(epilog="Examples:  fleet top  |  fleet top --sort lag  |  fleet top --once -o json")
@click.option("--interval", type=click.FloatRange(min=0.5, max=3600.0), default=2.0,
              show_default=True, metavar="SECONDS", help="Seconds between two looks.")  # fmt: skip
@click.option(
    "--sort",
    type=click.Choice(["worst", "lag", "behind", "rebalances", "rate", "name"]),
    default="worst",
    show_default=True,
    help="Order of the rows; worst: storms, then seconds behind, then rebalances.",
)
@click.option(
    "--filter",
    "pattern",
    default="",
    metavar="TEXT",
    help="Show only groups whose name contains this text, or matches it as a regular expression.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit (default in a pipe).")
@output_option
@common
def top(
    invocation: Invocation, *, interval: float, sort: str, pattern: str, once: bool, output: str
) -> None:
    """Groups as they are now, worst first; a live view.

    Keys: q quits, s sorts by the next column, / filters. LAG is in records, BEHIND the age of
    the oldest committed position, IN/S and OUT/S records a second produced and consumed, REB/H
    rebalances of the last hour. While a broker does not answer, its last figures stay, and a
    line says so.
    """
    from fleet.commands.answers import print_json, stdout
    from fleet.commands.groups.top_frame import Frame, answer, drawn

    with invocation.open() as fleet:
        frame = Frame(
            cluster=fleet.spec.cluster.name,
            at=None,
            now=fleet.clock.now(),
            rows=(),
            notices=(),
            source="",
            sort=sort,
            pattern=pattern,
        )
        console = stdout()
        if output == "json" or once or not console.is_terminal:
            shown = _once(fleet, frame)
            if output == "json":
                print_json(answer(shown))
            else:
                console.print(drawn(shown))
            return
        _live(fleet, frame, every=interval)


def _once(fleet: "Fleet", frame: "Frame") -> "Frame":
    """Two looks, so that rates are known. Raises Unreachable."""
    from fleet.commands.groups.looks import Looks
    from fleet.commands.groups.top_frame import seen_in

    with Looks(fleet) as looks:
        began = fleet.clock.monotonic()
        looks.begin(_FIRST)
        fleet.clock.sleep(max(0.0, _APART - (fleet.clock.monotonic() - began)))
        return replace(seen_in(frame, looks.look()), now=fleet.clock.now())


def _live(fleet: "Fleet", frame: "Frame", *, every: float) -> None:
    from rich.live import Live

    from fleet.commands.groups.looks import Looks, Repeated
    from fleet.commands.groups.top_frame import after, drawn, seen_in
    from fleet.commands.keys import Keys
    from fleet.commands.screen import Screen

    console = Screen()
    with (
        Keys() as keys,
        Looks(fleet, apart=every) as looks,
        Repeated(looks.look, every=every, clock=fleet.clock).start() as repeated,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        look = None
        while True:
            latest = repeated.latest()
            if latest.value is not look and latest.value is not None:
                look = latest.value
                frame = seen_in(frame, look)
            told = () if latest.problem is None else (latest.problem,)
            known = () if look is None else look.notices
            frame = replace(frame, now=fleet.clock.now(), notices=(*told, *known))
            screen.update(drawn(frame, height=console.height), refresh=True)
            for key in keys.pressed(_KEYS_EVERY):
                following = after(frame, key)
                if following is None:
                    return
                frame = following
