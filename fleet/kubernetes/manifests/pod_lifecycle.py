"""How long a pod may take for its ends, and what its probes ask: pure functions of the spec.

Problem: the kubelet kills a container `terminationGracePeriodSeconds` after SIGTERM, however
much it still has in hand, and restarts one whose probes fail. Choice: the grace holds a whole
drain, the last writes of the slot (an API server that is away is waited for one lease) and the
release of Spark; it must end before `max.poll.interval.ms`, the group's rebalance timeout, is
over [5]. There is no preStop hook: no Service routes to a worker, SIGTERM itself begins the
drain, and the time of a hook would be taken from the grace. A startup probe only waits for the
process and its settings, not for Spark: what a worker waits for it says in the body. Cost: a
worker whose `setup` never returns is never ready, and is left to whoever rolls it out.
"""

import math
from typing import Any, Final

from fleet.config.spec import GroupSpec
from fleet.errors import ConfigError

PORT: Final = "http"
"""The named port of probes, status and metrics."""
SLACK: Final = 15.0
"""Seconds after the drain: an interrupted batch comes back (10), Spark is released (5)."""


def grace_seconds(group: GroupSpec) -> int:
    """`terminationGracePeriodSeconds`: drain_timeout + lease + 15, in whole seconds.

    Raises ConfigError where the group declares no worker, or where that outlasts
    `worker.max_poll_interval`: a pod that may drain for longer holds up a rebalance.
    """
    worker = group.worker
    if worker is None:
        raise ConfigError(f"group {group.group} declares no worker, so it has no pods of ours")
    drain, lease = group.rollout.drain_timeout, group.runtime.lease
    grace = math.ceil(drain + lease + SLACK)
    if grace > worker.max_poll_interval:
        raise ConfigError(
            f"group {group.group}: a pod needs up to {grace} s to end (rollout.drain_timeout "
            f"{drain:g}s + runtime.lease {lease:g}s + {SLACK:g}s), more than "
            f"worker.max_poll_interval {worker.max_poll_interval:g}s: shorten the drain or the "
            "lease, or allow a longer poll interval, which is the group's rebalance timeout"
        )
    return grace


def probes() -> dict[str, dict[str, Any]]:
    """`startupProbe`, `readinessProbe` and `livenessProbe`, by pod address on the named port."""
    return {
        # Imports on a busy node; the process listens before it opens its store or warms.
        "startupProbe": _probe("/startupz", every=1, timeout=3, failures=180),
        # A roll goes on no faster than this sees.
        "readinessProbe": _probe("/readyz", every=2, timeout=3, failures=2),
        "livenessProbe": _probe("/livez", every=10, timeout=5, failures=3),
    }


def _probe(path: str, *, every: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTP"},
        "periodSeconds": every,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
