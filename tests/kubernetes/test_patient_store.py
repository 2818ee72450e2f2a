"""A manager's store waits for a server that is away, and asks only once where that matters."""

from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import LONGEST_WAIT
from fleet.kubernetes.leases.patient_store import PatientStore


class Away:
    """Answers, but not always."""

    cluster = "main"

    def __init__(self) -> None:
        self.missing = 0
        self.asked = 0

    def gate(self, group: str) -> str:
        """A reading."""
        self.asked += 1
        if self.missing:
            self.missing -= 1
            raise Unreachable("nobody answers")
        return group

    begin = gate


def patient(inner: Away) -> Any:
    """With a clock that waits at once."""
    return PatientStore(inner, clock=ManualClock())  # type: ignore[arg-type]


def test_a_server_that_answered_once_is_waited_for() -> None:
    """But one that never did is told at once: the address is wrong, most likely."""
    inner = Away()
    store = patient(inner)
    inner.missing = 1
    with pytest.raises(Unreachable):
        store.gate("orders")
    assert store.gate("orders") == "orders"
    inner.missing = 30
    assert store.gate("orders") == "orders"
    assert store.cluster == "main"


def test_the_wait_ends() -> None:
    """After an upgrade's time somebody has to hear of it."""
    inner = Away()
    store = patient(inner)
    store.gate("orders")
    inner.missing = 10_000
    with pytest.raises(Unreachable):
        store.gate("orders")
    assert inner.asked <= LONGEST_WAIT + 3


def test_a_change_is_begun_once() -> None:
    """Whether it was done has to be looked at."""
    inner = Away()
    store = patient(inner)
    store.gate("orders")
    inner.missing, inner.asked = 1, 0
    with pytest.raises(Unreachable):
        store.begin("orders")
    assert inner.asked == 1
