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
    assert (seen.stuck, seen.is_unhealthy, seen.restarts) == (True, True, 0)
    assert seen.exit_reason == f"{reason}: no such thing"
    fresh = pod(container=waiting)
    fresh["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T11:59:50Z"
    assert not worker(fresh).is_unhealthy, "a registry may be away for a moment"


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


WAITS = {"waiting": {"reason": "PodInitializing"}}
RUNS = {"running": {"startedAt": "2026-01-01T11:59:02Z"}}
NO_IMAGE = {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret login"}}


def with_init(state: dict, *, sidecar: bool, container: dict | None = None, **more: object) -> dict:
    """A pod to which admission has added an init container."""
    first = {"name": "proxy", "restartCount": 0, "state": state, **more}
    found = pod(initContainerStatuses=[first], container=container or {"state": WAITS})
    added = {"name": "proxy", **({"restartPolicy": "Always"} if sidecar else {})}
    found["spec"] = {"initContainers": [added], "containers": [{"name": "worker"}]}
    return found


def test_an_init_container_that_fails_is_named() -> None:
    """The worker's waits for it."""
    bad = {"terminated": {"exitCode": 2, "message": "not a gzip file"}}
    seen = worker(with_init(bad, sidecar=False, restartCount=3))
    assert seen.exit_reason == "its container proxy: exit code 2: not a gzip file"
    assert (seen.restarts, seen.running) == (3, False)
    unpulled = worker(with_init(NO_IMAGE, sidecar=False))
    assert unpulled.stuck
    assert unpulled.exit_reason == "its container proxy: ErrImageNeverPull: no such image"
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    assert worker(with_init(done, sidecar=False, container={"state": RUNS})).running
    seen = worker(with_init(done, sidecar=False, container={"state": NO_SECRET}))
    assert (seen.stuck, seen.exit_reason) == (True, "CreateContainerConfigError: no secret login")


def test_a_sidecar_goes_on_beside_the_worker() -> None:
    """An init container with restartPolicy Always never ends."""
    seen = worker(with_init(RUNS, sidecar=True, started=True, container={"state": RUNS}))
    assert (seen.running, seen.is_unhealthy, seen.exit_reason) == (True, False, None)


@pytest.mark.parametrize("state", [NO_IMAGE, NO_SECRET], ids=["image", "secret"])
def test_a_worker_beside_a_sidecar_says_why_it_cannot_start(state: dict) -> None:
    """The sidecar runs meanwhile."""
    seen = worker(with_init(RUNS, sidecar=True, started=True, container={"state": state}))
    told = state["waiting"]
    assert (seen.running, seen.stuck) == (False, True)
    assert seen.exit_reason == f"{told['reason']}: {told['message']}"


def test_a_worker_waits_for_a_sidecar_that_is_not_up_yet() -> None:
    """Its image, its ends, its startup probe."""
    seen = worker(with_init(NO_IMAGE, sidecar=True, started=False))
    assert (seen.stuck, seen.running) == (True, False)
    assert seen.exit_reason == "its container proxy: ErrImageNeverPull: no such image"
    ended = {"terminated": {"exitCode": 1, "message": "no certificate"}}
    again = {"waiting": {"reason": "CrashLoopBackOff"}}
    seen = worker(with_init(again, sidecar=True, started=False, restartCount=4, lastState=ended))
    assert (seen.restarts, seen.is_unhealthy) == (4, True)
    assert seen.exit_reason == "its container proxy: exit code 1: no certificate"
    seen = worker(with_init(RUNS, sidecar=True, started=False))
    assert (seen.running, seen.is_unhealthy, seen.exit_reason) == (False, False, None)


def test_what_comes_after_a_sidecar_that_is_up_is_what_is_waited_for() -> None:
    """Init containers of both kinds start in their order."""
    found = with_init(RUNS, sidecar=True, started=True, restartCount=5)
    found["spec"]["initContainers"].append({"name": "certificates"})
    second = {"name": "certificates", "restartCount": 0, "state": NO_IMAGE}
    found["status"]["initContainerStatuses"].append(second)
    seen = worker(found)
    assert (seen.stuck, seen.restarts, seen.running) == (True, 0, False)
    assert seen.exit_reason == "its container certificates: ErrImageNeverPull: no such image"


def test_a_worker_runs_while_another_container_fails() -> None:
    """The pod is not ready, and says for which of its containers."""
    ended = {"terminated": {"exitCode": 1, "message": "no certificate"}}
    again = {"waiting": {"reason": "CrashLoopBackOff"}}
    failing = {"name": "proxy", "restartCount": 9, "state": again, "lastState": ended}
    seen = worker(
        with_init(again, sidecar=True, restartCount=9, lastState=ended, container={"state": RUNS})
    )
    assert (seen.running, seen.is_unhealthy, seen.restarts) == (True, False, 0)
    assert seen.exit_reason == "its container proxy: exit code 1: no certificate"
    for state in (failing, {**failing, "state": NO_IMAGE}):
        beside = pod(container={"state": RUNS})
        beside["status"]["containerStatuses"].insert(0, state)
        seen = worker(beside)
        assert (seen.running, seen.is_unhealthy, seen.restarts) == (True, False, 0)
        assert str(seen.exit_reason).startswith("its container proxy: ")
    looked_at = pod(container={"state": RUNS})
    looked_at["status"]["ephemeralContainerStatuses"] = [{**failing, "name": "debugger"}]
    assert (worker(looked_at).running, worker(looked_at).exit_reason) == (True, None)


def test_a_node_that_starts_again_runs_init_containers_anew() -> None:
    """The worker's status is of before."""
    ended = {"terminated": {"exitCode": 255, "reason": "Unknown"}}
    anew = {"state": WAITS, "lastState": ended, "restartCount": 1}
    seen = worker(with_init(NO_IMAGE, sidecar=False, container=anew))
    assert (seen.running, seen.stuck) == (False, True)
    assert seen.exit_reason == "its container proxy: ErrImageNeverPull: no such image"


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
