"""Tokens and certificates against a real broker: who gets in, and that they stay in."""

import json
import os

import pytest

from fleet import cli
from fleet.act.kafka import GroupAdmin
from fleet.config.acls import grants
from fleet.config.spec import ClusterSpec, Security
from fleet.security import kafka_python_config
from tests.support.waiting import until

pytestmark = pytest.mark.broker

LOGINS = ("login_by_token", "login_by_function", "login_by_certificate")


@pytest.mark.parametrize("login", LOGINS)
def test_every_part_logs_in(desk, guarded, unique, capsys, login):
    """Looking, counting, doctor, exporter, the batched leave: as that name, with its ACLs only."""
    name = f"{login.rpartition('_')[2]}-{unique}"
    security: Security = getattr(guarded, login)(name)
    both = [
        g for p in ("act", "worker") for g in grants(p, groups=[desk.group], topics=[desk.topic])
    ]
    guarded.allow(name, both)
    desk.declare("act", security)

    def told(*arguments: str):
        capsys.readouterr()
        code = cli.run([*arguments])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    def count():
        (group,) = json.loads(told("status", desk.group, "-o", "json"))["groups"]
        assert group["lag"] == 7 or group["lag"] is None
        return (group["rebalances"] or {}).get("count")

    until(lambda: count() == 0, "ACLs to be there")
    checks = json.loads(told("doctor", "-o", "json"))["checks"]
    assert {c["level"] for c in checks if c["check"] in {"broker", "acls", "batched leave"}} == {
        "OK"
    }
    assert f'group="{desk.group}"' in told("exporter", "--once")
    cluster = ClusterSpec(security=security)
    address = guarded.address(security)
    with GroupAdmin(
        bootstrap=address, kafka_python_config=kafka_python_config(cluster, address, os.environ)
    ) as admin:
        nobody = [("i", "m")]
        assert admin.leave(desk.group, nobody, reason="test") is None
