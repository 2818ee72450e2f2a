"""`fleet worker`: one worker in the foreground, as a runtime or a container starts it."""

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet.commands.completing import group_names
from fleet.commands.invocation import Invocation, common
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from fleet.config.settings import WorkerSettings


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
