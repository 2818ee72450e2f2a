"""The picture of the demo's groups, taken from a snapshot, the slots and the processes."""

from fleet.demo.measure import Meter
from fleet.demo.view import GroupView, SlotView
from fleet.manager.cycle import Fleet
from fleet.model import GroupSnapshot
from fleet.slots import Slot


def pictures(fleet: Fleet, meter: Meter | None = None) -> tuple[GroupView, ...]:
    """Every declared group as it is now; `meter` counts the rebalances of the open step."""
    snapshot = fleet.snapshot([declared.group for declared in fleet.spec.fleets])
    found = []
    for declared in fleet.spec.fleets:
        group = declared.group
        seen = snapshot.groups.get(group)
        slots = [s for s in fleet.slots(group) if s.holder is not None]
        standbys = sum(1 for r in fleet.reports(group) if r.phase == "standby")
        found.append(
            GroupView(
                group=group,
                state=seen.state.value if seen else "not there yet",
                members=len(seen.members) if seen else 0,
                standbys=standbys,
                lag=seen.lag if seen else None,
                rebalances=_rebalances(meter, group),
                slots=tuple(_slot(slot, seen) for slot in slots),
            )
        )
    return tuple(found)


def _rebalances(meter: Meter | None, group: str) -> int | None:
    """Recorded in the open step of this group; None where it has none."""
    if meter is None:
        return None
    for stretch in meter.stretches:
        if stretch.group == group and stretch.counted is None:
            return meter.so_far(stretch).rebalances
    return None


def _slot(slot: Slot, seen: GroupSnapshot | None) -> SlotView:
    owned = 0
    for member in seen.members if seen else ():
        if member.member_id == slot.member_id or member.instance_id == slot.instance_id():
            owned = len(member.partitions)
    return SlotView(
        number=slot.number,
        holder=slot.holder or "",
        phase=slot.phase.value,
        revision=slot.revision or "",
        partitions=owned,
        batches=slot.batches,
    )
