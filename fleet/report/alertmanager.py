"""Alertmanager's route and inhibitions for the rules of `fleet.report.alert_rules`.

One cause is one notification: a storm of the cluster silences those of its groups, a storm of a
group silences the lag that it makes, and while the exporter sees nothing, nothing it said
before is repeated. Receivers are `page` and `ticket`; without addresses they are empty, which
is valid: fill them in with what you use.
"""

from typing import Any

import yaml

from fleet.report.alert_rules import prometheus_duration


def alertmanager(
    *,
    page: str | None = None,
    ticket: str | None = None,
    wait: float = 15.0,
    interval: float = 60.0,
    repeat: float = 14_400.0,
) -> dict[str, Any]:
    """The configuration as a value; `page` and `ticket` are webhook URLs.

    `wait` seconds are waited before a first notification, so that a cluster's storm inhibits
    its groups' before they are told; `interval` before the next of the same group of alerts.
    """
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
        "receivers": [_receiver("page", page), _receiver("ticket", ticket)],
    }


def alertmanager_yaml(**options: Any) -> str:
    """The configuration as Alertmanager reads it; options as for `alertmanager`."""
    head = "# Made by `fleet alerts alertmanager`. Check it with `amtool check-config FILE`.\n"
    return head + yaml.safe_dump(alertmanager(**options), sort_keys=False, width=100)


def _receiver(name: str, url: str | None) -> dict[str, Any]:
    hooks = {"webhook_configs": [{"url": url, "send_resolved": True}]} if url else {}
    return {"name": name, **hooks}
