"""What changing commands ask on a terminal, and how they exit; no cluster is asked."""

import sys
from pathlib import Path

import pytest

from fleet import cli
from fleet.manager.cycle import Fleet
from fleet.model import StepKind
from tests.support.plans import plan_of, step_of

FILE = """
cluster: {bootstrap_servers: "127.0.0.1:1"}
mode: act
fleets:
- {group: orders, topics: [orders], worker: {entrypoint: "a.b:c"}}
"""
STEP = step_of(StepKind.WARM, ())
PAUSE = ["pause", "orders", "--reason", "freeze"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    Path("fleet.yaml").write_text(FILE)


@pytest.fixture
def typed(monkeypatch):
    """A terminal on which that is typed."""

    def terminal(answer: str) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer)

    return terminal


def paused() -> bool:
    """Whether the group is."""
    with Fleet.open() as fleet:
        return bool(fleet.pauses())


def test_a_terminal_is_asked(capsys, typed):
    """What will be done is shown first; no is a refusal, yes and --yes are not."""
    typed("n")
    assert cli.run(PAUSE) == 3
    said = capsys.readouterr()
    assert said.out == "will pause group orders: freeze\n"
    assert "fleet: not confirmed; nothing was changed" in said.err
    assert not paused()
    assert cli.run([*PAUSE, "--yes"]) == 0
    assert paused()
    typed("y")
    assert cli.run(["resume", "orders"]) == 0
    assert "will lift the pause of group orders" in capsys.readouterr().out
    assert not paused()


def test_a_dry_run_shows_and_changes_nothing(capsys, typed):
    """Nor does it ask."""
    typed("n")
    assert cli.run([*PAUSE, "--dry-run"]) == 0
    assert capsys.readouterr().out == "would pause group orders: freeze\n"
    assert not paused()


def test_down_shows_what_it_stops(capsys):
    """Without the cluster; off a terminal --purge needs --yes."""
    assert cli.run(["down", "--purge", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would stop the supervisor and Spark" in said
    assert "would delete slots, changes, pauses and logs of workers" in said
    assert cli.run(["down", "--purge"]) == 3
    assert "add --yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "options", "code"),
    [
        (plan_of(), [], 0),
        (plan_of(), ["--detailed-exitcode"], 0),
        (plan_of(STEP), [], 0),
        (plan_of(STEP), ["--detailed-exitcode"], 2),
        (plan_of(refusals=("no topic",)), ["--detailed-exitcode"], 3),
        (None, ["--detailed-exitcode"], 1),
        (None, ["--detailed-exitcode", "--what"], 1),
    ],
)
def test_plan_tells_by_its_exit_code(monkeypatch, plan, options, code):
    """2 only for changes: with --detailed-exitcode a wrong file exits with 1."""
    if plan is None:
        Path("fleet.yaml").write_text("fleetz: []\n")
    monkeypatch.setattr(Fleet, "snapshot", lambda *_: None)
    monkeypatch.setattr(Fleet, "plan", lambda *_, **__: plan)
    assert cli.run(["plan", *options]) == code


def test_config_check_lists_errors(capsys):
    """Offline: exit 0 for a valid file, 1 for one with errors, 2 for none."""
    assert cli.run(["config", "check"]) == 0
    assert capsys.readouterr().out == "fleet.yaml: no errors; 1 group declared\n"
    Path("fleet.yaml").write_text("fleetz: []\nmod: act\n")
    assert cli.run(["config", "check"]) == 1
    said = capsys.readouterr().err
    assert "fleet.yaml:1: " in said
    assert "fleet.yaml:2: " in said
    Path("fleet.yaml").unlink()
    assert cli.run(["config", "check"]) == 2
