"""What workers start from is fleet.yaml's, also where nothing of their group is to be changed."""

import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import DagsterInstance

from fleet.act import revisions
from fleet.act.revisions import Revisions
from fleet.clock import ManualClock
from fleet.commands.change.session import ChangeSession
from fleet.config.settings import settings_from
from fleet.config.spec import FleetSpec
from fleet.dagster.reconcile_schedule import Tick
from fleet.manager.cycle import Fleet
from fleet.model import Plan, StepKind
from fleet.slots import Pause
from tests.support.declared import declaration, fleet_spec
from tests.support.plans import plan_of, step_of

NOTHING = plan_of(revision="r")


class Managed:
    """A fleet whose group runs `r` since it was published by another address of its cluster."""

    def __init__(self, spec: FleetSpec) -> None:
        self.kept: dict[str, str] = {}
        self.writes = 0
        self.spec, self.bootstrap, self.clock = spec, "old:9092", ManualClock()
        self.paused: tuple[Pause, ...] = ()
        self.plans: list[Plan] = [NOTHING]
        slots = [SimpleNamespace(revision="r"), SimpleNamespace(revision="before")]
        self.store = SimpleNamespace(slots=lambda _: slots, change=lambda _: None)
        self._publish("orders", "r", "")

    def _publish(self, group: str, revision: str, text: str) -> None:
        made = {
            "cluster": self.spec.cluster.model_dump(mode="json"),
            "bootstrap_servers": self.bootstrap,
            "group": self.spec.fleets[0].model_dump(mode="json"),
            "revision": "r",
            "published_at": 5.0,
        }
        self.writes += 1
        self.kept[revision] = text or json.dumps(made)

    def _revisions(self) -> Revisions:
        runtime: Any = SimpleNamespace(
            store=self.store,
            published=lambda group, revision: self.kept.get(revision),
            publish=self._publish,
        )
        return Revisions(
            cluster=self.spec.cluster, bootstrap=self.bootstrap, runtime=runtime, clock=self.clock
        )

    def group(self, _: str) -> Any:
        return self.spec.fleets[0]

    def pauses(self) -> tuple[Pause, ...]:
        return self.paused

    def plan(self, _: str, **__: object) -> Plan:
        return self.plans[-1]

    def keep_current(self, plan: Plan) -> bool:
        return Fleet.keep_current(cast("Any", self), plan)

    @property
    def address(self) -> str:
        return settings_from(self.kept["r"]).bootstrap_servers


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Managed]:
    """Its brokers have moved since; `mode` as fleet.yaml has it."""
    monkeypatch.setattr(revisions, "code_digest", lambda _: "digest")

    def made(mode: str = "act") -> Managed:
        one = Managed(fleet_spec(declaration("orders"), mode=mode))
        one.bootstrap, one.writes = "new:9092", 0
        return one

    return made


def test_a_tick_that_finds_all_as_wanted_keeps_it_current(managed):
    """Once: a worker that ends tomorrow is started again by an address that answers."""
    fleet = managed()
    with DagsterInstance.ephemeral() as instance:
        seen: Any = SimpleNamespace()
        for _ in range(3):
            said = Tick(fleet, instance, seen, partitions=[]).reconcile(fleet.spec.fleets[0])
            assert (said.sentence, said.request) == ("no change needed", None)
    assert (fleet.address, fleet.writes) == ("new:9092", 1)
    assert settings_from(fleet.kept["r"]).published_at == 5.0, "no revision is newer for it"


@pytest.mark.parametrize(
    ("dry_run", "address"), [(False, "new:9092"), (True, "old:9092")], ids=["apply", "dry run"]
)
def test_a_command_that_finds_nothing_to_do_keeps_it_current(managed, capsys, dry_run, address):
    """And says so, since those that run go on as they are; a dry run writes nothing."""
    fleet = managed()
    invocation: Any = SimpleNamespace(changing=None)
    session = ChangeSession(invocation, fleet, output="table", dry_run=dry_run)
    done = session.act("orders", NOTHING, Fleet.apply)
    assert (done.refused, done.change) == (None, None)
    assert fleet.address == address
    told = capsys.readouterr().out
    assert ("`fleet roll orders` to apply it to running workers" in told) is not dry_run


def test_what_is_up_again_is_current(managed, monkeypatch):
    """`fleet up` asks nobody for a plan first: its apply finds out that there is nothing to do."""
    fleet = managed()
    told: list[str] = []
    for name in ("_check_mode", "resume_change"):
        monkeypatch.setattr(fleet, name, lambda *_, **__: None, raising=False)
    fleet._pinned = lambda *_, **__: contextlib.nullcontext()
    fleet._nothing_to_do = lambda plan, actor: Fleet._nothing_to_do(fleet, plan, actor)
    done = Fleet.apply(fleet, "orders", actor="ann", progress=told.append)
    assert done.sentence == "nothing to do"
    assert fleet.address == "new:9092"
    assert [line for line in told if "`fleet roll orders`" in line]


def test_who_may_not_act_leaves_it_as_it_is(managed):
    """Nor is it done beside a change, which does it itself."""
    planned = managed("plan")
    assert not planned.keep_current(NOTHING)
    released = managed()
    released.paused = (Pause(group="orders", reason="released", by="ann", at=0.0),)
    assert not released.keep_current(NOTHING)
    changed = managed()
    assert not changed.keep_current(plan_of(step_of(StepKind.WARM, ()), revision="r"))
    assert not changed.keep_current(plan_of(revision="r", refusals=("the topic is missing",)))
    assert {each.address for each in (planned, released, changed)} == {"old:9092"}
    never = managed()
    never.kept.clear()
    assert not never.keep_current(NOTHING)
