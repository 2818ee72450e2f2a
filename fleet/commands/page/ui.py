"""`fleet ui`: one page of all groups, for as long as it runs."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from fleet.commands.invocation import Invocation, common

if TYPE_CHECKING:
    from fleet.clock import Clock
    from fleet.commands.groups.looks import Latest
    from fleet.commands.page.watching import Watched
    from fleet.config.spec import FleetSpec
    from fleet.ui.page_server import PageServer

_LONGEST = 86_400.0
_LOCAL = ("http://127.", "http://[::1]")


@click.command(epilog="Examples:  fleet ui  |  fleet ui --listen 0.0.0.0:9309")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to serve the page on (default: ui.listen of fleet.yaml, 127.0.0.1:9309).",
)
@click.option("--interval", type=click.FloatRange(min=0.5, max=3600.0), default=2.0,
              show_default=True, metavar="SECONDS", help="Seconds between two looks.")  # fmt: skip
@common
def ui(invocation: Invocation, *, listen: str | None, interval: float) -> None:
    """One page of all groups, worst first; read only.

    A group's slots, members, lag, the change that is going on, and its rebalances with their
    causes. The cluster is looked at once for all who watch, and only while somebody does. There
    is no login: who reaches the address reads the page. Runs until Ctrl-C (docs/ui.md).
    """
    if listen is not None and not re.fullmatch(r"\S*:\d{1,5}", listen):
        raise click.UsageError("--listen wants HOST:PORT, such as 0.0.0.0:9309; port 0 is free")
    from fleet.commands.page.watching import Watch

    with invocation.open() as fleet, Watch(fleet, every=interval) as watch:
        stop = _until_told()
        address = listen or fleet.spec.ui.listen
        with served(fleet.spec, watch.latest, address, fleet.clock) as server:
            watch.start()
            click.echo(f"fleet ui: cluster {fleet.spec.cluster.name} at {server.url}/", err=True)
            if not server.url.startswith(_LOCAL):
                told = "others reach this address, and the page has no login (docs/ui.md)"
                click.echo(f"fleet ui: {told}", err=True)
            stop.wait()
            # A look at a broker that is away lasts ten seconds, and holds nothing: do not wait.
            os._exit(0)


def served(
    spec: "FleetSpec", latest: "Callable[[], Latest[Watched]]", listen: str, clock: "Clock"
) -> "PageServer":
    """The page of what was seen last. Raises ConfigError where the address is taken."""
    from fleet.commands.page.watching import group_answer, groups_answer, timeline_answer
    from fleet.ui.page_server import PageServer

    cluster = spec.cluster.name

    def groups(_: Mapping[str, str]) -> bytes:
        return groups_answer(latest(), cluster=cluster, now=clock.now())

    def group(query: Mapping[str, str]) -> bytes | None:
        name = query.get("name", "")
        found = group_answer(latest(), name, cluster=cluster, now=clock.now())
        return None if found is None else json.dumps(found).encode()

    def timeline(query: Mapping[str, str]) -> bytes:
        found = timeline_answer(
            latest(),
            query.get("name", ""),
            cluster=cluster,
            now=clock.now(),
            seconds=_within(query, "seconds", 3600.0, _LONGEST),
            width=_within(query, "width", 1200.0, 4000.0),
        )
        return json.dumps(found).encode()

    names = [urlsplit(spec.ui.url).hostname or ""] if spec.ui.url else []
    answers = {"/api/groups": groups, "/api/group": group, "/api/timeline": timeline}
    return PageServer(listen, answers, names=names)


def _within(query: Mapping[str, str], name: str, usual: float, most: float) -> float:
    """A positive number of the query. Raises ValueError."""
    given = query.get(name, str(usual))
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 < found <= most:
        raise ValueError(f"{name}={given}: write a number above 0, at most {most:g}")
    return found


def _until_told() -> threading.Event:
    """Set by SIGTERM and by Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
