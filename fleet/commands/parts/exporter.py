"""`fleet exporter`: Prometheus metrics of every group of the cluster."""

import contextlib
import re
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import Invocation, common
from fleet.commands.parts.renewed_login import RenewedLogin
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.exporter.exporting import Exporter
    from fleet.manager.cycle import Fleet

_COLUMN: Final = 1 << 16
"""Bytes: the columns of a look are larger, and go with it."""


@click.command(epilog="Example:  fleet exporter --listen 0.0.0.0:9308")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to serve metrics on (default: exporter.listen of fleet.yaml, 127.0.0.1:9308).",
)
@click.option("--once", is_flag=True, help="Look once, print the metrics and exit.")
@common
def exporter(invocation: Invocation, *, listen: str | None, once: bool) -> None:
    """Prometheus metrics of every group.

    Answers /metrics from its last complete look, one every exporter.every seconds, so that a
    scrape never waits for the cluster; a look that fails shows as fleet_snapshot_age_seconds
    growing. /healthz tells whether it looks at all. A changed fleet.yaml counts from the next look
    on, renewed passwords and certificates once a look fails. Runs until SIGTERM or Ctrl-C. Names
    and labels of the metrics are a contract: docs/metrics.md.
    """
    if listen is not None and not re.fullmatch(r"\S*:\d{1,5}", listen):
        raise click.UsageError("--listen wants HOST:PORT, such as 0.0.0.0:9308; port 0 is free")
    if once:
        with invocation.open() as fleet:
            _print_once(fleet)
        return
    from fleet.system.glibc import map_from, one_heap

    map_from(_COLUMN)
    one_heap()
    stop = _until_told()
    while not stop.is_set():
        in_use = _InUse(invocation)
        with (
            invocation.open() as fleet,
            opened(fleet, listen or fleet.spec.exporter.listen) as running,
        ):
            _say(
                f"metrics of cluster {fleet.spec.cluster.name} at http://{running.address}/metrics"
            )
            renewed = RenewedLogin(invocation, fleet)
            running.run(stop, until=partial(_is_outdated, in_use, running, renewed))


def _is_outdated(in_use: "_InUse", running: "Exporter", renewed: RenewedLogin) -> bool:
    """Whether another fleet.yaml counts, or a look failed and the login was renewed."""
    return in_use.changed() or (running.failing and renewed.ready(_say))


class _InUse:
    """The text of fleet.yaml when it was opened, against that of now.

    Nothing of an exporter outlives a change of it: groups, owners, budgets and the cluster itself
    may be others. A text that cannot be opened is told once, and the one in use stays in use.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._text = self._refused = self._read()

    def changed(self) -> bool:
        """Whether there is another text, and it can be opened."""
        text = self._read()
        if text is None or text in (self._text, self._refused):
            return False
        if (refusal := self._invocation.refusal()) is not None:
            self._refused = text
            _say(f"a changed fleet.yaml is not used: {refusal}")
            return False
        return True

    def _read(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._invocation.path().read_bytes()
        return None


def opened(fleet: "Fleet", listen: str) -> "Exporter":
    """The exporter of a fleet, listening; what is wrong with the address is said first."""
    from fleet.exporter.exporting import Exporter

    return Exporter.of(fleet, listen=listen, say=_say)


def _print_once(fleet: "Fleet") -> None:
    from fleet.commands.progress import Progress

    where = f"cluster {fleet.spec.cluster.name} at {fleet.bootstrap}"
    with opened(fleet, "127.0.0.1:0") as running:
        with Progress(f"looking at {where}"):
            running.wait_for_log()
            running.look()
        click.echo(running.text(), nl=False)


def _until_told() -> threading.Event:
    """Set by SIGTERM and by Ctrl-C: a look in hand is finished, then everything is closed."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _say(sentence: str) -> None:
    click.echo(f"fleet exporter: {visible(sentence)}", err=True)
