"""What the API server holds of one kind, kept current by a watch.

Problem: a change asks ten times a second how the pods stand; asking the server each time costs
it more than the change, and a pause between two looks is a pause of the roll. Choice: one list,
which may fail, then a stream (`fleet.kubernetes.client.reflector`) in a thread of its own; readers
see the last known state at once and may wait for the next event. A server that is away leaves the
last known state standing. Cost: a reader may be behind by the way of one event; who has just
written puts the answer in itself (`put`).
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleet.clock import Clock
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.reflector import Reflector, version_of

_LOOK: Final = 1.0
"""Seconds after which one that waits looks again, whatever it was told."""


class Informer:
    """Objects of one kind under a label selector. Starts at the first look."""

    def __init__(self, api: Api, kind: str, selector: str, *, clock: Clock) -> None:
        self.calls = Calls(api.connection, namespace=api.namespace, clock=clock)
        self.kind = kind
        self.clock = clock
        self.silence = math.inf
        self.stopped = threading.Event()
        self._api = api
        self._selector = selector
        self._known: dict[str, Object] = {}
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stream = Reflector(self, {"labelSelector": selector} if selector else {})

    def items(self) -> tuple[Object, ...]:
        """As last heard of, by name. Raises what a first list raises."""
        with self._moved:
            if self._thread is None:
                self._begin()
            return tuple(self._known[name] for name in sorted(self._known))

    def wait(self, settled: Callable[[tuple[Object, ...]], bool], *, seconds: float) -> bool:
        """Wait until the objects are so; False where they are not in that time."""
        deadline = self.clock.monotonic() + seconds
        while not settled(self.items()):
            left = deadline - self.clock.monotonic()
            if left <= 0:
                return False
            with self._moved:
                self._moved.wait(min(left, _LOOK))
        return True

    def put(self, found: Object | None) -> None:
        """Take over what a write was answered with, or what the stream told."""
        if found is None or self._thread is None:
            return
        name = found["metadata"]["name"]
        with self._moved:
            known = self._known.get(name)
            if known is None or version_of(known) <= version_of(found):
                self._known[name] = _lean(found)
                self._moved.notify_all()

    def close(self) -> None:
        """End the watch."""
        self.stopped.set()
        self._stream.stop()

    def _begin(self) -> None:
        found, version = self._api.find(self.kind, self._selector)
        self.listed({}, found, int(version))
        self._stream.go_on_from(version)
        name = f"watch-{self.kind}"
        self._thread = threading.Thread(target=self._stream.run, name=name, daemon=True)
        self._thread.start()

    # --- being told -------------------------------------------------------------------------

    def listed(self, selector: Mapping[str, str], items: Sequence[Object], version: int) -> None:
        """Nothing else is there."""
        del selector, version
        with self._moved:
            self._known = {each["metadata"]["name"]: _lean(each) for each in items}
            self._moved.notify_all()

    def gone(self, name: str, version: int) -> None:
        """It is deleted, unless there is another of that name by now."""
        with self._moved:
            known = self._known.get(name)
            if known is not None and version_of(known) <= version:
                del self._known[name]
            self._moved.notify_all()

    def heard(self, *, proof: bool = True) -> None:
        """Nothing here is concluded from silence."""

    def interrupted(self) -> None:
        """What it knows stands until the stream tells more."""


def _lean(found: Object) -> Object:
    """Without what takes the most room and is never read."""
    found["metadata"].pop("managedFields", None)
    return found
