"""What runs too long on a Spark is interrupted, also where the first interrupt finds nothing."""

import threading

import pytest

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.worker.batch.spark_link import SparkLink


class Busy:
    """A session of a server that begins late: what is not begun yet, no interrupt ends."""

    def __init__(self, late: int) -> None:
        self._late = late
        self.asked = 0
        self._ended = threading.Event()

    def interruptAll(self) -> None:  # noqa: N802 - PySpark's name
        """As PySpark's: nothing to interrupt is no error."""
        self.asked += 1
        if self.asked > self._late:
            self._ended.set()

    def work(self) -> None:
        """A query that ends only when it is interrupted."""
        assert self._ended.wait(120)
        raise RuntimeError("OPERATION_CANCELED")


def link(session: Busy) -> SparkLink:
    made = SparkLink(where=lambda: None, clock=SystemClock(), app="test")
    made._session = session
    return made


@pytest.mark.parametrize("late", [0, 1])
def test_it_is_interrupted_until_it_ends(late: int):
    session = Busy(late)
    with pytest.raises(Unreachable, match="too long"), link(session).bounded(0.05, "too long"):
        session.work()
    assert session.asked == late + 1
    assert not any(each.name == "bound" for each in threading.enumerate())


def test_what_ends_in_time_is_left_alone():
    session = Busy(0)
    with link(session).bounded(60.0, "too long"):
        pass
    with pytest.raises(ValueError, match="its own"), link(session).bounded(60.0, "too long"):
        raise ValueError("its own")
    assert session.asked == 0
