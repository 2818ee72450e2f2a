"""What a tick of the schedule hands to Dagster, which fails all of it for one unknown partition."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from dagster import DagsterInstance, build_schedule_context, instance_for_test
from dagster._core.definitions.schedule_definition import ScheduleExecutionData

from fleet.clock import ManualClock
from fleet.config.spec import FleetSpec
from fleet.dagster import build_definitions, reconcile_schedule
from fleet.dagster.asset_keys import definition_name
from fleet.dagster.reconcile_schedule import RECONCILE
from fleet.dagster.resources import FleetResource
from fleet.model import Plan, StepKind
from fleet.slots.store import Store
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of, step_of

OURS, NEW = (declaration(name, runtime=ON_KUBERNETES) for name in ("ours", "new"))
THEIRS = {
    "group": "theirs",
    "topics": ["orders"],
    "runtime": {"kind": "kubernetes", "namespace": "fleets", "deployment": "theirs"},
    "scaling": {"policy": "lag", "records_per_worker": 1000},
}


class Cycle:
    """The groups that a file declares; each has a plan of one step."""

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self.clock = ManualClock()
        self.store = Store(MemoryBackend(Memory(), clock=self.clock), clock=self.clock)

    tail = None

    def snapshot(self, groups: list[str]) -> None:
        """Plans of this one need none."""

    def plan(self, group: str, *, snapshot: None) -> Plan:
        return plan_of(step_of(StepKind.OPEN, (0,)), group=group, id=f"{group}-1")


class Opened(FleetResource):
    """The file as it is at the tick, whatever was loaded."""

    cycle: ClassVar[Any] = None

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        yield Opened.cycle


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cluster behind these groups."""
    tail = SimpleNamespace(is_current=lambda: False)
    live = SimpleNamespace(cluster=SimpleNamespace(tail=tail))
    monkeypatch.setattr(reconcile_schedule, "live_cluster", lambda _: contextlib.nullcontext(live))


@pytest.fixture(scope="module")
def instance() -> Iterator[DagsterInstance]:
    """Stored: a schedule's context opens it anew."""
    with instance_for_test() as made:
        yield made


def ticked(
    instance: DagsterInstance, loaded: list[Mapping[str, Any]], now: list[Mapping[str, Any]]
) -> ScheduleExecutionData:
    """One tick of a location that was loaded with these groups, the file having those now."""
    Opened.cycle = Cycle(fleet_spec(*now, mode="act"))
    definitions = build_definitions(Opened.of(fleet_spec(*loaded, mode="act")))
    repository = definitions.get_repository_def()
    at = datetime.now(UTC)
    with build_schedule_context(
        instance=instance,
        scheduled_execution_time=at,
        repository_def=repository,
    ) as context:
        return repository.get_schedule_def(definition_name("main", RECONCILE)).evaluate_tick(
            context
        )


@pytest.mark.parametrize(
    ("loaded", "now"),
    [
        pytest.param([OURS, THEIRS], [OURS, THEIRS], id="a Deployment of other people"),
        pytest.param([OURS], [OURS, NEW], id="new in the file"),
    ],
)
def test_a_group_without_a_partition_holds_no_other(instance, loaded, now):
    """The others get their runs in the same tick."""
    assert [r.partition_key for r in ticked(instance, loaded, now).run_requests or ()] == ["ours"]


def test_a_group_without_a_partition_is_told_what_to_do(instance):
    """By the sentence of the tick."""
    said = ticked(instance, [OURS], [THEIRS, NEW]).skip_message
    assert said is not None
    assert (
        "theirs: open; Dagster does not change an external Deployment; run `fleet apply theirs`"
        in said
    )
    assert "new: open; the group got its worker after the code location was loaded" in said
