"""A session's server ends with the last test that asks for it.

Problem: fixtures of a session live as long as it does, and a Kubernetes that nobody asks any more
takes a tenth of a core for half of `make test`. Choice: which tests ask is known once all are
collected, in every process of the session; the process that has run all of them ends the fixture
then. Where they are spread over processes it ends with the session, as any other. Cost: pytest's
own `FixtureDef.finish`, which is not documented; a test that asks in another way than the ones
here finds the server made anew.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest

from tests.support import kube_home

_NEED: Final = "kubernetes"
_ASKED: Final = {
    "kube": frozenset({"kube"}),
    "kube_api": frozenset({"kube_api", "stores", "racing"}),  # tests/slots asks by parameter
}
"""Fixture → those that ask for it, in tests with that need."""
_THEN: Final[dict[str, Callable[[], None]]] = {"kube": kube_home.end_for_all}
"""Fixture → what no finalizer does, since other processes may use it too."""


class LastUses:
    """Which tests are still to come, of all that this process knows of."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._left = {
            name: {item.nodeid for item in items if _asks(item, by)} for name, by in _ASKED.items()
        }

    def over(self, item: pytest.Item) -> Iterator[str]:
        """The fixtures that this test was the last to ask for."""
        for name, left in self._left.items():
            if item.nodeid in left:
                left.remove(item.nodeid)
                if not left:
                    yield name


def end(name: str, item: pytest.Item) -> None:
    """Finish a session's fixture, and first those that were made of it."""
    for made in item.session._fixturemanager.getfixturedefs(name, item) or ():
        made.finish(item._request)
    if name in _THEN:
        _THEN[name]()


def _asks(item: pytest.Item, by: frozenset[str]) -> bool:
    used = getattr(item, "fixturenames", ())
    return item.get_closest_marker(_NEED) is not None and not by.isdisjoint(used)
