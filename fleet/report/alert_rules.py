"""Prometheus alerting rules, rendered from fleet.yaml.

Problem: an alert on a raw count pages for every deploy, forty times for one dead broker, and
says neither who nor what to do. Choice: what a storm is, is decided once, by Fleet
(`fleet.decide.storms.assessment`, exported as `fleet_group_storm`): rebalances within a plan's
price are not in it, and begin and end have hysteresis; the rules only call. Cause and worst member
come into the annotations by a query, not as labels, since a label that changes would end one alert
and begin another. Whether a group keeps up is decided once too (`fleet.manager.keeping_up`): each
verdict has its rule, and only a limit in seconds is held against the lag. Severity is `page`
(somebody gets up) or `ticket` (somebody looks today); `scope` is what Alertmanager inhibits by.
Needs Prometheus 2.42 (`keep_firing_for`). Cost: rules are rendered again when limits or groups in
fleet.yaml change.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import yaml

from fleet.config.draft import dump
from fleet.config.spec import FleetSpec
from fleet.decide.verdicts import Patience

LOOKS: Final = 4
"""The exporter is blind once its view is older than so many looks."""
LEAST_BLIND: Final = 60.0
"""Seconds: a broker that starts again takes some of them, and is no blindness."""
_SCRAPED: Final = 15.0
_UNSETTLED: Final = "PreparingRebalance|CompletingRebalance|Rebalancing"
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")
Rule = dict[str, Any]


def prometheus_duration(seconds: float) -> str:
    """As Prometheus writes it: whole seconds or milliseconds."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def scrape_interval(spec: FleetSpec) -> float:
    """Seconds between scrapes, and between evaluations: `exporter.every`, or less.

    A look may come once an hour, but Prometheus forgets a sample after 5 minutes, and every alert
    would end before an exporter that is gone is called so.
    """
    return min(spec.exporter.every, _SCRAPED)


def runbooks(spec: FleetSpec) -> str:
    """The absolute address under which runbooks are, without a slash at its end.

    A path is no link in a message. Where the file names no place, the page of `fleet ui` has them:
    at ui.url, else at ui.listen, which opens on the machine of whoever runs it.
    """
    page = spec.ui.url or f"http://{spec.ui.listen}"
    return (spec.alerts.runbooks or f"{page.rstrip('/')}/runbooks").rstrip("/")


def rules(spec: FleetSpec) -> dict[str, Any]:
    """The rule file as a value."""
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
    """The rule file as Prometheus reads it (`rule_files`)."""
    head = (
        f"# Alerts of cluster {spec.cluster.name}, made by `fleet alerts rules`: change fleet.yaml "
        "and render again.\n# Needs Prometheus 2.42 or newer.\n"
    )
    return head + dump(rules(spec))


class _Rules:
    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._cluster = f'cluster="{spec.cluster.name}"'
        self._keep = prometheus_duration(spec.alerts.keep)
        self._declared = [fleet.group for fleet in spec.fleets]

    def all(self) -> list[Rule]:
        return [
            self._cluster_storm(),
            self._group_storm(),
            *self._lag(),
            *self._stuck(),
            self._loss(),
            *self._tickets(),
            self._fenced(),
            self._receipt(),
            *self._blind(),
        ]

    def _rule(
        self,
        name: str,
        expr: str,
        *,
        runbook: str,
        severity: str,
        scope: str,
        wait: float = 0.0,
        labels: dict[str, str] | None = None,
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
            "keep_firing_for": self._keep,
            "labels": {"severity": severity, "scope": scope, **(labels or {})},
            "annotations": {**annotations, **links},
        }

    def _cluster_storm(self) -> Rule:
        info = f"fleet_cluster_storm_info{{{self._cluster}}}"
        return self._rule(
            "FleetClusterStorm",
            f"max by (cluster) (fleet_cluster_storm{{{self._cluster}}}) == 1",
            runbook="cluster-storm",
            severity="page",
            scope="cluster",
            summary="Storm of cluster {{ $labels.cluster }}: " + _told(info, "cause"),
            description=_told(info, "words")
            + ". Alerts of its groups are inhibited while this one lasts.",
            cause=_told(info, "cause"),
        )

    def _group_storm(self) -> Rule:
        return self._rule(
            "FleetGroupStorm",
            f"max by (cluster, group, owner) (fleet_group_storm{{{self._cluster}}}) == 1",
            runbook="group-storm",
            severity="page",
            scope="group",
            summary="Storm in group {{ $labels.group }}: " + _told_of_group("words"),
            description="More rebalances than the budget of the group, without those that a plan "
            "was to cost. Changes of the group are held.",
            cause=_told_of_group("cause"),
            member=_told_of_group("member"),
        )

    def _lag(self) -> list[Rule]:
        """One rule per limit; groups that nobody declared and nobody reads are nobody's."""
        by_limit: dict[float, list[str]] = defaultdict(list)
        for fleet in self._spec.fleets:
            if fleet.max_lag is not None:
                by_limit[fleet.max_lag].append(fleet.group)
        own = sorted(group for groups in by_limit.values() for group in groups)
        default = self._lag_of(self._spec.alerts.lag, f", group!~{_any(own)}" if own else "")
        return [default] + [
            self._lag_of(limit, f", group=~{_any(sorted(groups))}")
            for limit, groups in sorted(by_limit.items())
        ]

    def _lag_of(self, limit: float, groups: str) -> Rule:
        return self._rule(
            "FleetGroupLag",
            f"(max by (cluster, group, owner) (fleet_group_lag_seconds{{{self._cluster}{groups}}})"
            f" > {limit:g})\n{self._somebodys()}",
            runbook="group-lag",
            severity="page",
            scope="group",
            wait=2 * self._spec.exporter.every,
            labels={"max_lag": prometheus_duration(limit)},
            summary="Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
            description=f"The oldest waiting record may be {limit:g} s old (max_lag, alerts.lag).",
        )

    def _somebodys(self) -> str:
        """A group is watched where it has members, or where fleet.yaml declares it."""
        members = f"max by (cluster, group) (fleet_group_members{{{self._cluster}}}) > 0"
        if not self._declared:
            return f"and on (cluster, group) ({members})"
        mine = f"fleet_group_members{{{self._cluster}, group=~{_any(self._declared)}}}"
        return f"and on (cluster, group) ({members}\n  or max by (cluster, group) ({mine}))"

    def _verdict(self, *verdicts: str, groups: str = "") -> str:
        """Groups of one of these verdicts; `groups` are further label matchers."""
        matched = "=~" if len(verdicts) > 1 else "="
        which = f'{{{self._cluster}, verdict{matched}"{"|".join(verdicts)}"{groups}}}'
        return f"max by (cluster, group, owner) (fleet_group_verdict{which}) == 1"

    def _stuck(self) -> list[Rule]:
        long = prometheus_duration(self._spec.alerts.stuck)
        unsettled = self._rule(
            "FleetGroupStuck",
            "max by (cluster, group, owner) "
            f'(fleet_group_state{{{self._cluster}, state=~"{_UNSETTLED}"}}) == 1',
            runbook="group-stuck",
            severity="page",
            scope="group",
            wait=self._spec.alerts.stuck,
            labels={"reason": "unsettled"},
            summary="Group {{ $labels.group }} does not settle",
            description=f"It has been rebalancing for {long} without a pause: some member does "
            "not answer the join, or leaves each round.",
        )
        members = f"max by (cluster, group) (fleet_group_members{{{self._cluster}}})"
        still = self._rule(
            "FleetGroupStuck",
            f"({self._verdict('STOP', 'STALL')})\nand on (cluster, group) ({members} > 0)",
            runbook="group-stuck",
            severity="page",
            scope="group",
            wait=self._patient,
            labels={"reason": "no progress"},
            summary="Group {{ $labels.group }} commits nothing while records wait",
            description=f"For {long} records have waited and some position has not moved "
            "(verdict STOP or STALL).",
        )
        return [unsettled, still, *self._deserted(members, long)]

    def _deserted(self, members: str, long: str) -> list[Rule]:
        """Nobody is in it and records wait: of declared groups, and of those that had members.

        After a day without a commit the verdict is ABANDONED, which calls for declared groups only.
        """
        had = f"max by (cluster, group) (fleet_group_generation{{{self._cluster}}}) > 0"
        mine = _any(self._declared)
        still = ("STOP", "STALL")
        kinds = []
        if self._declared:
            kinds.append(
                ("page", self._verdict(*still, "ABANDONED", groups=f", group=~{mine}"), "")
            )
        others = self._verdict(*still, groups=f", group!~{mine}" if self._declared else "")
        kinds.append(("ticket", others, f"\nand on (cluster, group) ({had})"))
        return [
            self._rule(
                "FleetGroupStuck",
                f"({judged})\nand on (cluster, group) ({members} == 0){more}",
                runbook="group-stuck",
                severity=severity,
                scope="group",
                wait=self._patient,
                labels={"reason": "no members"},
                summary="Group {{ $labels.group }} has no members while records wait",
                description=f"For {long} nobody has read what waits.",
            )
            for severity, judged, more in kinds
        ]

    @property
    def _patient(self) -> float:
        """A verdict has its own patience, which is part of `alerts.stuck`."""
        return max(2 * self._spec.exporter.every, self._spec.alerts.stuck - Patience().least)

    def _loss(self) -> Rule:
        # The group's verdict is that of its worst partition: a loss may stand behind a STOP.
        lost = f'fleet_group_partitions{{{self._cluster}, case="committed below log start"}}'
        return self._rule(
            "FleetGroupLoss",
            f"({self._verdict('LOSS', 'STOP', 'STALL')})\n"
            f"and on (cluster, group) (max by (cluster, group) ({lost}) > 0)",
            runbook="group-loss",
            severity="page",
            scope="group",
            wait=2 * self._spec.exporter.every,
            summary="Records went before group {{ $labels.group }} read them",
            description="Retention (or DeleteRecords) took records above the committed offset of "
            "some partition (verdict LOSS).",
        )

    def _tickets(self) -> list[Rule]:
        return [
            self._rule(
                name,
                self._verdict(verdict),
                runbook=runbook,
                severity="ticket",
                scope="group",
                wait=2 * self._spec.exporter.every,
                summary=f"Group {{{{ $labels.group }}}} {said}",
                description=f"{why} (verdict {verdict}).",
            )
            for name, verdict, runbook, said, why in (
                (
                    "FleetGroupHeld",
                    "HELD",
                    "group-held",
                    "waits for an open transaction",
                    "What waits in some partition is behind the begin of an open transaction",
                ),
                (
                    "FleetGroupRewind",
                    "REWIND",
                    "group-rewind",
                    "went back",
                    "Commits of some partition went back in the last 10 minutes; it reads again",
                ),
                (
                    "FleetGroupFallsBehind",
                    "WARN",
                    "group-falls-behind",
                    "falls behind",
                    "It commits, and what waits grows older by more than a tenth of the time",
                ),
            )
        ]

    def _fenced(self) -> Rule:
        return self._rule(
            "FleetWorkerFenced",
            "max by (cluster, group, owner, slot) "
            f'(fleet_slot_state{{{self._cluster}, state="quarantined"}}) == 1',
            runbook="worker-fenced",
            severity="ticket",
            scope="group",
            summary="Slot {{ $labels.slot }} of group {{ $labels.group }} is shut: another process "
            "uses its instance id",
            description="A worker was fenced twice by a member that is not ours; the slot stays "
            "shut until that process is ended and the slot opened again.",
        )

    def _receipt(self) -> Rule:
        return self._rule(
            "FleetReceiptDiffers",
            f"max by (cluster, group, owner) (fleet_group_receipt_differs{{{self._cluster}}}) == 1",
            runbook="receipt-differs",
            severity="ticket",
            scope="group",
            summary="The last change of group {{ $labels.group }} cost other than planned",
            description="The coordinator recorded another number of rebalances than the plan "
            "stated; the steps after it were held.",
        )

    def _blind(self) -> list[Rule]:
        limit = max(LEAST_BLIND, LOOKS * self._spec.exporter.every)
        age = f"fleet_snapshot_age_seconds{{{self._cluster}}}"
        silent = f"absent({age})"
        old = f"max by (cluster) ({age}) > {limit:g}"
        return [
            self._rule(
                "FleetExporterBlind",
                expr,
                runbook="exporter-blind",
                severity="page",
                scope="exporter",
                wait=wait,
                labels={"reason": reason},
                summary=f"Fleet does not see cluster {self._spec.cluster.name}: {said}",
                description="No other alert of this cluster can be trusted meanwhile.",
            )
            for reason, expr, wait, said in (
                ("no metrics", silent, LEAST_BLIND, "no exporter is scraped"),
                ("old view", old, 0.0, "its view is {{ $value | humanizeDuration }} old"),
            )
        ]


def _told(selector: str, label: str) -> str:
    """A label of an info series in a template; empty where there is none."""
    return f'{{{{ with query `{selector}` }}}}{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'


def _told_of_group(label: str) -> str:
    """The same for the group of the alert."""
    return (
        '{{ with printf "fleet_group_storm_info{cluster=%q,group=%q}" '
        "$labels.cluster $labels.group | query }}"
        f'{{{{ . | first | label "{label}" }}}}{{{{ end }}}}'
    )


def _any(groups: Sequence[str]) -> str:
    """A quoted PromQL regular expression that matches just these names."""
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", group) for group in groups)
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


# Alertmanager's route and inhibitions for the rules of `fleet.report.alert_rules`.
#
# One cause is one notification: a storm of the cluster silences those of its groups, a storm of a
# group silences the lag that it makes, and while the exporter sees nothing, nothing it said
# before is repeated. Receivers are `page` and `ticket`; without addresses they are empty, which
# is valid: fill them in with what you use. Slack's URL and PagerDuty's key are secrets: only the
# files that hold them are named, which Alertmanager reads itself (0.25 or newer).


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
