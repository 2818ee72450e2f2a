"""Prometheus metrics, rules, dashboards: what is shown to whoever is not looking."""
