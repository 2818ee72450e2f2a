"""`fleet down` where this process does not reach the brokers: what still may be done, and said."""

from pathlib import Path
from typing import Any

import pytest

from fleet import cli
from fleet.act.local.local_runtime import LocalRuntime

SPEC = """
cluster:
  name: main
  bootstrap_servers: "kafka-1:9093"
  security:
    protocol: SASL_SSL
    sasl:
      mechanism: OAUTHBEARER
      oidc: {endpoint: "http://127.0.0.1:1/token", client_id: i, client_secret_env: S}
fleets:
  - {group: g, topics: [t], worker: {entrypoint: "a.b:c"}, rollout: {drain_timeout: 60s}}
"""


@pytest.mark.parametrize("options", [(), ("--purge", "--yes")])
def test_workers_drain_in_their_time_where_no_token_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: tuple[str, ...]
) -> None:
    """Brokers may be fine: no worker is killed early, nothing purged, and the groups are named."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("S", "x")
    asked: list[Any] = []
    monkeypatch.setattr(LocalRuntime, "down", lambda _, *, grace: asked.append(grace))
    monkeypatch.setattr(LocalRuntime, "purge", lambda _: asked.append("purged"))
    config = tmp_path / "fleet.yaml"
    config.write_text(SPEC)
    assert cli.run(["--config", str(config), "down", *options]) == 1
    assert asked == [60.0]
    said = capsys.readouterr().err
    assert "could not leave their groups (g)" in said
    assert "token" in said
    assert "run `fleet down` again" in said
