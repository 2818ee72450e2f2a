"""One object's compare-and-set, and how a call that nobody answers is bounded."""

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import Conflict
from fleet.kubernetes.client.calls import COOL, LEASE, Calls, Silent
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_backend import RetryOnConflict
from fleet.kubernetes.leases.lease_objects import annotate, annotation, blank
from tests.support.memory_server import Answer, MemoryServer

NAMES = ObjectNames("main", "orders")
GATE = NAMES.gate


class Place:
    """One Lease of a server in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        api = self.server.api(self.clock)
        self.calls = Calls(
            api.connection, namespace=api.namespace, clock=self.clock, jitter=lambda: 0.5
        )
        self.shelf = RetryOnConflict(self.calls, clock=self.clock)
        self.calls.create(blank(LEASE, GATE, NAMES))

    def write(self, value: str) -> None:
        self.server.put(annotate(self.server.get(LEASE, GATE), {"fleet/x": value}))

    def written(self) -> str | None:
        return annotation(self.server.get(LEASE, GATE), "fleet/x")

    def writes(self) -> int:
        """Requests that change something, since the beginning."""
        return sum(method in {"PUT", "PATCH"} for method, _ in self.server.requests)


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_change_is_decided_anew_on_every_version(place):
    """Another one came between look and write."""
    asked = []

    def edit(found: dict) -> dict | None:
        asked.append(annotation(found, "fleet/x"))
        if len(asked) == 1:
            place.write("theirs")
        return annotate(found, {"fleet/x": f"after {asked[-1]}"})

    assert place.shelf.change(LEASE, GATE, edit) is not None
    assert asked == [None, "theirs"]
    assert place.written() == "after theirs"


def test_a_no_on_the_latest_version_writes_nothing(place):
    """Whoever lost learns it."""
    seen = place.shelf.must_get(LEASE, GATE)
    place.write("theirs")
    with pytest.raises(Conflict):
        place.shelf.swap(annotate(seen, {"fleet/x": "ours"}))
    assert place.shelf.change(LEASE, GATE, lambda found: None) is None
    assert place.written() == "theirs"


def test_a_lost_answer_is_looked_for(place):
    """Stored: as if it had been answered. Overwritten meanwhile: a conflict, never a success."""
    place.server.silent = 1
    stored = place.shelf.swap(annotate(place.shelf.must_get(LEASE, GATE), {"fleet/x": "ours"}))
    assert annotation(stored, "fleet/x") == "ours"

    def overwrites(method: str, found: dict) -> None:
        place.server.after = lambda method, found: None
        place.write("theirs")

    place.server.silent, place.server.after = 1, overwrites
    with pytest.raises(Conflict):
        place.shelf.swap(annotate(place.shelf.must_get(LEASE, GATE), {"fleet/x": "again"}))
    assert place.written() == "theirs"


def test_what_compares_is_sent_once(place):
    """Sent again it would be refused for its own first time."""
    seen = place.calls.get(LEASE, GATE)
    assert seen is not None
    before = place.writes()
    place.server.silent = 1
    with pytest.raises(Silent):
        place.calls.replace(annotate(seen, {"fleet/x": "1"}))
    patch = {"metadata": {"resourceVersion": place.server.get(LEASE, GATE)["metadata"][
        "resourceVersion"], "annotations": {"fleet/x": "2"}}}  # fmt: skip
    place.server.silent = 1
    with pytest.raises(Silent):
        place.calls.merge(LEASE, GATE, patch)
    assert place.writes() == before + 2
    place.server.silent = 1
    patch["metadata"].pop("resourceVersion")
    assert place.calls.merge(LEASE, GATE, patch) is not None, "may be done twice, and was"
    assert place.writes() == before + 4


def test_nobody_answers(place):
    """The next calls fail at once, but for one every two seconds; knowledge begins anew."""
    place.calls.get(LEASE, GATE)
    assert place.calls.answering_since() is not None
    place.server.away = True
    with pytest.raises(Unreachable):
        place.calls.get(LEASE, GATE)
    assert place.calls.answering_since() is None
    place.server.away = False
    before, at = len(place.server.requests), place.clock.monotonic()
    with pytest.raises(Unreachable):
        place.calls.get(LEASE, GATE)
    assert (len(place.server.requests), place.clock.monotonic()) == (before, at)
    place.clock.sleep(COOL)
    assert place.calls.get(LEASE, GATE) is not None
    assert place.calls.answering_since() == place.clock.monotonic()


def test_a_refusal_is_no_knowledge(place, monkeypatch):
    """A server that lets nobody read says nothing of what is stored; a conflict does."""
    with monkeypatch.context() as refusing:
        refused = Answer(403, {"message": "no"})
        refusing.setattr(place.server, "_answered", lambda *_: refused)
        place.calls._answering_since = None
        with pytest.raises(Unreachable):
            place.calls.get(LEASE, GATE)
        assert place.calls.answering_since() is None
    stale = place.server.get(LEASE, GATE)
    place.write("theirs")
    with pytest.raises(Conflict):
        place.calls.replace(stale)
    assert place.calls.answering_since() is not None
