"""What replaces the shared Spark server, or leaves none possible, is said with the plan first."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.manifests.spark_objects import spark_objects
from fleet.model import StepKind
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.plans import plan_of, step_of
from tests.support.pod_yard import Yard

ROLL = plan_of(step_of(StepKind.ROLL, (0,)))


def spec(**groups: Any) -> Any:
    """Groups that share a server, each with these keys of its runtime beside the usual ones."""
    return fleet_spec(
        *(declaration(group, runtime={**ON_KUBERNETES, **own}) for group, own in groups.items())
    )


@pytest.fixture
def told() -> Iterator[Callable[..., tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Refusals and notes of a roll to `then`, where the server is as `now` made it."""
    yards = []

    def made(now: Any, then: Any, serves: int = 1) -> tuple[tuple[str, ...], tuple[str, ...]]:
        yard = Yard(SystemClock())
        yards.append(yard)
        for each in [] if now is None else spark_objects(now):
            yard.server.put({**each, "status": {"readyReplicas": serves}})
        runtime = KubernetesRuntime(then, api=yard.api, store=yard.store, clock=yard.clock)
        found = runtime.vetoes(ROLL)
        assert runtime.vetoes(plan_of()) == type(found)(), "an empty plan replaces nothing"
        if now is not None and not found.refusals:
            before = yard.server.get("Deployment", SPARK)["spec"]
            runtime.ensure()
            after = yard.server.get("Deployment", SPARK)["spec"]
            assert (before != after) == bool(found.notes), "done as it was said"
        runtime.close()
        return found.refusals, found.notes

    yield made
    for each in yards:
        each.mirror.close()


@pytest.mark.parametrize(
    ("then", "what"),
    [
        ({"spark": {"image": "fleet:2"}}, "image fleet:2, now fleet:1"),
        ({"spark": {"memory": "4g"}}, "memory 4g, now 2g"),
        ({"spark": {"master": "local[2]"}}, "master local[2], now local[*]"),
    ],
)
def test_it_is_said_that_the_server_is_replaced(told: Any, then: Any, what: str) -> None:
    """All groups wait for it, also those that the plan is not of."""
    refusals, (note,) = told(spec(orders={}, returns={}), spec(orders=then, returns=then))
    assert refusals == ()
    assert f"before the first step ({what})" in note


def test_executors_that_come_or_go_replace_the_server(told: Any) -> None:
    apart = spec(orders={"spark": {"executors": {"instances": 2}}})
    figures = '{"instances":2,"cores":1,"memory":"2g"}'
    _, (note,) = told(spec(orders={}), apart)
    assert f"executors {figures}, now none)" in note
    _, (note,) = told(apart, spec(orders={}))
    assert f"executors none, now {figures})" in note
    assert told(apart, apart) == ((), ())


def test_nothing_is_said_of_one_that_stays(told: Any) -> None:
    """It is as it was, has an image of its own, or is made now."""
    of_its_own = {"spark": {"image": "spark:1"}}
    assert told(spec(orders={}), spec(orders={})) == ((), ())
    rolled = spec(orders={**of_its_own, "image": "fleet:2"})
    assert told(spec(orders=of_its_own), rolled) == ((), ())
    assert told(None, spec(orders={})) == ((), ())
    now, then = spec(orders={}), spec(orders={"image": "fleet:2"})
    assert told(now, then) == ((), ()), "it serves: another fleet's code does not replace it"
    _, (note,) = told(now, then, serves=0)
    assert "image fleet:2, now fleet:1" in note


def test_a_fleet_with_other_secrets_gets_another_server(told: Any) -> None:
    """The server of the others stays as it is."""
    apart = {"env_from": ["kafka"], "spark": {"memory": "4g"}}
    assert told(spec(orders={}, returns={}), spec(orders=apart, returns={})) == ((), ())


def test_fleets_that_disagree_are_refused_before_a_change_begins(told: Any) -> None:
    """One group's new image: begun, it could be neither carried out nor carried on."""
    (refusal,), notes = told(
        spec(orders={}, returns={}), spec(orders={"image": "fleet:2"}, returns={})
    )
    assert "groups orders and returns share one Spark server" in refusal
    assert notes == ()
