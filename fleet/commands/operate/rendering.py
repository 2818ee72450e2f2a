"""`fleet render`, `config` and `completion`: files for other tools, and checks of fleet.yaml."""

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import get_completion_class

from fleet.commands.invocation import Invocation, common, output_as, verbose_option
from fleet.config.draft import dump
from fleet.errors import ConfigError, FleetError
from fleet.system.home import write_whole
from fleet.system.runtimes import runtime_kind
from fleet.text import plural

if TYPE_CHECKING:
    from fleet.act.runtime import RuntimeKind


@click.group()
def render() -> None:
    """Render alerts, a dashboard and objects.

    Each command prints a file for another tool. The alert rules, routes and dashboard use the
    metrics of `fleet exporter`.
    """


_output_file_option = click.option(
    "--output-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write (default: standard output).",
)


@render.command(
    name="alert-rules", epilog="Example:  fleet render alert-rules --output-file fleet-rules.yml"
)
@_output_file_option
@common
def alert_rules(invocation: Invocation, *, output_file: Path | None) -> None:
    """Render alerting rules for Prometheus 2.42 or newer.

    The limits are those of fleet.yaml: storm, alerts, exporter, and max_lag and storm of each
    group. Name the file in rule_files of Prometheus.
    """
    from fleet.report.alert_rules import rules_yaml

    _put(rules_yaml(invocation.spec()), output_file)


def _webhook(_: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """Refuses a URL that Alertmanager refuses or cannot reach."""
    if url is not None and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise click.BadParameter(
            f"{url!r} is no URL of a webhook: use http://HOST:PORT/PATH or https://…",
            param_hint=option.opts[0],
        )
    return url


@render.command(
    epilog="Example:  fleet render alertmanager --page http://pager.example:9000/hook "
    "--output-file alertmanager.yml"
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
@click.option("--slack-channel", metavar="NAME", help="Slack channel (default: the webhook's).")
@_output_file_option
@common
def alertmanager(
    invocation: Invocation,
    *,
    page: str | None,
    ticket: str | None,
    pagerduty_key_file: str | None,
    slack_url_file: str | None,
    slack_channel: str | None,
    output_file: Path | None,
) -> None:
    """Render routes and inhibitions for Alertmanager.

    A storm of the cluster silences the alerts of its groups. A storm of a group silences the
    alerts of its lag.
    """
    from fleet.report.alert_rules import alertmanager_yaml

    if slack_channel and not slack_url_file:
        raise click.UsageError("--slack-channel needs --slack-url-file: give that too")
    interval = invocation.spec().exporter.interval
    text = alertmanager_yaml(
        page=page,
        ticket=ticket,
        pagerduty_key_file=pagerduty_key_file,
        slack_url_file=slack_url_file,
        slack_channel=slack_channel,
        wait=max(2.0, interval),
        interval=4 * interval,
    )
    _put(text, output_file)


@render.command(epilog="Example:  fleet render dashboard --output-file fleet.json")
@_output_file_option
@common
def dashboard(invocation: Invocation, *, output_file: Path | None) -> None:  # noqa: ARG001
    """Render a dashboard for Grafana 9.5 or newer.

    Import it in Grafana under Dashboards, New, Import. It needs no fleet.yaml.
    """
    from fleet.report.dashboard import dashboard_json

    _put(dashboard_json(), output_file)


def _put(text: str, file: Path | None) -> None:
    if file is None:
        click.echo(text, nl=False)
    else:
        write_whole(file, text)
        click.echo(f"wrote {file}", err=True)


@render.command(
    name="consumer-fleet", epilog="Example:  fleet render consumer-fleet orders.yaml --clusters ."
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--clusters",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    required=True,
    help="Folder with NAME.yaml for each cluster: fleet.yaml without fleets.",
)
@output_as("yaml", "json", json_is=" (one List)")
@verbose_option
def consumer_fleet(*, file: Path, clusters: Path, output: Literal["yaml", "json"]) -> None:
    """Render what the operator makes of ConsumerFleets.

    Checks each resource of FILE as the operator does, and asks no cluster. Other objects in FILE
    are left out.
    """
    import yaml

    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no YAML: {error}") from error
    kind: RuntimeKind = runtime_kind("kubernetes")
    made = [
        each
        for found in documents
        if isinstance(found, dict) and found.get("kind") == "ConsumerFleet"
        for each in kind.declared(found, clusters)
    ]
    if not made:
        raise ConfigError(f"{file} holds no ConsumerFleet: give the file that you apply")
    click.echo(as_json(made) if output == "json" else as_yaml(made), nl=False)


def as_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Renders one document per object; texts of several lines stay readable."""
    return "".join(f"---\n{dump(each)}" for each in objects)


def as_json(objects: Iterable[Mapping[str, Any]]) -> str:
    """Renders one List, as kubectl reads it."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def schema_text() -> str:
    """Returns the JSON schema that `python -m tests.reference.pages` wrote."""
    return files("fleet.config").joinpath("fleet.schema.json").read_text(encoding="utf-8")


@click.group()
def config() -> None:
    """Check fleet.yaml offline; print its schema."""


@config.command(epilog="Example:  fleet config check && git push")
@common
def check(invocation: Invocation) -> None:
    """Check fleet.yaml, and list its errors.

    Reads only the file and the environment variables that it names; no cluster is asked. Exit
    code 1 if the file has errors.
    """
    path = invocation.existing_path()
    try:
        spec = invocation.spec()
    except ConfigError as error:
        raise FleetError(str(error)) from error
    click.echo(f"{path}: no errors; {plural(len(spec.fleets), 'group')} declared")


@config.command(epilog="Example:  fleet config schema > fleet.schema.json")
@verbose_option
def schema() -> None:
    """Print the JSON schema of fleet.yaml.

    Editors with yaml-language-server complete and check a file that begins with this line:

    \b
      # yaml-language-server: $schema=fleet.schema.json
    """  # noqa: D301 - click wants the character itself
    click.echo(schema_text(), nl=False)


@click.command(
    epilog="Examples:  source <(fleet completion bash)  |  fleet completion fish > "
    "~/.config/fish/completions/fleet.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verbose_option
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print a shell's completion script.

    The shell then completes commands, options, and the groups, slots and topics of fleet.yaml.
    No cluster is asked. Put the example's line into ~/.bashrc or ~/.zshrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "fleet", "_FLEET_COMPLETE").source())
