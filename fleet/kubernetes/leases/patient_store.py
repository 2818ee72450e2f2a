"""A manager's store waits for an API server that is away, as long as an upgrade of it takes.

Problem: a change that fails because the control plane was restarted is a person's work for
nothing; the store itself gives up after seconds, since a worker must. Choice: calls are repeated
with a pause until the server answers, once it has answered at all; each is a compare-and-set or
a reading, so that a repeated one finds what the first one did. Not the one that adopts a change:
whether it was this process that did has to be looked at; nor the one that only tries whether
anything is stored. Cost: a manager hangs for a minute and a half before it says that nobody
answers.
"""

from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import Damaged, Unreachable
from fleet.kubernetes.client.api import LONGEST_WAIT
from fleet.kubernetes.client.calls import Denied, Missing
from fleet.slots.store import Store

_ONCE: Final = {Store.adopt.__name__, Store.beat.__name__}
_PAUSE: Final = 1.0
_ROLES: Final = 5.0
"""Seconds that a server that has just started may refuse what it allows."""


class PatientStore:
    """A Store with every method of the one inside."""

    def __init__(self, inner: Store, *, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._answered = False

    @property
    def at_once(self) -> Store:
        """The store inside, for who only looks, and looks again soon."""
        return self._inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **keywords: Any) -> Any:
            began = self._clock.monotonic()
            while True:
                try:
                    answer = method(*args, **keywords)
                except (Missing, Damaged):
                    raise
                except Unreachable as error:
                    patience = _ROLES if isinstance(error, Denied) else LONGEST_WAIT
                    late = self._clock.monotonic() - began >= patience
                    if late or not self._answered or name in _ONCE:
                        raise
                    self._clock.sleep(_PAUSE)
                else:
                    self._answered = True
                    return answer

        return call
