"""A cluster as the page may meet it: a thousand groups, odd names, a storm, a roll."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet.commands.groups.group_status import GroupStatus, Managed
from fleet.commands.ui import ClusterView, Load, PageState, live_rows
from fleet.decide.storms import Storm
from fleet.manager.past import Past, ReplayedRows, Source, make_recent
from fleet.model import GroupSnapshot, StepKind, TopicPartition
from fleet.model.rebalances import Cause
from fleet.slots import ChangeState, Phase, Slot, SlotTargets, WorkerProcess, WorkerReport
from tests.asking.worlds import START, membership, rebalance
from tests.support.declared import fleet_spec
from tests.support.plans import change_of, plan_of, step_of
from tests.support.seen_groups import group_seen, member_seen, partition_seen
from tests.support.snapshots import snapshot_of

MARKUP = "<img src=x onerror=document.title='owned'>"
ODD = (MARKUP, "a/b c+d%2F?x=1#y&z", "..", "größe", "x" * 249)
"""Group ids are any text."""
STORMY, ROLLING, LATE = "payments-settlement", "orders", "audit-log"


def stable(name: str, *, lag: int = 0, members: int = 2, parts: int = 4) -> GroupSnapshot:
    """A group whose members share its partitions."""
    shares = [
        member_seen(
            f"{name}-{n}-id",
            [TopicPartition("orders", p) for p in range(n, parts, members)],
            instance_id=f"{name}-{n}",
        )
        for n in range(members)
    ]
    behind = None if not lag else 90.0
    return group_seen(
        name,
        members=shares,
        partitions=[partition_seen(n, lag, lag_seconds=behind) for n in range(parts)],
    )


def rolling(name: str, *, now: float) -> Managed:
    """Two slots of four on the new code, in mid-roll."""
    plan = plan_of(step_of(StepKind.ROLL, range(4), "newcode123"), group=name, id=f"main-{name}-17")
    phases = [Phase.ACTIVE, Phase.ACTIVE, Phase.DRAINING, Phase.ACTIVE]
    slots = tuple(
        Slot(group=name, number=n, owner=f"w-{n}", phase=phase, batches=40 + n,
             revision="newcode123" if n < 2 else "oldcode456")
        for n, phase in enumerate(phases)
    )  # fmt: skip
    return Managed(
        mode="act",
        owner="team-orders",
        has_worker=True,
        targets=SlotTargets(group=name, version=1, open=frozenset(range(4))),
        slots=slots,
        workers=tuple(
            WorkerProcess(name=f"w-{n}", group=name, revision="newcode123", wanted=True,
                          running=True, restarts=0)
            for n in range(5)
        ),
        reports=tuple(
            WorkerReport(worker=f"w-{n}", group=name, revision="r", phase="active", slot=n,
                         counter=9, http_port=None, records=1_000 * n)
            for n in range(4)
        ),
        change=change_of(plan, ChangeState.RUNNING, actor="deploy@ci:4711", started_at=now - 20),
    )  # fmt: skip


def storm(group: str, now: float) -> Storm:
    """Nine rebalances by one member."""
    return Storm(
        cluster="main", group=group, since=now - 40, seen_at=now, rebalances=9, moved=24, budget=5,
        budget_moved=None, window=600.0, cause="join and leave", top_offender=f"{group}-3",
        summary=f"{group}-3 joins and leaves every 40 s",
    )  # fmt: skip


def picture(groups: int = 1000, *, now: float = START + 3600) -> PageState:
    """So many groups as one look saw them."""
    names = [STORMY, ROLLING, LATE, *ODD]
    names += [f"team-{n % 40:02}-service-{n:04}" for n in range(groups - len(names))]
    seen = [stable(name, lag=900 if name == LATE else 0) for name in names[:groups]]
    snapshot = snapshot_of(*seen, at=now)
    began = now - START - 600
    rounds = [
        rebalance(number, began + 40 * number, group=STORMY, joined=(f"{STORMY}-3",), moved=2,
                  took=2.0, cause=Cause.JOIN if number % 2 else Cause.LEAVE)
        for number in range(1, 12)
    ]  # fmt: skip
    members = [
        membership("joined", f"{STORMY}-{n}", now - START - 900, 2, group=STORMY) for n in range(2)
    ]
    recent = make_recent(rounds, kind="log", sentence="rebalances from __consumer_offsets", now=now)
    view = ClusterView(
        snapshot=snapshot, before=None, recent=recent, storms={STORMY: storm(STORMY, now)},
        generations={STORMY: 11},
    )  # fmt: skip
    spec = fleet_spec({"group": ROLLING, "topics": ["orders"]})
    statuses = {
        name: GroupStatus(
            group=name,
            seen=snapshot.groups[name],
            managed=rolling(name, now=now) if name == ROLLING else None,
            pauses=(),
            per_hour=recent.per_hour(name),
            last_rebalance=recent.last.get(name),
            storm=view.storms.get(name),
        )
        for name in sorted(names[:groups])
    }
    found = PageState(
        spec=spec,
        view=view,
        live=live_rows(view),
        statuses=statuses,
        loads=_loads(statuses),
        past=Past(
            rows=ReplayedRows([*rounds, *members]),
            source=Source(kind="log", place="__consumer_offsets", reaches=now - 3600, as_of=now),
        ),
    )
    return found.with_overview()


def _loads(statuses: Mapping[str, Any]) -> dict[str, Load]:
    quiet = Load(without_partitions=0, too_many=0)
    busy = Load(busy=0.12, slots={0: 0.1, 1: 0.14}, too_many=3, without_partitions=0,
                sentence="busy for 12 % of the last 60 s: 1 worker would be enough")  # fmt: skip
    return {name: busy if name == ROLLING else quiet for name in statuses}


def without_groups(found: PageState) -> PageState:
    """The same cluster before anybody came."""
    view = replace(found.view, snapshot=snapshot_of(at=found.view.snapshot.at))
    return replace(found, view=view, live=(), statuses={}, loads={}).with_overview()
