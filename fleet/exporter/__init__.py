"""The exporter: looks on a schedule, judged, as metrics."""
