"""The secure broker: what it prints, who gets in, what lies where, and that it stays what it is.

What docs/how-to/security.md shows is run here.
"""

import json
import stat
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fleet import cli
from fleet.broker import Broker
from fleet.errors import FleetError, Refused
from fleet.manager.cycle import Fleet
from tests.security.conftest import secrets_of
from tests.support.live_folders import files_below
from tests.support.tool_server import run_once

pytestmark = pytest.mark.broker

CONFIGS = "kafka.admin.ConfigCommand"


def test_it_prints_what_to_write_and_no_secret(guarded, home, capsys, tmp_path, monkeypatch):
    """The lines that `start` prints are a fleet.yaml that logs in; started twice is fine."""
    assert cli.run(["dev", "broker", "start"]) == 0
    printed = capsys.readouterr().out
    assert not [secret for secret in secrets_of(home) if secret in printed]
    address, _, lines = printed.partition("\n")
    assert address == guarded.bootstrap
    text = lines.split("For Kafka's own tools")[0].replace("embedded ", f"{address} ")
    assert yaml.safe_load(text)["cluster"]["security"]["protocol"] == "SASL_SSL"
    config = tmp_path / "printed.yaml"
    config.write_text(text)
    with Fleet.open(config, home=tmp_path / "other") as fleet:
        assert fleet.snapshot().problems == ()

    assert cli.run(["dev", "broker", "status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["secure"] is True


def test_embedded_is_enough_to_log_in(home, tmp_path):
    """Who names the embedded broker and no security is its super user."""
    config = tmp_path / "fleet.yaml"
    config.write_text("cluster: {bootstrap_servers: embedded}\n")
    with Fleet.open(config, home=home) as fleet:
        assert fleet.spec.cluster.security.protocol == "SASL_SSL"
        assert fleet.snapshot().problems == ()


def test_nobody_gets_in_without_a_login(guarded):
    """A client that speaks no TLS learns nothing."""
    client = AdminClient({"bootstrap.servers": guarded.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)


def test_secrets_lie_in_one_folder_only(guarded, home):
    """Mode 0700 and 0600; in no other file of the broker, its logs included."""
    folder = guarded.broker.secrets.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert not (folder / "format-arguments").exists()
    secrets = secrets_of(home)
    assert len(secrets) == 3
    for file in files_below(home / "broker"):
        if file.parent != folder:
            content = file.read_bytes() if file.is_file() else b""  # a log that was deleted
            assert not [s for s in secrets if s.encode() in content], file


@pytest.mark.slow
def test_kafkas_own_tools_make_users(guarded, unique, tmp_path):
    """By the file of the super user, as the manual says; the new user gets in."""
    login = ("--bootstrap-server", guarded.bootstrap, "--command-config")
    login += (str(guarded.broker.secrets.admin_properties),)
    entry = tmp_path / "entry.properties"
    entry.write_text("SCRAM-SHA-512=password=made-by-kafkas-tool\n")
    who = ("--alter", "--entity-type", "users", "--entity-name", f"ann-{unique}")
    done = run_once(CONFIGS, *login, *who, "--add-config-file", str(entry))
    assert done.returncode == 0, done.stdout + done.stderr
    client = {
        **guarded.config,
        "sasl.username": f"ann-{unique}",
        "sasl.password": "made-by-kafkas-tool",
        "log_level": 0,
    }
    assert AdminClient(client).list_topics(timeout=10).topics == {}, "in, and allowed nothing"


@pytest.mark.slow
@pytest.mark.long
def test_it_stays_secure(guarded, home):
    """Killed and started again with nothing said, it is what it was; the other kind is refused."""
    guarded.topic("kept")
    guarded.broker.kill()
    with pytest.raises(Refused, match=r"is a secure one.*stop --purge"):
        Broker(home, secure=False).start()
    again = Broker(home).start()
    assert again.secure
    assert again.bootstrap_servers == guarded.bootstrap
    assert "kept" in guarded.admin.list_topics(timeout=10).topics


def test_a_plain_one_stays_plain(broker):
    """`--secure` on a plain broker's data is refused, with what to do."""
    home = broker.broker.secrets.folder.parents[1]
    with pytest.raises(Refused, match=r"is plain, and so is its data.*another folder"):
        Broker(home, secure=True).start()
    assert not broker.broker.status().secure


def test_lost_secrets_are_said(guarded, home):
    """Without its secrets nobody gets in, so none are made anew beside old data."""
    folder: Path = guarded.broker.secrets.folder
    away = folder.rename(folder.with_name("away"))
    try:
        with pytest.raises(FleetError, match="every login to this broker; restore it"):
            guarded.broker.secrets.ensure(Path("/nowhere/java"), data=True)
    finally:
        away.rename(folder)
