"""`fleet alerts`, `manifests`, `schema` and `completion`: what is rendered for other tools."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.shell_completion import get_completion_class

from fleet.clock import SystemClock
from fleet.commands.invocation import Invocation, common, groups_argument, output_as, verbose_option
from fleet.config.draft import dump
from fleet.system.home import write_whole
from fleet.system.runtimes import PARTS, runtime_kind

if TYPE_CHECKING:
    from fleet.act.runtime import Manifests, RuntimeKind


AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


@click.group()
def alerts() -> None:
    """Rules, routes and a dashboard for Prometheus.

    All of it is made from fleet.yaml (sections storm, alerts, exporter, and max_lag and storm of
    each group), for the metrics of `fleet exporter`. Where each file goes: documentation:
    how-to/alerts.
    """


def _to_file(command: AnyCommand) -> AnyCommand:
    return click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="File to write to (default: print).",
    )(command)


@alerts.command(epilog="Example:  fleet alerts rules -o fleet-rules.yml")
@_to_file
@common
def rules(invocation: Invocation, *, output: Path | None) -> None:
    """Alerting rules for Prometheus 2.42 or newer (rule_files)."""
    from fleet.report.alert_rules import rules_yaml

    _put(rules_yaml(invocation.spec()), output)


def _webhook(_: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """What Alertmanager would refuse to start with, or never reach, is refused here."""
    if url is not None and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise click.BadParameter(
            f"{url!r} is no URL of a webhook: write http://HOST:PORT/PATH or https://…",
            param_hint=option.opts[0],
        )
    return url


@alerts.command(
    epilog="Example:  fleet alerts alertmanager --page http://pager.example:9000/hook "
    "-o alertmanager.yml"
)
@click.option(
    "--page",
    metavar="URL",
    callback=_webhook,
    help="URL of the webhook for alerts of severity page.",
)
@click.option(
    "--ticket",
    metavar="URL",
    callback=_webhook,
    help="URL of the webhook for alerts of severity ticket.",
)
@click.option(
    "--pagerduty-key-file",
    metavar="FILE",
    help="File on Alertmanager's machine with PagerDuty's integration key.",
)
@click.option(
    "--slack-url-file",
    metavar="FILE",
    help="File on Alertmanager's machine with the URL of Slack's incoming webhook.",
)
@click.option("--slack-channel", metavar="NAME", help="Slack channel, where not the webhook's own.")
@_to_file
@common
def alertmanager(
    invocation: Invocation,
    *,
    page: str | None,
    ticket: str | None,
    pagerduty_key_file: str | None,
    slack_url_file: str | None,
    slack_channel: str | None,
    output: Path | None,
) -> None:
    """Route and inhibitions for Alertmanager.

    A storm of the cluster silences its groups' alerts, a group's storm silences its lag.
    """
    from fleet.report.alert_rules import alertmanager_yaml

    if slack_channel and not slack_url_file:
        raise click.UsageError("--slack-channel wants --slack-url-file: where the channel's URL is")
    every = invocation.spec().exporter.interval
    text = alertmanager_yaml(
        page=page,
        ticket=ticket,
        pagerduty_key_file=pagerduty_key_file,
        slack_url_file=slack_url_file,
        slack_channel=slack_channel,
        wait=max(2.0, every),
        interval=4 * every,
    )
    _put(text, output)


@alerts.command(epilog="Example:  fleet alerts dashboard -o fleet.json")
@_to_file
@common
def dashboard(invocation: Invocation, *, output: Path | None) -> None:  # noqa: ARG001 - no file
    """A dashboard for Grafana 9.5 or newer (Dashboards, New, Import)."""
    from fleet.report.dashboard import dashboard_json

    _put(dashboard_json(), output)


def _put(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
        click.echo(f"wrote {output}", err=True)


_ALL: Final = "all"


@click.command(epilog="Example:  fleet manifests orders-enrichment | kubectl apply -f -")
@groups_argument
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice([*PARTS, _ALL]),
    help="Part to render; repeatable (default: workers).",
)
@click.option(
    "--image",
    metavar="NAME",
    help="Image of manager, which must be named, and exporter (default: runtime.image).",
)
@output_as("yaml", "json", json_is="one List")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for one file per fleet and part, with kustomization.yaml (default: print).",
)
@click.option(
    "--dry-run",
    type=click.Choice(["server"]),
    help="Have the API server check every object without creating it.",
)
@common
def manifests(
    invocation: Invocation,
    *,
    groups: tuple[str, ...],
    parts: tuple[str, ...],
    image: str | None,
    output: Literal["yaml", "json"],
    output_dir: Path | None,
    dry_run: str | None,
) -> None:
    """Render fleet.yaml for a cluster.

    With runtime: {kind: kubernetes} each fleet is a Deployment, a PodDisruptionBudget, Leases,
    ConfigMaps and a ServiceAccount with its Role. Applied to an empty cluster the workers start to
    consume by themselves; a manager that comes later finds nothing to roll. Parts beside `workers`:
    `manager` (Dagster), `exporter`, `network` (policies) and `monitoring`, which needs the CRDs of
    Prometheus Operator. Secrets are never rendered: those that are expected are named on stderr.
    """
    if output_dir is not None and dry_run is not None:
        raise click.UsageError("--output-dir writes and --dry-run asks: give one of them")
    chosen = frozenset(PARTS if _ALL in parts else parts or ("workers",))
    if "manager" in chosen and image is None:
        raise click.UsageError(
            "--part manager needs --image NAME: one with Dagster in it, such as the fleet-manager "
            "of `make images`; workers' images have none. Name runtime.image where that holds both"
        )
    path = invocation.existing_path()
    from fleet.act.runtime import ManifestOptions

    spec = invocation.spec()
    kind: RuntimeKind = runtime_kind(spec.runtime.kind)
    made = kind.manifests(
        spec,
        ManifestOptions(
            text=path.read_text(encoding="utf-8"),
            parts=chosen,
            groups=groups,
            image=image,
        ),
    )
    if dry_run is not None:
        for sentence in kind.try_out(spec, made, environ=os.environ, clock=SystemClock()):
            click.echo(sentence)
        return
    if output_dir is not None:
        _write(made, output_dir)
    else:
        click.echo(as_json(made) if output == "json" else as_yaml(made.objects), nl=False)
    if made.secrets:
        click.echo(
            f"fleet manifests: the pods need these Secrets, which are not rendered: "
            f"{', '.join(made.secrets)}",
            err=True,
        )


def as_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """One document each; texts of several lines stay readable."""
    return "".join(f"---\n{dump(each)}" for each in objects)


def as_json(made: "Manifests") -> str:
    """One List, as kubectl reads it."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(made.objects)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _write(made: "Manifests", folder: Path) -> None:
    """A file per fleet and per part; what an earlier rendering left is not listed any more."""
    files: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in made.objects:
        files[_file_of(each)].append(each)
    for name, objects in files.items():
        write_whole(folder / name, as_yaml(objects))
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    write_whole(folder / "kustomization.yaml", as_yaml([listed]))
    click.echo(f"wrote {len(files)} files and kustomization.yaml to {folder}", err=True)


def _file_of(each: Mapping[str, Any]) -> str:
    labels = each["metadata"].get("labels", {})
    fleet, app = labels.get("fleet/name"), labels.get("app.kubernetes.io/name")
    return f"{fleet or app or each['kind'].lower()}.yaml"


def schema_text() -> str:
    """As it was written from fleet/config/spec*.py (python -m tests.reference.pages)."""
    return files("fleet.config").joinpath("fleet.schema.json").read_text(encoding="utf-8")


@click.command(epilog="Example:  fleet schema > fleet.schema.json")
@verbose_option
def schema() -> None:
    """Print the JSON schema of fleet.yaml.

    Editors with yaml-language-server complete and check the file where its first line is
    `# yaml-language-server: $schema=fleet.schema.json`.
    """
    click.echo(schema_text(), nl=False)


@click.command(
    epilog="Examples:  source <(fleet completion bash)  |  fleet completion fish > "
    "~/.config/fish/completions/fleet.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verbose_option
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script by which a shell completes.

    Completes commands, options, and from fleet.yaml groups, slots and topics. No cluster is
    asked. Write the line of the example into ~/.bashrc or ~/.zshrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "fleet", "_FLEET_COMPLETE").source())
