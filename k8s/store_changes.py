"""A group's running change on Kubernetes: one Lease, and a ConfigMap of those that ended.

Problem: two managers must not change one group, and a change outlives the manager that began
it. Choice: the whole change stands in the Lease of the group's change; every write of it
compares (actor, token) and the object's version. An ended change is copied into the notes before
the next one takes its place, under a key made of its token, so that a copy made twice is one.
Cost: the last twenty are kept, not the two hundred of the local store; long ones are compressed.
"""

from typing import Final

from fleet.model import Plan
from fleet.slots import Change, ChangeState, transitions
from k8s import lease_objects as objects
from k8s.api import Object
from k8s.calls import CONFIG_MAP, LEASE
from k8s.store_marks import Marks

KEPT_CHANGES: Final = 20
"""Changes kept per group, the running or last one included."""


class Changes(Marks):
    """The part of `fleet.slots.SlotStore` that is about changes."""

    def begin(self, plan: Plan, *, actor: str, started_at: float) -> Change | None:
        """Start a change; None where one is running. The token grows over all changes."""
        names = self.names(plan.group)

        def edit(found: Object) -> Object | None:
            last = objects.change_from(found)
            after = 0 if last is not None else self._token_at(plan.group)
            change = transitions.begun(last, plan, actor=actor, started_at=started_at, after=after)
            if change is None:
                return None
            if last is not None:
                self._archive(last)
            return self._with_change(found, change)

        stored = self._shelf.change(
            LEASE, names.change, edit, make=lambda: objects.blank(LEASE, names.change, names)
        )
        return self._begun(stored)

    def change(self, group: str) -> Change | None:
        """The running change, or else the last one."""
        name, followed = self.names(group).change, self._follow_up(group, LEASE)
        found = self._shelf.get(LEASE, name) if followed is None else followed.get(name)
        return None if found is None else objects.change_from(found)

    def adopt(self, seen: Change, *, actor: str) -> Change | None:
        """Take over a running change that is still as seen; None where it is not."""

        def edit(found: Object) -> Object | None:
            change = transitions.adopted(objects.change_from(found), seen, actor=actor)
            return None if change is None else self._with_change(found, change)

        names = self.names(seen.group)
        if self._shelf.get(LEASE, names.change) is None:
            return None
        return self._begun(self._shelf.change(LEASE, names.change, edit))

    def advance(self, change: Change) -> Change:
        """Write the change's progress with counter + 1; LostLease where it is another's now."""

        def edit(found: Object) -> Object | None:
            return self._with_change(
                found, transitions.advanced(objects.change_from(found), change)
            )

        names = self.names(change.group)
        if self._shelf.get(LEASE, names.change) is None:
            raise transitions.lost(change, None)
        stored = self._shelf.change(LEASE, names.change, edit)
        after = None if stored is None else objects.change_from(stored)
        if after is None:
            raise transitions.lost(change, None)
        if after.state is not ChangeState.RUNNING:
            self.unfollow(change.group)
        return after

    def changes(self, group: str, *, limit: int = 20) -> tuple[Change, ...]:
        """Latest first."""
        last = self.change(group)
        if last is None:
            return ()
        found = self._shelf.get(CONFIG_MAP, self.names(group).notes)
        if found is None:
            return (last,)[:limit]
        with objects.reading(found):
            ended = [
                objects.archived_change(value)
                for _, value in objects.archived(found.get("data") or {})[:limit]
            ]
        return (last, *(each for each in ended if each.token < last.token))[:limit]

    def _token_at(self, group: str) -> int:
        """The latest that has been at the gate, where the change's own Lease was made anew."""
        found = self._shelf.get(LEASE, self.names(group).gate)
        return 0 if found is None else objects.record_from(found, group).token

    def _begun(self, stored: Object | None) -> Change | None:
        """The change that is ours now; its group is followed until it ends."""
        change = None if stored is None else objects.change_from(stored)
        if change is not None:
            self.follow(change.group)
        return change

    def _with_change(self, found: Object, change: Change) -> Object:
        return objects.with_change(found, change, now=self._clock.now(), lease=self._lease)

    def _archive(self, ended: Change) -> None:
        names = self.names(ended.group)
        found = self._shelf.get(CONFIG_MAP, names.notes)
        stored = [k for k, _ in objects.archived((found or {}).get("data") or {})]
        key = objects.archived_key(ended)
        kept = sorted({key, *stored}, reverse=True)
        self._merge(
            names,
            names.notes,
            {**dict.fromkeys(kept[KEPT_CHANGES - 1 :]), key: objects.archived_text(ended)},
        )
