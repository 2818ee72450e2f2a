"""What a pod's status says of its worker, in words that a rolled-back change ends with."""

from datetime import UTC, datetime

import pytest

from fleet.kubernetes.deployment.pod_status import exit_reason, is_leaving, worker_of

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC).timestamp()


def pod(*, container: dict | None = None, **status: object) -> dict:
    """A pod made a minute ago, with this container."""
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T11:59:00Z"}
    ]
    made = {"phase": "Running", "conditions": conditions, **status}
    if container is not None:
        made["containerStatuses"] = [{"name": "worker", "restartCount": 0, **container}]
    return {
        "metadata": {
            "name": "orders-1-abc",
            "creationTimestamp": "2026-01-01T11:59:00Z",
            "labels": {"pod-template-hash": "abc"},
            "annotations": {"fleet/revision": "0123456789"},
        },
        "status": made,
    }


WAITS = {"waiting": {"reason": "PodInitializing"}}
RUNS = {"running": {"startedAt": "2026-01-01T11:59:02Z"}}
NO_IMAGE = {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret login"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}
AGAIN = {"waiting": {"reason": "CrashLoopBackOff"}}
NO_CERTIFICATE = {"terminated": {"exitCode": 1, "message": "no certificate"}}
CRASHED = {"restartCount": 9, "lastState": NO_CERTIFICATE}
PROXY = "its container proxy: "


def with_init(state: dict, container: dict | None = None, **more: object) -> dict:
    """A pod to which admission has added an init container, a sidecar if it says `started`."""
    first = {"name": "proxy", "restartCount": 0, "state": state, **more}
    found = pod(initContainerStatuses=[first], container=container or {"state": WAITS})
    added = {"name": "proxy", **({"restartPolicy": "Always"} if "started" in more else {})}
    found["spec"] = {"initContainers": [added], "containers": [{"name": "worker"}]}
    return found


def after_a_sidecar() -> dict:
    """Init containers of both kinds start in their order: the second one waits."""
    found = with_init(RUNS, started=True, restartCount=5)
    found["spec"]["initContainers"].append({"name": "certificates"})
    second = {"name": "certificates", "restartCount": 0, "state": NO_IMAGE}
    found["status"]["initContainerStatuses"].append(second)
    return found


def beside(**other: object) -> dict:
    """Another container, which does this, of a pod whose worker runs."""
    found = pod(container={"state": RUNS})
    found["status"]["containerStatuses"].insert(0, {"name": "proxy", **other})
    return found


def worker(found: dict, **templates: str):
    return worker_of(found, group="orders", templates=templates, now=NOW)


def test_a_running_pod() -> None:
    """Its revision is the manager's where the manager rendered the template, else its own."""
    running = pod(container={"state": RUNS, "restartCount": 1})
    seen = worker(running, abc="0123456789")
    assert (seen.revision, seen.running, seen.wanted) == ("0123456789", True, True)
    assert (seen.restarts, seen.pid) == (1, None)
    assert worker(running).revision == "0123456789~abc"


def debugged() -> dict:
    """A worker runs, and a container that somebody added to look at it has failed."""
    found = pod(container={"state": RUNS})
    found["status"]["ephemeralContainerStatuses"] = [
        {"name": "debugger", "state": AGAIN, **CRASHED}
    ]
    return found


ANEW = {"state": WAITS, "lastState": {"terminated": {"exitCode": 255}}, "restartCount": 1}


UNCONFIGURED = "CreateContainerConfigError: no secret login"
UNPULLED = "ErrImageNeverPull: no such image"
UNCERTIFIED = f"{PROXY}exit code 1: no certificate"
NO_ARCHIVE = {"terminated": {"exitCode": 2, "message": "not a gzip file"}}


@pytest.mark.parametrize(
    ("found", "state", "restarts", "why"),
    [
        (pod(container={"state": NO_IMAGE}), "stuck", 0, UNPULLED),
        # Init containers come first, and sidecars are waited for until they are up.
        (with_init(NO_ARCHIVE, restartCount=3), "fails", 3, PROXY + "exit code 2: not a gzip file"),
        (with_init(NO_IMAGE), "stuck", 0, PROXY + UNPULLED),
        (with_init(DONE, {"state": RUNS}), "runs", 0, None),
        (with_init(DONE, {"state": NO_IMAGE}), "stuck", 0, UNPULLED),
        (with_init(NO_IMAGE, started=False), "stuck", 0, PROXY + UNPULLED),
        (with_init(AGAIN, started=False, **CRASHED), "fails", 9, UNCERTIFIED),
        (with_init(RUNS, started=False), "starts", 0, None),
        (after_a_sidecar(), "stuck", 0, f"its container certificates: {UNPULLED}"),
        # A sidecar that is up goes on beside the worker.
        (with_init(RUNS, {"state": RUNS}, started=True), "runs", 0, None),
        (with_init(RUNS, {"state": NO_IMAGE}, started=True), "stuck", 0, UNPULLED),
        (with_init(RUNS, {"state": NO_SECRET}, started=True), "stuck", 0, UNCONFIGURED),
        # A worker runs while another container fails: the pod is not ready, and says for which.
        (with_init(AGAIN, {"state": RUNS}, started=None, **CRASHED), "runs", 0, UNCERTIFIED),
        (beside(state=AGAIN, **CRASHED), "runs", 0, UNCERTIFIED),
        (beside(state=NO_IMAGE, **CRASHED), "runs", 0, PROXY + UNPULLED),
        (debugged(), "runs", 0, None),
        # A node that starts again runs init containers anew: the worker's status is of before.
        (with_init(NO_IMAGE, ANEW), "stuck", 0, PROXY + UNPULLED),
    ],
)
def test_what_a_pod_says_of_its_worker(
    found: dict, state: str, restarts: int, why: str | None
) -> None:
    """The worker's container is known by its name; what can never start never restarts."""
    seen = worker(found)
    states = {
        (True, False, False): "runs",
        (False, True, True): "stuck",
        (False, False, True): "fails",
        (False, False, False): "starts",
    }
    assert states[seen.running, seen.stuck, seen.is_unhealthy] == state
    assert (seen.restarts, seen.exit_reason) == (restarts, why)


def test_what_has_waited_for_a_moment_is_not_stuck() -> None:
    """A registry may be away for so long."""
    fresh = pod(container={"state": NO_IMAGE})
    fresh["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T11:59:50Z"
    assert not worker(fresh).is_unhealthy


def test_a_crash_loop_tells_its_last_words() -> None:
    """The last line of the termination message, where there is one."""
    crashed = {
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": "Traceback\n\nModuleNotFoundError: No module named 'jobs'\n",
            }
        },
    }
    seen = worker(pod(container=crashed))
    assert (seen.stuck, seen.is_unhealthy, seen.restarts) == (False, True, 4)
    assert seen.exit_reason == "exit code 1: ModuleNotFoundError: No module named 'jobs'"
    assert not seen.running
    assert (seen.failures, seen.is_failing) == (4, True)
    for since, failures in (("11:59:30", 4), ("11:58:30", 0)):
        crashed["state"] = {"running": {"startedAt": f"2026-01-01T{since}Z"}}
        assert worker(pod(container=crashed)).failures == failures, "a minute of life ends them"


def test_out_of_memory_and_no_node_are_named() -> None:
    """Neither is the worker's own word."""
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert exit_reason(pod(container={"state": killed})) == "OOMKilled, exit code 137"
    waits = pod(phase="Pending")
    waits["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    ]
    assert exit_reason(waits) == "has no node: 0/1 nodes are available"
    assert worker(waits).waits_for_node
    waits["status"]["conditions"][0]["status"] = "True"
    assert not worker(waits).waits_for_node, "from now on it has to get warm"
    assert not worker(pod(phase="Pending", conditions=[])).waits_for_node, "not tried yet"


def test_who_is_on_the_way_out() -> None:
    """Marked, deleted, or evicted for good."""
    here = pod(container={"state": {"running": {}}})
    assert not is_leaving(here)
    here["metadata"]["annotations"]["fleet/removed"] = "2026-01-01T12:00:00+00:00"
    assert is_leaving(here)
    gone = pod(container={"state": {"running": {}}})
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    assert is_leaving(gone)
    assert not worker(gone).running
    assert is_leaving(pod(phase="Failed"))
