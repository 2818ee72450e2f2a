"""Brackets of rows, paths and addresses are text: a console's markup is not theirs."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from fleet import cli
from fleet.commands.groups.reading import print_status
from fleet.commands.operate.trial import TrialOutcome, _show
from tests.cli.test_answers import SNAPSHOT, STATUS


@pytest.fixture
def home(tmp_path, monkeypatch):
    """In a folder whose name has brackets in it."""
    made = tmp_path / "my [team] home"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("FLEET_HOME", str(made))
    return made


@pytest.mark.parametrize("value", ["[error] disk full", "open [/var/log/x]", "[red]x[/red]"])
def test_rows_of_a_trial_are_printed_as_they_are(capsys, value):
    """Names of columns too."""
    batch: Any = SimpleNamespace(
        table=pa.table({"key": [b"k"], "value": [b"v"]}), context=SimpleNamespace(ranges=())
    )
    _show(batch, TrialOutcome(rows=[{"[b] said": value}], returned="1 row"), [])
    said = capsys.readouterr().out
    assert value in said
    assert "[b] said" in said


def test_a_path_of_a_history_keeps_its_brackets(home, capsys):
    """Also where nothing is in it."""
    (home / "fleet.yaml").write_text('cluster: {bootstrap_servers: "127.0.0.1:1"}\n')
    assert cli.run(["history", "status"]) == 0
    assert f"nothing is recorded in {home / 'history'} yet" in capsys.readouterr().out


def test_a_path_of_a_brokers_log_keeps_its_brackets(home, capsys):
    """One that was stopped."""
    node = {"id": 0, "port": 1, "controller_port": 2, "process": None}
    (home / "broker").mkdir()
    stored = {"cluster_id": "c", "overrides": {}, "nodes": [node]}
    (home / "broker" / "state.json").write_text(json.dumps(stored))
    assert cli.run(["dev", "broker", "status"]) == 0
    assert str(home / "broker" / "node-0") in capsys.readouterr().out


def test_an_address_by_ipv6_keeps_its_brackets():
    """Of Spark's own page."""
    assert STATUS.managed is not None
    report = STATUS.managed.reports[1]
    managed = replace(STATUS.managed, reports=(replace(report, spark_ui="http://[fe80::1]:4040"),))
    out = io.StringIO()
    console = Console(file=out, width=120)
    status = replace(STATUS, managed=managed)
    print_status(console, SNAPSHOT, [status], now=300.0, detail=True)
    assert "Spark's UI: http://[fe80::1]:4040" in out.getvalue()
