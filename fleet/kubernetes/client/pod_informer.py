"""Pods under a label selector, for whoever waits until they are as they should be.

The first list is asked for by the first look, with a manager's patience, and may fail; from then
on the last known pods stand, whatever becomes of the server.
"""

import math
from collections.abc import Callable
from typing import Final

from fleet.clock import Clock
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.informer import Informer
from fleet.kubernetes.client.reflector import Reflector

_POD: Final = "Pod"
_LOOK: Final = 1.0
"""Seconds after which one that waits looks again, whatever it was told."""


class PodInformer(Informer):
    """Starts at the first look."""

    def __init__(self, api: Api, selector: str, *, clock: Clock) -> None:
        calls = Calls(api.connection, namespace=api.namespace, clock=clock)
        super().__init__(calls, _POD, silence=math.inf, clock=clock)
        self._api = api
        self._selector = selector

    def items(self) -> tuple[Object, ...]:
        """As last heard of, by name. Raises what a first list raises."""
        with self._moved:
            if not self._streams:
                self._begin()
            return tuple(found for _, found in sorted(self._objects().items()))

    def wait(self, settled: Callable[[tuple[Object, ...]], bool], *, seconds: float) -> bool:
        """Wait until the pods are so; False where they are not in that time."""
        deadline = self.clock.monotonic() + seconds
        while not settled(self.items()):
            left = deadline - self.clock.monotonic()
            if left <= 0:
                return False
            with self._moved:
                self._moved.wait(min(left, _LOOK))
        return True

    def written(self, found: Object | None) -> None:
        """What a write was answered with; None, and what comes before the first look, is passed."""
        if found is not None and self._streams:
            self.put(found)

    def _begin(self) -> None:
        found, version = self._api.find(_POD, self._selector)
        selector = {"labelSelector": self._selector} if self._selector else {}
        self.listed(selector, found, int(version))
        stream = Reflector(self, selector)
        stream.go_on_from(version)
        self._watch(stream, "watch pods")
