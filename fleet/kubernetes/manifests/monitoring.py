"""What Prometheus Operator and Grafana read: rules, who is scraped, a dashboard.

The rules are those of `fleet alerts rules`, the dashboard that of `fleet alerts dashboard`: one
meaning of every alert. PrometheusRule and PodMonitor need the operator's CRDs, so this part is
rendered only where it is asked for.
"""

from typing import Final

from fleet.config.spec import FleetSpec
from fleet.kubernetes.manifests.part_objects import EXPORTER, WORKER_APP, meta
from fleet.kubernetes.manifests.pod_template import Object
from fleet.report.alert_rules import prometheus_duration, rules, scrape_interval
from fleet.report.dashboard import dashboard_json

NAME: Final = "fleet"
APP: Final = "fleet-monitoring"
DASHBOARD: Final = "fleet-dashboard"


def monitoring(spec: FleetSpec) -> list[Object]:
    """PrometheusRule, PodMonitor (exporter and workers) and the dashboard's ConfigMap."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": meta(spec, NAME, APP),
            "spec": rules(spec),
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": meta(spec, NAME, APP),
            "spec": {
                "selector": {
                    "matchExpressions": [
                        {
                            "key": "app.kubernetes.io/name",
                            "operator": "In",
                            "values": [EXPORTER, WORKER_APP],
                        }
                    ]
                },
                "podMetricsEndpoints": [
                    {
                        "port": "http",
                        "path": "/metrics",
                        "interval": prometheus_duration(scrape_interval(spec)),
                        # Its own labels say group and cluster; the pod's must not replace them.
                        "honorLabels": True,
                    }
                ],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta(spec, DASHBOARD, APP, grafana_dashboard="1"),
            "data": {"fleet.json": dashboard_json()},
        },
    ]
