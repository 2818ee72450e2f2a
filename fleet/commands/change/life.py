"""`fleet init`, `new`, `up` and `down`: write, start and stop what fleet.yaml declares."""

import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from pydantic import ValidationError

from fleet.broker import Broker, embedded_bootstrap
from fleet.commands.answers import good, print_change, print_plan, stdout
from fleet.commands.invocation import (
    Invocation,
    Meant,
    actor,
    agree,
    asks,
    changing_options,
    common,
    groups_option,
    is_acting,
    runtime_of,
)
from fleet.commands.screen import Progress
from fleet.config.first_job import check_names, write_first_job
from fleet.config.load import LoginFile, load, load_security
from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.system.home import fleet_home, write_whole
from fleet.text import plural, visible

if TYPE_CHECKING:
    from fleet.act.runtime import RuntimeKind
    from fleet.config.spec import ClusterSpec, FleetSpec, KubernetesRuntimeSpec
    from fleet.decide.adopted import Adopted
    from fleet.lag.snapshot import Snapshot
    from fleet.manager.cycle import Fleet


_GRACE_SECONDS: Final = 5.0
"""Grace period for workers whose broker is stopped: they can commit nothing."""


@click.command(epilog="Example:  fleet init --bootstrap kafka-1:9092 --cluster payments")
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Address of the cluster (default: embedded)."
)
@click.option(
    "--cluster",
    "name",
    default="main",
    show_default=True,
    metavar="NAME",
    help="Name of the cluster in stored keys.",
)
@click.option(
    "--output-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write (default: the --config file).",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--security",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File with the login: a `security:` block (.yaml, .yml), or a client.properties.",
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
    help="Namespace whose Deployments to look for.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig for --kubernetes.")
@common
def init(
    invocation: Invocation,
    *,
    bootstrap: str | None,
    name: str,
    output_file: Path | None,
    force: bool,
    security: Path | None,
    secrets: tuple[str, ...],
    namespace: str | None,
    context: str | None,
) -> None:
    """Write a fleet.yaml from the groups of a cluster.

    Every group gets mode: observe, so Fleet changes nothing until you edit the file. With --force
    and without --bootstrap, the `cluster:` part of the existing file is kept. Without an existing
    file, the cluster is the embedded one.

    --security reads a file that your clients log in with. A .yaml or .yml file has a `security:`
    block. Any other file is a client.properties of Java clients or librdkafka. Secrets are never
    copied. Name the variable that will hold one with --secret-env, for example
    sasl.password=KAFKA_PASSWORD.

    --kubernetes finds the groups whose members run in pods of a Deployment, by their address or
    by the pod name in their ids. These get `runtime.deployment`.
    """
    if context is not None and namespace is None:
        raise click.UsageError("--context belongs to --kubernetes NAMESPACE: give that too")
    path = output_file or invocation.path()
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists: overwrite it with --force, or write another with --output-file FILE"
        )
    cluster = _cluster(path, bootstrap=bootstrap, name=name, security=security, secrets=secrets)
    from fleet.config.draft import draft
    from fleet.decide.adopted import count_by_deployment

    runtime = None if namespace is None else _namespace(namespace, context)
    found = () if runtime is None else _deployments(runtime)
    snapshot = _read_cluster(cluster)
    homes = count_by_deployment(snapshot.groups, found)
    write_whole(path, draft(snapshot, cluster, runtime=runtime, deployed=homes))
    for problem in snapshot.problems:
        click.echo(f"fleet: {visible(problem)}", err=True)
    count = len(snapshot.groups)
    embedded = cluster.bootstrap_servers == "embedded"
    place = "the embedded broker" if embedded else cluster.bootstrap_servers
    click.echo(f"{path}: wrote {plural(count, 'group')} of {place}")
    if runtime is not None:
        click.echo(
            f"  {plural(len(found), 'Deployment')} in namespace {namespace}, "
            f"members of {plural(len(homes), 'group')} in their pods"
        )
    click.echo("Next:")
    click.echo("  fleet status       show what every group does now")
    click.echo("  fleet rebalances   list what rebalanced, why, and for how long")
    click.echo("  fleet new GROUP    write a job, its test and its lines of fleet.yaml")


@click.command(epilog="Example:  fleet new orders-enrichment --topic orders")
@click.argument("group", metavar="GROUP")
@click.option(
    "--topic", metavar="TOPIC", help="Topic that the group reads (default: the group's name)."
)
@click.option("--assets", is_flag=True, help="Write the Dagster project to assets/, to edit it.")
@common
def new(invocation: Invocation, *, group: str, topic: str | None, assets: bool) -> None:
    """Write a job, its test and its lines of fleet.yaml.

    The job goes to jobs/, its test to tests/, the group into the existing fleet.yaml with
    mode: act. pyproject.toml, dagster.yaml and workspace.yaml are added if they are missing.
    Existing files are not changed, except fleet.yaml.
    """
    check_names(group, topic)
    write_first_job(invocation.existing_path(), group, topic or group, assets=assets)


def _cluster(
    path: Path,
    *,
    bootstrap: str | None,
    name: str,
    security: Path | None,
    secrets: tuple[str, ...],
) -> "ClusterSpec":
    """Returns the cluster to read: the option's, the old file's, or the embedded one."""
    from fleet.config.spec import ClusterSpec, Security

    if bootstrap is None and security is None and path.exists():
        return load(path, os.environ).cluster
    variables = dict(_secret(text) for text in secrets)
    if security is None:
        if variables:
            raise click.UsageError("--secret-env names a secret of --security FILE: give that too")
        login = LoginFile(Security(), None, ())
    else:
        login = load_security(security, os.environ, variables)
    for key in login.left_out:
        click.echo(f"fleet: {security}: {key} is ignored: fleet.yaml has no such setting", err=True)
    address = bootstrap or login.bootstrap
    if address is None and security is not None:
        raise click.UsageError("--security is a login only: give --bootstrap HOST:PORT too")
    address = address or "embedded"
    try:
        return ClusterSpec(name=name, bootstrap_servers=address, security=login.security)
    except ValidationError as error:
        if any(each["loc"] == ("bootstrap_servers",) for each in error.errors()):
            why = str(error.errors()[0]["ctx"]["error"])
            raise ConfigError(f"--bootstrap {address} {why}") from error
        raise ConfigError(
            f"--cluster {name} is no cluster name: use up to 64 letters, digits and . _ -"
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
            f"--kubernetes {namespace} is no namespace: use up to 63 small letters, digits and -"
        ) from error


def _deployments(runtime: "KubernetesRuntimeSpec") -> "tuple[Adopted, ...]":
    """Returns the Deployments of the namespace that Fleet did not create."""
    from fleet.clock import SystemClock
    from fleet.system.runtimes import runtime_kind

    kind: RuntimeKind = runtime_kind(runtime.kind)
    return kind.deployments(runtime, environ=os.environ, clock=SystemClock())


def _read_cluster(cluster: "ClusterSpec") -> "Snapshot":
    """Takes one snapshot of a cluster that has no fleet.yaml yet."""
    import yaml

    from fleet.manager.cycle import Fleet

    if cluster.bootstrap_servers == "embedded" and embedded_bootstrap(fleet_home()) is None:
        raise Unreachable(  # `fleet up` would want the file that this command writes
            f"no groups to write: the embedded broker of {fleet_home()} is not running; name your "
            "cluster with --bootstrap HOST:PORT, or run `fleet dev broker start` first"
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
@changing_options
@common
def up(invocation: Invocation, *, meant: Meant, dry_run: bool, yes: bool) -> None:
    """Start what fleet.yaml declares.

    First the embedded broker, missing topics with `create:`, the supervisor and Spark, if they do
    not run. Then the plans of the named groups, or of every group with mode: act. A second run
    changes nothing.
    """
    embedded = invocation.spec().cluster.bootstrap_servers == "embedded"
    away = embedded and embedded_bootstrap(fleet_home()) is None
    if dry_run or asks(yes=yes):
        if away:
            click.echo(f"the embedded broker of {fleet_home()} is not running: plans are unknown")
        else:
            with invocation.open() as fleet:
                refused = _show_plans(fleet, _wanted(fleet, meant))
            if refused and dry_run:
                raise Refused(" ".join(refused))
            for sentence in refused:
                click.echo(visible(sentence))
    groups = ", ".join(meant.named) or f"every {'selected ' * bool(meant.select)}group in mode act"
    actions = ["start the embedded broker"] * away + [f"carry out the plan of {groups}"]
    if not agree(actions, yes=yes, dry_run=dry_run):
        return
    with Progress("starting") as progress:
        if embedded:
            Broker(fleet_home()).start(say=progress)  # the first start fetches 45 MB
        with invocation.open() as fleet:
            names = _wanted(fleet, meant) if meant.named or meant.select else None
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


def _wanted(fleet: "Fleet", meant: Meant) -> tuple[str, ...]:
    return meant.chosen(fleet, among=is_acting(fleet))


def _show_plans(fleet: "Fleet", names: tuple[str, ...]) -> list[str]:
    """Prints the plan of each group; returns why others have none."""
    console, snapshot, refused = stdout(), fleet.snapshot(names), []
    for name in names:
        try:
            print_plan(console, fleet.plan(name, snapshot=snapshot))
        except FleetError as error:
            refused.append(f"{name}: {error}")
    if not names:
        click.echo("none of the declared groups has mode: act")
    return refused


@click.command(epilog="Examples:  fleet down --dry-run  |  fleet down --purge --yes")
@click.option(
    "--purge",
    is_flag=True,
    help="Delete the stored state too: slots, changes, pauses, logs, the embedded broker's data.",
)
@changing_options
@common
def down(invocation: Invocation, *, purge: bool, dry_run: bool, yes: bool) -> None:
    """Stop all workers and the embedded broker.

    Workers drain and commit first. Then each group is left in one request, and the supervisor,
    Spark and the embedded broker stop. Committed offsets stay, except those of an embedded broker
    that is purged. Also works if the embedded broker is not running, and after a killed demo.
    Off a terminal, --purge needs --yes.
    """
    from fleet.demo.stage import Stage

    spec = invocation.spec()
    cluster = spec.cluster
    if purge and not (yes or dry_run or sys.stdin.isatty()):
        raise Refused("--purge deletes stored state and no terminal can be asked: add --yes")
    if dry_run or asks(yes=yes):
        actions = _stopping(spec, purge=purge)
        if not agree(actions, yes=yes, dry_run=dry_run):
            return
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
        stage.end_leftovers()
        if purge:
            stage.forget()
    rest = ", and its state is deleted" if purge else ""
    click.echo(f"workers of cluster {cluster.name} are stopped{rest}")


def _stopping(spec: "FleetSpec", *, purge: bool) -> "Iterator[str]":
    """Yields what `fleet down` does, as the runtime knows it without the cluster."""
    with contextlib.closing(runtime_of(spec)) as runtime:
        counts = Counter(worker.group for worker in runtime.workers() if worker.wanted)
    for group, count in sorted(counts.items()):
        yield f"drain and stop {plural(count, 'worker')} of group {group}"
    yield "stop the supervisor and Spark, if they run"
    if spec.cluster.bootstrap_servers == "embedded":
        yield "stop the embedded broker"
    if purge:
        what = "slots, changes, pauses and logs of workers"
        embedded = spec.cluster.bootstrap_servers == "embedded"
        yield f"delete {what}{', and the data of the embedded broker' if embedded else ''}"


def _down_without_broker(
    spec: "FleetSpec", progress: "Callable[[str], None]", *, purge: bool
) -> None:
    """Stops what is left when the embedded broker is not running, so no group can be left.

    The next `fleet up` takes over the slots of the members that the broker still remembers.
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
    """Stops the workers, which may reach brokers that this process cannot: they drain as usual.

    Slots are kept even with --purge, since their groups were not left. Raises FleetError.
    """
    grace = max((each.rollout.drain_timeout for each in spec.fleets), default=_GRACE_SECONDS)
    progress("stopping workers")
    runtime = runtime_of(spec)
    runtime.down(grace=grace)
    runtime.close()
    groups = ", ".join(each.group for each in spec.fleets if each.worker is not None)
    raise FleetError(
        f"stopped the workers, but could not leave their groups ({groups or 'none'}): {error}; "
        "their members stay until the session timeout, and nothing was purged; "
        "run `fleet down` again when the brokers answer"
    ) from error
