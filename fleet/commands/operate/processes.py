"""`fleet worker`, `supervise`, `exporter` and `operator`: processes that run for months."""

import contextlib
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import (
    Invocation,
    actor,
    common,
    group_names,
    listen_option,
    stop_on_signals,
    verbose_option,
)
from fleet.errors import ConfigError
from fleet.system.runtimes import runtime_kind
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.config.settings import WorkerSettings
    from fleet.exporter import Exporter
    from fleet.manager.cycle import Fleet


@click.command(epilog="Example:  fleet worker --group orders-enrichment")
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Group to work for; fleet.yaml must declare a worker of it.",
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Stored settings of a revision, with code.tgz beside them; replaces fleet.yaml.",
)
@click.option("--name", metavar="NAME", help="Unique name of the worker (default: host and pid).")
@common
def worker(
    invocation: Invocation, *, group: str | None, settings: Path | None, name: str | None
) -> None:
    """Run one worker in the foreground.

    The worker connects to Spark, warms up, and waits as a standby for a free slot. On SIGTERM or
    Ctrl-C it finishes the current batch, commits and exits. Nothing restarts it; `fleet up`
    starts a supervisor that does.
    """
    if (group is None) == (settings is None):
        raise click.UsageError("give --group GROUP of fleet.yaml, or --settings FILE")
    made = _declared(invocation, group) if group is not None else _frozen(settings)
    from fleet.worker.pod_environment import CODE

    _run(made, name=name, code=None if settings is None else settings.with_name(CODE))


@click.command("exec", epilog="Example:  fleet exec --group orders -- java -jar app.jar")
@click.option(
    "--group",
    metavar="GROUP",
    required=True,
    shell_complete=group_names,
    help="Group of the program; fleet.yaml must declare its worker.command.",
)
@click.option(
    "--warm",
    is_flag=True,
    help="Start the program at once; it subscribes when FLEET_INSTANCE_FILE is there.",
)
@click.option("--name", metavar="NAME", help="Unique name of the worker (default: host and pid).")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common
def execute(
    invocation: Invocation, *, group: str, warm: bool, name: str | None, command: tuple[str, ...]
) -> None:
    """Run a program of any language in a slot of its group.

    Waits for a free slot, starts the program with GROUP_INSTANCE_ID and with {instance_id} in its
    arguments replaced, and keeps the slot while it runs. On SIGTERM, or if the slot closes, the
    program gets SIGTERM and rollout.drain_timeout to end. Without COMMAND, worker.command runs.
    """
    _run(_declared(invocation, group, command=command, warm=warm), name=name)


def _run(made: "WorkerSettings", *, name: str | None, code: Path | None = None) -> None:
    from fleet.collector import gc_disabled
    from fleet.system.home import fleet_home

    with gc_disabled():
        from fleet.worker.slot.process import run

    name = name or default_name(made.group.group)
    click.get_current_context().exit(run(made, name=name, home=fleet_home(), code=code))


def _declared(
    invocation: Invocation,
    group: str,
    *,
    command: tuple[str, ...] | None = None,
    warm: bool = False,
) -> "WorkerSettings":
    """Builds the settings from fleet.yaml. command: of `fleet exec`, empty for the declared one."""
    from fleet.config.settings import WorkerSettings, revision_of, why_unreadable
    from fleet.system.code import code_digest

    with invocation.open() as fleet:
        spec = fleet.group(group)
        if spec.worker is None:
            raise ConfigError(
                f"{fleet.config} declares no worker of group {group}: write its worker.entrypoint "
                "or worker.command"
            )
        if command is not None:
            if not spec.worker.command:
                raise ConfigError(
                    f"{fleet.config} declares the job {spec.worker.entrypoint} for group {group}: "
                    "members of one group do the same work; replace entrypoint by command"
                )
            changed = {"command": command or spec.worker.command, "warm": warm or spec.worker.warm}
            try:
                worker = type(spec.worker).model_validate({**spec.worker.model_dump(), **changed})
            except ValueError as error:
                raise ConfigError(f"this command cannot run: {why_unreadable(error)}") from error
            spec = spec.model_copy(update={"worker": worker})
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
        raise ConfigError(f"cannot read the worker settings in {path}: {why}") from error
    if left_out:
        click.echo(f"{LEFT_OUT}: {', '.join(left_out)}", err=True)
    return settings


def default_name(group: str) -> str:
    """Returns `<group>-<host>-<pid>` in letters that every store and label accepts."""
    text = f"{group[:40]}-{socket.gethostname()}-{os.getpid()}"
    return re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-").lower()


@click.command(hidden=True)
@common
def supervise(invocation: Invocation) -> None:
    """Keep this machine's workers running.

    Runs in the foreground until SIGTERM; the workers keep running after that. A second supervisor
    stops at once.
    """
    invocation.existing_path()
    from fleet.act.local.supervisor import main
    from fleet.system.home import fleet_home

    click.get_current_context().exit(main(["--home", str(fleet_home())]))


# Problem: passwords and certificates are renewed while a process runs, and Kafka's clients read
# them once, when they are created. Choice: after a failure the process compares their files with
# what it read. If they differ and fleet.yaml opens with them, it opens fleet.yaml again. Cost: a
# login that brokers still accept is not replaced before they refuse it.


class RenewedLogin:
    """Detects renewed login files; create it right after the fleet is opened."""

    def __init__(self, invocation: Invocation, fleet: "Fleet") -> None:
        from fleet.kafka_source.login import references
        from fleet.worker.login_files import LoginFiles

        self._invocation = invocation
        self._files = LoginFiles(references(fleet.spec.cluster, fleet.bootstrap))

    def ready(self, say: Callable[[str], None]) -> bool:
        """Tells after a failure whether to open the fleet again, and says for which files."""
        replaced = self._files.replaced()
        if not replaced or self._invocation.refusal() is not None:  # they may be half written
            return False
        say(f"restarting with the renewed {' and '.join(replaced)}")
        return True


_COLUMN: Final = 1 << 16
"""Bytes: the columns of a refresh are larger, and are freed with it."""


@click.command(epilog="Example:  fleet exporter --listen 0.0.0.0:9308")
@listen_option("metrics", "exporter.listen", 9308)
@click.option("--once", is_flag=True, help="Refresh once, print the metrics and exit.")
@common
def exporter(invocation: Invocation, *, listen: str | None, once: bool) -> None:
    """Serve Prometheus metrics of every group.

    /metrics answers from the last complete refresh, so a scrape never waits for the cluster. A
    refresh runs every exporter.interval. If refreshes fail, fleet_snapshot_age_seconds grows.
    /healthz fails if refreshes stop.

    A changed fleet.yaml is used from the next refresh on, renewed passwords and certificates after
    a failed one. Runs until SIGTERM or Ctrl-C. The names and labels of the metrics are stable.
    """
    if once:
        with invocation.open() as fleet:
            _print_once(fleet)
        return
    from fleet.system.memory_files import map_from, one_heap

    map_from(_COLUMN)
    one_heap()
    stop = stop_on_signals()
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
    return in_use.changed() or (running.is_failing and renewed.ready(_say))


class _InUse:
    """Compares the text of fleet.yaml with the text that was opened.

    A changed file replaces the whole exporter, since groups, owners, budgets and the cluster may
    differ. A file that cannot be opened is reported once, and the old one stays in use.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._text = self._refused = self._read()

    def changed(self) -> bool:
        """Tells whether the text differs and can be opened."""
        text = self._read()
        if text is None or text in (self._text, self._refused):
            return False
        if (refusal := self._invocation.refusal()) is not None:
            self._refused = text
            _say(f"the changed fleet.yaml is not used: {refusal}")
            return False
        return True

    def _read(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._invocation.path().read_bytes()
        return None


def opened(fleet: "Fleet", listen: str) -> "Exporter":
    """Opens the exporter of a fleet; it reports a wrong address first."""
    from fleet.exporter import Exporter

    return Exporter.of(fleet, listen=listen, say=_say)


def _print_once(fleet: "Fleet") -> None:
    from fleet.commands.screen import Progress

    where = f"cluster {fleet.spec.cluster.name} at {fleet.bootstrap}"
    with opened(fleet, "127.0.0.1:0") as running:
        with Progress(f"reading {where}"):
            running.wait_for_log()
            running.refresh()
        click.echo(running.text(), nl=False)


def _say(sentence: str) -> None:
    click.echo(f"fleet exporter: {visible(sentence)}", err=True)


@click.command(epilog="Example:  fleet operator --watch-namespace orders --watch-namespace billing")
@click.option(
    "--watch-namespace",
    "namespaces",
    metavar="NAME",
    multiple=True,
    help="Namespace to watch; repeatable (default: $FLEET_NAMESPACE).",
)
@click.option(
    "--clusters",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    default=Path("/etc/fleet/clusters"),
    show_default=True,
    help="Folder with NAME.yaml for each cluster: fleet.yaml without fleets.",
)
@click.option(
    "--interval",
    type=click.FloatRange(1.0, 3600.0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Seconds between two passes over a resource at rest.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of /healthz and /readyz (default: none)."
)
@verbose_option
def operator(
    *, namespaces: tuple[str, ...], clusters: Path, interval: float, listen: str | None
) -> None:
    """Keep the ConsumerFleets of Kubernetes.

    Each resource declares one fleet, with an entry of fleet.yaml as its spec. The operator plans
    and carries out its changes as `fleet apply` does, and writes status and Events. Runs until
    SIGTERM or Ctrl-C; the next operator continues an unfinished change.
    """
    from fleet.act.runtime import OperatorOptions
    from fleet.clock import SystemClock
    from fleet.system.home import fleet_home

    watched = namespaces or tuple(filter(None, [os.environ.get("FLEET_NAMESPACE")]))
    if not watched:
        raise click.UsageError("give --watch-namespace NAME, or set FLEET_NAMESPACE")
    options = OperatorOptions(
        namespaces=tuple(dict.fromkeys(watched)),
        clusters=clusters,
        home=fleet_home(),
        environ=os.environ,
        actor=f"operator {actor()}",
        interval=interval,
        listen=listen,
    )
    runtime_kind("kubernetes").operate(
        options, stop=stop_on_signals(), say=_operator_says, clock=SystemClock()
    )


def _operator_says(sentence: str) -> None:
    click.echo(f"fleet operator: {visible(sentence)}", err=True)
