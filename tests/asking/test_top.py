"""The live view: what is on a screen of any size, what keys do, and the terminal afterwards."""

import io
import json
import os
import pty
import signal
import termios

import pytest
from rich.console import Console

from fleet.commands.groups.stormy_times import StormLooks, storm_spans
from fleet.commands.groups.top_frame import (
    SORTS,
    Frame,
    FrameRow,
    after,
    answer,
    arranged,
    drawn,
    rows_of,
)
from fleet.commands.keys import BACKSPACE, ENTER, ESCAPE, Keys
from fleet.config.spec import FleetSpec, StormSpec
from fleet.manager.recent import Recent, recent_from
from fleet.model import GroupState, LagCase
from tests.asking.worlds import START, rebalance
from tests.support.json_contract import documented, shape
from tests.support.seen_groups import group_seen, partition_seen
from tests.support.snapshots import snapshot_of


def row(group, **changed):
    known = {
        "group": group, "type": "classic", "state": "Stable", "members": 3, "generation": 12,
        "lag": 0, "lag_seconds": 0.0, "in_rate": 10.0, "out_rate": 10.0, "rebalances": 0,
        "last_cause": None, "last_at": None, "storm": None,
    }  # fmt: skip
    return FrameRow(**{**known, **changed})


def frame(rows, **changed):
    known = {
        "cluster": "main", "at": START, "now": START, "rows": tuple(rows), "notices": (),
        "source": "from here", "sort": "worst", "pattern": "",
    }  # fmt: skip
    return Frame(**{**known, **changed})


def screen(shown, *, height=30, width=100):
    out = io.StringIO()
    Console(file=out, width=width, height=height or 30, highlight=False).print(
        drawn(shown, height=height)
    )
    return out.getvalue()


ROWS = [
    row("calm"),
    row("late", lag=9_000, lag_seconds=75.0, in_rate=0.4),
    row("busy", rebalances=40, last_cause="join", last_at=START - 65),
    row("stormy", lag=1_234_567, storm="orders-3 joins and leaves every 40 s"),
]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("worst", ["stormy", "late", "busy", "calm"]),
        ("lag", ["stormy", "late", "busy", "calm"]),
        ("behind", ["late", "stormy", "busy", "calm"]),
        ("rebalances", ["busy", "late", "calm", "stormy"]),
        ("name", ["busy", "calm", "late", "stormy"]),
    ],
)
def test_groups_are_in_order(sort, order):
    """Worst first: storms, then who is furthest behind, then who rebalances most."""
    assert [r.group for r in arranged(ROWS, sort=sort, pattern="")] == order


@pytest.mark.parametrize("sort", ["worst", "behind"])
def test_what_waits_since_before_every_look_is_furthest_behind(sort):
    """It has no age, and is older than all that have one; a group that is unknown is none."""
    rows = [*ROWS[:3], row("unknown", lag=None, lag_seconds=None)]
    rows.append(row("oldest", lag=3, lag_seconds=None))
    assert [r.group for r in arranged(rows, sort=sort, pattern="")][:2] == ["oldest", "late"]


@pytest.mark.parametrize(
    ("pattern", "found"), [("AT", ["late"]), ("^c|^b", ["busy", "calm"]), ("(", []), ("", 4)]
)
def test_a_filter_is_a_part_of_the_name_or_an_expression(pattern, found):
    """What is no expression is taken as it is written."""
    names = [r.group for r in arranged(ROWS, sort="name", pattern=pattern)]
    assert (names if pattern else len(names)) == found


def test_a_frame_fits_the_screen():
    """A thousand groups at 100 x 30: the worst are seen, the rest is counted."""
    many = [
        row(f"group-{n:04}-with-a-name-that-is-long", lag_seconds=float(n)) for n in range(1000)
    ]
    text = screen(frame([*many, *ROWS], notices=("a broker does not answer " * 9,)))
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert "1004 groups  1 in a storm" in lines[0]
    assert lines[1].startswith("! a broker does not answer")
    assert "storm stormy: orders-3 joins and leaves every 40 s" in text
    assert "and 980 more" in text
    assert "q quit" in lines[-1]


def test_figures_are_short_and_unknown_ones_are_dashes():
    """1.2M, 75 s, 1m join; never 0 for what is not known."""
    unknown = row("dark", lag=None, lag_seconds=None, in_rate=None, out_rate=None,
                  rebalances=None, generation=None)  # fmt: skip
    text = screen(frame([*ROWS, unknown]), height=None, width=160)
    assert "1.23M" in text
    assert "75 s" in text
    assert "65s join" in text
    assert "0.4" in text
    dark = next(line for line in text.splitlines() if line.startswith("dark"))
    assert dark.split() == ["dark", "classic", "Stable", "3", *["-"] * 7]


def test_before_the_first_look_the_view_says_so():
    """Nothing is claimed."""
    assert "for the first time" in screen(frame([], at=None))


def test_keys_change_the_view():
    """S goes through the columns, / filters as it is typed, q ends it."""
    shown = frame(ROWS)
    for expected in (*SORTS[1:], SORTS[0]):
        shown = after(shown, "s")
        assert shown.sort == expected
    for key in ("/", "s", "q", "x", BACKSPACE):
        shown = after(shown, key)
    assert (shown.pattern, shown.typing) == ("sq", True)
    assert "/sq" in screen(shown)
    shown = after(shown, ENTER)
    assert (shown.pattern, shown.typing) == ("sq", False)
    assert after(shown, ESCAPE).pattern == ""
    assert after(shown, "z") == shown
    assert after(shown, "q") is None


def orders(at, end, committed):
    """Group orders at a moment: where its partitions end, and where it stands in all."""
    known = {"committed": committed, "case": LagCase.UNKNOWN}
    parts = [partition_seen(number, None, log_end=last, **known) for number, last in enumerate(end)]
    return snapshot_of(group_seen(partitions=parts), GONE, at=at)


GONE = group_seen("gone", exists=False, state=GroupState.DEAD, type="unknown", assignor=None)


def test_rows_join_snapshot_and_rebalances():
    """Rates are summed over partitions that did not go back; what does not exist has no row."""
    before, seen = orders(START, (10, 10, 5), 10), orders(START + 10, (60, 80, 4), 3)
    recent = recent_from([rebalance(9, 0)], kind="log", sentence="", now=START + 60)
    (found,) = rows_of(seen, recent, before=before, generations={}, storms={"orders": "who"})
    assert (found.in_rate, found.out_rate) == (12.0, None)
    assert (found.generation, found.rebalances, found.last_cause) == (9, 1, "join")
    assert found.storm == "who"
    (known,) = rows_of(seen, recent, generations={"orders": 10}, storms={})
    assert (known.generation, known.in_rate) == (10, None)
    (dark,) = rows_of(seen, Recent(kind="none", sentence=""), generations={}, storms={})
    assert dark.rebalances is None


def test_json_has_the_documented_shape():
    """One frame, in the order of the view."""
    full = row("orders", last_cause="join", last_at=START, storm="who")
    assert shape(json.loads(json.dumps(answer(frame([full]))))) == shape(
        documented("fleet top -o json")
    )


# --- storms ---------------------------------------------------------------------------------

SPEC = FleetSpec(storm=StormSpec(rebalances=3, window=60.0, calm=30.0))


def test_storms_have_a_beginning_and_an_end():
    """From the first rebalance above the budget until the window has calmed; two are two."""
    often = [rebalance(n, n * 5) for n in range(10)]
    again = [rebalance(100 + n, 1000 + n * 5) for n in range(10)]
    first, second = storm_spans(SPEC, [*often, *again], until=START + 1046)
    assert first.start == START + 15
    assert START + 45 < first.end < START + 45 + 90 + 1
    assert (second.start, second.end) == (START + 1015, START + 1046)
    assert storm_spans(SPEC, often[:3], until=START + 500) == ()
    assert storm_spans(SPEC, [], until=START) == ()


def test_the_view_remembers_a_storm():
    """It is named while it lasts."""
    watch = StormLooks(SPEC)
    often = [rebalance(n, n * 5, joined=("orders-3",)) for n in range(10)]
    assert set(watch.look(often, now=START + 46, changes={})) == {"orders"}
    assert watch.look(often, now=START + 900, changes={}) == {}


# --- the terminal ---------------------------------------------------------------------------


@pytest.fixture
def terminal():
    """(our end, the program's end) of a terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_keys_come_without_return_and_the_terminal_is_restored(terminal):
    """Whatever ends the view."""
    ours, theirs = terminal
    before, handler = termios.tcgetattr(theirs), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        press_and_be_ended(ours, theirs, before)
    assert left.value.code == 128 + signal.SIGTERM
    assert termios.tcgetattr(theirs) == before
    assert signal.getsignal(signal.SIGTERM) is handler


def press_and_be_ended(ours, theirs, before):
    """Some keys, then SIGTERM."""
    with Keys(theirs) as keys:
        assert termios.tcgetattr(theirs) != before
        assert keys.pressed(0.0) == []
        os.write(ours, b"s/\r\x7f")
        typed: list[str] = []
        while len(typed) < 4 and (more := keys.pressed(5.0)):  # a terminal may hand them out singly
            typed += more
        assert typed == ["s", "/", ENTER, BACKSPACE]
        os.write(ours, b"\x1b[A")
        assert keys.pressed(5.0) == [], "an arrow is no key of ours"
        os.write(ours, b"\x1b")
        assert keys.pressed(5.0) == [ESCAPE]
        os.kill(os.getpid(), signal.SIGTERM)
        keys.pressed(5.0)


def test_without_a_terminal_there_are_no_keys(tmp_path):
    """A pipe is left alone."""
    with (tmp_path / "x").open("w") as file, Keys(file.fileno()) as keys:
        assert keys.pressed(0.0) == []
