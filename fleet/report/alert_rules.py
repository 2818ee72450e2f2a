"""Prometheus alerting rules, rendered from fleet.yaml.

Problem: an alert on a raw count pages for every deploy and forty times for one dead broker. It
names neither the cause nor the remedy. Choice: Fleet decides once what a storm is
(`fleet.decide.storms`, metric `fleet_group_storm`), with hysteresis and without the rebalances
that a plan expects. The rules only read that metric. A query writes cause and top offender into
the annotations: as labels they would end one alert and start another. Fleet also decides the lag
status (`fleet.manager.keeping_up`), and each status has its rule. Severity is `page` (act now) or
`ticket` (act today). Alertmanager inhibits by `scope`. Prometheus 2.42 is required
(`keep_firing_for`). Cost: the rules must be rendered again when groups or limits in fleet.yaml
change.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import yaml

from fleet.config.draft import dump
from fleet.config.spec import FleetSpec
from fleet.decide.lag_status import Grace

BLIND_AFTER_REFRESHES: Final = 4
"""Refreshes that the exporter may miss before its data counts as too old."""
MIN_BLIND_SECONDS: Final = 60.0
"""Shortest age in seconds that counts as too old: the restart of a broker is shorter."""
_SCRAPED: Final = 15.0
_OWNED: Final = "cluster, group, owner"
_PLACE: Final = "cluster, group"
_UNSETTLED: Final = "PreparingRebalance|CompletingRebalance|Rebalancing"
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")
Rule = dict[str, Any]


def prometheus_duration(seconds: float) -> str:
    """Formats seconds as Prometheus does: whole seconds or milliseconds."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def scrape_interval(spec: FleetSpec) -> float:
    """Returns the seconds between scrapes and evaluations: `exporter.interval` or less.

    `exporter.interval` may be an hour, but Prometheus drops a sample after 5 minutes. Every alert
    would then resolve before the alert about a missing exporter fires.
    """
    return min(spec.exporter.interval, _SCRAPED)


def runbooks(spec: FleetSpec) -> str:
    """Returns the absolute URL of the runbooks, without a slash at its end.

    A message needs an absolute link. If alerts.runbooks is not set, `fleet ui` serves the
    runbooks at ui.url, or else at ui.listen, which only opens on the machine that runs it.
    """
    page = spec.ui.url or f"http://{spec.ui.listen}"
    return (spec.alerts.runbooks or f"{page.rstrip('/')}/runbooks").rstrip("/")


def rules(spec: FleetSpec) -> dict[str, Any]:
    """Builds the rule file as a value."""
    return {
        "groups": [
            {
                "name": f"fleet-{spec.cluster.name}",
                "interval": prometheus_duration(scrape_interval(spec)),
                "rules": _Rules(spec).all(),
            }
        ]
    }


def rules_yaml(spec: FleetSpec) -> str:
    """Renders the rule file that Prometheus loads (`rule_files`)."""
    head = (
        f"# Alerts of cluster {spec.cluster.name}, written by `fleet render alert-rules`: change "
        "fleet.yaml and render again.\n# Requires Prometheus 2.42 or newer.\n"
    )
    return head + dump(rules(spec))


class _Rules:
    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._declared = [fleet.group for fleet in spec.fleets]
        # Thresholds in seconds. One refresh may fail, so two are required. A lag status has its
        # own grace period, which is part of `alerts.stuck_after`.
        self._soon = 2 * spec.exporter.interval
        self._stuck = spec.alerts.stuck_after
        self._patient = max(self._soon, self._stuck - Grace().least)
        self._blind = max(MIN_BLIND_SECONDS, BLIND_AFTER_REFRESHES * spec.exporter.interval)
        # Matchers of the cluster and its groups.
        self._cluster = f'cluster="{spec.cluster.name}"'
        self._members = self._max("fleet_group_members", by=_PLACE)
        mine = _any(self._declared)
        self._mine = (f"group=~{mine}",) if self._declared else ()
        self._others = (f"group!~{mine}",) if self._declared else ()

    def _max(self, metric: str, *matchers: str, by: str = _OWNED) -> str:
        """Selects the highest of these series by group or cluster."""
        return f"max by ({by}) ({metric}{{{', '.join((self._cluster, *matchers))}}})"

    def _status(self, *statuses: str, of: tuple[str, ...] = ()) -> str:
        """Selects the groups with one of these lag statuses."""
        sign = "=~" if len(statuses) > 1 else "="
        which = f'status{sign}"{"|".join(statuses)}"'
        return f"{self._max('fleet_group_lag_status', which, *of)} == 1"

    def all(self) -> list[Rule]:
        return [
            *self._storms(),
            *self._lag(),
            *self._standing(),
            *self._statuses(),
            *self._of_ours(),
            *self._blindness(),
        ]

    def _rule(
        self,
        name: str,
        runbook: str,
        expr: str,
        summary: str,
        description: str,
        *,
        severity: str = "page",
        scope: str = "group",
        wait: float = 0.0,
        labels: Mapping[str, str] = MappingProxyType({}),
        **annotations: str,
    ) -> Rule:
        rule: Rule = {"alert": name, "expr": expr}
        if wait:
            rule["for"] = prometheus_duration(wait)
        links = {"runbook_url": f"{runbooks(self._spec)}/{runbook}.md"}
        if self._spec.ui.url is not None:
            group = "#/groups/{{ $labels.group | urlquery }}" if scope == "group" else ""
            links["fleet_url"] = f"{self._spec.ui.url.rstrip('/')}/{group}"
        return {
            **rule,
            "keep_firing_for": prometheus_duration(self._spec.alerts.keep_firing_for),
            "labels": {"severity": severity, "scope": scope, **labels},
            "annotations": {
                "summary": summary,
                "description": description,
                **annotations,
                **links,
            },
        }

    def _storms(self) -> Iterator[Rule]:
        info = f"fleet_cluster_storm_info{{{self._cluster}}}"
        cause = _info_label(info, "cause")
        yield self._rule(
            "FleetClusterStorm",
            "cluster-storm",
            f"{self._max('fleet_cluster_storm', by='cluster')} == 1",
            "Storm of cluster {{ $labels.cluster }}: " + cause,
            f"{_info_label(info, 'summary')}. This alert inhibits those of the cluster's groups.",
            scope="cluster",
            cause=cause,
        )
        yield self._rule(
            "FleetGroupStorm",
            "group-storm",
            f"{self._max('fleet_group_storm')} == 1",
            "Storm in group {{ $labels.group }}: " + _group_storm_label("summary"),
            "The group rebalances more often than its budget allows, not counting what a plan "
            "expects. Fleet blocks changes of the group until the storm ends.",
            cause=_group_storm_label("cause"),
            top_offender=_group_storm_label("top_offender"),
        )

    def _lag(self) -> Iterator[Rule]:
        """Yields one rule per limit, for declared groups and for others that have members."""
        by_limit: dict[float, list[str]] = defaultdict(list)
        usual = self._spec.max_lag_of(None)
        for fleet in self._spec.fleets:
            if (limit := self._spec.max_lag_of(fleet)) != usual:
                by_limit[limit].append(fleet.group)
        own = sorted(group for groups in by_limit.values() for group in groups)
        in_use = f"{self._members} > 0"
        if self._declared:
            mine = self._max("fleet_group_members", *self._mine, by=_PLACE)
            in_use += f"\n  or {mine}"
        limits = [(usual, (f"group!~{_any(own)}",) if own else ())]
        limits += [(at, (f"group=~{_any(sorted(of))}",)) for at, of in sorted(by_limit.items())]
        for limit, groups in limits:
            yield self._rule(
                "FleetGroupLag",
                "group-lag",
                f"({self._max('fleet_group_lag_seconds', *groups)} > {limit:g})\n"
                f"and on (cluster, group) ({in_use})",
                "Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
                f"The oldest waiting record is older than the limit of {limit:g} s "
                "(max_lag of the group, or alerts.max_lag).",
                wait=self._soon,
                labels={"max_lag": prometheus_duration(limit)},
            )

    def _standing(self) -> Iterator[Rule]:
        """Yields the rules for groups that do not settle, do not commit, or have no members.

        After a day without a commit the lag status is ABANDONED, which alerts for declared groups
        only. Other groups without members alert only if they had members before.
        """
        long = prometheus_duration(self._stuck)
        still = ("STOP", "STALL")
        had = self._max("fleet_group_generation", by=_PLACE)
        unsettled = self._max("fleet_group_state", f'state=~"{_UNSETTLED}"')
        empty = "has no members while records wait"
        unread = f"Records have waited for {long}, and the group has no member that reads them."
        deserted = f"and on (cluster, group) ({self._members} == 0)"
        found = [
            (
                *("unsettled", "page", self._stuck, f"{unsettled} == 1", "does not settle"),
                (
                    f"The group has been rebalancing for {long}: a member does not join in time, "
                    "or leaves in every round."
                ),
            ),
            (
                *("no progress", "page", self._patient),
                f"({self._status(*still)})\nand on (cluster, group) ({self._members} > 0)",
                "commits nothing while records wait",
                (
                    f"Records have waited for {long}, and the committed offset of a partition "
                    "has not moved (lag status STOP or STALL)."
                ),
            ),
        ]
        if self._declared:
            judged = self._status(*still, "ABANDONED", of=self._mine)
            found.append(
                (*("no members", "page", self._patient), f"({judged})\n{deserted}", empty, unread)
            )
        others = f"({self._status(*still, of=self._others)})\n{deserted}"
        others += f"\nand on (cluster, group) ({had} > 0)"
        found.append(("no members", "ticket", self._patient, others, empty, unread))
        for reason, severity, wait, expr, what, why in found:
            yield self._rule(
                "FleetGroupStuck",
                "group-stuck",
                expr,
                f"Group {{{{ $labels.group }}}} {what}",
                why,
                severity=severity,
                wait=wait,
                labels={"reason": reason},
            )

    def _statuses(self) -> Iterator[Rule]:
        # The worst partition sets the group's lag status: a STOP may hide a LOSS.
        lost = self._max("fleet_group_partitions", 'case="committed below log start"', by=_PLACE)
        yield self._rule(
            "FleetGroupLoss",
            "group-loss",
            f"({self._status('LOSS', 'STOP', 'STALL')})\nand on (cluster, group) ({lost} > 0)",
            "Group {{ $labels.group }} lost records: Kafka deleted them before it read them",
            "Retention or DeleteRecords deleted records above the committed offset of a "
            "partition (lag status LOSS).",
            wait=self._soon,
        )
        past = Grace().rewound / 60
        for name, runbook, status, what, why in (
            (
                *("FleetGroupHeld", "group-held", "HELD", "waits for an open transaction"),
                "An open transaction hides the waiting records of a partition",
            ),
            (
                *("FleetGroupRewind", "group-rewind", "REWIND", "reads records again"),
                f"The committed offset of a partition moved back in the last {past:g} minutes",
            ),
            (
                *("FleetGroupFallsBehind", "group-falls-behind", "WARN", "falls behind"),
                "It commits, but its oldest waiting record grows older by over 0.1 s a second",
            ),
        ):
            yield self._rule(
                name,
                runbook,
                self._status(status),
                f"Group {{{{ $labels.group }}}} {what}",
                f"{why} (lag status {status}).",
                severity="ticket",
                wait=self._soon,
            )

    def _of_ours(self) -> Iterator[Rule]:
        quarantined = self._max("fleet_slot_state", 'state="quarantined"', by=f"{_OWNED}, slot")
        yield self._rule(
            "FleetWorkerFenced",
            "worker-fenced",
            f"{quarantined} == 1",
            "Slot {{ $labels.slot }} of group {{ $labels.group }} is quarantined: another process "
            "uses its instance id",
            "An external member fenced a worker twice. Stop its process, then reopen the slot "
            "with `fleet slot reopen`.",
            severity="ticket",
        )
        yield self._rule(
            "FleetReceiptDiffers",
            "receipt-differs",
            f"{self._max('fleet_group_receipt_differs')} == 1",
            "The last change of group {{ $labels.group }} did not cost what its plan said",
            "The coordinator recorded a number of rebalances outside the plan's range. Fleet "
            "did not run the steps after it.",
            severity="ticket",
        )

    def _blindness(self) -> Iterator[Rule]:
        age = "fleet_snapshot_age_seconds"
        silent = f"absent({age}{{{self._cluster}}})"
        old = f"{self._max(age, by='cluster')} > {self._blind:g}"
        view = "its data is {{ $value | humanizeDuration }} old"
        for reason, expr, wait, what in (
            ("no metrics", silent, MIN_BLIND_SECONDS, "Prometheus has no metrics of an exporter"),
            ("old view", old, 0.0, view),
        ):
            yield self._rule(
                "FleetExporterBlind",
                "exporter-blind",
                expr,
                f"Fleet does not see cluster {self._spec.cluster.name}: {what}",
                "Do not rely on the other alerts of this cluster until this one resolves.",
                scope="exporter",
                wait=wait,
                labels={"reason": reason},
            )


def _info_label(selector: str, label: str) -> str:
    """Builds a template that reads a label of an info series; empty if the series is absent."""
    return f'{{{{ with query `{selector}` }}}}{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'


def _group_storm_label(label: str) -> str:
    """Builds the same template for `fleet_group_storm_info` of the alert's group."""
    return (
        '{{ with printf "fleet_group_storm_info{cluster=%q,group=%q}" '
        "$labels.cluster $labels.group | query }}"
        f'{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'
    )


def _any(groups: Sequence[str]) -> str:
    """Quotes a PromQL regular expression that matches exactly these names."""
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", group) for group in groups)
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


# Alertmanager's route: one cause is one notification. A receiver without an address is empty, which
# is valid. Slack's URL and PagerDuty's key are secrets: the configuration names the files that hold
# them, and Alertmanager 0.25 or newer reads these files.


_TITLE: Final = (
    '{{ if eq .Status "firing" }}{{ .CommonLabels.severity }}{{ else }}resolved{{ end }}: '
)
_SUMMARY: Final = "{{ (index .Alerts 0).Annotations.summary }}"
# Group and client names are arbitrary text: `<!channel>` and `<http://…|what to do>` are valid.
_AS_TEXT: Final = ' | reReplaceAll "<" "&lt;" }}'
_SUMMARY_AS_TEXT: Final = _SUMMARY.replace(" }}", _AS_TEXT)
_EACH: Final = (
    "{{ range .Alerts }}{{ .Annotations.description"
    f"{_AS_TEXT}\n"
    "<{{ .Annotations.runbook_url }}|what to do>"
    "{{ with .Annotations.fleet_url }} · <{{ . }}|open in Fleet>{{ end }}\n{{ end }}"
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
    """Builds the configuration as a value; `page` and `ticket` are webhook URLs.

    PagerDuty gets the pages, Slack pages and tickets. Alertmanager waits `wait` seconds before a
    first notification, so that a cluster's storm inhibits those of its groups in time. It waits
    `interval` seconds before the next notification of the same group of alerts.
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
    """Renders the configuration that Alertmanager loads; options as for `alertmanager`."""
    head = "# Written by `fleet render alertmanager`. Check it with `amtool check-config FILE`.\n"
    return head + yaml.safe_dump(alertmanager(**options), sort_keys=False, width=100)


def _receiver(name: str, url: str | None) -> dict[str, Any]:
    hooks = {"webhook_configs": [{"url": url, "send_resolved": True}]} if url else {}
    return {"name": name, **hooks}


def _slack(url_file: str | None, channel: str | None) -> dict[str, Any]:
    if url_file is None:
        return {}
    text = {"send_resolved": True, "title": _TITLE + _SUMMARY_AS_TEXT, "text": _EACH}
    link = {"title_link": "{{ (index .Alerts 0).Annotations.runbook_url }}"}
    where = {} if channel is None else {"channel": channel}
    return {"slack_configs": [{"api_url_file": url_file, **where, **text, **link}]}


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
