"""The exporter of a login that may not read the offsets topic: by the coordinators, and so said."""

import pytest

from fleet import cli
from fleet.config.acls import OFFSETS, grants
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
