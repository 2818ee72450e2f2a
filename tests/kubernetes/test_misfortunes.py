"""A managed fleet of pods on a real cluster: evicted, given bad code, left by its manager [29].

One fleet lives through all tests of this file, in their order. Whatever hits it costs what
docs/concepts/cost.md says: no rebalance, nothing lost, and twice at most what a kill interrupts
(here: nothing, since no worker is killed).
"""

import json
import time
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client

from fleet.config.settings import settings_from
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.manifests import deployment_objects
from fleet.slots import ChangeState, Phase
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.pod_ground import SLOTS, Ground, opened
from tests.support.workshop import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]
ROLLED_BACK_WITHIN = 240.0
GRACE = 55.0
"""Seconds of a pod of this fleet: drain_timeout 30 s, lease 10 s and 15 s."""


@pytest.fixture(scope="module")
def whole(
    kube: Kube, kube_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """Four workers and a standby at work; judged at the end by what they were called with."""
    home = tmp_path_factory.mktemp("misfortunes")
    with opened(kube, kube_broker, home, group=f"hit-{uuid.uuid4().hex[:8]}") as made:
        yield made
        made.serve()
        assert made.account() == (0, 0)


@pytest.fixture
def ground(whole: Ground) -> Ground:
    """As it was: all slots served, a ready standby."""
    whole.serve()
    return whole


def kubectl(ground: Ground, *words: str, stdin: str | None = None) -> str:
    """In the fleet's namespace."""
    return ground.kube.kubectl("-n", ground.shop.namespace, *words, stdin=stdin)


def deployment(ground: Ground) -> str:
    """As kubectl calls it."""
    return f"deployment/{ObjectNames('test', ground.shop.group).deployment}"


def test_a_plain_scale_takes_standbys(ground: Ground) -> None:
    """`kubectl scale` 6 to 4 without a manager: both standbys go, no owner."""
    held = {n: (s.owner, s.token) for n, s in ground.slots().items()}
    with ground.costs() as cost:
        kubectl(ground, "scale", deployment(ground), f"--replicas={SLOTS + 2}")
        until(lambda: len(ground.ready()) == SLOTS + 2, 150, "two standbys to be ready")
        time.sleep(2.0)  # the controller hears of costs by its watch
        kubectl(ground, "scale", deployment(ground), f"--replicas={SLOTS}")
        until(lambda: len(ground.pods()) == SLOTS, 60, "two pods to go")
        assert {n: (s.owner, s.token) for n, s in ground.slots().items()} == held
        kubectl(ground, "scale", deployment(ground), f"--replicas={SLOTS + 1}")
        ground.serve()
    print(f"scaled by hand: {cost}")
    assert cost.rebalances == 0


def test_old_manifests_in_mid_roll_are_taken_back_and_told(ground: Ground) -> None:
    """Another field manager applies them with force: 0 rebalances, and the receipt names it."""
    with ground.shop.fleet() as fleet:
        revision = str(ground.slots()[0].revision)
        text = fleet.runtime.published(ground.shop.group, revision)
        stale = deployment_objects.deployment(settings_from(text), replicas=SLOTS + 1)
    old = set(ground.pods())
    ground.shop.new_code()
    with ground.costs() as cost:
        roll = ground.manager("apply", ground.shop.group)
        until(lambda: "the other workers are replaced" in ground.said(), 180, "the canary to pass")
        apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-")
        kubectl(ground, *apply, stdin=json.dumps(stale))
        ground.ended(roll)
        status = kubectl(ground, "rollout", "status", deployment(ground), "--timeout=60s")
        ground.serve()
    print(f"old manifests in mid-roll: {cost}")
    assert "successfully rolled out" in status
    assert cost.rebalances == 0
    assert not old & set(ground.pods())
    with ground.shop.fleet() as fleet:
        change = fleet.changes(ground.shop.group, limit=1)[0]
    assert change.state is ChangeState.DONE, change.sentence
    (said,) = [each for r in change.receipts for each in r.sentences if "argocd" in each]
    assert said.endswith("; Fleet took that back")


def evict(ground: Ground, pod: str) -> bool:
    """Ask the Eviction API; False where the budget forbids it now."""
    asked = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod))
    try:
        ground.kube.core.create_namespaced_pod_eviction(pod, ground.shop.namespace, asked)
        ground.shop.say(f"evicted {pod}, which held {ground.held_by(pod)}")
    except client.ApiException as error:
        if error.status != 429:
            raise
        return False
    return True


def gone(ground: Ground, pod: str) -> bool:
    """Whether nothing is left of it, not even its end."""
    found = ground.kube.core.list_namespaced_pod(ground.shop.namespace)
    return pod not in {each.metadata.name for each in found.items}


def rolled_back(ground: Ground) -> str:
    """Apply what fleet.yaml says now: it goes back at no rebalance; why, in words."""
    old = set(ground.pods())
    held = {n: s.owner for n, s in ground.slots().items()}
    with ground.costs() as cost, ground.shop.fleet() as fleet:
        began = time.monotonic()
        change = fleet.apply(ground.shop.group, actor="test", progress=ground.shop.say)
        print(f"went back after {time.monotonic() - began:.0f} s: {change.sentence}")
    assert change.state is ChangeState.ROLLED_BACK, change.sentence
    assert time.monotonic() - began < ROLLED_BACK_WITHIN
    assert cost.rebalances == 0
    ground.serve()
    assert set(held.values()) <= old
    return change.sentence


def test_an_image_that_is_not_there(ground: Ground) -> None:
    """No pod of it starts: nothing was handed over, the plan's change says why."""
    good = dict(ground.shop.runtime)
    held = {n: s.token for n, s in ground.slots().items()}
    ground.shop.declare(runtime={**good, "image": "localhost/no-such-image:1"})
    try:
        why = rolled_back(ground)
    finally:
        ground.shop.declare(runtime=good)
    assert "cannot be started: ErrImageNeverPull" in why
    assert "no-such-image" in why
    assert {n: s.token for n, s in ground.slots().items()} == held


def test_an_entrypoint_that_cannot_be_imported(ground: Ground) -> None:
    """Its pods crash again and again: nothing was handed over, the last words are told."""
    job = ground.shop.code
    good = job.read_text()
    held = {n: s.token for n, s in ground.slots().items()}
    ground.shop.write_code(f"import no_such_module\n{good}")
    try:
        why = rolled_back(ground)
    finally:
        ground.shop.write_code(good)
    assert "no_such_module" in why
    assert {n: s.token for n, s in ground.slots().items()} == held


def test_an_entrypoint_that_raises_on_every_batch(ground: Ground) -> None:
    """One slot gets it, the canary; it goes back, and all other partitions go on meanwhile."""
    job = ground.shop.code
    good = job.read_text()
    held = {n: s.token for n, s in ground.slots().items()}
    broken = good.replace(
        "    write_journal(df, context)\n",
        '    if not context.warm:\n        raise ValueError("broken on purpose")\n',
    )
    assert broken != good
    ground.shop.write_code(broken)
    try:
        why = rolled_back(ground)
    finally:
        ground.shop.write_code(good)
    assert "broken on purpose" in why
    taken = [n for n, s in ground.slots().items() if s.token > held[n]]
    assert len(taken) == 1, "one slot was handed over and back"


@pytest.mark.parametrize("moment", ["canary: slot", "slot 1 runs"])
def test_a_killed_manager_of_a_roll(ground: Ground, moment: str) -> None:
    """The next one finishes it: 0 rebalances over both, every slot on new pods."""
    old = set(ground.pods())
    ground.shop.new_code()
    with ground.costs() as cost:
        roll = ground.manager("apply", ground.shop.group)
        ground.killed(roll, lambda: moment in ground.said())
        assert unfinished(ground)
        ground.ended(ground.manager("apply", ground.shop.group))
        ground.serve()
    print(f"killed at {moment!r}: {cost}")
    assert cost.rebalances == 0
    assert not old & set(ground.pods())
    assert len({s.revision for s in ground.slots().values()}) == 1


def test_each_pod_is_evicted(ground: Ground) -> None:
    """One after the other, as a node is drained: slots pass on, 0 rebalances.

    The budget keeps all ready ones but one; a pod that is not ready may always go, and goes at
    once, also while its Python only starts: else it would take a slot until it is killed.
    """
    first = set(ground.pods())
    with ground.costs() as cost:
        for pod in sorted(first):
            until(lambda pod=pod: evict(ground, pod), 30, "the budget to know that all are ready")
            assert not evict(ground, min(ground.ready() - {pod})), "one at a time"
            if pod == min(first):
                until(lambda: ground.pods().keys() - ground.ready(), 30, "the one in its place")
                young = min(ground.pods().keys() - ground.ready())
                assert evict(ground, young)
                until(lambda young=young: gone(ground, young), GRACE - 15, f"{young} to end")
            ground.serve()
    assert not first & set(ground.pods())
    print(f"{len(first)} pods evicted: {cost}")
    assert cost.rebalances == 0


@pytest.mark.parametrize(
    ("slots", "moment"), [(SLOTS + 2, "opened slot"), (SLOTS, "draining slot")]
)
def test_a_killed_manager_of_a_scaling(whole: Ground, slots: int, moment: str) -> None:
    """Two more, two fewer: the same total as with no kill, one rebalance."""
    there = set(whole.pods())
    held = {n: s.owner for n, s in whole.slots().items()}
    with whole.costs() as cost:
        scaling = whole.manager("scale", whole.shop.group, str(slots))
        whole.killed(scaling, lambda: moment in whole.said())
        assert unfinished(whole)
        whole.ended(whole.manager("scale", whole.shop.group, str(slots)))
        whole.serve(slots=slots)
    print(f"killed at {moment!r}: {cost}")
    assert cost.rebalances == 1
    if slots == SLOTS:
        gone = {held[n] for n in held if n >= slots}
        assert there - set(whole.pods()) == gone, "exactly the drained pods"


def unfinished(ground: Ground) -> bool:
    """Whether the killed manager left its change in the middle; no slot is with nobody for long."""
    with ground.shop.fleet() as fleet:
        left = fleet.changes(ground.shop.group, limit=1)[0]
    until(
        lambda: all(s.phase is Phase.ACTIVE for s in ground.slots().values()),
        60,
        "workers to go on without a manager",
    )
    return left.state is ChangeState.RUNNING
