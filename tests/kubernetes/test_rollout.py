"""A Deployment on the real controller manager: it rolls by itself, and goes back when told."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fleet.errors import FleetError, NoRoom
from fleet.kubernetes.deployment import examining, rollout
from fleet.kubernetes.deployment.pod_status import is_ready
from fleet.kubernetes.manifests import deployment_objects
from fleet.model import Severity
from tests.support.nodeless import Ground

pytestmark = pytest.mark.kubernetes


@pytest.fixture(autouse=True)
def refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_REFUSED_SECONDS", 1.5)


def settled(ground: Ground, **pods: int) -> Callable[[], bool]:
    """Whether just these pods exist, and the Deployment says that it has rolled out."""
    return lambda: ground.by_revision() == pods and ground.state().is_complete


def spec_of(ground: Ground) -> dict[str, Any]:
    found, _ = ground.rollout.look()
    assert found is not None
    return dict(found["spec"])


def test_a_roll_goes_on_by_itself(ground: Ground) -> None:
    """One pod more than wanted at any time, never one less that is ready; then nothing is left."""
    assert len(ground.running(5)) == 5
    group = ground.settings("one").group
    assert len(ground.start("two", 1)) == 1
    ready: list[int] = []

    def rolled() -> bool:
        ready.append(sum(map(is_ready, ground.living())))
        assert len(ground.living()) <= 6
        return settled(ground, two=5)()

    ground.until(rolled)
    assert min(ready) >= 5
    ground.rollout.finish(group, limit=30.0)
    assert spec_of(ground)["strategy"] == deployment_objects.strategy(1)


def test_up_and_down(ground: Ground) -> None:
    """Three more of the same template; those go that are named, also if they own slots."""
    ground.running(3)
    names = ground.running(3)
    going = {names[0], names[3], names[5]}
    ground.owns(*going)
    ground.remove(*going)
    assert set(ground.names_of("one")) == set(names) - going
    ground.stays({"one": 3}, seconds=0.5)


def test_a_scale_by_hand_takes_standbys(ground: Ground) -> None:
    """`kubectl scale` without any manager: owners cost more."""
    owners = ground.running(6)[1:5]
    ground.owns(*owners)
    time.sleep(0.5)  # the controller hears of it by its watch
    ground.api.merge("Deployment", ground.names.deployment, {"spec": {"replicas": 4}})
    ground.until(settled(ground, one=4))
    assert sorted(ground.names_of("one")) == owners


def test_a_template_that_is_given_up_goes_back(ground: Ground) -> None:
    """All pods of the new one are removed: the template is the old one, none of whose pods went."""
    before, spec = ground.running(4), spec_of(ground)
    ground.auto = False  # nothing of the new template ever gets ready
    bad = ground.start("two", 2)
    assert len(bad) == 2
    ground.stays({"one": 4, "two": 2})
    ground.remove(*bad)
    ground.until(settled(ground, one=4))
    assert sorted(ground.names_of("one")) == before
    assert spec_of(ground)["minReadySeconds"] == spec["minReadySeconds"]
    assert spec_of(ground)["template"] == spec["template"]
    ground.auto = True
    assert len(ground.start("one", 1)) == 1, "it is ours, and grows"


def test_nothing_waits_for_pods_that_are_all_removed(ground: Ground) -> None:
    """No new pod is ready: the old ones go all the same once all of them are removed."""
    old = ground.running(3)
    ground.auto = False
    ground.start("two", 1)
    ground.remove(*old)
    ground.until(lambda: ground.names_of("one") == [] and len(ground.living()) == 3)


def test_the_controller_says_that_it_stands_still(ground: Ground) -> None:
    """Nothing becomes ready within `progressDeadlineSeconds`."""
    ground.running(1)
    assert ground.state().stalled is None
    ground.auto = False
    ground.start("two", 1)
    ground.api.merge(
        "Deployment", ground.names.deployment, {"spec": {"progressDeadlineSeconds": 2}}
    )
    ground.until(lambda: ground.state().stalled is not None)
    assert "has timed out progressing" in (ground.state().stalled or "")
    assert not ground.state().is_complete


def test_more_than_there_is_room_for(ground: Ground) -> None:
    """Room for one of three: that one, by name; nothing comes when the quota is lifted."""
    ground.running(2)
    ground.quota(3)
    with pytest.raises(NoRoom, match="exceeded quota") as first:
        ground.start("one", 3)
    assert set(first.value.started) <= set(ground.names_of("one"))
    assert len(first.value.started) == 1
    with pytest.raises(NoRoom) as second:
        ground.start("one", 2)
    assert second.value.started == ()
    assert ground.state().replicas == 3, "no more are wanted than there are"
    ground.quota(20)
    ground.stays({"one": 3}, seconds=1.0)
    assert len(ground.start("one", 2)) == 2


def test_a_limit_that_refuses_all_pods_is_told(ground: Ground) -> None:
    """By the start, and by doctor for as long as it stands: one pod of two is not recreated."""
    ground.running(2)
    ground.limit("64Gi")
    with pytest.raises(NoRoom, match="minimum memory usage per Container is 64Gi"):
        ground.start("one", 1)
    ground.api.delete("Pod", ground.names_of("one")[0])
    ground.until(
        lambda: "1 of 2 pods were created: " in str(ground.state().refusal(ground.rollout.pods()))
    )
    fleet, place = ground.spec("a").fleets[0], (ground.api.namespace, ground.names)
    found = examining._deployment(fleet, *place, ground.state(), ground.rollout.pods())
    assert ("deployment", Severity.FAIL) in {(each.check, each.level) for each in found}


def test_a_paused_deployment_starts_nothing(ground: Ground) -> None:
    """`kubectl rollout pause` by somebody: told, and no pod changes its name."""
    ground.running(2)
    ground.api.merge("Deployment", ground.names.deployment, {"spec": {"paused": True}})
    with pytest.raises(FleetError, match="is paused"):
        ground.start("two", 1)
    ground.api.merge("Deployment", ground.names.deployment, {"spec": {"paused": False}})
    ground.stays({"one": 2}, seconds=0.5)
    assert len(ground.start("two", 1)) == 1
    ground.until(settled(ground, two=2))


def test_applied_manifests_and_restarts_are_recognised(ground: Ground) -> None:
    """What kubectl made of our rendering is ours; what it changed in it is not."""
    settings = ground.settings("one")
    wanted = deployment_objects.deployment(settings, replicas=2)
    ground.api.create(wanted)
    ground.until(lambda: len(ground.living()) == 2)
    ground.ready()
    assert ground.names_of("one") == []
    ground.until(lambda: ground.state().is_observed)
    ground.rollout.recognise(settings)
    assert len(ground.names_of("one")) == 2
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    patch = {"spec": {"template": {"metadata": {"annotations": restarted}}}}
    ground.api.merge("Deployment", ground.names.deployment, patch)
    ground.until(lambda: ground.names_of("one") == [] and len(ground.living()) == 2)
    ground.rollout.recognise(settings)
    assert len(ground.names_of("one")) == 2
    (container,) = wanted["spec"]["template"]["spec"]["containers"]
    by_hand = {"containers": [{**container, "image": "by-hand"}]}
    patch = {"spec": {"template": {"spec": by_hand}}}
    ground.api.merge("Deployment", ground.names.deployment, patch)
    ground.until(lambda: ground.names_of("one") == [] and len(ground.living()) == 2)
    ground.rollout.recognise(settings)
    assert ground.names_of("one") == []
    assert len(ground.start("one", 1)) == 1, "the annotation is ours, the template is not"
    ground.until(settled(ground, one=2))


def test_a_released_deployment_is_nobodys(ground: Ground) -> None:
    """Our fields have no owner any more, and its pods go on."""
    ground.running(2)
    ground.rollout.annotate_unmanaged("2026-01-01T00:00:00+00:00")
    found, _ = ground.rollout.look()
    assert found is not None
    assert "fleet/unmanaged" in found["metadata"]["annotations"]
    assert "fleet" not in json.dumps(found["metadata"].get("managedFields", []))
    assert found["spec"]["replicas"] == 2
    ground.stays({"one": 2}, seconds=0.5)
