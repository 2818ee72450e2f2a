"""One request to an API server as it goes over the wire, whatever the client's version."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.clock import ManualClock, SystemClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import (
    PATIENT,
    Api,
    Denied,
    Missing,
    Request,
    connect,
    transmit,
)
from fleet.kubernetes.leases.lease_objects import Damaged
from fleet.kubernetes.leases.lease_store import PatientStore
from fleet.slots.backend import Entry, Key, Kind, Value
from fleet.slots.store import Store
from tests.support.json_server import JsonHandler, serving
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of

TOKEN = "a-token"


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and what it was asked; it answers with an empty object."""
    asked: list[Any] = []

    class Answering(JsonHandler):
        def do_PATCH(self) -> None:  # noqa: N802 - as http.server calls it
            asked.append((self.command, self.path, dict(self.headers), self.body()))
            self.say(200, {})

    with serving(Answering) as address:
        yield address, asked


def opened(folder: Path, address: str) -> Api:
    file = folder / "kubeconfig"
    named = {"name": "here", "context": {"cluster": "here", "user": "me"}}
    told = {
        "current-context": "here",
        "contexts": [named],
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    file.write_text(yaml.safe_dump(told))
    environ = {"KUBECONFIG": str(file)}
    return connect(namespace="fleets", context=None, environ=environ, clock=SystemClock())


def test_a_request_goes_as_it_is_asked(tmp_path: Path, server: tuple[str, list[Any]]) -> None:
    """Verb, path, query, body with its type, and who asks."""
    address, asked = server
    request = Request(
        "PATCH",
        "/api/v1/namespaces/fleets/pods/one",
        body={"metadata": {"labels": {"owner": "zoë"}}},
        query=(("fieldManager", "fleet"), ("labelSelector", "a=b,c in (d)")),
        content_type="application/apply-patch+yaml",
    )
    with opened(tmp_path, address) as api:
        answer = transmit(api.connection, request, (1.0, 5.0), {"User-Agent": "fleet"})
        assert (answer.status, answer.read()) == (200, b"{}")
    ((verb, path, headers, body),) = asked
    assert verb == "PATCH"
    assert path == f"{request.path}?fieldManager=fleet&labelSelector=a%3Db%2Cc+in+%28d%29"
    assert json.loads(body) == request.body
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert headers["Accept"] == "application/json"
    assert headers["User-Agent"] == "fleet"


def test_a_connection_that_is_half_gone_is_noticed(
    tmp_path: Path, server: tuple[str, list[Any]]
) -> None:
    """The kernel asks after the other side of every connection, of a watch above all."""
    with opened(tmp_path, server[0]) as api:
        made = api.connection.pool.connection_from_url(server[0])._new_conn()
        made.connect()
        try:
            assert made.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert made.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert made.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        finally:
            made.close()


# --- A manager's store waits for a server that is away, and asks only once where that matters


class Away:
    """Answers, but not always."""

    cluster = "main"

    def __init__(self) -> None:
        self.missing = 0
        self.asked = 0
        self.answer = Unreachable("nobody answers")

    def targets(self, group: str) -> str:
        self.asked += 1
        if self.missing:
            self.missing -= 1
            raise self.answer
        return group

    adopt = beat = targets


def patient(inner: Away) -> Any:
    """With a clock that waits at once."""
    return PatientStore(inner, clock=ManualClock())  # type: ignore[arg-type]


def test_a_server_that_answered_once_is_waited_for() -> None:
    """But one that never did is told at once: the address is wrong, most likely."""
    inner = Away()
    store = patient(inner)
    inner.missing = 1
    with pytest.raises(Unreachable):
        store.targets("orders")
    assert store.targets("orders") == "orders"
    inner.missing = 30
    assert store.targets("orders") == "orders"
    assert store.cluster == "main"


@pytest.mark.parametrize(
    ("ask", "answer", "seconds"),
    [
        # After an upgrade's time somebody has to hear of it.
        (lambda store: store.targets, Unreachable("nobody answers"), PATIENT.grace),
        # Who only looks looks again soon, and shows the rest meanwhile.
        (lambda store: store.at_once.targets, Unreachable("nobody answers"), 0),
        # One damaged object would hold up every other group for a minute and a half.
        (lambda store: store.targets, Missing("lease a does not exist"), 0),
        (lambda store: store.targets, Damaged("lease a is damaged"), 0),
        (lambda store: store.targets, Denied("no"), 5),
        # Whether a change was adopted has to be looked at; a trial is over when it has failed.
        (lambda store: store.adopt, Unreachable("nobody answers"), 0),
        (lambda store: store.beat, Unreachable("nobody answers"), 0),
    ],
)
def test_the_wait_ends(
    ask: Callable[[Any], Callable[[str], str]], answer: Unreachable, seconds: float
) -> None:
    """Sooner where another look brings nothing."""
    inner = Away()
    store = patient(inner)
    store.targets("orders")
    inner.answer, inner.missing, inner.asked = answer, 10_000, 0
    with pytest.raises(type(answer)):
        ask(store)("orders")
    assert seconds < inner.asked <= seconds + 3


class Unanswered(MemoryBackend):
    """Stores the next change, and nobody hears of it."""

    lost = 0

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        stored = super().swap(key, value, seen)
        if key.kind is Kind.CHANGE and self.lost:
            self.lost -= 1
            raise Unreachable("the answer was lost")
        return stored


def test_a_change_whose_answer_was_lost_is_begun_once() -> None:
    """Asked for again it is known as our own; another one is still refused."""
    clock = ManualClock()
    backend = Unanswered(Memory(), clock=clock)
    store: Any = PatientStore(Store(backend, clock=clock), clock=clock)
    assert store.change("orders") is None
    backend.lost = 2
    plan = plan_of(id="p1", group="orders")
    begun = store.begin_change(plan, actor="a", started_at=5.0)
    assert begun is not None
    assert store.change("orders") == begun
    assert (begun.token, begun.step) == (1, 0)
    other = plan_of(id="p2", group="orders")
    for of, actor, at in ((plan, "b", 5.0), (plan, "a", 6.0), (other, "a", 5.0)):
        assert store.begin_change(of, actor=actor, started_at=at) is None
