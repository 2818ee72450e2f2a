"""Dagster's instance as Fleet wants it: where its state lies, what bounds its runs.

Problem: the file dagster.yaml is written for a new folder, for the pod of the manager, and lies in
the repository with a reason for each line. Choice: its values are here, the first two are made of
them, and a test holds the third equal. Cost: a new folder's file says more than it would need.
"""

from typing import Any

import yaml


def dagster_instance(state: str) -> dict[str, Any]:
    """With its state in that folder: every path is spelled out, so that it holds without
    DAGSTER_HOME, too.
    """
    return {
        "storage": {"sqlite": {"base_dir": state}},
        "local_artifact_storage": {
            "module": "dagster._core.storage.root",
            "class": "LocalArtifactStorage",
            "config": {"base_dir": state},
        },
        "compute_logs": {
            "module": "dagster.core.storage.local_compute_log_manager",
            "class": "LocalComputeLogManager",
            "config": {"base_dir": f"{state}/compute_logs"},
        },
        "concurrency": {"runs": {"max_concurrent_runs": 6}},
        "run_monitoring": {
            "enabled": True,
            "poll_interval_seconds": 30,
            "start_timeout_seconds": 180,
            "cancel_timeout_seconds": 120,
            "max_runtime_seconds": 21600,
        },
        "run_retries": {"enabled": False},
        "retention": {
            "sensor": {"purge_after_days": {"skipped": 1, "success": 7, "failure": 30}},
            "schedule": {"purge_after_days": {"skipped": 1, "success": 30, "failure": 30}},
        },
        "sensors": {"use_threads": True, "num_workers": 2},
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},
    }


def dagster_yaml(state: str) -> str:
    """The same as a file of a new folder."""
    head = "# Dagster's own state, beside Fleet's. Changes are resumed under a lease: no retries.\n"
    text: str = yaml.safe_dump(dagster_instance(state), sort_keys=False, default_flow_style=None)
    return head + text
