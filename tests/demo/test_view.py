"""What a person sees: sentences in a pipe, a picture on a terminal."""

import io
import threading

from rich.console import Console

from fleet.clock import ManualClock
from fleet.demo.view import GroupView, Show
from fleet.errors import Unreachable
from tests.page.worlds import rolling, stable

PICTURE = GroupView(
    group="orders",
    seen=stable("orders", lag=3000),
    managed=rolling("orders", now=20.0),
    rebalances=0,
)


def test_a_pipe_gets_plain_sentences():
    """With their second, without a control sequence, unbroken."""
    out = io.StringIO()
    clock = ManualClock()
    with Show(clock=clock, console=Console(file=out, width=40, highlight=False)) as show:
        show.chapter("1  The backlog grows")
        clock.sleep(12)
        show.say("  a sentence that is longer than forty columns stays in one line")
    assert "\x1b" not in out.getvalue()
    assert "[   0 s] 1  The backlog grows" in out.getvalue()
    assert "[  12 s]   a sentence that is longer than forty columns stays" in out.getvalue()


def test_a_terminal_gets_the_slots():
    """Who holds which slot, as `fleet status` shows it."""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    looked = threading.Event()

    def look() -> tuple[GroupView, ...]:
        looked.set()
        return (PICTURE,)

    with Show(clock=ManualClock(), console=console) as show:
        show.watch(look)
        assert looked.wait(120)
        show.say("something")
        threading.Event().wait(0.7)
    assert "12,000 records waiting" in out.getvalue()
    assert "newcode123" in out.getvalue()


def test_a_look_that_fails_is_left_out():
    """The view never stops the demo."""
    failed = threading.Event()

    def look() -> tuple[GroupView, ...]:
        failed.set()
        raise Unreachable("away")

    with Show(clock=ManualClock(), console=Console(file=io.StringIO())) as show:
        show.watch(look)
        assert failed.wait(120)
        show.say("still here")


def test_a_look_that_fails_by_a_defect_says_so_once_and_the_next_one_is_shown(monkeypatch):
    """A view that shows nothing new looks like a fleet that stands still."""
    monkeypatch.setattr("fleet.demo.view._LOOK_SECONDS", 0.01)
    out, again, looks = io.StringIO(), threading.Event(), iter(range(1000))

    def look() -> tuple[GroupView, ...]:
        if next(looks) < 3:
            raise KeyError("rebalances\nof orders")
        again.set()
        return ()

    with Show(clock=ManualClock(), console=Console(file=out, width=100)) as show:
        show.watch(look)
        assert again.wait(120)
    (line,) = out.getvalue().splitlines()
    assert "the view failed: KeyError: 'rebalances\\nof orders'; this is a defect" in line
