"""The exporter of a login that may not read the offsets topic: by the coordinators, and so said."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from fleet import cli
from fleet.config.acls import OFFSETS, grants
from tests.support.needs import repository
from tests.support.waiting import until

pytestmark = pytest.mark.broker


def test_without_the_offsets_topic(desk, unique, capsys):
    """Lag and members are there, generations and rebalances are not, and the reason is told."""
    mine = grants("observe", groups=[desk.group], topics=[desk.topic])
    desk.declare("observe", desk.guarded.user(f"blind-{unique}", mine))
    found = {}

    def seen() -> bool:
        capsys.readouterr()
        found["code"] = cli.run(["exporter", "--once"])
        found["out"], found["err"] = capsys.readouterr()
        return f'group="{desk.group}"' in found["out"]

    until(seen, "ACLs to be there")
    lines = found["out"].splitlines()
    assert found["code"] == 0
    assert 'fleet_exporter_reads_offsets_topic{cluster="desk"} 0.0' in lines
    (lag,) = [line for line in lines if line.startswith("fleet_group_lag_records{")]
    assert lag.endswith(" 7.0")
    assert not [line for line in lines if line.startswith("fleet_group_rebalances_total{")]
    assert f"{OFFSETS} at {desk.guarded.bootstrap} may not be read" in found["err"]
    assert "grant Read" in found["err"]
    for secret in desk.guarded.secrets:
        assert secret not in found["out"] + found["err"]


def test_a_renewed_password_is_read_without_a_restart(desk, unique, tmp_path):
    """Where brokers refuse the old one: clients read theirs once, and are made anew then."""
    mine = grants("observe", groups=[desk.group], topics=[desk.topic])
    security = desk.guarded.user(f"renewed-{unique}", mine)
    password = Path(security.sasl.password_file)
    right = password.read_text()
    password.write_text("not-yet")
    text = yaml.safe_load(desk.file("observe", security))
    (desk.folder / "fleet.yaml").write_text(yaml.safe_dump({**text, "exporter": {"every": "1s"}}))
    said = tmp_path / "said"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet", "exporter", "--listen", "127.0.0.1:0"],
            env={**os.environ, "PYTHONPATH": str(repository())},
            cwd=desk.folder,
            stdout=log,
            stderr=log,
        )

    def url() -> str:
        return re.findall(r"http://\S+", said.read_text())[-1]

    def told() -> bool:
        with urllib.request.urlopen(url(), timeout=60) as answer:
            return f'group="{desk.group}"'.encode() in answer.read()

    try:
        until(lambda: "refuses the login" in said.read_text(), "a look that is refused")
        password.write_text("")
        time.sleep(3)
        assert "begins" not in said.read_text(), "who renews it may be just writing"
        password.write_text(right)
        until(lambda: said.read_text().count("/metrics") == 2, "it to begin anew")
        assert f"begins anew with what is in {password} now" in said.read_text()
        until(told, "the group", picture=said.read_text)
    finally:
        process.terminate()
        process.wait(120)
    assert process.returncode == 0
    assert right not in said.read_text()
