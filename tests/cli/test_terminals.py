"""What others named does nothing on a terminal: it is shown."""

import io
from dataclasses import replace

import pytest
from rich.text import Text

from fleet import cli
from fleet.commands.groups.reading import print_status
from fleet.commands.screen import Progress, Screen
from fleet.text import visible
from tests.cli.test_answers import SNAPSHOT, STATUS

CLIPBOARD = "\x1b]52;c;cHduZWQ=\x1b\\"
TURNED = "\u202egro.live"
SHOWN = "\ufffd]52;c;cHduZWQ=\ufffd\\"


def printed(make) -> str:
    """What it prints on a screen of 160 columns that shows no colours."""
    out = io.StringIO()
    make(Screen(file=out, width=160))
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\x1b[2Jb", "a\ufffd[2Jb", id="escape"),
        pytest.param("a\x9b2Jb\x07", "a\ufffd2Jb\ufffd", id="C1 and bell"),
        pytest.param("a\rb", "a\ufffdb", id="carriage return"),
        pytest.param(TURNED, "\ufffdgro.live", id="direction"),
        pytest.param("a\tb\nü 👍", "a\tb\nü 👍", id="tabs, lines, letters"),
    ],
)
def test_what_would_act_is_shown(text, shown):
    """Tabs and line breaks are layout; everything else that is no letter stands for itself."""
    assert visible(text) == shown


def test_a_groups_name_writes_nothing_into_the_clipboard():
    """Anybody who may join a group has named it so, and `fleet status` shows them all."""
    named = f"{CLIPBOARD}orders"
    assert STATUS.seen is not None
    status = replace(STATUS, group=named, seen=replace(STATUS.seen, group=named), managed=None)
    told = printed(lambda s: print_status(s, SNAPSHOT, [status], now=300.0, detail=True))
    assert "\x1b" not in told
    assert told.count(f"{SHOWN}orders") == 4


def test_progress_neither():
    """A step's sentence may name members."""
    told = printed(lambda s: Progress("begins", console=s)(f"waits for {CLIPBOARD}"))
    assert told == f"  waits for {SHOWN}\n"


def test_a_failures_sentence_neither(capsys):
    """It names what it failed on."""
    assert cli.run(["status", "--config", f"{CLIPBOARD}.yaml"]) == 2
    assert f"fleet: there is no {SHOWN}.yaml" in capsys.readouterr().err


def test_colours_of_its_own_are_sent():
    """They are styles, no text."""
    out = io.StringIO()
    screen = Screen(file=out, width=40, force_terminal=True, color_system="standard")
    screen.print("[red]storm[/red]", Text("here", style="bold"))
    assert out.getvalue() == "\x1b[31mstorm\x1b[0m \x1b[1mhere\x1b[0m\n"


def test_colons_in_a_name_are_no_emoji():
    """`orders:key:v2` is a group, and not `orders🔑v2`."""
    assert printed(lambda s: s.print("orders:key:v2")) == "orders:key:v2\n"
