"""How long a worker goes on trying where its entrypoint fails for whatever it is given.

Problem: a sink that is down and a revision that is broken look the same from here, and neither is
the records' doing [43]. Choice: the worker stays a member, holds nothing in hand, and tries again
after 1, 2, 4 … 30 s with a batch cut anew, into which goes whatever came meanwhile: of that, a
part may go well and be the witness. It says so wherever it is asked, and ends after
`worker.entrypoint_patience`; at once where it is its revision that has to prove itself [22].
"""

from collections.abc import Callable
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.text import duration

_FIRST: Final = 1.0
_LONGEST: Final = 30.0


class BackingOff:
    """Of one membership. may_wait: whether its revision is known to work elsewhere, or is
    no canary.
    """

    def __init__(self, *, patience: float, may_wait: Callable[[], bool], clock: Clock) -> None:
        self._patience = patience
        self._may_wait = may_wait
        self._clock = clock
        self._pause = _FIRST
        self._until = 0.0
        self.since: float | None = None
        """Monotonic time since when nothing goes well."""

    @property
    def holds(self) -> bool:
        """Whether no batch shall begin yet."""
        return self.since is not None and self._clock.monotonic() < self._until

    def failed(self, error: str) -> str:
        """Nothing of a batch went well: a sentence, and FleetError where patience is at its end."""
        now = self._clock.monotonic()
        self.since = now if self.since is None else self.since
        what = f"the entrypoint fails for every partition of its batch: {error}"
        if not self._may_wait():
            raise FleetError(what)
        lasted = now - self.since
        if lasted >= self._patience:
            raise FleetError(
                f"{what}; so for {duration(lasted)} (worker.entrypoint_patience "
                f"{self._patience:g} s)"
            )
        self._until, pause = now + self._pause, self._pause
        self._pause = min(_LONGEST, self._pause * 2)
        return (
            f"{what}; so for {duration(lasted)}, tried again in {pause:g} s, at most for "
            f"{self._patience:g} s (worker.entrypoint_patience)"
        )

    def worked(self) -> None:
        """Something went well."""
        self.since, self._pause, self._until = None, _FIRST, 0.0
