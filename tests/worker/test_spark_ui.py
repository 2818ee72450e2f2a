"""`worker.spark_ui`: where a person looks at what Spark does for a group."""

import json
import urllib.request

import pytest

from tests.support.command import answer, said
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_status_has_an_address_that_answers(broker, unique, tmp_path, monkeypatch, capsys):
    """Spark's own page of the worker's JVM, on loopback; named once, while the worker runs."""
    home = tmp_path / "home"
    monkeypatch.setenv("FLEET_HOME", str(home))
    group = f"seen-{unique}"
    shop = Workshop(home, broker.bootstrap_servers, group, spark="local[1]", spark_ui=True)
    shop.declare(
        replicas={"min": 1, "max": 1, "standby": 0}, scaling={"policy": "fixed", "workers": 1}
    )
    shop.create_topic(1)
    with ending(shop):
        shop.apply(1)
        config = ("--config", str(shop.config))
        (told,) = answer(capsys, "status", group, *config)["groups"]
        (address,) = told["spark_uis"]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/api/v1/applications", timeout=20) as page:
            (application,) = json.load(page)
        assert group in application["name"]
        assert address in said(capsys, "status", group, *config)[0]
