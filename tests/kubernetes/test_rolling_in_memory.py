"""When pods are taken away, and which numbers are written for it, on a server in memory.

What real controllers make of these numbers is what test_rolling.py asks.
"""

from collections.abc import Iterator

import pytest

from fleet.errors import FleetError
from fleet.kubernetes.client.object_names import COST_ANNOTATION, MANAGED_LABEL
from fleet.kubernetes.deployment import pod_counts
from tests.support.declared import ON_KUBERNETES, group_spec, settings_of
from tests.support.pod_yard import NAMES, ORDER, Yard


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.mirror.close()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_answer_starts_no_others(yard: Yard, lost: int) -> None:
    """What was stored, but not answered, is sent again and is a conflict then: the pods that it
    made are those that were asked for.
    """
    yard.deploy(a=3)
    yard.rolling.templates.register("a", "r1")
    settings = settings_of(group_spec(runtime=ON_KUBERNETES), revision="r1")
    yard.rolling.pods()
    yard.server.silent = lost
    assert yard.rolling.start(settings, count=2) == ("a3", "a4")
    assert yard.replicas("a") == 5
    yard.server.silent = lost
    assert yard.rolling.start_more("a", 1) == ("a5",)
    assert yard.replicas("a") == 6


def test_the_marked_go(yard: Yard) -> None:
    """Two of three: by their cost, and no others."""
    yard.deploy(a=3)
    yard.rolling.mark(["a1", "a2"])
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0"]
    assert yard.replicas() == 1


def test_a_mark_takes_a_label_and_names_a_cost(yard: Yard) -> None:
    """By the label its controller tells that it has heard; by the cost it is chosen."""
    yard.deploy(a=2)
    yard.rolling.mark(["a1"])
    marked = yard.server.get("Pod", "a1")["metadata"]
    assert MANAGED_LABEL not in marked["labels"]
    assert int(marked["annotations"][COST_ANNOTATION]) < 0


def test_a_starting_pod_holds_a_removal_up(yard: Yard) -> None:
    """Pods that are not ready go before all others, whatever their cost."""
    yard.deploy(a=3)
    yard.rolling.pods()
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "False"}])
    yard.rolling.mark(["a1"])
    (told,) = yard.rolling.settle()
    assert told == "a1: a0 is not ready yet"
    assert (yard.names(), yard.replicas()) == (["a0", "a1", "a2"], 3)
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "True"}])
    yard.tell("a")
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_a_mark_that_was_not_heard_is_waited_for(yard: Yard) -> None:
    """The controller's own watch is behind: it would take another pod."""
    yard.deploy(a=3)
    yard.heard = False
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ("a1: its controller has not seen it yet",)
    assert yard.replicas() == 3
    yard.tell("a")
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_readiness_that_was_not_heard_is_waited_for(yard: Yard) -> None:
    """It believes one of those that stay to be starting, and would take that one."""
    yard.deploy(a=3)
    yard.heard = False
    yard.rolling.pods()
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "False"}])
    yard.rolling.mark(["a1"])
    yard.tell("a")
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "True"}])
    assert yard.rolling.settle() == ("a1: its controller has not seen it yet",)
    assert yard.replicas() == 3


def test_a_set_that_is_making_pods_is_waited_for(yard: Yard) -> None:
    """It wants more than there are: what it does next is not known."""
    yard.deploy(a=3)
    for kind, name in (("ReplicaSet", "set-a"), ("Deployment", NAMES.deployment)):
        found = yard.server.get(kind, name)
        found["spec"]["replicas"] = 4
        yard.server.put(found)
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ("a1: its ReplicaSet is creating or stopping others",)
    assert yard.names() == ["a0", "a1", "a2"]


def test_others_than_asked_for_are_an_error(yard: Yard) -> None:
    """Whatever made Kubernetes choose them."""
    yard.deploy(a=3)
    yard.asked_first = ["a2"]
    yard.rolling.mark(["a1"])
    with pytest.raises(FleetError, match=r"to remove a1 .* removed a2 and kept a1"):
        yard.rolling.settle()


def test_one_evicted_meanwhile_is_somebody_elses_affair(yard: Yard) -> None:
    """A drained node is no error of ours."""
    yard.deploy(a=3)
    yard.rolling.mark(["a1"])

    def evicts(method: str, found: dict) -> None:
        yard.controller(method, found)
        if found["kind"] == "Deployment":
            yard.change_pod(
                "a2", phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}]
            )

    yard.server.after = evicts
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_in_mid_roll_its_own_set_shrinks(yard: Yard) -> None:
    """The Deployment keeps its replicas: it would spread a smaller one over both."""
    yard.deploy(held=True, a=2, b=2)
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "b0", "b1"]
    assert (yard.replicas("a"), yard.replicas("b"), yard.replicas()) == (1, 2, 2)


def test_a_set_that_moves_at_the_last_moment_is_looked_at_again(yard: Yard) -> None:
    """Its controller has forgotten the mark between our look and our write."""
    yard.deploy(held=True, a=2, b=2)
    yard.rolling.mark(["a1"])

    def moves(method: str, kind: str, name: str) -> None:
        if (method, kind) == ("PATCH", "ReplicaSet"):
            yard.server.before = lambda method, kind, name: None
            found = yard.server.get("ReplicaSet", "set-a")
            found["status"]["fullyLabeledReplicas"] = 2
            yard.server.put(found)

    yard.server.before = moves
    assert yard.rolling.settle() == ("a1: its controller has not seen it yet",)
    assert yard.names() == ["a0", "a1", "b0", "b1"]


def test_it_rests_where_one_template_is_left(yard: Yard) -> None:
    """In mid-roll it stays held: its controller would delete who holds slots."""
    yard.deploy(held=True, a=1, b=2)
    yard.rolling.finish_removals()
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (pod_counts.NEVER, 2)
    yard.scale("set-a", 0)
    yard.rolling.finish_removals()
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 2)


def test_it_goes_back_to_what_most_pods_run(yard: Yard) -> None:
    """Of two older templates, for as many as run these, also while the controller has not taken
    back yet what is wanted of the newest.
    """
    yard.deploy(held=True, a=3, b=1, c=6)
    found, shape = yard.rolling.look()
    assert found is not None
    assert shape is not None
    yard.rolling.go_back(found, shape)
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["replicas"], spec["minReadySeconds"]) == (4, pod_counts.NEVER)
    template = spec["template"]
    assert template["spec"] == {"runs": "a"}
    assert "pod-template-hash" not in template["metadata"]["labels"]


def test_what_the_controller_has_not_seen_is_waited_for(yard: Yard) -> None:
    """Its ReplicaSets are of what was written before."""
    yard.deploy(a=2)
    found = yard.server.get("Deployment", NAMES.deployment)
    found["metadata"]["generation"] = 2
    yard.server.put(found)
    _, shape = yard.rolling.look()
    assert shape is not None
    assert not shape.settled
    began = yard.clock.monotonic()
    with pytest.raises(FleetError, match="did nothing for 180 s"):
        yard.rolling._numbers.seen()
    assert yard.clock.monotonic() - began >= 180.0


def test_a_deployment_that_acts_on_nothing_goes_on(yard: Yard) -> None:
    """What its controller noted on the only ReplicaSet is put right by whoever waits for it."""
    yard.deploy(a=2)
    its = yard.server.get("ReplicaSet", "set-a")
    its["metadata"]["annotations"][pod_counts.DESIRED_ANNOTATION] = "5"
    yard.server.put(its)
    yard.rolling._numbers.seen()
    its = yard.server.get("ReplicaSet", "set-a")
    assert its["metadata"]["annotations"][pod_counts.DESIRED_ANNOTATION] == "2"


def test_a_paused_deployment_is_told_at_once(yard: Yard) -> None:
    """Its controller sees a new template and makes nothing of it; what runs is not taken for it."""
    yard.deploy(a=2)
    found = yard.server.get("Deployment", NAMES.deployment)
    found["spec"]["paused"] = True
    yard.server.put(found)
    yard.rolling._numbers.seen()
    found["spec"]["template"]["spec"] = {"runs": "b"}
    yard.server.put(found)
    began = yard.clock.monotonic()
    with pytest.raises(FleetError, match=r"is paused.*kubectl rollout resume"):
        yard.rolling._numbers.seen()
    assert yard.clock.monotonic() == began


@pytest.mark.parametrize("let_go", [True, False])
def test_what_a_roll_went_back_to_is_not_given_up_in_turn(yard: Yard, let_go: bool) -> None:
    """Somebody writes between the way back and its end: the old template is wanted all the same,
    with all of its pods.
    """
    yard.deploy(held=True, a=3, b=2)

    def rolled_back(method: str, found: dict) -> None:
        yard.controller(method, found)
        if found["kind"] == "Deployment" and found["spec"]["template"]["spec"]["runs"] == "a":
            yard.server.after = yard.controller
            made = yard.server.get("Deployment", NAMES.deployment)
            made["metadata"]["annotations"][ORDER] = "3"
            its = yard.server.get("ReplicaSet", "set-a")
            its["metadata"]["annotations"][ORDER] = "3"
            yard.server.put(its)
            yard.server.put(made)
            yard.server.before = writes_too

    def writes_too(method: str, kind: str, name: str) -> None:
        if (method, kind) == ("PATCH", "Deployment"):
            yard.server.before = lambda method, kind, name: None
            yard.server.put(yard.server.get("Deployment", NAMES.deployment))

    yard.server.after = rolled_back
    asked: list[str] = []

    def unused(hash_: str) -> bool:
        asked.append(hash_)
        return True

    yard.rolling.finish_removals(give_up=unused, unfreeze=let_go)
    assert asked == ["b"]
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 3)
    assert spec["template"]["spec"]["runs"] == "a"
    assert [n for n in yard.names() if n.startswith("a")] == ["a0", "a1", "a2"]


def test_nothing_to_go_back_to(yard: Yard) -> None:
    """Its other template's pods are gone and refused: the current one stays."""
    yard.deploy(held=True, a=1, b=2)
    yard.server.delete("Pod", "a0")
    yard.tell("a")
    refused = yard.server.get("ReplicaSet", "set-a")
    refused["status"]["conditions"] = [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    ]
    yard.server.put(refused)
    yard.rolling.finish_removals(give_up=lambda _: True)
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 2)
    assert yard.names() == ["b0", "b1"]
