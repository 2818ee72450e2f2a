"""A Grafana dashboard of a cluster's groups, as code.

Problem: a dashboard that is edited by hand drifts from the metrics it queries. Choice: a table in
this file lists the panels, and Fleet renders it to the JSON that Grafana imports. A test runs every
query on a real Prometheus. The data source and the cluster are variables: one dashboard serves all
clusters.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

_WIDTH: Final = 24
_HEIGHT: Final = 8
_SCHEMA: Final = 38
"""Grafana 9.5 and later import it."""
_UID: Final = "fleet-groups"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WHOLE: Final = 'cluster="$cluster"'
_MINE: Final = f'{_WHOLE}, group=~"$group"'
_LABELS_ONLY: Final = {
    "id": "organize",
    "options": {
        "excludeByName": dict.fromkeys(
            ("Time", "Value", "__name__", "cluster", "instance", "job"), True
        ),
        "indexByName": {
            name: place
            for place, name in enumerate(("group", "cause", "top_offender", "summary", "owner"))
        },
        "renameByName": {},
    },
}
"""Hides the columns of an info metric's table that are not its own labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel with a query in PromQL, or two."""

    title: str
    kind: str
    query: str
    legend: str
    also: tuple[tuple[str, str], ...] = ()
    """More queries with their legends."""
    unit: str = "short"
    width: int = 12
    description: str = ""
    red_from: float | None = None
    """A stat is red from here on; Grafana's own default is red from 80."""

    @property
    def queries(self) -> tuple[tuple[str, str], ...]:
        """Returns all queries with their legends."""
        return ((self.query, self.legend), *self.also)


def _by_group(how: str, metric: str) -> str:
    """Selects the twenty groups with the highest value."""
    return f"topk(20, {how} by (group) ({metric}{{{_MINE}}}))"


def _hourly(metric: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}{{{_MINE}}}[1h])) > 0"


def _duration_quantile(quantile: float) -> str:
    taken = f"fleet_group_rebalance_duration_seconds_bucket{{{_MINE}}}[1h]"
    return f"histogram_quantile({quantile:g}, sum by (le) (rate({taken})))"


PANELS: Final[Sequence[Panel]] = (
    Panel(
        "Storms now", "stat", f"sum(fleet_group_storm{{{_WHOLE}}})", "groups in a storm",
        width=4, red_from=1,
        description="Groups over their budget of rebalances, without those that a plan expects.",
    ),
    Panel(
        "Storm of the cluster", "stat", f"max(fleet_cluster_storm{{{_WHOLE}}})", "cluster",
        width=4, red_from=1, description="Ten or more groups at once, or coordinators that moved.",
    ),
    Panel(
        "Groups", "stat", f"count(group by (group) (fleet_group_members{{{_WHOLE}}}))", "groups",
        width=4,
    ),
    Panel(
        "Age of the data", "stat", f"max(fleet_snapshot_age_seconds{{{_WHOLE}}})", "age",
        unit="s", width=4, red_from=60, description="Seconds since the exporter's last refresh.",
    ),
    Panel(
        "Undecodable records", "stat",
        f"sum(increase(fleet_decode_errors_total{{{_WHOLE}}}[1h])) or vector(0)", "1 h",
        width=4, red_from=1,
        description="Records of __consumer_offsets of an unknown type or version.",
    ),
    Panel(
        "Quarantined slots", "stat",
        f'count(fleet_slot_state{{{_WHOLE}, state="quarantined"}} == 1) or vector(0)',
        "quarantined", width=4, red_from=1,
        description="Slots whose instance id another process uses.",
    ),
    Panel(
        "Groups in a storm", "table", f"fleet_group_storm_info{{{_MINE}}}",
        "{{group}}: {{summary}}", width=24,
        description="Cause and top offender of each group in a storm.",
    ),
    Panel(
        "Rebalances per hour, by group", "timeseries",
        f"topk(20, {_hourly('fleet_group_rebalances_total', 'group')})", "{{group}}",
        description="Completed generations, or new assignments under KIP-848.",
    ),
    Panel(
        "Rebalances per hour, by cause", "timeseries",
        _hourly("fleet_group_rebalances_total", "cause"), "{{cause}}",
    ),
    Panel(
        "Lag in seconds", "timeseries", _by_group("max", "fleet_group_lag_seconds"), "{{group}}",
        unit="s", description="Age of the oldest waiting record.",
    ),
    Panel(
        "Lag in records", "timeseries", _by_group("sum", "fleet_group_lag_records"), "{{group}}"
    ),
    Panel(
        "Duration of rebalances", "timeseries", _duration_quantile(0.95), "p95",
        also=((_duration_quantile(0.5), "p50"),),
        unit="s", description="Rebalances whose start is known.",
    ),
    Panel(
        "Partitions moved per hour", "timeseries",
        f"topk(20, {_hourly('fleet_group_partitions_moved_total', 'group')})", "{{group}}",
    ),
    Panel("Members", "timeseries", _by_group("max", "fleet_group_members"), "{{group}}"),
    Panel(
        "Groups by state", "timeseries",
        f"sum by (state) (fleet_group_state{{{_MINE}}}) > 0", "{{state}}",
    ),
    Panel(
        "Slots by state", "timeseries",
        f"sum by (state) (fleet_slot_state{{{_MINE}}}) > 0", "{{state}}",
    ),
    Panel(
        "Records per second by worker", "timeseries",
        f"sum by (worker) (rate(fleet_worker_records_total{{{_MINE}}}[5m]))", "{{worker}}",
        unit="cps", description="The workers' own metrics, if Prometheus scrapes them.",
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Builds the dashboard that Grafana imports."""
    return {
        "uid": _UID,
        "title": "Fleet: consumer groups",
        "tags": ["kafka", "fleet"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": [_storms_as_regions()]},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "label_values(fleet_snapshot_age_seconds, cluster)"),
                _variable(
                    "group",
                    'label_values(fleet_group_members{cluster="$cluster"}, group)',
                    many=True,
                ),
            ]
        },
        "panels": _place(PANELS),
    }


def dashboard_json() -> str:
    """Renders the dashboard as JSON text."""
    return json.dumps(dashboard(), indent=1) + "\n"


def dashboard_url(grafana: str, *, cluster: str, group: str) -> str:
    """Returns the address of one group's panels in the Grafana of this base URL."""
    shown = urlencode({"var-cluster": cluster, "var-group": group})
    return f"{grafana.rstrip('/')}/d/{_UID}?{shown}"


def queries() -> list[str]:
    """Returns every PromQL expression of the dashboard, with its variables."""
    expressions = [expr for panel in PANELS for expr, _ in panel.queries]
    return [*expressions, str(_storms_as_regions()["expr"])]


def _place(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Places the panels left to right, row by row."""
    x = y = last = 0
    found: list[dict[str, Any]] = []
    for number, panel in enumerate(panels, start=1):
        height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
        if x + panel.width > _WIDTH:
            x, y = 0, y + last
        found.append(
            {
                "id": number,
                "title": panel.title,
                "type": panel.kind,
                "description": panel.description,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "fieldConfig": {
                    "defaults": {"unit": panel.unit, "min": 0, "thresholds": _thresholds(panel)},
                    "overrides": [],
                },
                "options": {},
                "targets": [_target(panel, i) for i in range(len(panel.queries))],
                "transformations": [_LABELS_ONLY] if panel.kind == "table" else [],
            }
        )
        x, last = x + panel.width, height
    return found


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "text", "value": None}]
    if panel.red_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_from}]
    return {"mode": "absolute", "steps": steps}


def _target(panel: Panel, index: int) -> dict[str, Any]:
    expr, legend = panel.queries[index]
    table = panel.kind == "table"
    return {
        "refId": chr(ord("A") + index),
        "expr": expr,
        "legendFormat": legend,
        "datasource": _SOURCE,
        "instant": table,
        "range": not table,
        "format": "table" if table else "time_series",
    }


def _storms_as_regions() -> dict[str, Any]:
    return {
        "name": "Storms",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"max by (group) (fleet_group_storm{{{_MINE}}}) == 1",
        "titleFormat": "storm in {{group}}",
        "useValueForTime": False,
    }


def _variable(name: str, query: str, *, many: bool = False) -> dict[str, Any]:
    chosen = {"text": "All", "value": "$__all"} if many else {}
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".*" if many else None,
        "current": chosen,
    }
