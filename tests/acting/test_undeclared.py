"""A group that was renamed, or taken out of fleet.yaml, while its workers run."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.act.local.local_runtime import LocalRuntime
from fleet.clock import ManualClock
from fleet.commands.doctor import workers
from fleet.manager.cycle import Fleet
from fleet.model import Severity
from fleet.slots import SlotTargets
from tests.support.declared import declaration, fleet_spec, group_spec, settings_of


class Home:
    """Its fleet.yaml declares `orders`, and `billing` without a worker; `returns` no more."""

    def __init__(self, runtime: LocalRuntime, clock: ManualClock) -> None:
        watched = {"group": "billing", "topics": ["billing"]}
        self.spec = fleet_spec(declaration("orders"), watched, bootstrap="kafka:9092")
        self.home, self.runtime, self.clock, self.store = (
            runtime.home,
            runtime,
            clock,
            runtime.store,
        )
        self.left: list[tuple[str, list[tuple[str | None, str]]]] = []
        for group, count in (("orders", 2), ("returns", 2), ("billing", 1)):
            runtime.publish(group, "r1", settings_of(group_spec(group)).model_dump_json())
            runtime.start(group, "r1", count)

    def workers(self) -> Any:
        return self.runtime.workers()

    def undeclared(self) -> dict[str, int]:
        return Fleet.undeclared(cast("Any", self))

    def _is_static(self, group: str) -> Any:
        return Fleet._is_static(cast("Any", self), group)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        """Whom a LeaveGroup names."""

        def leave(group: str, members: Any, *, reason: str) -> None:
            assert reason == "fleet down"
            self.left.append((group, members))

        yield SimpleNamespace(leave_all=leave)

    def holds(self, group: str) -> None:
        """Slot 0 has a member."""
        store = self.runtime.store
        assert store.write_targets(SlotTargets(group=group, open=frozenset({0})))
        (slot,) = store.slots(group)
        held = store.take(slot, worker="w", revision="r1", spark_session=None)
        assert held is not None
        assert store.renew(replace(held, member_id=f"m-{group}")) is not None


@pytest.fixture
def home(tmp_path: Any) -> Iterator[Home]:
    """No process runs: what is wanted is what counts."""
    clock = ManualClock()
    runtime = LocalRuntime(tmp_path, cluster="main", clock=clock)
    yield Home(runtime, clock)
    runtime.close()


def test_the_doctor_names_workers_that_nobody_declares(home: Home) -> None:
    """On this machine as on Kubernetes: else they run, and take records, for ever."""
    found = [f for f in workers(cast("Any", home)) if f.check == "orphans"]
    assert [f.level for f in found] == [Severity.WARN, Severity.WARN]
    assert [f.found for f in found] == [
        "1 worker of group billing, for which fleet.yaml declares none",
        "2 workers of group returns, for which fleet.yaml declares none",
    ]


def test_up_says_that_they_run_on(home: Home) -> None:
    """Whoever renamed a group has two of them now."""
    told: list[str] = []
    made: Any = home
    made.create_topics = lambda **_: None
    made.runtime.ensure = lambda: None
    Fleet.up(made, groups=(), actor="ann", progress=told.append)
    assert [line for line in told if line.startswith("2 workers of group returns still run")]


def test_down_leaves_their_groups_too(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends their workers; static members would hold their partitions for a session."""
    home.holds("orders")
    home.holds("returns")
    monkeypatch.setattr(home.runtime, "down", lambda *, grace: home.runtime._table.add([]))
    Fleet.down(cast("Any", home))
    assert home.left == [(group, [(f"{group}-0", f"m-{group}")]) for group in ("orders", "returns")]
    assert not home.store.targets("returns").open
