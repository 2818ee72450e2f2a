"""Whatever a group is called, its workers' names are taken by those who are given them."""

import sys
from pathlib import Path

import pytest

from fleet.act.local.local_runtime import LocalRuntime
from fleet.act.local.process_table import ProcessTable
from fleet.act.local.supervisor import log_of
from fleet.clock import SystemClock
from fleet.worker.__main__ import main
from tests.runtime.conftest import REVISION
from tests.support.declared import group_spec, settings_of


@pytest.mark.parametrize(
    ("group", "readable"),
    [
        ("orders", "orders"),
        ("_orders", "orders"),
        ("--orders", "orders"),
        ("заказы", "worker"),
        ("заказы-eu", "eu"),
        ("o" * 249, "o" * 40),
    ],
    ids=["plain", "underscore", "dashes", "no-ascii", "ends-in-ascii", "longest"],
)
def test_a_worker_is_started_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, group: str, readable: str
):
    """The worker's own command line takes it, and it names a log file that can be made."""
    runtime = LocalRuntime(tmp_path, cluster="main", clock=SystemClock())
    spec = group_spec(group, worker={"spark": "local[1]"})
    runtime.publish(group, REVISION, settings_of(spec, revision=REVISION).model_dump_json())
    (name,) = runtime.start(group, REVISION, 1)
    assert name == f"{readable}-abcd-1"
    log_of(tmp_path, name).parent.mkdir()
    log_of(tmp_path, name).touch()
    runtime.close()

    table = ProcessTable(tmp_path, clock=SystemClock())
    (row,) = table.rows()
    table.close()
    _, _, module, settings, path, *rest = row.launch.argv
    gone = f"{path}.gone"  # its command line is read, and no more
    monkeypatch.setattr(sys, "argv", [module, settings, gone, *rest])
    assert main() == 2
    assert "cannot read the settings" in capsys.readouterr().err
