"""Which numbers a Deployment gets, so that its controller adds what is asked and deletes nothing.

The controller's arithmetic, as its source has it, is repeated here over every shape of a roll;
test_rolling.py asks the real one.
"""

import itertools
from dataclasses import replace

import pytest

from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.deployment import examining, pod_counts
from fleet.kubernetes.deployment.pod_counts import CountedReplicaSet, PodCounts
from fleet.model import Severity
from tests.support.declared import ON_KUBERNETES, group_spec


def shape(old: int, new: int, *, replicas: int, surge: int = 1, held: bool = True) -> PodCounts:
    """A Deployment with pods of two templates."""
    sets = [
        CountedReplicaSet(name="a", hash="a", revision="one", replicas=old, order=1),
        CountedReplicaSet(name="b", hash="b", revision="two", replicas=new, order=2),
    ]
    return PodCounts(
        replicas=replicas,
        surge=surge,
        frozen=held,
        paused=False,
        sets=tuple(sets if new or old else sets[:1]),
        settled=True,
    )


def controller(old: int, new: int, fields: dict) -> tuple[int, int]:
    """What the controller makes of a held Deployment: old and new pods (rolling.go, 1.36)."""
    replicas = fields["replicas"]
    surge = fields["strategy"]["rollingUpdate"]["maxSurge"]
    unavailable = fields["strategy"]["rollingUpdate"]["maxUnavailable"]
    room = replicas + surge - (old + new)
    new += max(0, min(room, replicas - new))
    down = old + new - (replicas - unavailable) - new  # none of the new ones is available
    return old - max(0, down), new


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("pods", [1, 2, 5, 8])
def test_a_new_template_starts_as_many_as_asked(pods: int, count: int) -> None:
    """And no pod of the old one is deleted for them."""
    ahead, fields = pod_counts.ahead_of(shape(pods, 0, replicas=pods, held=False), count)
    assert ahead == {}
    assert fields["minReadySeconds"] == pod_counts.NEVER
    old, new = controller(pods, 0, fields)
    assert (old, new) == (pods, min(count, pods))


def test_an_empty_deployment_just_starts() -> None:
    """After `down` there is nothing to protect; a held Deployment of none would start none."""
    empty = shape(0, 0, replicas=0, held=False)
    assert pod_counts.ahead_of(empty, 3) == ({}, pod_counts.at_rest(3))


@pytest.mark.parametrize(
    ("least", "level"), [((2, 1), Severity.WARN), ((0, 1), Severity.WARN), ((0, 0), Severity.OK)]
)
def test_a_fleet_that_wants_no_pods_is_not_ok(least: tuple[int, int], level: Severity) -> None:
    """So it stands after a first start that was refused whole, unless no worker is declared."""
    replicas = {"min": least[0], "standby": least[1]}
    fleet = group_spec("orders", replicas=replicas, runtime=ON_KUBERNETES)
    empty = shape(0, 0, replicas=0, held=False)
    names = ObjectNames("main", "orders")
    (found,) = examining._deployment(fleet, "fleets", names, empty, [])
    assert found.level is level
    assert ("wants no pods" in found.found) == (level is Severity.WARN)


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [t for t in itertools.product(range(1, 6), range(6), (1, 2, 3)) if t[1] + t[2] <= 5],
)
def test_more_of_the_new_template(old: int, new: int, count: int) -> None:
    """In mid-roll of five: at least as many as asked, never one more than is wanted."""
    surge = max(1, old + new - 5)
    ahead, fields = pod_counts.grow(shape(old, new, replicas=5, surge=surge), count)
    assert ahead == {}
    assert fields["replicas"] == 5, "a change of replicas in mid-roll is spread over both"
    after = controller(old, new, fields)
    assert after[0] == old
    assert new + count <= after[1] <= max(new + count, 6 - old)


@pytest.mark.parametrize(("old", "new"), [*itertools.product(range(1, 6), range(1, 7))])
def test_what_goes_is_not_replaced(old: int, new: int) -> None:
    """Of both templates, whatever is wanted; else one too many of the new one may come."""
    seen = set()
    for replicas, of_new, of_old in itertools.product(
        range(max(old, new), old + new + 1), range(new), range(old + 1)
    ):
        before = shape(old, new, replicas=replicas, surge=old + new - replicas)
        ahead, fields = pod_counts.before_shrinking(before, of_new, of_old)
        if ahead:
            surge = ahead["strategy"]["rollingUpdate"]["maxSurge"]
            assert ahead["replicas"] + surge == old + new, "a change of replicas spreads nothing"
            assert controller(old, new, ahead) == (old, new)
        assert fields["replicas"] == (ahead or {"replicas": replicas})["replicas"] >= new
        assert controller(old, new, fields) == (old, new), "nothing moves by these writes alone"
        left = controller(old - of_old, new - of_new, fields)
        exact = pod_counts.may_shrink(before, of_new, of_old)
        seen.add(exact)
        assert left[0] == old - of_old
        assert left[1] == new - of_new or (not exact and left[1] > new - of_new)
    assert True in seen or new == 1


def test_others_go_before_those_of_the_new_template() -> None:
    """Where both at once would be made up for; and none waits for what never comes."""
    before = shape(1, 2, replicas=2)
    assert pod_counts.at_once(before, {"b": ["b1"], "a": ["a1"]}) == ({"a": ["a1"]}, ["b1"])
    assert pod_counts.at_once(before, {"b": ["b1"]}) == ({"b": ["b1"]}, [])
    few = shape(3, 1, replicas=3)
    assert pod_counts.at_once(few, {"a": ["a1"]}) == ({"a": ["a1"]}, [])


def test_the_last_old_pod_lets_go() -> None:
    """One template: it keeps itself, with as many as it has."""
    assert pod_counts.unfreeze(shape(0, 5, replicas=5)) == pod_counts.at_rest(5)
    assert pod_counts.unfreeze(shape(2, 3, replicas=4)) == pod_counts.at_rest(4), (
        "given up: it goes on"
    )


def test_more_than_the_wish_is_told_before() -> None:
    """A change of replicas first moves nobody; the room comes with the next write."""
    ahead, fields = pod_counts.grow(shape(5, 4, replicas=5, surge=4), 3)
    assert ahead == pod_counts.frozen_fields(7, 2)
    assert controller(5, 4, ahead) == (5, 4)
    assert controller(5, 4, fields) == (5, 7)


def test_more_than_there_are_comes_in_steps() -> None:
    """`replicas` is never more than there are pods: else its controller makes some of both."""
    old, new, replicas, surge = 1, 1, 1, 1
    for there in (2, 3, 4, 5):
        have = shape(old, new, replicas=replicas, surge=surge)
        ahead, fields = pod_counts.grow(have, 5 - new)
        assert fields["replicas"] <= have.total
        assert not ahead or controller(old, new, ahead) == (old, new)
        old, new = controller(old, new, fields)
        assert (old, new) == (1, there)
        replicas, surge = fields["replicas"], fields["strategy"]["rollingUpdate"]["maxSurge"]


def test_a_third_template_deletes_nobody() -> None:
    """More pods than are wanted, of two templates: replicas grow first, and moves nobody."""
    ahead, fields = pod_counts.ahead_of(shape(5, 3, replicas=5, surge=3), 2)
    assert ahead["replicas"] == fields["replicas"] == 8
    assert controller(5, 3, ahead) == (5, 3)
    assert controller(8, 0, fields) == (8, 2)


def test_a_shape_is_read_from_objects() -> None:
    """Foreign ReplicaSets of the same labels are left out; the highest order is current."""

    def replica_set(name: str, order: int, owner: str, replicas: int) -> dict:
        return {
            "metadata": {
                "name": name,
                "labels": {"pod-template-hash": name},
                "annotations": {"deployment.kubernetes.io/revision": str(order)},
                "ownerReferences": [{"uid": owner, "controller": True}],
            },
            "spec": {
                "replicas": replicas,
                "template": {
                    "metadata": {
                        "annotations": {"fleet/revision": f"r{order}"},
                        "labels": {"a": "b", "pod-template-hash": name},
                    },
                    "spec": {"runs": order},
                },
            },
            "status": {"replicas": replicas},
        }

    deployment = {
        "metadata": {
            "uid": "mine",
            "generation": 7,
            "annotations": {"deployment.kubernetes.io/revision": "4"},
        },
        "spec": {
            "replicas": 5,
            "minReadySeconds": pod_counts.NEVER,
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": {
                "metadata": {"annotations": {"fleet/revision": "r4"}, "labels": {"a": "b"}},
                "spec": {"runs": 4},
            },
        },
        "status": {"observedGeneration": 7},
    }
    sets = (
        replica_set("old", 3, "mine", 5),
        replica_set("new", 4, "mine", 2),
        replica_set("ancient", 1, "mine", 0),
        replica_set("external", 9, "other", 3),
    )
    read = pod_counts.pod_counts_of(deployment, sets)
    assert read.current is not None
    assert (read.current.hash, read.current.revision) == ("new", "r4")
    assert [each.hash for each in read.others] == ["old"]
    assert (read.total, read.surge, read.frozen, read.settled) == (7, 2, True, True)
    deployment["spec"]["template"]["spec"] = {"runs": 5}
    other = pod_counts.pod_counts_of(deployment, sets)
    assert (other.observed, other.settled) == (True, False), "its ReplicaSet is not made yet"
    deployment["spec"]["template"]["spec"] = {"runs": 4}
    deployment["metadata"]["generation"] = 8
    unseen = pod_counts.pod_counts_of(deployment, sets)
    assert (unseen.observed, unseen.settled) == (False, False)


@pytest.mark.parametrize(
    ("replicas", "surge", "old", "new", "moves"),
    [
        (3, 1, 3, 1, False),
        (3, 2, 3, 1, True),  # room for one more
        (3, 1, 3, 0, True),
        (3, 1, 1, 3, False),  # room, and as many as are wanted
        (2, 1, 2, 3, True),  # more than are wanted
        (2, 3, 2, 0, True),  # taken back, and taken for room again
    ],
)
def test_a_controller_that_has_not_done_yet(
    replicas: int, surge: int, old: int, new: int, moves: bool
) -> None:
    """Numbers that it is about to change are none to count on."""
    assert shape(old, new, replicas=replicas, surge=surge).moves is moves


def test_a_note_of_other_replicas_is_scaling() -> None:
    """With pods of two templates both are noted; a paused one does no more than that."""
    noted = replace(shape(3, 1, replicas=3), sets=tuple(
        replace(each, desired=4) for each in shape(3, 1, replicas=3).sets
    ))  # fmt: skip
    assert noted.moves
    assert not replace(noted, paused=True).moves


def test_a_deployment_that_starts_nothing_any_more() -> None:
    """Its only ReplicaSet with pods has the right number and another one noted."""

    def stuck(replicas: int, *sets: tuple[int, int | None]) -> bool:
        counted = [
            CountedReplicaSet(name=str(n), hash=str(n), revision="", replicas=have, order=n,
                              desired=desired)
            for n, (have, desired) in enumerate(sets)
        ]  # fmt: skip
        read = PodCounts(
            replicas=replicas,
            surge=1,
            frozen=False,
            paused=False,
            sets=tuple(counted),
            settled=True,
        )
        return read.stuck is not None

    assert stuck(3, (3, 5))
    assert stuck(3, (3, 5), (0, 3))
    assert not stuck(3, (3, 3), (0, 5))
    assert not stuck(3, (3, None))
    assert not stuck(3, (2, 5)), "it is scaled, and noted"
    assert not stuck(3, (2, 5), (1, 5)), "both are noted"
