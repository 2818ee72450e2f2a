"""Changes whose actors may be dead: the reconciling tick finds out, and ends within its minute."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.utils import make_new_run_id

from fleet.act.change import GroupChanges
from fleet.config.spec import GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.reconcile_schedule import LEASE_POLL_SECONDS, TICK_DEADLINE, Tick, TickOutcome
from fleet.errors import Refused
from fleet.manager.cycle import Fleet
from fleet.slots import Pause
from fleet.slots.store import Store
from tests.orchestration.made import group, spec
from tests.support.clocks import Turning
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of

MINUTE = 60.0
"""From one tick to the next, and what Dagster gives a tick."""


class Cluster:
    """Groups in mode act, each with an unfinished change; what a tick asks of it."""

    def __init__(self, groups: int, *, lease: float, actor: str = "gone@elsewhere:1") -> None:
        runtime = group().runtime.model_copy(update={"lease": lease})
        self.fleets = [
            group().model_copy(update={"group": f"g{n}", "runtime": runtime}) for n in range(groups)
        ]
        self.clock = Turning()
        self.spec = spec()
        self.store = Store(MemoryBackend(Memory(), clock=self.clock), clock=self.clock)
        for each in self.fleets:
            plan = plan_of(group=each.group, id=f"plan of {each.group}")
            assert self.store.begin_change(plan, actor=actor, started_at=0.0)

    def group(self, name: str) -> GroupSpec:
        return next(each for each in self.fleets if each.group == name)

    def change_alive(self, name: str) -> bool | None:
        return Fleet.change_alive(self, name)  # type: ignore[arg-type]

    def _changing(self, name: str) -> GroupChanges:
        return Fleet._changing(self, name)  # type: ignore[arg-type]

    def pauses(self) -> tuple[Pause, ...]:
        return self.store.pauses()

    def works_on(self, name: str) -> None:
        """Its actor renews, as a living one does."""
        change = self.store.change(name)
        assert change is not None
        self.store.advance(change)

    def tick(self, instance: DagsterInstance) -> list[TickOutcome]:
        """One, which has to end in time."""
        began = self.clock.monotonic()
        cycle: Any = self
        seen: Any = SimpleNamespace()
        names = [each.group for each in self.fleets]
        said = Tick(cycle, instance, seen, partitions=names).all(self.fleets)
        took = self.clock.monotonic() - began
        assert took <= TICK_DEADLINE + 2 * LEASE_POLL_SECONDS, (
            "Dagster ends a tick that takes a minute"
        )
        self.clock.sleep(MINUTE - took)
        return said


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def resumed(said: list[TickOutcome]) -> list[str]:
    assert all(each.request is None or "left a change unfinished" in each.sentence for each in said)
    return [each.group for each in said if each.request is not None]


def test_many_are_found_dead_in_one_tick(instance):
    """After one lease for all together: a power cut ends every run of a daemon at once."""
    cluster = Cluster(20, lease=30.0)
    said = cluster.tick(instance)
    assert resumed(said) == [each.group for each in cluster.fleets]
    (first, *_) = [each.request for each in said if each.request is not None]
    assert first.run_key == "plan of g0-resume"


@pytest.mark.parametrize("whose", [None, "g0"])
def test_what_a_pause_holds_is_not_carried_on(instance, whose):
    """An interrupted roll stays where it stands in an incident; the sentence says how to end it."""
    cluster = Cluster(2, lease=10.0)
    cluster.store.pause(Pause(group=whose, reason="incident 4711", by="ann", at=0.0))
    said = cluster.tick(instance)
    assert resumed(said) == ([] if whose is None else ["g1"])
    assert "left a change unfinished, and" in said[0].sentence
    assert "paused by ann (incident 4711)" in said[0].sentence
    with pytest.raises(Refused, match=r"incident 4711.*`fleet apply g0 --abort` to end the change"):
        Fleet.resume_change(cluster, "g0", actor="bob")  # type: ignore[arg-type]
    cluster.store.resume(whose)
    assert resumed(cluster.tick(instance)) == ["g0", "g1"]


def test_a_pause_holds_who_waits_out_a_lease_already(instance):
    """Whoever pauses in an incident does not know of a resume that began before it."""
    cluster = Cluster(1, lease=10.0)

    def incident(_sentence: str) -> None:
        cluster.store.pause(Pause(group=None, reason="incident 4711", by="ann", at=0.0))

    with pytest.raises(Refused, match=r"gone@elsewhere:1 left .* paused by ann \(incident 4711\)"):
        Fleet.resume_change(cluster, "g0", actor="bob", progress=incident)  # type: ignore[arg-type]
    left = cluster.store.change("g0")
    assert left is not None
    assert left.actor == "gone@elsewhere:1"


def test_a_lease_longer_than_a_tick_is_watched_over_several(instance):
    """Meanwhile it is said how long that takes."""
    cluster = Cluster(2, lease=180.0)
    for _ in range(3):
        said = cluster.tick(instance)
        assert resumed(said) == []
        assert said[1].sentence == (
            "its change by gone@elsewhere:1 may still be running; checked again within 3 min"
        )
    assert resumed(cluster.tick(instance)) == ["g0", "g1"]


@pytest.mark.parametrize("status", [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELING])
def test_a_run_that_failed_is_not_watched(instance, status):
    """The run that is asked for watches its lease; one that may go on is watched before."""
    run = instance.add_run(DagsterRun(job_name="j", run_id=make_new_run_id(), status=status))
    cluster = Cluster(1, lease=180.0, actor=asset_keys.actor(run.run_id))
    failed = status is DagsterRunStatus.FAILURE
    assert resumed(cluster.tick(instance)) == ["g0"] * failed


def test_the_living_are_left_alone(instance):
    """Beside the dead, from the first renewal that the tick sees."""
    cluster = Cluster(3, lease=30.0)
    cluster.clock.turn = lambda: cluster.works_on("g1")
    said = cluster.tick(instance)
    assert resumed(said) == ["g0", "g2"]
    assert said[1].sentence == "gone@elsewhere:1 is changing it"


def test_what_ends_meanwhile_is_looked_at_again(instance, monkeypatch):
    """As any other group."""
    cluster = Cluster(1, lease=30.0)
    done = TickOutcome(group="g0", sentence="no change needed")
    looks = iter([TickOutcome(group="g0", sentence="?", unknown=True), done])
    monkeypatch.setattr(Tick, "reconcile", lambda *_: next(looks))
    assert cluster.tick(instance) == [done]
