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


def worker(found: dict, **templates: str):
    """As the runtime sees it."""
    return worker_of(found, group="orders", templates=templates, now=NOW)


def test_a_running_pod() -> None:
    """Its revision is the manager's where the manager rendered the template, else its own."""
    running = pod(container={"state": {"running": {}}, "restartCount": 1})
    seen = worker(running, abc="0123456789")
    assert (seen.revision, seen.running, seen.wanted, seen.restarts) == (
        "0123456789",
        True,
        True,
        1,
    )
    assert worker(running).revision == "0123456789~abc"
    assert seen.pid is None


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError"])
def test_what_can_never_start_is_stuck(reason: str) -> None:
    """It never restarts, so that whoever waits for it to end often waits for ever."""
    waiting = {"state": {"waiting": {"reason": reason, "message": "no such thing"}}}
    seen = worker(pod(container=waiting))
    assert (seen.stuck, seen.ill, seen.restarts) == (True, True, 0)
    assert seen.exit_reason == f"{reason}: no such thing"
    fresh = pod(container=waiting)
    fresh["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T11:59:50Z"
    assert not worker(fresh).ill, "a registry may be away for a moment"


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
    assert (seen.stuck, seen.ill, seen.restarts) == (False, True, 4)
    assert seen.exit_reason == "exit code 1: ModuleNotFoundError: No module named 'jobs'"
    assert not seen.running


def test_out_of_memory_and_no_node_are_named() -> None:
    """Neither is the worker's own word."""
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert exit_reason(pod(container={"state": killed})) == "OOMKilled, exit code 137"
    waits = pod(phase="Pending")
    waits["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    ]
    assert exit_reason(waits) == "has no node: 0/1 nodes are available"


def test_code_that_cannot_be_unpacked_is_named() -> None:
    """The init container of a revision that carries its code comes before the worker's."""
    first = {"name": "code", "restartCount": 0}
    bad = {"terminated": {"exitCode": 2, "message": "not a gzip file"}}
    failed = pod(initContainerStatuses=[{**first, "restartCount": 3, "state": bad}])
    seen = worker(failed)
    assert seen.exit_reason == "its container code: exit code 2: not a gzip file"
    assert (seen.restarts, seen.running) == (3, False)
    waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}
    unpulled = pod(initContainerStatuses=[{**first, "state": waiting}], container={})
    assert worker(unpulled).stuck
    assert worker(unpulled).exit_reason == "its container code: ErrImageNeverPull: no such image"
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    runs = pod(
        initContainerStatuses=[{**first, "state": done}], container={"state": {"running": {}}}
    )
    assert worker(runs).running


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
