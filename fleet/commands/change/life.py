"""`fleet init`, `up` and `down`: a fleet's beginning and end on this machine."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from pydantic import ValidationError

from fleet.broker import Broker, embedded_bootstrap
from fleet.commands.answers import good, print_change, stdout
from fleet.commands.invocation import (
    Invocation,
    Meant,
    acting,
    actor,
    common,
    confirmed,
    groups_option,
    runtime_of,
)
from fleet.commands.screen import Progress
from fleet.config.first_job import check_names, write_first_job
from fleet.config.load import LoginFile, load, load_security
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.system.home import fleet_home, write_whole
from fleet.text import plural, visible

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
    "--job", "group", metavar="GROUP", help="Write a first job for this group, its test too."
)
@click.option(
    "--topic", metavar="TOPIC", help="Topic that the group of --job reads (default: its name)."
)
@click.option(
    "--security",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="How to log in: a `security:` block (.yaml, .yml), or a client.properties.",
)
@click.option(
    "--secret-env",
    "secrets",
    metavar="KEY=NAME",
    multiple=True,
    help="Environment variable that will hold a secret of --security FILE; repeatable.",
)
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
    group: str | None,
    topic: str | None,
    security: Path | None,
    secrets: tuple[str, ...],
    namespace: str | None,
    context: str | None,
) -> None:
    """Write a fleet.yaml from the groups of a cluster, and a first job.

    All groups are written with mode: observe, so nothing is acted upon until you say so. With
    --force and without --bootstrap, the `cluster:` part of the file that is there is kept, its
    security settings with it. Without either, the cluster is the embedded one.

    With --security, a file that your clients log in with today is read: `security:` as YAML, where
    its name ends in .yaml or .yml, or else a client.properties of Kafka's Java clients or
    librdkafka. No secret is copied out of it; name the variable that will hold it by --secret-env,
    such as sasl.password=KAFKA_PASSWORD.

    With --kubernetes, a group whose members run in pods of a Deployment of that namespace (by
    their address, or by the pod's name in their ids) is written with `runtime.deployment`.

    With --job, the group is declared with a job of its own in jobs/, a test in tests/, and the
    files that `dagster dev` reads; what is there already stays. Where fleet.yaml is there, it gets
    that fleet and is else left as it is.
    """
    if topic is not None and group is None:
        raise click.UsageError("--topic says what --job GROUP reads: name that, too")
    if context is not None and namespace is None:
        raise click.UsageError("--context says where --kubernetes NAMESPACE is: name that, too")
    if group is not None:
        check_names(group, topic)
    path = out or invocation.path()
    if group is not None and path.exists() and not force and bootstrap is None:
        write_first_job(path, group, topic or group)
        return
    if path.exists() and not force:
        raise ConfigError(
            f"{path} is there already: overwrite it with --force, or name another with --out FILE"
        )
    cluster = _cluster(path, bootstrap=bootstrap, name=name, security=security, secrets=secrets)
    from fleet.config.draft import draft
    from fleet.decide.adopted import deployed

    runtime = None if namespace is None else _namespace(namespace, context)
    found = () if runtime is None else _deployments(runtime)
    snapshot = _look(cluster)
    homes = deployed(snapshot.groups, found)
    write_whole(path, draft(snapshot, cluster, runtime=runtime, deployed=homes))
    for problem in snapshot.problems:
        click.echo(f"fleet: {visible(problem)}", err=True)
    count = len(snapshot.groups)
    click.echo(f"{path}: {plural(count, 'group')} of {cluster.bootstrap_servers}")
    if runtime is not None:
        click.echo(
            f"  {plural(len(found), 'Deployment')} in namespace {namespace}, "
            f"members of {plural(len(homes), 'group')} in their pods"
        )
    if group is not None:
        write_first_job(path, group, topic or group)
        return
    click.echo("Next:")
    click.echo("  fleet status                what every group does now")
    click.echo(f"  edit {path}: give a group a `worker:`, then `mode: plan`")
    click.echo("  fleet plan                  what would be done, at what expected cost")
    click.echo("  `mode: act`, then fleet up  workers start; `fleet doctor` if something is wrong")


def _cluster(
    path: Path,
    *,
    bootstrap: str | None,
    name: str,
    security: Path | None,
    secrets: tuple[str, ...],
) -> "ClusterSpec":
    """The cluster to look at: the option's, the old file's, or the embedded one."""
    from fleet.config.spec import ClusterSpec, Security

    if bootstrap is None and security is None and path.exists():
        return load(path, os.environ).cluster
    variables = dict(_secret(text) for text in secrets)
    if security is None:
        if variables:
            raise click.UsageError("--secret-env names a secret of --security FILE: name that, too")
        login = LoginFile(Security(), None, ())
    else:
        login = load_security(security, os.environ, variables)
    for key in login.left_out:
        click.echo(
            f"fleet: {security}: {key} is left out: fleet.yaml has no setting for it", err=True
        )
    address = bootstrap or login.bootstrap
    if address is None and security is not None:
        raise click.UsageError("--security says how to log in: name the --bootstrap HOST:PORT, too")
    address = address or "embedded"
    try:
        return ClusterSpec(name=name, bootstrap_servers=address, security=login.security)
    except ValidationError as error:
        if any(each["loc"] == ("bootstrap_servers",) for each in error.errors()):
            told = str(error.errors()[0]["ctx"]["error"])
            raise ConfigError(f"--bootstrap {address} {told}") from error
        raise ConfigError(
            f"--cluster {name} is no cluster name: up to 64 letters, digits and . _ - in it"
        ) from error


def _secret(text: str) -> tuple[str, str]:
    key, _, variable = text.partition("=")
    if not variable.isidentifier():
        raise click.BadParameter(f"{text!r} is not KEY=NAME", param_hint="--secret-env")
    return key, variable


def _namespace(namespace: str, context: str | None) -> "KubernetesRuntimeSpec":
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

    if cluster.bootstrap_servers == "embedded" and embedded_bootstrap(fleet_home()) is None:
        raise Unreachable(  # not by `fleet up`, which wants the file that is to be written here
            f"the embedded broker of {fleet_home()} does not run, so there are no groups to write: "
            "name your cluster by --bootstrap HOST:PORT, or start it with `fleet broker start` and "
            "run this again"
        )
    with tempfile.TemporaryDirectory(prefix="fleet-init-") as folder:
        config = Path(folder, "fleet.yaml")
        named = {"cluster": cluster.model_dump(mode="json", exclude_none=True), "mode": "observe"}
        config.write_text(yaml.safe_dump(named), encoding="utf-8")
        with Fleet.open(config) as fleet:
            return fleet.snapshot()


@click.command(
    epilog="Examples:  fleet up && fleet status  |  fleet up orders  |  fleet up --select team=pay"
)
@groups_option()
@common
def up(invocation: Invocation, *, meant: Meant) -> None:
    """Start what fleet.yaml declares.

    The embedded broker, topics with `create:`, the supervisor and Spark where they do not run
    yet; then the plans of the groups named, or of every group with mode: act. Runs again without
    harm.
    """
    with Progress("starting") as progress:
        if invocation.spec().cluster.bootstrap_servers == "embedded":
            Broker(fleet_home()).start(say=progress)  # the first start fetches 45 MB
        with invocation.open() as fleet:
            named = meant.named or meant.select
            names = meant.chosen(fleet, among=acting(fleet)) if named else None
            invocation.changing = " ".join(names) if names else "--all"
            changes = fleet.up(names, actor=actor(), progress=progress)
            invocation.changing = None
    console = stdout()
    for change in changes:
        print_change(console, change)
    click.echo(f"cluster {fleet.spec.cluster.name} at {fleet.bootstrap}: see `fleet status`")
    bad = [change.group for change in changes if not good(change)]
    if bad:
        raise FleetError(f"not as planned: {', '.join(bad)}; the receipts above say why")


@click.command(epilog="Example:  fleet down --purge --yes")
@click.option(
    "--purge",
    is_flag=True,
    help="Delete what is kept, too: slots, changes, pauses, logs, the embedded broker's data.",
)
@click.option("--yes", is_flag=True, help="Skip the confirmation of --purge.")
@common
def down(invocation: Invocation, *, purge: bool, yes: bool) -> None:
    """Stop all workers, and the embedded broker.

    Workers drain and commit first; then their groups are left, in one request each, and the
    supervisor, Spark and the embedded broker end. Committed offsets stay, except those of an
    embedded broker that is purged. Works where the embedded broker has died, too, and ends what
    is left of a demo that was killed.
    """
    from fleet.demo.stage import Stage

    spec = invocation.spec()
    cluster = spec.cluster
    if purge and not yes and sys.stdin.isatty():
        what = "slots, changes, pauses, workers' logs and, embedded, the broker's data"
        confirmed(f"Remove the {what}, of cluster {cluster.name}?")
    with Progress("stopping") as progress:
        try:
            fleet = invocation.open()
        except Unreachable as error:
            if cluster.bootstrap_servers != "embedded":
                _down_without_leave(spec, error, progress)
            _down_without_broker(spec, progress, purge=purge)
        else:
            with fleet:
                fleet.down(purge=purge, progress=progress)
        stage = Stage(fleet_home())
        stage.end_left()
        if purge:
            stage.forget()
    click.echo(f"cluster {cluster.name}: down{', and purged' if purge else ''}")


def _down_without_broker(
    spec: "FleetSpec", progress: "Callable[[str], None]", *, purge: bool
) -> None:
    """End what is left where the embedded broker does not run: nobody is there to say goodbye to.

    Members of the dead broker's groups are met again when it comes back with its data; the next
    `fleet up` takes their slots over.
    """
    runtime = runtime_of(spec)
    runtime.down(grace=_GRACE_SECONDS)
    if purge:
        for sentence in runtime.purge():
            progress(sentence)
        Broker(fleet_home()).purge()
    else:
        runtime.close()


def _down_without_leave(
    spec: "FleetSpec", error: Unreachable, progress: "Callable[[str], None]"
) -> NoReturn:
    """Stop the workers, which may well reach what this process does not: they drain in their time.

    Slots stay whatever was asked for, since their groups were not left. Raises FleetError.
    """
    grace = max((each.rollout.drain_timeout for each in spec.fleets), default=_GRACE_SECONDS)
    progress("draining workers")
    runtime = runtime_of(spec)
    runtime.down(grace=grace)
    runtime.close()
    groups = ", ".join(each.group for each in spec.fleets if each.worker is not None)
    raise FleetError(
        f"workers were stopped, but nobody could leave the groups ({groups or 'none'}): {error}; "
        "members stay until their sessions end, and nothing was purged: run `fleet down` again "
        "when that is mended"
    ) from error
