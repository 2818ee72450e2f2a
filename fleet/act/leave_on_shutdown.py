"""The end of a fleet: all its static members leave in one request, its slots are closed.

After `fleet down` no process is left, but static members stay in the group until their session
ends, and would be met there by the next start. So the fleet leaves for good: one batched leave,
one generation, and the gate is written empty. Where the coordinator cannot be reached the gate
stays as it is, and the next start takes the slots over.
"""

from collections.abc import Callable
from dataclasses import replace

from fleet.act.batched_leave import LeavingMember
from fleet.act.kafka import GroupAdmin
from fleet.errors import FleetError
from fleet.slots import Gate, Slot
from fleet.slots.store import Store
from fleet.text import plural


def leave_for_good(
    store: Store,
    admin: GroupAdmin,
    group: str,
    *,
    is_static: Callable[[Slot], bool],
    say: Callable[[str], None],
) -> bool:
    """Leave with all members and close all slots of a group that runs no worker any more.

    A dynamic member left when it closed; of one that was killed the member id is still kept.
    """
    slots = store.slots(group)
    members = [
        LeavingMember(instance_id=s.instance_id() if is_static(s) else None, member_id=s.member_id)
        for s in slots
        if s.member_id
    ]
    try:
        refusal = admin.leave(group, members, reason="fleet down").refusal
    except FleetError as error:
        refusal = str(error)
    if refusal is not None:
        say(f"the members of {group} stay until their session ends: {refusal}")
        return False
    store.change_gate(group, _shut)
    for slot in slots:
        store.clear(slot)
    if members:
        say(f"{plural(len(members), 'member')} of {group} left in one request")
    return True


def _shut(gate: Gate) -> Gate | None:
    """Nothing open, nothing asked."""
    shut = replace(gate, open=frozenset(), leaving=frozenset(), handover={}, rejoin={})
    return shut if gate.open else None
