"""`fleet dev broker`: the embedded Kafka, by hand."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleet.broker import Broker, Logins
from fleet.broker.embedded import last_lines
from fleet.commands.answers import table
from fleet.commands.invocation import SCHEMA_VERSION, KeyValue, Pair, output_option
from fleet.commands.screen import Progress, Screen
from fleet.errors import FleetError
from fleet.system.home import fleet_home
from fleet.text import plural, visible

if TYPE_CHECKING:
    from fleet.broker import Broker

_FOLLOW_SECONDS: Final = 0.25


@click.group()
def dev() -> None:
    """Run the embedded Kafka for tests and demos."""


@dev.group()
def broker() -> None:
    """Start, stop and show the embedded Kafka.

    These are real brokers on this machine. Their state is kept in $FLEET_HOME/broker (default:
    .fleet/broker) and survives restarts and kill -9. They need Java 17 or newer. The jars are
    fetched once into ~/.cache/fleet, or read from the folder that FLEET_KAFKA_LIBS names.
    """


@broker.command()
@click.option(
    "--brokers",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="Number of nodes of a new broker; an existing one keeps its size.",
)
@click.option(
    "--set",
    "settings",
    type=KeyValue("log.retention.ms=60000"),
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of server.properties, kept with the broker; repeatable.",
)
@click.option(
    "--wait",
    type=click.FloatRange(1, 600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait until the nodes answer.",
)
@click.option(
    "--secure/--plain",
    default=None,
    help="Kind of a new broker (default: plain); an existing one keeps its kind.",
)
@click.option(
    "--oidc-jwks",
    metavar="URL",
    help="URL of the keys that sign OAUTHBEARER tokens (aud: kafka, sub: the user); adds that "
    "login to --secure.",
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Authority (PEM) of client certificates; adds that login, at another port, to --secure.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="IPv4 address of this machine for clients (default: 127.0.0.1, this machine only); kept "
    "with the broker, changeable while it is stopped.",
)
def start(
    *,
    brokers: str,
    settings: tuple[Pair, ...],
    wait: float,
    secure: bool | None,
    oidc_jwks: str | None,
    client_ca: Path | None,
    listen: str | None,
) -> None:
    """Start the nodes that do not run, and print their address.

    A running broker is not changed. The command fails if a port is taken, Java or the jars are
    missing, the disk is full, or a node does not start.

    With --secure, clients log in by SCRAM-SHA-512 over TLS, and an authorizer denies what no ACL
    allows. The secrets of the super user are files that only you can read. The command prints the
    lines of fleet.yaml that refer to them.
    """
    if (oidc_jwks or client_ca) and not secure:
        raise click.UsageError("--oidc-jwks and --client-ca need --secure: give that too")
    logins = Logins(jwks=oidc_jwks, client_ca=client_ca and client_ca.absolute())
    with Progress("starting the broker") as say:
        embedded = Broker(
            fleet_home(),
            brokers=int(brokers),
            overrides=dict(settings),
            secure=secure,
            logins=logins,
            host=listen,
        )
        status = embedded.start(wait=wait, say=say)
    click.echo(status.bootstrap_servers)
    if status.secure:
        click.echo(_how_to_log_in(embedded))
    if status.certificate_servers:
        click.echo(f"By certificate: {status.certificate_servers}, protocol SSL")


def _how_to_log_in(embedded: "Broker") -> str:
    """Returns lines for fleet.yaml and Kafka's own tools: paths and names, no secret."""
    login, kept = embedded.security(), embedded.secrets
    assert login.sasl is not None
    return f"""
cluster:
  bootstrap_servers: embedded    # with another $FLEET_HOME: the address above
  security:                      # with `embedded`, Fleet finds it without these lines
    protocol: {login.protocol}
    sasl:
      mechanism: {login.sasl.mechanism}
      username: {login.sasl.username}
      password_file: {json.dumps(login.sasl.password_file)}
    tls:
      ca_file: {json.dumps(login.tls.ca_file)}

For Kafka's own tools: --command-config {kept.admin_properties}"""


@broker.command()
@click.option("--purge", is_flag=True, help="Delete the broker's data, logs and ports too.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 600),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds for the nodes to stop before they are killed.",
)
def stop(*, purge: bool, timeout: float) -> None:
    """Stop the nodes; their data stays, unless --purge."""
    embedded = Broker(fleet_home())
    running = sum(node.pid is not None for node in embedded.status().nodes)
    embedded.stop(timeout=timeout)
    if purge:
        embedded.purge()
    done = f"stopped {plural(running, 'node')}" if running else "no broker was running"
    click.echo(f"{done} in {fleet_home()}{', and deleted its data' if purge else ''}")


@broker.command()
@output_option
def status(output: str) -> None:
    """Show the nodes, their processes and logs.

    The exit code is 0 whether they run or not.
    """
    now = Broker(fleet_home()).status()
    if output == "json":
        click.echo(
            json.dumps({"schema_version": SCHEMA_VERSION, **asdict(now)}, default=str, indent=2)
        )
        return
    if not now.nodes:
        click.echo(f"no broker in {fleet_home()}: `fleet dev broker start` starts one")
        return
    rows = table("NODE", "ADDRESS", "PID", "LOG")
    for node in now.nodes:
        pid = "stopped" if node.pid is None else str(node.pid)
        rows.add_row(str(node.id), node.host_port, pid, str(node.server_log))
    # In a pipe no line may be cut at 80 columns.
    console = Screen(width=None if sys.stdout.isatty() else 1000)
    console.print(rows, markup=False)
    if now.secure:
        console.print("secure: SASL_SSL with SCRAM-SHA-512; an ACL must allow each access")
    if now.certificate_servers:
        console.print(f"by certificate: {now.certificate_servers}")


@broker.command()
@click.option(
    "--node",
    type=click.IntRange(1, 3),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of the node.",
)
@click.option(
    "--coordinator", is_flag=True, help="Print the group coordinator's log, with rebalances."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 100_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Print at most the last N lines.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
def logs(*, node: int, coordinator: bool, lines: int, follow: bool) -> None:
    """Print the last lines of a node's log."""
    found = {each.id: each for each in Broker(fleet_home()).status().nodes}.get(node)
    if found is None:
        raise FleetError(
            f"no node {node} in {fleet_home()}: `fleet dev broker status` lists the nodes"
        )
    path = found.coordinator_log if coordinator else found.server_log
    if not path.exists():
        raise FleetError(f"{path} does not exist: node {node} has logged nothing yet")
    for line in last_lines(path, lines):
        click.echo(visible(line))
    if follow:
        for text in _following(path):
            click.echo(visible(text), nl=False)


def _following(path: Path) -> Iterator[str]:
    """Yields what is appended to a log, also after the log was rotated. Never ends."""
    file = path.open(encoding="utf-8", errors="replace")
    try:
        file.seek(0, 2)
        while True:
            text = file.read()
            if text:
                yield text
                continue
            time.sleep(_FOLLOW_SECONDS)
            try:
                rolled = path.stat().st_ino != os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                continue  # it is just being rotated
            if rolled:
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
    finally:
        file.close()
