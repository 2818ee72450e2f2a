"""Alertmanager's route and inhibitions for the rules of `fleet.report.alert_rules`.

One cause is one notification: a storm of the cluster silences those of its groups, a storm of a
group silences the lag that it makes, and while the exporter sees nothing, nothing it said
before is repeated. Receivers are `page` and `ticket`; without addresses they are empty, which
is valid: fill them in with what you use. Slack's URL and PagerDuty's key are secrets: only the
files that hold them are named, which Alertmanager reads itself (0.25 or newer).
"""

from typing import Any, Final

import yaml

from fleet.report.alert_rules import prometheus_duration

_TITLE: Final = (
    '{{ if eq .Status "firing" }}{{ .CommonLabels.severity }}{{ else }}resolved{{ end }}: '
)
_SUMMARY: Final = "{{ (index .Alerts 0).Annotations.summary }}"
# Groups and clients name themselves, and <!channel> or <http://…|what to do> is a name as well.
_AS_TEXT: Final = ' | reReplaceAll "<" "&lt;" }}'
_SUMMARY_AS_TEXT: Final = _SUMMARY.replace(" }}", _AS_TEXT)
_EACH: Final = (
    "{{ range .Alerts }}{{ .Annotations.description"
    f"{_AS_TEXT}\n"
    "<{{ .Annotations.runbook_url }}|what to do>"
    "{{ with .Annotations.fleet_url }} · <{{ . }}|look>{{ end }}\n{{ end }}"
)


def alertmanager(
    *,
    page: str | None = None,
    ticket: str | None = None,
    pagerduty_key_file: str | None = None,
    slack_url_file: str | None = None,
    slack_channel: str | None = None,
    wait: float = 15.0,
    interval: float = 60.0,
    repeat: float = 14_400.0,
) -> dict[str, Any]:
    """The configuration as a value; `page` and `ticket` are webhook URLs.

    PagerDuty gets what is a page, Slack both: who is called finds there what others see.

    `wait` seconds are waited before a first notification, so that a cluster's storm inhibits
    its groups' before they are told; `interval` before the next of the same group of alerts.
    """
    slack = _slack(slack_url_file, slack_channel)
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["alertname", "cluster", "group"],
            "group_wait": prometheus_duration(wait),
            "group_interval": prometheus_duration(interval),
            "repeat_interval": prometheus_duration(repeat),
            "routes": [{"matchers": ['severity="page"'], "receiver": "page"}],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="FleetClusterStorm"'],
                "target_matchers": ['scope="group"'],
                "equal": ["cluster"],
            },
            {
                "source_matchers": ['alertname="FleetGroupStorm"'],
                "target_matchers": ['alertname=~"FleetGroup(Lag|Stuck|FallsBehind)"'],
                "equal": ["cluster", "group"],
            },
            {
                "source_matchers": ['alertname="FleetExporterBlind"'],
                "target_matchers": ['scope=~"group|cluster"'],
                "equal": ["cluster"],
            },
        ],
        "receivers": [
            {**_receiver("page", page), **_pagerduty(pagerduty_key_file), **slack},
            {**_receiver("ticket", ticket), **slack},
        ],
    }


def alertmanager_yaml(**options: Any) -> str:
    """The configuration as Alertmanager reads it; options as for `alertmanager`."""
    head = "# Made by `fleet alerts alertmanager`. Check it with `amtool check-config FILE`.\n"
    return head + yaml.safe_dump(alertmanager(**options), sort_keys=False, width=100)


def _receiver(name: str, url: str | None) -> dict[str, Any]:
    hooks = {"webhook_configs": [{"url": url, "send_resolved": True}]} if url else {}
    return {"name": name, **hooks}


def _slack(url_file: str | None, channel: str | None) -> dict[str, Any]:
    if url_file is None:
        return {}
    told = {"send_resolved": True, "title": _TITLE + _SUMMARY_AS_TEXT, "text": _EACH}
    link = {"title_link": "{{ (index .Alerts 0).Annotations.runbook_url }}"}
    where = {} if channel is None else {"channel": channel}
    return {"slack_configs": [{"api_url_file": url_file, **where, **told, **link}]}


def _pagerduty(key_file: str | None) -> dict[str, Any]:
    if key_file is None:
        return {}
    links = [
        {"href": "{{ (index .Alerts 0).Annotations.runbook_url }}", "text": "what to do"},
    ]
    return {
        "pagerduty_configs": [
            {
                "routing_key_file": key_file,
                "send_resolved": True,
                "description": _SUMMARY,
                "client": "Fleet",
                "client_url": "{{ (index .Alerts 0).Annotations.fleet_url }}",
                "links": links,
            }
        ]
    }
