"""Which pod templates are exactly what a manager rendered, by their hash.

Problem: `kubectl set image` leaves our revision in the template's annotation, yet its pods run
something else. Choice: the gate's Lease keeps {pod-template-hash: revision} of what a manager
applied (`fleet.kubernetes.leases.lease_store` reads and writes it); any other template is a
revision of its own. Cost: one more read where a hash is new.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from fleet.clock import Clock

if TYPE_CHECKING:
    from fleet.kubernetes.leases.lease_store import LeaseStore

_FRESH: Final = 3.0
"""Seconds for which what was read is believed of a hash that it does not name."""


class RegisteredTemplates:
    """The registered templates of one fleet."""

    def __init__(self, registry: "LeaseStore", group: str, *, clock: Clock) -> None:
        self._registry = registry
        self._group = group
        self._clock = clock
        self._known: dict[str, str] = {}
        self._read_at = float("-inf")

    def known(self, hashes: Collection[str]) -> dict[str, str]:
        """Revision by hash; read again, at times, where one of these is not among them."""
        stale = self._clock.monotonic() - self._read_at >= _FRESH
        if stale and not set(hashes) <= self._known.keys():
            self._known = dict(self._registry.templates(self._group))
            self._read_at = self._clock.monotonic()
        return dict(self._known)

    def register(self, hash_: str, revision: str) -> None:
        """Keep that this template is this revision."""
        if self._known.get(hash_) != revision:
            self._registry.register_template(self._group, hash_, revision)
            self._known[hash_] = revision
