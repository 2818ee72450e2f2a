"""A held Deployment on the real controller manager: exactly what is asked comes and goes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, again_on_conflict
from fleet.kubernetes.client.object_names import COST_ANNOTATION
from fleet.kubernetes.deployment import pod_counts
from fleet.kubernetes.deployment.pod_status import is_marked
from fleet.kubernetes.deployment.rolling import Rolling
from fleet.kubernetes.manifests import deployment_objects
from tests.support.kube_api import KubeApi
from tests.support.nodeless import Ground

pytestmark = pytest.mark.kubernetes


def test_a_whole_roll(ground: Ground) -> None:
    """Five old pods become five new ones, each removed by name, none by the controller."""
    assert len(ground.start("one", 5)) == 5
    ground.ready()
    _, rest = ground.rolling.look()
    assert rest is not None
    assert (rest.replicas, rest.frozen, rest.surge) == (5, False, 1)

    made = ground.start("two", 3)
    assert len(made) == 3
    ground.ready()
    ground.stays({"one": 5, "two": 3})
    for turn, old in enumerate(sorted(ground.names_of("one"))):
        left = 5 - turn
        ground.remove(old)
        assert old not in {p["metadata"]["name"] for p in ground.living()}
        free = 3 if left > 1 else 0
        have = len(ground.names_of("two"))
        want = min(5, turn + 1 + min(3, free))
        if have < want:
            ground.start("two", want - have)
        ground.ready()
    ground.rolling.finish_removals()
    ground.stays({"two": 5})
    _, rest = ground.rolling.look()
    assert rest is not None
    assert (rest.replicas, rest.frozen, rest.surge) == (5, False, 1)


def test_exactly_the_drained_go(ground: Ground) -> None:
    """Of one template: three of seven by name, whatever their age; only once all are ready."""
    ground.start("one", 7)
    ground.ready()
    names = sorted(ground.names_of("one"))
    going = (names[0], names[3], names[6])
    ground.remove(*going)
    assert sorted(ground.names_of("one")) == sorted(set(names) - set(going))
    ground.stays({"one": 4})


def test_a_starting_pod_holds_a_removal_up(ground: Ground) -> None:
    """A pod that is not ready would be taken first, so nothing is taken before it is."""
    ground.start("one", 3)
    ground.ready()
    drained = ground.names_of("one")[0]
    ground.auto = False
    late = ground.start("one", 1)[0]
    ground.rolling.mark([drained])
    (why,) = ground.rolling.settle()
    assert late in why
    ground.stays({"one": 4}, seconds=0.5)
    ground.make_ready(late)
    ground.until(lambda: not ground.another().settle())  # the next manager's as well
    assert drained not in ground.names_of("one")
    assert late in ground.names_of("one")


def test_a_controller_that_has_not_heard_of_the_mark_is_waited_for(
    control_plane: KubeApi, ground: Ground
) -> None:
    """It would choose by what it knew; so are others that are not ready, by its own watch."""
    ground.start("one", 4)
    ground.ready()
    drained = ground.names_of("one")[1]
    assert control_plane.controllers is not None
    control_plane.controllers.send_signal(signal.SIGSTOP)
    # On a busy machine its other threads go on until the one with the signal gets a core.
    os.waitid(os.P_PID, control_plane.controllers.pid, os.WSTOPPED)
    try:
        ground.rolling.mark([drained])
        (why,) = ground.rolling.settle()
        assert why == f"{drained}: its controller has not seen it yet"
        _, shape = ground.rolling.look()
        assert shape is not None
        assert shape.replicas == 4
    finally:
        control_plane.controllers.send_signal(signal.SIGCONT)
    ground.until(lambda: not ground.another().settle())
    ground.stays({"one": 3}, seconds=0.5)
    assert drained not in ground.names_of("one")


def test_a_template_that_is_given_up_goes_back(ground: Ground) -> None:
    """All pods of the new one are removed: the Deployment's template is the old one again."""
    ground.start("one", 4)
    ground.ready()
    before = sorted(ground.names_of("one"))
    ground.auto = False  # nothing of the new template ever gets ready
    bad = ground.start("two", 2)
    ground.rolling.mark(bad)
    ground.until(lambda: not ground.rolling.settle())
    ground.rolling.finish_removals()
    ground.stays({"one": 4})
    assert sorted(ground.names_of("one")) == before
    found, shape = ground.rolling.look()
    assert found is not None
    assert shape is not None
    assert not shape.frozen
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "image-one"
    ground.auto = True
    assert len(ground.start("one", 1)) == 1, "it is ours, and grows"


def test_the_next_manager_goes_on(ground: Ground) -> None:
    """Killed after the mark, and after the write: whoever comes finds all that it needs."""
    ground.start("one", 3)
    ground.ready()
    ground.start("two", 2)
    ground.ready()
    old = ground.names_of("one")[0]
    ground.rolling.mark([old])
    successor = ground.another()
    ground.until(lambda: not successor.settle())
    assert old not in ground.names_of("one")
    assert {p["metadata"]["name"] for p in ground.living() if is_marked(p)} == set()
    successor.finish_removals()
    _, shape = successor.look()
    assert shape is not None
    assert shape.frozen, "not at its end yet: it stays held"
    successor.finish_removals(give_up=lambda _: False)
    ground.until(lambda: ground.by_revision() == {"two": 3})


def test_an_aborted_roll_that_nobody_runs_goes_back(ground: Ground) -> None:
    """No slot is held by the new template: the old one is wanted again."""
    ground.start("one", 3)
    ground.ready()
    ground.start("two", 2)
    ground.ready()
    ground.rolling.finish_removals(give_up=lambda _: True)
    ground.until(lambda: ground.by_revision() == {"one": 3})
    ground.stays({"one": 3})


def test_more_new_ones_than_there_are(ground: Ground) -> None:
    """One and four of the next revision at once, then two more; none of the old one is made."""
    ground.start("one", 1)
    ground.ready()
    before = ground.names_of("one")
    assert len(ground.start("two", 4)) == 4
    assert len(ground.start("two", 2)) == 2
    ground.ready()
    ground.stays({"one": 1, "two": 6}, seconds=0.5)
    assert ground.names_of("one") == before
    ground.remove(*before)
    ground.rolling.finish_removals()
    ground.stays({"two": 6}, seconds=0.5)


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "aborted"])
def test_fewer_stay_than_were_new(ground: Ground, removed: bool) -> None:
    """One with three successors that are given up is one again, whatever was wanted of those."""
    ground.start("one", 1)
    ground.ready()
    before = ground.names_of("one")
    for count in (1, 2):
        assert len(ground.start("two", count)) == count
        ground.ready()
    assert ground.by_revision() == {"one": 1, "two": 3}
    if removed:
        ground.rolling.mark(ground.names_of("two"))
        ground.until(lambda: not ground.rolling.settle())
        ground.rolling.finish_removals()
    else:
        ground.rolling.finish_removals(give_up=lambda _: True)
        ground.until(lambda: ground.by_revision() == {"one": 1})
    ground.stays({"one": 1})
    assert ground.names_of("one") == before
    assert (ground.shape().replicas, ground.shape().frozen) == (1, False)


def test_a_deployment_whose_controller_waits_for_itself(ground: Ground) -> None:
    """Its controller takes it for being scaled, for good: `kubectl set image` does nothing. A roll
    goes on all the same, and what runs is not taken for the new revision.
    """
    ground.start("one", 2)
    ground.ready()
    (its,) = ground.shape().sets
    notes = {"annotations": {pod_counts.DESIRED_ANNOTATION: "5"}}
    ground.api.merge("ReplicaSet", its.name, {"metadata": notes})
    ground.until(lambda: ground.shape().stuck is not None)
    assert len(ground.start("two", 1)) == 1
    assert ground.by_revision() == {"one": 2, "two": 1}


def test_a_paused_deployment_starts_nothing(ground: Ground) -> None:
    """`kubectl rollout pause` by somebody: told, and no pod changes its name."""
    ground.start("one", 2)
    ground.ready()
    ground.api.merge("Deployment", ground.names.deployment, {"spec": {"paused": True}})
    with pytest.raises(FleetError, match="is paused"):
        ground.start("two", 1)
    ground.api.merge("Deployment", ground.names.deployment, {"spec": {"paused": False}})
    ground.until(lambda: ground.shape().settled)
    ground.stays({"one": 2}, seconds=0.5)
    assert len(ground.start("two", 1)) == 1
    assert ground.by_revision() == {"one": 2, "two": 1}


def test_a_hand_made_template_is_another_revision(ground: Ground) -> None:
    """`kubectl set image` leaves our annotation; the hash tells them apart."""
    ground.start("one", 2)
    ground.ready()
    patch = [{"name": "worker", "image": "by-hand"}]
    found, _ = ground.rolling.look()
    assert found is not None
    containers = found["spec"]["template"]["spec"]["containers"]
    containers[0]["image"] = patch[0]["image"]
    ground.api.merge(
        "Deployment",
        ground.names.deployment,
        {"spec": {"template": {"spec": {"containers": containers}}}},
    )
    ground.until(
        lambda: list(ground.by_revision().values()) == [2] and "one" not in ground.by_revision()
    )
    ground.start("one", 2)
    ground.ready()
    assert ground.by_revision()["one"] == 2
    for name in [p["metadata"]["name"] for p in ground.living()]:
        if name not in ground.names_of("one"):
            ground.remove(name)
    ground.rolling.finish_removals()
    ground.stays({"one": 2})


def test_applied_manifests_and_restarts_are_recognised(ground: Ground) -> None:
    """What kubectl made of our rendering is ours; what it changed in it is not."""
    settings = ground.settings("one")
    wanted = deployment_objects.deployment(settings, replicas=2)
    ground.api.create(wanted)
    ground.until(lambda: len(ground.living()) == 2)
    ground.ready()
    assert ground.names_of("one") == []
    ground.until(lambda: ground.rolling.look()[1].settled)
    ground.rolling.recognise(settings)
    assert len(ground.names_of("one")) == 2
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    patch = {"spec": {"template": {"metadata": {"annotations": restarted}}}}
    ground.api.merge("Deployment", ground.names.deployment, patch)
    ground.until(lambda: ground.names_of("one") == [] and len(ground.living()) == 2)
    ground.rolling.recognise(settings)
    assert len(ground.names_of("one")) == 2
    containers = wanted["spec"]["template"]["spec"]["containers"]
    containers[0]["image"] = "by-hand"
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    ground.api.merge("Deployment", ground.names.deployment, patch)
    ground.until(lambda: ground.names_of("one") == [] and len(ground.living()) == 2)
    ground.rolling.recognise(settings)
    assert ground.names_of("one") == []


def test_other_pods_than_asked_for_are_an_error(ground: Ground) -> None:
    """Somebody gave another pod a lower deletion cost: it goes first, and a person hears of it."""
    ground.start("one", 3)
    ground.ready()
    first, second, _ = ground.names_of("one")
    cost = {"metadata": {"annotations": {COST_ANNOTATION: "-5000"}}}
    ground.api.merge("Pod", second, cost)
    ground.rolling.mark([first])
    with pytest.raises(FleetError, match=f"asked Kubernetes to remove {first}.*removed {second}"):
        ground.until(lambda: not ground.rolling.settle())


def test_a_released_deployment_is_nobodys(ground: Ground) -> None:
    """Our fields have no owner any more, and its pods go on."""
    ground.start("one", 2)
    ground.ready()
    ground.rolling.unmanage("2026-01-01T00:00:00+00:00")
    found, _ = ground.rolling.look()
    assert found is not None
    assert "fleet/unmanaged" in found["metadata"]["annotations"]
    assert "fleet" not in json.dumps(found["metadata"].get("managedFields", []))
    assert found["spec"]["replicas"] == 2
    ground.stays({"one": 2}, seconds=0.5)


def test_numbers_that_the_controller_takes(ground: Ground) -> None:
    """The server accepts a held Deployment: minReadySeconds below progressDeadlineSeconds."""
    ground.start("one", 1)

    def hold() -> None:
        found, shape = ground.rolling.look()
        assert shape is not None
        fields = {"spec": pod_counts.freeze(shape)}
        ground.api.merge("Deployment", ground.names.deployment, fields, seen=found)

    again_on_conflict(ground.clock, hold)
    found, shape = ground.rolling.look()
    assert found is not None
    assert shape is not None
    assert shape.frozen
    assert found["spec"]["progressDeadlineSeconds"] == pod_counts.NO_DEADLINE


class Killed(BaseException):
    """The manager is gone: nothing of it runs any more, not even an except clause."""


class Mortal(Api):
    """The API of a manager that is killed at its n-th write, before or after it is done."""

    def __init__(self, inner: Api, writes: int, *, done: bool) -> None:
        super().__init__(inner.connection, namespace=inner.namespace, clock=SystemClock())
        self.left = writes
        self._done = done

    def _die(self, write: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left != 0:
            return write()
        if self._done:
            write()
        raise Killed

    def apply(self, wanted: dict[str, Any], *, trial: bool = False) -> dict[str, Any]:
        """A write, but for a trial."""
        if trial:
            return super().apply(wanted, trial=True)
        return self._die(lambda: super(Mortal, self).apply(wanted))

    def merge(self, *words: Any, **keys: Any) -> Any:
        return self._die(lambda: super(Mortal, self).merge(*words, **keys))


def manage(ground: Ground, rolling: Rolling, asked: set[str]) -> None:
    """What a manager does of a roll, as "make it so": two new ones ahead, one old one after it."""
    while old := sorted(ground.names_of("one")):
        ahead = min(len(old), 2) + (3 - len(old))
        new = len(ground.names_of("two"))
        if new < ahead:
            rolling.start(ground.settings("two"), count=ahead - new)
        ground.ready()
        asked.add(old[0])
        rolling.mark([old[0]])
        ground.until(lambda: not rolling.settle())
    rolling.finish_removals()


@pytest.mark.long
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_killed_at_any_write(control_plane: KubeApi, done: bool) -> None:
    """The next manager ends the roll; at no time went a pod that nobody asked for."""
    for number in range(1, 40):
        api = control_plane.api(control_plane.namespace())
        ground = Ground(api)
        try:
            ground.start("one", 3)
            ground.ready()
            first = set(ground.names_of("one"))
            mortal, asked = Mortal(api, number, done=done), set()
            with suppress(Killed):
                manage(ground, ground.another(mortal), asked)
            ground.until(ground.acted)  # the next manager comes a lease later
            survived = mortal.left > 0
            gone = first - {p["metadata"]["name"] for p in ground.living()}
            assert gone <= asked, f"killed at write {number}"
            manage(ground, ground.another(), asked)
            ground.stays({"two": 3}, seconds=0.3)
            _, shape = ground.rolling.look()
            assert shape is not None
            assert (shape.frozen, shape.replicas) == (False, 3), f"killed at write {number}"
        finally:
            ground.close()
            api.close()
        if survived:
            assert number > 8, "a roll is more writes than that"
            return
    pytest.fail("a roll of three took forty writes")


@pytest.mark.long
def test_the_server_is_away_in_mid_roll(control_plane: KubeApi, ground: Ground) -> None:
    """Twice for ten seconds: the roll waits and goes on, and nobody else goes meanwhile."""
    ground.start("one", 3)
    ground.ready()
    first, asked = set(ground.names_of("one")), set()

    def outages() -> None:
        for _ in range(2):
            time.sleep(1.0)
            control_plane.kill_server()
            time.sleep(10.0)
            control_plane.start()

    away = threading.Thread(target=outages)
    away.start()
    manage(ground, ground.rolling, asked)
    away.join()
    assert first <= asked
    ground.stays({"two": 3})
