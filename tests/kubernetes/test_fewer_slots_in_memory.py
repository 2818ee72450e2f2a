"""`replicas.max` lowered below the slots that are held: who holds them may go on writing."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.clock import SystemClock
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.slots import SlotTargets
from tests.support.declared import ON_KUBERNETES, fleet_spec, group_spec, settings_of
from tests.support.fleet_leases import make_leases
from tests.support.pod_yard import NAMES, Yard

GROUP = "orders"


@pytest.fixture
def yard() -> Iterator[Yard]:
    """Four slots are open, and a pod holds the last of them."""
    made = Yard(SystemClock())
    make_leases(made.store, GROUP, slots=4)
    assert made.store.write_targets(SlotTargets(group=GROUP, open=frozenset(range(4))))
    last = made.store.slots(GROUP)[3]
    held = made.store.take(last, worker="a3", revision="r1", spark_session=None)
    assert held is not None
    yield made
    made.mirror.close()


def named(yard: Yard) -> set[str]:
    """The slots whose Leases a worker's Role names."""
    text = json.dumps(yard.server.get("Role", NAMES.role))
    return {n for n in map(NAMES.slot, range(10)) if f'"{n}"' in text}


def test_the_role_of_workers_names_what_is_held(yard: Yard) -> None:
    """Else its owner could not say that it has drained, and would be called dead, alive."""
    group = group_spec(GROUP, runtime=ON_KUBERNETES, replicas={"max": 2})
    spec = fleet_spec(group.model_dump(mode="json"))
    runtime = KubernetesRuntime(spec, api=yard.api, store=yard.store, clock=yard.clock)
    text = settings_of(group).model_dump_json()
    runtime.publish(GROUP, "r1", text)
    assert named(yard) == {NAMES.slot(n) for n in range(4)}
    (_, _, _, held) = yard.store.slots(GROUP)
    assert yard.store.release(held, clean=True)
    assert yard.store.change_targets(GROUP, lambda targets: replace(targets, open=frozenset({0})))
    runtime.publish(GROUP, "r1", text)
    assert named(yard) == {NAMES.slot(n) for n in range(2)}
    runtime.close()
