"""A session's server ends with the last test that asks for it.

Problem: fixtures of a session live as long as it does, and a Kubernetes that nobody asks any more
takes a tenth of a core for half of `make test`, a broker a fiftieth. Choice: which tests ask is
known once all are collected, in every process of the session; the process that has run all of them
ends the fixture then. Where they are spread over processes it ends with the session, as any other.
Cost: pytest's own `FixtureDef.finish`, which is not documented; a test that asks in another way
than the ones here finds the server made anew.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest

from tests.support import kube_home

_ENDED: Final = (
    "kube", "kube_api", "kube_broker", "guarded", "history_broker", "quiet_broker", "page_browser"
)  # fmt: skip
"""Those made of another come after it: they are finished with it."""
_BY_PARAMETER: Final = {"kube_api": ("kubernetes", frozenset({"stores", "racing"}))}
"""Fixture → what its tests need, and the fixtures by whose parameters they ask for it."""
_THEN: Final[Mapping[str, Callable[[], None]]] = {"kube": kube_home.end_for_all}
"""Fixture → what no finalizer does, since other processes may use it too."""


class LastUses:
    """A plugin of pytest: it knows which tests are still to come."""

    def __init__(self, then: Mapping[str, Callable[[], None]] = _THEN) -> None:
        self._then = then
        self._left: dict[str, set[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All tests of this process are known."""
        self._left = {
            name: {item.nodeid for item in session.items if _asks(item, name)} for name in _ENDED
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """After everything of the test itself."""
        try:
            yield
        finally:
            for name, left in self._left.items():
                if item.nodeid in left:
                    left.remove(item.nodeid)
                    if not left:
                        self._end(name, item)

    def _end(self, name: str, item: pytest.Item) -> None:
        """Finish a session's fixture, and first those that were made of it."""
        for made in item.session._fixturemanager.getfixturedefs(name, item) or ():
            made.finish(item._request)
        if name in self._then:
            self._then[name]()


def _asks(item: pytest.Item, name: str) -> bool:
    used = getattr(item, "fixturenames", ())
    if name in used or name not in _BY_PARAMETER:
        return name in used
    need, by = _BY_PARAMETER[name]
    return item.get_closest_marker(need) is not None and not by.isdisjoint(used)
