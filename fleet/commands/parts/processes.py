"""`fleet worker`, `supervise` and `exporter`: what runs for months in the foreground."""

import contextlib
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import Invocation, common, group_names, listen_option, until_told
from fleet.errors import ConfigError
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.config.settings import WorkerSettings
    from fleet.exporter.exporting import Exporter
    from fleet.manager.cycle import Fleet


@click.command(epilog="Example:  fleet worker --group orders-enrichment")
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Group to work for, declared with a worker.",
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File of frozen settings of a revision (code.tgz beside it), in place of fleet.yaml.",
)
@click.option("--name", metavar="NAME", help="Name of the worker, unique (default: host and pid).")
@common
def worker(
    invocation: Invocation, *, group: str | None, settings: Path | None, name: str | None
) -> None:
    """Run one worker in the foreground.

    It starts, connects to Spark, warms up, and waits as a standby for a free slot. SIGTERM or
    Ctrl-C: it finishes the batch in hand, commits and goes. Nothing restarts it: that is the
    supervisor's work, or Kubernetes'.
    """
    if (group is None) == (settings is None):
        raise click.UsageError("name a --group of fleet.yaml, or a --settings FILE")
    made = _declared(invocation, group) if group is not None else _frozen(settings)
    from fleet.collector import uncollected
    from fleet.system.home import fleet_home
    from fleet.worker.pod_environment import CODE

    with uncollected():
        from fleet.worker.slot.process import run

    status = run(
        made,
        name=name or default_name(made.group.group),
        home=fleet_home(),
        code=None if settings is None else settings.with_name(CODE),
    )
    click.get_current_context().exit(status)


def _declared(invocation: Invocation, group: str) -> "WorkerSettings":
    """Settings of what fleet.yaml says now."""
    from fleet.config.settings import WorkerSettings, revision_of
    from fleet.system.code import code_digest

    with invocation.open() as fleet:
        spec = fleet.group(group)
        if spec.worker is None:
            raise ConfigError(
                f"group {group} declares no worker in {fleet.config}: write its worker.entrypoint"
            )
        digest = code_digest(spec)
        return WorkerSettings(
            cluster=fleet.spec.cluster,
            bootstrap_servers=fleet.bootstrap,
            group=spec,
            revision=revision_of(spec, digest),
            code_digest=digest,
        )


def _frozen(path: Path | None) -> "WorkerSettings":
    from fleet.config.settings import LEFT_OUT, read_settings, why_unreadable

    assert path is not None
    try:
        settings, left_out = read_settings(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = why_unreadable(error).splitlines()[0]
        raise ConfigError(f"{path} holds no worker settings of this version: {why}") from error
    if left_out:
        click.echo(f"{LEFT_OUT}: {', '.join(left_out)}", err=True)
    return settings


def default_name(group: str) -> str:
    """`<group>-<host>-<pid>` in letters that every store and label takes."""
    text = f"{group[:40]}-{socket.gethostname()}-{os.getpid()}"
    return re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-").lower()


@click.command(hidden=True)
@common
def supervise(invocation: Invocation) -> None:
    """Keep this machine's workers alive.

    Runs in the foreground until SIGTERM, after which the workers go on; a second one beside a
    running one ends at once.
    """
    invocation.existing_path()
    from fleet.act.local.supervisor import main
    from fleet.system.home import fleet_home

    click.get_current_context().exit(main(["--home", str(fleet_home())]))


# Problem: passwords and certificates are renewed under a running process, and Kafka's clients read
# them once, when they are made. Choice: where brokers refuse them, what stands in their files is
# held against what stood there; other contents, and a fleet.yaml that opens with them, are the
# sign to open it anew. Cost: a login that is still good is not changed before brokers refuse it.


class RenewedLogin:
    """Of one opened fleet; make it right after that, before its clients."""

    def __init__(self, invocation: Invocation, fleet: "Fleet") -> None:
        from fleet.kafka_source.login import references
        from fleet.worker.login_files import LoginFiles

        self._invocation = invocation
        self._files = LoginFiles(references(fleet.spec.cluster, fleet.bootstrap))

    def ready(self, say: Callable[[str], None]) -> bool:
        """Whether to begin anew, to be asked once something failed; says for which files."""
        replaced = self._files.replaced()
        if not replaced or self._invocation.refusal() is not None:  # they may be just being written
            return False
        say(f"begins anew with what is in {' and '.join(replaced)} now")
        return True


_COLUMN: Final = 1 << 16
"""Bytes: the columns of a look are larger, and go with it."""


@click.command(epilog="Example:  fleet exporter --listen 0.0.0.0:9308")
@listen_option("metrics", "exporter.listen", 9308)
@click.option("--once", is_flag=True, help="Look once, print the metrics and exit.")
@common
def exporter(invocation: Invocation, *, listen: str | None, once: bool) -> None:
    """Prometheus metrics of every group.

    Answers /metrics from its last complete look, one every exporter.interval seconds, so that a
    scrape never waits for the cluster; a look that fails shows as fleet_snapshot_age_seconds
    growing. /healthz tells whether it looks at all. A changed fleet.yaml counts from the next look
    on, renewed passwords and certificates once a look fails. Runs until SIGTERM or Ctrl-C. Names
    and labels of the metrics are a contract (documentation: reference/metrics).
    """
    if once:
        with invocation.open() as fleet:
            _print_once(fleet)
        return
    from fleet.system.memory_files import map_from, one_heap

    map_from(_COLUMN)
    one_heap()
    stop = until_told()
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
    from fleet.commands.screen import Progress

    where = f"cluster {fleet.spec.cluster.name} at {fleet.bootstrap}"
    with opened(fleet, "127.0.0.1:0") as running:
        with Progress(f"looking at {where}"):
            running.wait_for_log()
            running.look()
        click.echo(running.text(), nl=False)


def _say(sentence: str) -> None:
    click.echo(f"fleet exporter: {visible(sentence)}", err=True)
