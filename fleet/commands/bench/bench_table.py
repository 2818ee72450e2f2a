"""`fleet bench rebalance-table`: duration and pause of a rebalance by group size, simulated."""

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.bench.rebalance_table import Cell, CellKey, Outcome
    from fleet.sim.scenarios.group_sizes import SizedChange

SIZES: Final = (10, 50, 100, 200, 450, 1_000)
PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


@click.command(
    "rebalance-table",
    epilog="Example:  fleet bench rebalance-table --members 10 --members 100 --data table.csv",
)
@click.option(
    "--members",
    type=click.IntRange(3, 10_000),
    multiple=True,
    metavar="N",
    help="Size of the group; may be told several times (default: 10, 50, 100, 200, 450, 1000).",
)
@click.option(
    "--protocol",
    type=click.Choice([*PROTOCOLS, "all"]),
    default="all",
    show_default=True,
    help="Group protocol of the members.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of runs of each cell, by seeds from 1 on.",
)
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV to put the cells into; those of other sizes and protocols stay.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="PNG of all cells, those that the data had before, too.",
)
@output_option
@verbose_option
def rebalance_table(
    *,
    members: tuple[int, ...],
    protocol: str,
    seeds: int,
    data: Path | None,
    plot: Path | None,
    output: str,
) -> None:
    """Price a rebalance by group size; no broker.

    One member joins, leaves or restarts (5 s away), or a tenth of them at once, or that tenth in
    Fleet's way (gate, batched leave, handovers), dynamic and static, by range, cooperative-sticky
    and KIP-848. Time is simulated; members behave as librdkafka's whose heartbeats stand apart, as
    after hours. A cell tells, by the median of the seeds: seconds from the change until every
    partition has its owner / the longest pause of a partition / the pause of all partitions on
    average. No goals. All sizes take some minutes of one core.
    """
    from fleet.bench.rebalance_table import in_order, measure, write_cells
    from fleet.commands.progress import Progress
    from fleet.extras import need

    if plot is not None:
        need("matplotlib")
    if data is not None:
        write_cells(data, ())  # whether it can be is known before minutes of work
    wanted = PROTOCOLS if protocol == "all" else (protocol,)
    with Progress("bench rebalance-table") as say:
        cells = measure(_stories(members or SIZES, wanted), range(1, seeds + 1), say)
    kept = in_order(cells) if data is None else write_cells(data, cells)
    if plot is not None:
        from fleet.bench.rebalance_plot import draw

        draw(kept, plot)
    _print(cells, output)


def _stories(
    sizes: tuple[int, ...], protocols: tuple[str, ...]
) -> "dict[CellKey, tuple[int, Callable[[int], Outcome]]]":
    from fleet.bench.rebalance_table import CellKey
    from fleet.sim.scenarios.group_sizes import sized_changes

    return {
        CellKey(*change, size): (change.changed(size), partial(_played, change, size))
        for size in sorted(set(sizes))
        for protocol in protocols
        for change in sized_changes((protocol,))
    }


def _played(change: "SizedChange", members: int, seed: int) -> "Outcome":
    from fleet.bench.rebalance_table import Outcome
    from fleet.sim.scenarios.group_sizes import LONGEST_HEARTBEAT
    from fleet.sim.scenarios.play import play

    rng = random.Random(seed)
    told = play(change.scenario(members, rng.randrange(LONGEST_HEARTBEAT)), rng)
    return Outcome(
        told.rebalances,
        None if told.settled is None else told.settled / 1_000,
        told.longest / 1_000,
        sum(told.pauses) / len(told.pauses) / 1_000,
    )


def answer(cells: "list[Cell]") -> dict[str, Any]:
    """The JSON answer (docs/json.md)."""
    from dataclasses import asdict

    return {
        "schema_version": SCHEMA_VERSION,
        "bench": "rebalance-table",
        "cells": [asdict(each) for each in cells],
    }


def _print(cells: "list[Cell]", output: str) -> None:
    from fleet.bench.rebalance_table import head, lines
    from fleet.commands.answers import print_json, stdout, table
    from fleet.sim.scenarios.group_sizes import CHANGES

    if output == "json":
        print_json(answer(cells))
        return
    console = stdout()
    names = head(cells)
    for change in CHANGES:
        console.print(f"[bold]{change}[/bold]: duration / longest pause / mean pause")
        shown = table(*names, right=names[2:])
        for line in lines(cells, change):
            shown.add_row(*line)
        console.print(shown)
