"""Reading and compare-and-set of single objects, for the slot store.

Problem: a write decided on an older version must not be stored, and one whose answer was lost
must not be done twice or be taken for lost. Choice: a change is a function of the object as it
stands; it is asked again on every newer version until it is stored or says no. What a view
knows is good enough to begin with, since the server compares the version; a no is believed only
of a version that was read from the server in this call. Cost: a refused change costs a read.
"""

import copy
from collections.abc import Callable

from fleet.clock import Clock
from fleet.kubernetes.client.api import Conflict, Object
from fleet.kubernetes.client.calls import LOOK, Calls, Missing, Silent
from fleet.kubernetes.client.lease_informer import LeaseInformer
from fleet.kubernetes.client.reflector import version_of
from fleet.kubernetes.leases.lease_objects import same_state
from fleet.slots.group_objects import edited, turns

Edit = Callable[[Object], Object | None]
"""The object as it should be, made of a copy of what it is; None: leave it."""


class RetryOnConflict:
    """The objects of one namespace; a worker's with a view of its Leases."""

    def __init__(self, calls: Calls, *, clock: Clock, view: LeaseInformer | None = None) -> None:
        self.calls = calls
        self._clock = clock
        self._view = view
        self._wrote: dict[tuple[str, str], int] = {}

    def get(self, kind: str, name: str, *, fresh: bool = False) -> Object | None:
        """The object: as last known where a view follows it, unless it has to be fresh."""
        view = self._view
        if view is None or not view.follows(name):
            return self.calls.get(kind, name)
        if fresh:
            return self._kept(self.calls.get(kind, name))
        return view.get(name)

    def must_get(self, kind: str, name: str, *, fresh: bool = False) -> Object:
        """The same; Missing where it is not there."""
        found = self.get(kind, name, fresh=fresh)
        if found is None:
            raise missing(kind, name)
        return found

    def wrote(self, kind: str, prefix: str) -> int:
        """The latest version that was written here of any object with such a name."""
        written = list(self._wrote.items())
        return max(
            (v for (k, name), v in written if k == kind and name.startswith(prefix)), default=0
        )

    def note(self, stored: Object) -> Object:
        """Remember that this was written here."""
        self._wrote[stored["kind"], stored["metadata"]["name"]] = version_of(stored)
        return stored

    def swap(self, wanted: Object) -> Object:
        """Store `wanted` if it is still based on the latest version; as stored.

        Raises Conflict where it is not, Missing where the object is gone, Silent where nobody
        knows whether it was stored.
        """
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        try:
            stored = self.calls.replace(wanted)
        except Silent:
            stored = self._kept(self.calls.get(kind, name, patience=LOOK))
            if stored is not None and not same_state(stored, wanted):
                raise Conflict(f"{kind} {name} has another version by now") from None
        if stored is None:
            raise missing(kind, name)
        self._kept(stored)
        return self.note(stored)

    def change(
        self, kind: str, name: str, edit: Edit, *, make: Callable[[], Object] | None = None
    ) -> Object | None:
        """Store what `edit` makes of the object, as stored; None where it says no.

        make: the object where there is none yet; without it that is Missing.
        """

        def read(fresh: bool) -> Object | None:
            found = self.get(kind, name, fresh=fresh)
            if found is None and fresh and make is None:
                raise missing(kind, name)
            return found

        def made_of(found: Object | None) -> Object | None:
            if found is not None:
                return edit(copy.deepcopy(found))
            return None if make is None else edit(make())

        def swap(wanted: Object, found: Object | None) -> Object:
            return self.note(self.calls.create(wanted)) if found is None else self.swap(wanted)

        hears, again = self._view is not None, turns(f"{kind} {name}", clock=self._clock)
        return edited(read, made_of, swap, hears=hears, turns=again)

    def _kept(self, found: Object | None) -> Object | None:
        if found is not None and self._view is not None:
            self._view.put(found)
        return found


def missing(kind: str, name: str) -> Missing:
    """It is made beforehand: nothing follows from its not being there."""
    return Missing(
        f"{kind} {name} is not there; the manager makes it (`fleet apply`), and so does "
        "`kubectl apply` of what `fleet manifests` renders"
    )
