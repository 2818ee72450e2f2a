"""Prometheus alerting rules, rendered from fleet.yaml.

Problem: an alert on a raw count pages for every deploy, forty times for one dead broker, and
says neither who nor what to do. Choice: what a storm is, is decided once, by Fleet
(`fleet.decide.storms`, exported as `fleet_group_storm`): rebalances within a plan's
expected cost are not in it, and begin and end have hysteresis; the rules only call. Cause and top
offender come into the annotations by a query, not as labels, since a label that changes would end
one alert and begin another. Whether a group keeps up is decided once too
(`fleet.manager.keeping_up`): each lag status has its rule, and only a limit in seconds is held
against the lag. Severity is `page` (somebody gets up) or `ticket` (somebody looks today); `scope`
is what Alertmanager inhibits by. Needs Prometheus 2.42 (`keep_firing_for`). Cost: rules are
rendered again when limits or groups in fleet.yaml change.
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

LOOKS: Final = 4
"""The exporter is blind once its view is older than so many looks."""
LEAST_BLIND: Final = 60.0
"""Seconds: a broker that starts again takes some of them, and is no blindness."""
_SCRAPED: Final = 15.0
_OWNED: Final = "cluster, group, owner"
_PLACE: Final = "cluster, group"
_UNSETTLED: Final = "PreparingRebalance|CompletingRebalance|Rebalancing"
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")
Rule = dict[str, Any]


def prometheus_duration(seconds: float) -> str:
    """As Prometheus writes it: whole seconds or milliseconds."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def scrape_interval(spec: FleetSpec) -> float:
    """Seconds between scrapes, and between evaluations: `exporter.interval`, or less.

    A look may come once an hour, but Prometheus forgets a sample after 5 minutes, and every alert
    would end before an exporter that is gone is called so.
    """
    return min(spec.exporter.interval, _SCRAPED)


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
        f"# Alerts of cluster {spec.cluster.name}, rendered by `fleet render alert-rules`: change "
        "fleet.yaml and render again.\n# Needs Prometheus 2.42 or newer.\n"
    )
    return head + dump(rules(spec))


class _Rules:
    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._declared = [fleet.group for fleet in spec.fleets]
        # Thresholds, in seconds: two looks tell more than a slip; a lag status has its own grace
        # period, which is part of `alerts.stuck_after`.
        self._soon = 2 * spec.exporter.interval
        self._stuck = spec.alerts.stuck_after
        self._patient = max(self._soon, self._stuck - Grace().least)
        self._blind = max(LEAST_BLIND, LOOKS * spec.exporter.interval)
        # What selects whom.
        self._cluster = f'cluster="{spec.cluster.name}"'
        self._members = self._max("fleet_group_members", by=_PLACE)
        mine = _any(self._declared)
        self._mine = (f"group=~{mine}",) if self._declared else ()
        self._others = (f"group!~{mine}",) if self._declared else ()

    def _max(self, metric: str, *matchers: str, by: str = _OWNED) -> str:
        """The highest of these series, by group or cluster."""
        return f"max by ({by}) ({metric}{{{', '.join((self._cluster, *matchers))}}})"

    def _status(self, *statuses: str, of: tuple[str, ...] = ()) -> str:
        """Groups of one of these statuses."""
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
        cause = _told(info, "cause")
        yield self._rule(
            "FleetClusterStorm",
            "cluster-storm",
            f"{self._max('fleet_cluster_storm', by='cluster')} == 1",
            "Storm of cluster {{ $labels.cluster }}: " + cause,
            f"{_told(info, 'summary')}. Alerts of its groups are inhibited while this one lasts.",
            scope="cluster",
            cause=cause,
        )
        yield self._rule(
            "FleetGroupStorm",
            "group-storm",
            f"{self._max('fleet_group_storm')} == 1",
            "Storm in group {{ $labels.group }}: " + _told_of_group("summary"),
            "More rebalances than the budget of the group, without those that a plan "
            "was to cost. Changes of the group are held.",
            cause=_told_of_group("cause"),
            top_offender=_told_of_group("top_offender"),
        )

    def _lag(self) -> Iterator[Rule]:
        """One rule per limit; groups that nobody declared and nobody reads are nobody's."""
        by_limit: dict[float, list[str]] = defaultdict(list)
        for fleet in self._spec.fleets:
            if fleet.max_lag is not None:
                by_limit[fleet.max_lag].append(fleet.group)
        own = sorted(group for groups in by_limit.values() for group in groups)
        somebodys = f"{self._members} > 0"
        if self._declared:
            mine = self._max("fleet_group_members", *self._mine, by=_PLACE)
            somebodys += f"\n  or {mine}"
        limits = [(self._spec.alerts.max_lag, (f"group!~{_any(own)}",) if own else ())]
        limits += [(at, (f"group=~{_any(sorted(of))}",)) for at, of in sorted(by_limit.items())]
        for limit, groups in limits:
            yield self._rule(
                "FleetGroupLag",
                "group-lag",
                f"({self._max('fleet_group_lag_seconds', *groups)} > {limit:g})\n"
                f"and on (cluster, group) ({somebodys})",
                "Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
                f"The oldest waiting record may be {limit:g} s old (max_lag, alerts.max_lag).",
                wait=self._soon,
                labels={"max_lag": prometheus_duration(limit)},
            )

    def _standing(self) -> Iterator[Rule]:
        """Groups that do not settle, commit nothing, or have nobody in them while records wait.

        After a day without a commit the lag status is ABANDONED, which calls for declared groups
        only; of the others those are told that had members.
        """
        long = prometheus_duration(self._stuck)
        still = ("STOP", "STALL")
        had = self._max("fleet_group_generation", by=_PLACE)
        unsettled = self._max("fleet_group_state", f'state=~"{_UNSETTLED}"')
        nobody = "has no members while records wait"
        unread = f"For {long} nobody has read what waits."
        deserted = f"and on (cluster, group) ({self._members} == 0)"
        found = [
            (
                *("unsettled", "page", self._stuck, f"{unsettled} == 1", "does not settle"),
                (
                    f"It has been rebalancing for {long} without a pause: some member does not "
                    "answer the join, or leaves each round."
                ),
            ),
            (
                *("no progress", "page", self._patient),
                f"({self._status(*still)})\nand on (cluster, group) ({self._members} > 0)",
                "commits nothing while records wait",
                (
                    f"For {long} records have waited and some position has not moved "
                    "(lag status STOP or STALL)."
                ),
            ),
        ]
        if self._declared:
            judged = self._status(*still, "ABANDONED", of=self._mine)
            found.append(
                (*("no members", "page", self._patient), f"({judged})\n{deserted}", nobody, unread)
            )
        others = f"({self._status(*still, of=self._others)})\n{deserted}"
        others += f"\nand on (cluster, group) ({had} > 0)"
        found.append(("no members", "ticket", self._patient, others, nobody, unread))
        for reason, severity, wait, expr, said, why in found:
            yield self._rule(
                "FleetGroupStuck",
                "group-stuck",
                expr,
                f"Group {{{{ $labels.group }}}} {said}",
                why,
                severity=severity,
                wait=wait,
                labels={"reason": reason},
            )

    def _statuses(self) -> Iterator[Rule]:
        # The group's lag status is that of its worst partition: a loss may stand behind a STOP.
        lost = self._max("fleet_group_partitions", 'case="committed below log start"', by=_PLACE)
        yield self._rule(
            "FleetGroupLoss",
            "group-loss",
            f"({self._status('LOSS', 'STOP', 'STALL')})\nand on (cluster, group) ({lost} > 0)",
            "Records went before group {{ $labels.group }} read them",
            "Retention (or DeleteRecords) took records above the committed offset of "
            "some partition (lag status LOSS).",
            wait=self._soon,
        )
        for name, runbook, status, said, why in (
            (
                *("FleetGroupHeld", "group-held", "HELD", "waits for an open transaction"),
                "What waits in some partition is behind the begin of an open transaction",
            ),
            (
                *("FleetGroupRewind", "group-rewind", "REWIND", "went back"),
                "Commits of some partition went back in the last 10 minutes; it reads again",
            ),
            (
                *("FleetGroupFallsBehind", "group-falls-behind", "WARN", "falls behind"),
                "It commits, and what waits grows older by more than a tenth of the time",
            ),
        ):
            yield self._rule(
                name,
                runbook,
                self._status(status),
                f"Group {{{{ $labels.group }}}} {said}",
                f"{why} (lag status {status}).",
                severity="ticket",
                wait=self._soon,
            )

    def _of_ours(self) -> Iterator[Rule]:
        shut = self._max("fleet_slot_state", 'state="quarantined"', by=f"{_OWNED}, slot")
        yield self._rule(
            "FleetWorkerFenced",
            "worker-fenced",
            f"{shut} == 1",
            "Slot {{ $labels.slot }} of group {{ $labels.group }} is shut: another process "
            "uses its instance id",
            "A worker was fenced twice by a member that is not ours; the slot stays "
            "shut until that process is ended and the slot opened again.",
            severity="ticket",
        )
        yield self._rule(
            "FleetReceiptDiffers",
            "receipt-differs",
            f"{self._max('fleet_group_receipt_differs')} == 1",
            "The last change of group {{ $labels.group }} cost other than planned",
            "The coordinator recorded another number of rebalances than the plan "
            "stated; the steps after it were held.",
            severity="ticket",
        )

    def _blindness(self) -> Iterator[Rule]:
        age = "fleet_snapshot_age_seconds"
        silent = f"absent({age}{{{self._cluster}}})"
        old = f"{self._max(age, by='cluster')} > {self._blind:g}"
        view = "its view is {{ $value | humanizeDuration }} old"
        for reason, expr, wait, said in (
            ("no metrics", silent, LEAST_BLIND, "no exporter is scraped"),
            ("old view", old, 0.0, view),
        ):
            yield self._rule(
                "FleetExporterBlind",
                "exporter-blind",
                expr,
                f"Fleet does not see cluster {self._spec.cluster.name}: {said}",
                "No other alert of this cluster can be trusted meanwhile.",
                scope="exporter",
                wait=wait,
                labels={"reason": reason},
            )


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


# Alertmanager's route: one cause is one notification. Receivers without addresses are empty, which
# is valid. Slack's URL and PagerDuty's key are secrets: only the files that hold them are named,
# which Alertmanager reads itself (0.25 or newer).


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
    head = "# Made by `fleet render alertmanager`. Check it with `amtool check-config FILE`.\n"
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
