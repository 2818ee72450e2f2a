"""`fleet alerts`: rules, routes and a dashboard for Prometheus, Alertmanager and Grafana."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleet.commands.invocation import Invocation, common

if TYPE_CHECKING:
    from fleet.config.spec import FleetSpec

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


@click.group()
def alerts() -> None:
    """Rules, routes and a dashboard for Prometheus.

    All of it is made from fleet.yaml (sections storm, alerts, exporter, and max_lag and storm of
    each group), for the metrics of `fleet exporter`. docs/alerts.md shows where each file goes.
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

    _put(rules_yaml(_spec(invocation)), output)


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
    from fleet.report.alertmanager import alertmanager_yaml

    if slack_channel and not slack_url_file:
        raise click.UsageError("--slack-channel wants --slack-url-file: where the channel's URL is")
    every = _spec(invocation).exporter.every
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


def _spec(invocation: Invocation) -> "FleetSpec":
    import os

    from fleet.config.load import load

    return load(invocation.existing_path(), os.environ)


def _put(text: str, output: Path | None) -> None:
    from fleet.system.home import write_whole

    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
        click.echo(f"wrote {output}", err=True)
