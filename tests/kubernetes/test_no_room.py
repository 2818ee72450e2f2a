"""Pods that the API server does not admit: nothing is asked for twice, and nothing stays held."""

import pytest

from fleet.errors import NoRoom
from fleet.kubernetes.client.api import again_on_conflict
from fleet.kubernetes.deployment import examining, pod_counts, rolling
from fleet.kubernetes.deployment.pod_counts import PodCounts
from fleet.kubernetes.deployment.pod_status import is_ready
from fleet.model import Severity
from tests.support.nodeless import Ground

pytestmark = pytest.mark.kubernetes


@pytest.fixture(autouse=True)
def refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "_REFUSED_SECONDS", 1.5)


def all_refused(shape: PodCounts) -> bool:
    """Whether each ReplicaSet that lacks pods says that they are refused: no more will come."""
    return shape.settled and all(s.refused or s.replicas <= s.labelled for s in shape.sets)


def test_more_of_one_template(ground: Ground) -> None:
    """Room for one of three: that one, by name, and the number of those that are there; however
    often it is tried, nothing else is asked for, and nothing comes when the quota is lifted.
    """
    ground.start("one", 2)
    ground.ready()
    ground.quota(3)
    with pytest.raises(NoRoom, match="exceeded quota") as first:
        ground.start("one", 3)
    assert set(first.value.started) <= set(ground.names_of("one"))
    assert len(first.value.started) == 1
    # Its controller takes what was refused back in its own time.
    ground.until(lambda: (ground.shape().replicas, ground.shape().total) == (3, 3))
    with pytest.raises(NoRoom) as second:
        ground.start("one", 2)
    assert second.value.started == ()
    ground.until(lambda: (ground.shape().replicas, ground.shape().total) == (3, 3))
    ground.quota(20)
    ground.stays({"one": 3}, seconds=1.0)
    assert len(ground.start("one", 2)) == 2


def test_a_new_template_goes_back(ground: Ground) -> None:
    """Not one pod of it, tried twice: at rest again with the old one, none of whose pods went."""
    ground.start("one", 3)
    ground.ready()
    before = sorted(ground.names_of("one"))
    ground.quota(3)
    for _ in range(2):
        with pytest.raises(NoRoom, match=r"0 of . pods .*exceeded quota"):
            ground.start("two", 2)
        ground.until(lambda: ground.shape().total <= 4)  # one is wanted still, and no more
    told = ground.rolling.frozen()
    assert told is not None
    assert "3 pods of one" in told
    ground.rolling.finish_removals(give_up=lambda _: True, unfreeze=False)
    ground.until(lambda: ground.shape().total == 3)
    ground.quota(20)
    ground.stays({"one": 3}, seconds=1.0)
    assert sorted(ground.names_of("one")) == before
    rest = ground.shape()
    assert (rest.replicas, rest.frozen, rest.surge) == (3, False, 1)
    assert ground.rolling.frozen() is None


def test_one_extra_pod_is_enough_for_a_roll(ground: Ground) -> None:
    """Of two asked for ahead one is made; its successor takes the place of who goes, waited for
    while that one is on its way out.
    """
    ground.start("one", 3)
    ground.ready()
    ground.quota(4)
    with pytest.raises(NoRoom) as short:
        ground.start("two", 2)
    assert len(short.value.started) == 1
    while old := sorted(ground.names_of("one")):
        ground.ready()
        ground.rolling.mark([old[0]])
        if len(old) > 1:
            assert len(ground.start("two", 1)) == 1
        ground.until(lambda: not ground.rolling.settle())
    ground.rolling.finish_removals()
    ground.stays({"two": 3}, seconds=0.5)


def test_what_was_refused_does_not_hold_a_removal_up(ground: Ground) -> None:
    """A pod that a quota keeps from being recreated: the marked ones go all the same."""
    ground.start("one", 4)
    ground.ready()
    ground.quota(2)
    lost, going, *_ = sorted(ground.names_of("one"))
    ground.api.delete("Pod", lost)
    ground.until(lambda: ground.shape().sets[0].refused is not None)
    ground.remove(going)
    ground.quota(20)
    ground.stays({"one": 2}, seconds=1.0)
    assert going not in ground.names_of("one")


def test_what_an_earlier_release_left_behind(ground: Ground) -> None:
    """It asked for more each time: 18 pods once the quota was lifted. Given up, it is the old
    template and as many as there are.
    """
    ground.start("one", 3)
    ground.ready()
    ground.quota(3)
    with pytest.raises(NoRoom):
        ground.start("two", 2)
    for count in (2, 4, 6):

        def ask(count: int = count) -> None:
            found, shape = ground.rolling.look()
            assert found is not None
            assert shape is not None
            have = next(each.replicas for each in shape.sets if each.revision == "two")
            replicas = max(shape.replicas, have + count)
            surge = max(1, shape.total + count - replicas)
            writes = pod_counts._aside(shape, replicas), pod_counts.frozen_fields(replicas, surge)
            ground.rolling._numbers.write_both(found, writes)

        again_on_conflict(ground.clock, ask)
    assert ground.shape().replicas > 6
    ground.until(lambda: all_refused(ground.shape()))  # as it stood for hours: all was told
    ground.rolling.finish_removals(give_up=lambda _: True)
    # A controller in the middle of asking for what it wanted before asks once more.
    ground.until(lambda: ground.shape().settled)
    ground.quota(20)
    ground.stays({"one": 3}, seconds=1.5)
    assert (ground.shape().replicas, ground.shape().frozen) == (3, False)


def test_a_limit_that_refuses_all_pods_is_told(ground: Ground) -> None:
    """By the start, and for as long as it stands by doctor and status: one pod is there of three,
    and the next one that goes is not recreated. While it ends it is Ready, but not counted.
    """
    ground.start("one", 1)
    ground.ready()
    ground.limit("64Gi")
    with pytest.raises(NoRoom, match="minimum memory usage per Container is 64Gi"):
        ground.start("one", 2)
    ground.until(lambda: ground.shape().total == 1)
    assert ground.shape().refusal(ground.rolling.pods()) is None
    (going,) = ground.names_of("one")
    path = f"/api/v1/namespaces/{ground.api.namespace}/pods/{going}"
    ground.api._call(
        "PATCH", path, body={"metadata": {"finalizers": ["example.com/stays"]}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    ground.api.delete("Pod", going)
    ground.until(lambda: ground.shape().refusal(ground.rolling.pods()) is not None)
    assert [is_ready(pod) for pod in ground.rolling.pods()] == [True]
    told = ground.shape().refusal(ground.rolling.pods()) or ""
    assert told.startswith("0 of 1 pods were created: ")
    assert "minimum memory usage per Container is 64Gi" in told
    fleet = ground.spec("a").fleets[0]
    found = list(
        examining._deployment(
            fleet, ground.api.namespace, ground.names, ground.shape(), ground.rolling.pods()
        )
    )
    assert [(each.check, each.level) for each in found] == [("deployment", Severity.FAIL)]
    assert "0 of 1 pods are ready; 0 of 1 pods were created" in found[0].found
