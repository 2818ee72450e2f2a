"""Today's manager drives workers of an older release: their image is built from the history.

An older manager opens the fleet, as it was before the upgrade; from then on today's acts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.model import StepKind, Verdict
from fleet.slots import Change
from k8s.images import image_build
from tests.conftest import RunningBroker
from tests.support.kube import Kube, image
from tests.support.older_release import commit_of, extract
from tests.support.pod_ground import Ground, opened

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]
FIRST = ("--diff-filter=A", "--", "k8s/runtime.py")
"""Tells the first state of the code with which pods were managed."""
BUILD = """
import sys
from k8s.images import building
building._forget = lambda *_: None  # nobody else's images are its business
building.build(["worker"], sys.argv[1], print)
"""
SLOTS = 2


@pytest.fixture(scope="module")
def commit() -> str:
    """The older release."""
    return commit_of(*FIRST)


@pytest.fixture(scope="module")
def older(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older release's code."""
    return extract(commit, tmp_path_factory.mktemp("older") / "code")


@pytest.fixture(scope="module")
def older_image(kube: Kube, commit: str, older: Path) -> str:
    """Its worker image, in the cluster."""
    tag = f"release-{commit}"
    name = image_build.name_of("worker", tag)
    if name not in image_build.names():
        made = subprocess.run(
            [sys.executable, "-c", BUILD, tag],
            cwd=older, env={**os.environ, "PYTHONPATH": str(older)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
    if name not in kube.cluster.images():
        image_build.load([name], kube.cluster)
    return name


@pytest.fixture
def ground(
    request: pytest.FixtureRequest, kube: Kube, kube_broker: RunningBroker, unique: str
) -> Iterator[Ground]:
    """Two workers and a standby of the older release, brought up by its manager."""
    older, older_image = (request.getfixturevalue(name) for name in ("older", "older_image"))
    tmp_path = request.getfixturevalue("tmp_path")

    def begin(ground: Ground) -> None:
        ground.shop.runtime["image"] = older_image
        ground.shop.declare(runtime=ground.shop.runtime)
        ground.ended(ground.manager("apply", ground.shop.group, code=older))
        ground.serve()

    with opened(
        kube, kube_broker, tmp_path, group=f"older-{unique}", slots=SLOTS, begin=begin
    ) as made:
        yield made


def as_planned(change: Change, *kinds: StepKind) -> None:
    """These steps, each at the price that was told."""
    assert tuple(s.kind for s in change.plan.steps) == kinds, change.plan
    assert all(r.verdict is Verdict.EQUAL for r in change.receipts), change.receipts


def images(ground: Ground) -> set[str]:
    """What the pods run."""
    return {pod.spec.containers[0].image for pod in ground.pods().values()}


def test_an_older_release_is_driven(ground: Ground, older_image: str) -> None:
    """Nothing to do after the upgrade; then up, rolled, drained, down, and rolled to today's."""
    shop = ground.shop
    with shop.fleet() as fleet:
        plan = fleet.plan(shop.group)
        assert plan.empty, plan
        assert not plan.refusals
    first = set(ground.pods())

    with ground.costs() as cost:
        as_planned(ground.apply(SLOTS + 1), StepKind.OPEN)
        ground.serve(slots=SLOTS + 1)
    assert cost.rebalances == 1
    assert first <= set(ground.pods())

    ground.shop.new_code()
    with ground.costs() as cost:
        as_planned(ground.apply(SLOTS + 1), StepKind.ROLL)
        ground.serve(slots=SLOTS + 1)
    assert cost.rebalances == 0
    assert not first & set(ground.pods())
    assert images(ground) == {older_image}, "settings that today's manager wrote, for older workers"

    with ground.costs() as cost, shop.fleet() as fleet:
        as_planned(
            fleet.drain(shop.group, [SLOTS], actor="test", progress=shop.say), StepKind.LEAVE
        )
        ground.serve()
    assert cost.rebalances == 1

    shop.runtime["image"] = image("worker")
    shop.declare(runtime=shop.runtime)
    with ground.costs() as cost:
        as_planned(ground.apply(), StepKind.ROLL)
        ground.serve()
    assert cost.rebalances == 0
    assert images(ground) == {image("worker")}
    assert ground.account() == (0, 0)
