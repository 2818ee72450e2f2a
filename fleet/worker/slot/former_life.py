"""A pod's container that starts again tells that the one before it has ended [13].

Problem: the kubelet starts a killed container anew within seconds, its slot waits for a lease of
30 s. Choice: a pod has one worker under its own name, so that whoever starts there and finds the
name at a slot knows that its holder's process is gone; it says so before Spark is started, and a
standby takes the slot meanwhile. On one machine the supervisor tells, which has seen the end.
Cost: a reading of the group's slots at each start.
"""

from fleet.errors import FleetError
from fleet.slots.store import Store
from fleet.worker.events import Events


def end_former_life(store: Store, *, group: str, name: str, events: Events) -> None:
    """Say of each slot that this pod's last container held that its holder has ended.

    A store that does not answer now leaves it to the lease.
    """
    try:
        for slot in store.slots(group):
            if slot.holder == name and store.end_holder(slot):
                events.log(f"slot {slot.number} was this pod's last container's: it is free")
    except FleetError as error:
        events.log(f"what this pod's last container held waits for its lease: {error}")
