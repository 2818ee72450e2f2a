"""`fleet simulate scaling`: replays load through rules of scaling, and compares their cost."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet.commands.answers import print_json, stdout, table
from fleet.commands.groups.rebalances import Moment, wall
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, group_names, output_option
from fleet.commands.screen import Progress
from fleet.errors import FleetError
from fleet.text import duration

if TYPE_CHECKING:
    from datetime import datetime

    from fleet.backtest.load import LoadSeries
    from fleet.backtest.replay import Rule

SHAPES = ("steady", "daily", "burst", "skewed", "hot-partition", "stuck-sink")
POLICIES = (
    *("drain_time", "packed", "lag", "keda", "keda-5m", "keda-30m", "keda-with-lag", "flink"),
    *("clairvoyant", "declared"),
)
_USUAL = ("drain_time", "keda", "keda-5m", "flink", "clairvoyant")


@click.command(
    epilog="Examples:  fleet simulate scaling --shape burst  |  fleet simulate scaling --trace "
    "load.csv --policy drain_time --policy keda"
)
@click.option("--shape", type=click.Choice(SHAPES), default="daily", show_default=True,
              metavar="NAME", help=f"Generated load: {', '.join(SHAPES)}.")  # fmt: skip
@click.option("--trace", "traces", multiple=True, metavar="FILE",
              type=click.Path(path_type=Path, dir_okay=False),
              help="CSV file with a time, then the records of each step, a column per partition; "
              "several files stand side by side.")  # fmt: skip
@click.option("--group", metavar="GROUP", shell_complete=group_names,
              help="Group whose recorded load is replayed.")  # fmt: skip
@click.option("--since", type=Moment(), metavar="TIME",
              help="Start of the recorded load: a period such as 14d, or a time "
              "(default: 14d).")  # fmt: skip
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES),
              metavar="NAME", help=f"Rule to replay, repeatable: {', '.join(POLICIES)} "
              f"(default: {', '.join(_USUAL)}; declared with --group).")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.01, 60), metavar="N",
              help="Length (default: 2 days of a shape, all of a trace).")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 1000), metavar="N",
              help="Number of partitions (default: 12; a trace is spread over them if "
              "given).")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0.001), metavar="N",
              help="Mean records/s of the group (default: 2.5 workers; a trace's "
              "own).")  # fmt: skip
@click.option("--capacity", type=click.FloatRange(0.001), default=1000.0, show_default=True,
              metavar="N", help="Records/s of one busy worker.")  # fmt: skip
@click.option("--start", type=click.FloatRange(0, 3600), default=30.0, show_default=True,
              metavar="SECONDS", help="Seconds until a new worker joins.")  # fmt: skip
@click.option("--every", type=click.FloatRange(10, 3600), default=30.0, show_default=True,
              metavar="SECONDS", help="Seconds between two decisions.")  # fmt: skip
@click.option("--protocol", metavar="NAME", default="cooperative-sticky", show_default=True,
              type=click.Choice(["range", "roundrobin", "cooperative-sticky", "consumer"]),
              help="Assignor: range, roundrobin, cooperative-sticky or consumer "
              "(KIP-848).")  # fmt: skip
@click.option("--threshold", type=click.FloatRange(1), metavar="N",
              help="lagThreshold of KEDA, in records (default: 10 s of one worker).")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, metavar="N",
              help="Seed of a shape, and of spreading a trace.")  # fmt: skip
@output_option
@common
def scaling(
    invocation: Invocation,
    *,
    shape: str,
    traces: tuple[Path, ...],
    group: str | None,
    since: "datetime | float | None",
    policies: tuple[str, ...],
    days: float | None,
    partitions: int | None,
    rate: float | None,
    capacity: float,
    start: float,
    every: float,
    protocol: str,
    threshold: float | None,
    seed: int,
    output: str,
) -> None:
    """Replay load through rules of scaling, and compare what they cost; no broker.

    The load is a generated shape, CSV files, or the recorded history of a group. Owners come from
    the real assignors. A change costs what the coordinator's model shows. KEDA and Flink decide by
    their published rules; a clairvoyant knows the load.

    LATE counts hours in which the oldest record is older than a minute. No number of workers has
    less than the floor. WORKERS counts worker hours. DOWNTIME adds up partitions without an owner.
    """
    from fleet.backtest import load as loads
    from fleet.backtest.comparison import compare
    from fleet.backtest.replay import Setting

    if traces and group:
        raise click.UsageError("--trace and --group are two loads: give one of them")
    if since is not None and not group:
        raise click.UsageError("--since needs --group")
    declared: Rule | None = None
    if not group and "declared" in policies:
        raise click.UsageError("--policy declared needs --group")
    if group:
        load, declared = _recorded(invocation, group, since)
    elif traces:
        load = loads.read_traces(traces)
    else:
        load = loads.shape(
            shape,
            partitions=partitions or 12,
            days=days or 2.0,
            mean=rate or 2.5 * capacity,
            capacity=capacity,
            seed=seed,
        )
    if traces and partitions:
        load = loads.mixed(load, partitions=partitions, seed=seed)
    if days is not None:
        load = load.first(days * loads.DAY)
    if rate is not None:
        load = load.scaled_to(rate)
    usual = (*_USUAL, *(["declared"] if declared is not None else []))
    setting = Setting(capacity=capacity, start=start, every=every, protocol=protocol)
    with Progress(load.name) as progress:
        found = compare(
            load,
            setting,
            policies or usual,
            threshold=threshold,
            declared=declared,
            progress=progress,
        )
    answer = {"schema_version": SCHEMA_VERSION, **found.as_json()}
    if output == "json":
        print_json(answer)
        return
    console, about = stdout(), answer["load"]
    console.print(
        f"{about['name']}: {about['partitions']} partitions, {about['hours']:g} h, "
        f"{about['records_per_second']:,.0f} records/s; floor {about['floor_late_hours']:.2f} h "
        "late",
        markup=False,
    )
    rows = table("POLICY", "LATE", "WORKERS", "REBALANCES", "DOWNTIME",
                 right=("LATE", "WORKERS", "REBALANCES", "DOWNTIME"))  # fmt: skip
    for name, figures in answer["policies"].items():
        rows.add_row(
            name,
            f"{figures['late_hours']:.2f} h",
            f"{figures['worker_hours']:,.0f} h",
            f"{figures['rebalances']:,}",
            duration(figures["downtime_seconds"]),
        )
    console.print(rows)
    console.print(
        f"A packing by rate would need {about['packing_worker_hours']:,.0f} worker hours, but "
        "members of librdkafka and of KIP-848 cannot carry it out.",
        markup=False,
    )


def _recorded(
    invocation: Invocation, name: str, since: "datetime | float | None"
) -> "tuple[LoadSeries, Rule | None]":
    """Returns the recorded load of a group, and the rule of its declared policy."""
    import numpy as np
    import pyarrow.dataset as ds

    from fleet.backtest.load import from_ends
    from fleet.backtest.ours import PolicyRule
    from fleet.history.tables import Tables
    from fleet.manager.past import open_tables

    with invocation.open() as fleet:
        past, now = open_tables(fleet), fleet.clock.now()
        if past is None or not isinstance(past.rows, Tables):
            raise FleetError(
                f"{fleet.history_path} has no history tables, so no load of {name} is recorded; "
                "run `fleet history sync --follow` to record it"
            )
        start = wall(14 * 86_400.0 if since is None else since, now)
        found = past.rows.read(
            "lag",
            (ds.field("group_id") == name) & (ds.field("sampled_at") >= start),
            columns=("sampled_at", "topic", "topic_partition", "log_end"),
            since=start,
        )
        declared = fleet.spec.fleet(name)
    samples: dict[str, list[tuple[float, float]]] = {}
    for row in found.to_pylist():
        if row["log_end"] is not None:
            key = f"{row['topic']}-{row['topic_partition']:05}"
            samples.setdefault(key, []).append((row["sampled_at"], float(row["log_end"])))
    series = {
        key: (np.array([at for at, _ in each]), np.array([end for _, end in each]))
        for key, each in ((key, sorted(each)) for key, each in samples.items())
    }
    load = from_ends(name, series)
    if declared is None or declared.worker is None or declared.scaling.policy == "external":
        return load, None
    topics = {"topics": ("load",), "group": "replay"}
    return load, PolicyRule(declared.model_copy(update=topics))
