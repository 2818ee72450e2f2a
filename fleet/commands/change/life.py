"""`fleet init`, `up` and `down`: a fleet's beginning and end on this machine."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import Invocation, actor, common
from fleet.errors import ConfigError, FleetError, Refused, Unreachable

if TYPE_CHECKING:
    from fleet.act.runtime import RuntimeKind
    from fleet.config.spec import ClusterSpec, FleetSpec, KubernetesRuntimeSpec
    from fleet.decide.adopted import Adopted
    from fleet.lag.snapshot import Snapshot


_GRACE_SECONDS: Final = 5.0
"""For workers whose broker is gone: they can commit nothing any more."""


@click.command(epilog="Example:  fleet init --bootstrap kafka-1:9092 --cluster payments")
@click.option("--bootstrap", metavar="HOST:PORT|embedded", help="Address of the cluster.")
@click.option(
    "--cluster",
    "name",
    default="main",
    show_default=True,
    help="Name of the cluster in stored keys.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write to (default: the --config file).",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--kubernetes",
    "namespace",
    metavar="NAMESPACE",
    help="Namespace in which to look for Deployments.",
)
@click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig to use with --kubernetes."
)
@common
def init(
    invocation: Invocation,
    *,
    bootstrap: str | None,
    name: str,
    out: Path | None,
    force: bool,
    namespace: str | None,
    context: str | None,
) -> None:
    """Write a fleet.yaml from the groups of a cluster.

    All groups are written with mode: observe, so nothing is acted upon until you say so. With
    --force and without --bootstrap, the `cluster:` part of the file that is there is kept, its
    security settings with it. Without either, the cluster is the embedded one.

    With --kubernetes, a group whose members run in pods of a Deployment of that namespace (by
    their address, or by the pod's name in their ids) is written with `runtime.deployment`.
    """
    if context is not None and namespace is None:
        raise click.UsageError("--context says where --kubernetes NAMESPACE is: name that, too")
    path = out or invocation.path()
    if path.exists() and not force:
        raise ConfigError(
            f"{path} is there already: overwrite it with --force, or name another with --out FILE"
        )
    cluster = _cluster(path, bootstrap=bootstrap, name=name)
    from fleet.config.draft import draft
    from fleet.decide.adopted import deployed
    from fleet.system.home import write_whole

    runtime = None if namespace is None else _namespace(namespace, context)
    found = () if runtime is None else _deployments(runtime)
    snapshot = _look(cluster)
    homes = deployed(snapshot.groups, found)
    write_whole(path, draft(snapshot, cluster, runtime=runtime, deployed=homes))
    for problem in snapshot.problems:
        click.echo(f"fleet: {problem}", err=True)
    count = len(snapshot.groups)
    click.echo(f"{path}: {count} group{'' if count == 1 else 's'} of {cluster.bootstrap_servers}")
    if runtime is not None:
        click.echo(
            f"  {len(found)} Deployment{'' if len(found) == 1 else 's'} in namespace {namespace}, "
            f"members of {len(homes)} group{'' if len(homes) == 1 else 's'} in their pods"
        )
    click.echo("Next:")
    click.echo("  fleet status                what every group does now")
    click.echo(f"  edit {path}: give a group a `worker:`, then `mode: plan`")
    click.echo("  fleet plan                  what would be done, at what price")
    click.echo("  `mode: act`, then fleet up  workers start; `fleet doctor` if something is wrong")


def _cluster(path: Path, *, bootstrap: str | None, name: str) -> "ClusterSpec":
    """The cluster to look at: the option's, the old file's, or the embedded one."""
    from pydantic import ValidationError

    from fleet.config.spec import ClusterSpec

    if bootstrap is None and path.exists():
        from fleet.config.load import load

        return load(path, os.environ).cluster
    try:
        return ClusterSpec(name=name, bootstrap_servers=bootstrap or "embedded")
    except ValidationError as error:
        raise ConfigError(
            f"--cluster {name} is no cluster name: up to 64 letters, digits and . _ - in it"
        ) from error


def _namespace(namespace: str, context: str | None) -> "KubernetesRuntimeSpec":
    from pydantic import ValidationError

    from fleet.config.spec import KubernetesRuntimeSpec

    try:
        return KubernetesRuntimeSpec(kind="kubernetes", namespace=namespace, context=context)
    except ValidationError as error:
        raise ConfigError(
            f"--kubernetes {namespace} is no namespace: up to 63 small letters, digits and - in it"
        ) from error


def _deployments(runtime: "KubernetesRuntimeSpec") -> "tuple[Adopted, ...]":
    """Other people's Deployments of the namespace."""
    from fleet.clock import SystemClock
    from fleet.system.runtimes import runtime_kind

    kind: RuntimeKind = runtime_kind(runtime.kind)
    return kind.deployments(runtime, environ=os.environ, clock=SystemClock())


def _look(cluster: "ClusterSpec") -> "Snapshot":
    """One snapshot of a cluster that has no fleet.yaml yet: a file that names only the cluster."""
    import yaml

    from fleet.manager.cycle import Fleet

    with tempfile.TemporaryDirectory(prefix="fleet-init-") as folder:
        config = Path(folder, "fleet.yaml")
        named = {"cluster": cluster.model_dump(mode="json", exclude_none=True), "mode": "observe"}
        config.write_text(yaml.safe_dump(named), encoding="utf-8")
        with Fleet.open(config) as fleet:
            return fleet.snapshot()


@click.command(epilog="Example:  fleet up && fleet status")
@common
def up(invocation: Invocation) -> None:
    """Start what fleet.yaml declares.

    The embedded broker, topics with `create:`, the supervisor and Spark where they do not run
    yet; then the plan of every group with mode: act. Runs again without harm.
    """
    from fleet.commands.answers import good, print_change, stdout
    from fleet.commands.progress import Progress

    with Progress("starting") as progress:
        _start_embedded(invocation.existing_path(), progress)
        with invocation.open() as fleet:
            invocation.changing = "--all"
            changes = fleet.up(actor=actor(), progress=progress)
            invocation.changing = None
    console = stdout()
    for change in changes:
        print_change(console, change)
    click.echo(f"cluster {fleet.spec.cluster.name} at {fleet.bootstrap}: see `fleet status`")
    bad = [change.group for change in changes if not good(change)]
    if bad:
        raise FleetError(f"not as planned: {', '.join(bad)}; the receipts above say why")


def _start_embedded(path: Path, progress: Callable[[str], None]) -> None:
    """Start the embedded broker where the file names it; its first start fetches 45 MB."""
    from fleet.broker import Broker
    from fleet.config.load import load
    from fleet.system.home import fleet_home

    if load(path, os.environ).cluster.bootstrap_servers == "embedded":
        Broker(fleet_home()).start(say=progress)


@click.command(epilog="Example:  fleet down --purge --yes")
@click.option("--purge", is_flag=True, help="Delete the slots and the embedded broker's data, too.")
@click.option("--yes", is_flag=True, help="Skip the confirmation of --purge.")
@common
def down(invocation: Invocation, *, purge: bool, yes: bool) -> None:
    """Stop all workers, and the embedded broker.

    Workers drain and commit first; then their groups are left, in one request each, and the
    supervisor, Spark and the embedded broker end. Committed offsets stay, except those of an
    embedded broker that is purged. Works where the embedded broker has died, too, and ends what
    is left of a demo that was killed.
    """
    from fleet.commands.progress import Progress
    from fleet.config.load import load
    from fleet.demo.stage import Stage
    from fleet.system.home import fleet_home

    spec = load(invocation.existing_path(), os.environ)
    cluster = spec.cluster
    if purge and not yes and sys.stdin.isatty():
        what = "slots and, embedded, the broker's data"
        if not click.confirm(f"Remove the {what}, of cluster {cluster.name}?"):
            raise Refused("not confirmed, so nothing was done")
    with Progress("stopping") as progress:
        try:
            fleet = invocation.open()
        except Unreachable:
            _down_without_broker(spec, purge=purge)
        else:
            with fleet:
                fleet.down(purge=purge, progress=progress)
        Stage(fleet_home()).end_left()
    click.echo(f"cluster {cluster.name}: down{', and purged' if purge else ''}")


def _down_without_broker(spec: "FleetSpec", *, purge: bool) -> None:
    """End what is left where the embedded broker does not run: nobody is there to say goodbye to.

    Members of the dead broker's groups are met again when it comes back with its data; the next
    `fleet up` takes their slots over.
    """
    from fleet.broker import Broker
    from fleet.clock import SystemClock
    from fleet.system.home import fleet_home
    from fleet.system.runtimes import runtime_kind

    home = fleet_home()
    kind = runtime_kind(spec.runtime.kind)
    runtime = kind.open(spec, home=home, environ=os.environ, clock=SystemClock())
    runtime.down(grace=_GRACE_SECONDS)
    if purge:
        runtime.purge()
        Broker(home).purge()
    else:
        runtime.close()
