"""A fleet over SASL_SSL with just its ACLs: the same promises, its secrets in no other place."""

import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from dagster import DagsterInstance, materialize

from fleet import cli
from fleet.config.acls import grants
from fleet.dagster.asset_keys import name_of
from fleet.dagster.change_assets import plan_asset
from fleet.dagster.resources import FleetResource
from fleet.model import ReceiptResult
from tests.security.conftest import Guarded, secrets_of
from tests.support.kafka_tools import rebalances
from tests.support.live_folders import files_below
from tests.support.waiting import until
from tests.support.workshop import JOB, Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

OFFSETS = "__consumer_offsets"
PASSWORD = "the-database-password-of-this-test"
KNOWS = f'''
    import hashlib
    held = hashlib.sha256(os.environ["DB_PASSWORD"].encode()).hexdigest()
    assert held == "{hashlib.sha256(PASSWORD.encode()).hexdigest()}"
'''


class Vault(Workshop):
    """A workshop whose group logs in, and whose job wants a password of its own."""

    def __init__(self, home: Path, guarded: Guarded, group: str, **worker: Any) -> None:
        self.guarded = guarded
        topic = f"{group}-topic"
        letters = [str(worker[key]) for key in ("dead_letter_topic",) if key in worker]
        both = [*_grants("act", group, topic), *_grants("worker", group, topic, letters)]
        self.user = f"user-{group}"
        self.security = guarded.user(self.user, both)
        super().__init__(home, guarded.bootstrap, group, **worker)
        self.write_code(JOB.replace("    write_journal", f"{KNOWS}\n    write_journal"))

    def declare(self, **keys: Any) -> None:
        """As a workshop does, with a login, and a password that the workers' environment has."""
        super().declare(**keys)
        spec = yaml.safe_load(self.config.read_text())
        spec["cluster"]["security"] = self.security.model_dump(mode="json", exclude_none=True)
        env = spec["fleets"][0]["worker"]["env"]
        env["FLEET_EVENTS"] = str(self.home / "events")
        env["DB_PASSWORD"] = "${DB_PASSWORD}"
        self.config.write_text(yaml.safe_dump(spec))

    def create_topic(self, partitions: int) -> None:
        """Make the group's topic, as the super user."""
        self.guarded.topic(self.topic, partitions)
        self.partitions = partitions

    def client(self) -> dict[str, Any]:
        """As the super user."""
        return dict(self.guarded.config)

    def secrets(self) -> list[str]:
        """All that must not be found."""
        home = self.guarded.broker.secrets.folder.parents[1]
        return [PASSWORD, *self.guarded.secrets, *secrets_of(home)]


def _grants(part: str, group: str, topic: str, letters: Sequence[str] = ()):
    return grants(part, groups=[group], topics=[topic], dead_letters=letters)


@pytest.fixture
def vault(request, guarded, unique, tmp_path_factory, monkeypatch) -> Iterator[Vault]:
    """One workshop, its worker as the parameter says; at its end nothing of it runs."""
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)
    worker = getattr(request, "param", {"assignor": "range"})
    made = Vault(tmp_path_factory.mktemp("vault"), guarded, f"vault-{unique}", **worker)
    monkeypatch.setenv("FLEET_HOME", str(made.home))
    with ending(made):
        yield made


@pytest.mark.long
def test_a_fleet_with_logins(vault, capsys):
    """Up, roll and down cost what they cost without security; no secret is left anywhere."""
    vault.create_topic(4)
    with vault.stream(rate=100):
        assert _apply(vault) == 1
        vault.new_code()
        assert _apply(vault) == 0
        _search(vault, capsys)
        assert _apply(vault, wanted=1) == 1
    assert vault.lost_and_duplicates() == (0, 0)

    # One step beyond: what a worker may not do any more ends it with that sentence [10].
    (read,) = [g for g in _grants("worker", vault.group, vault.topic) if g.name == vault.topic]
    vault.guarded.deny(vault.user, read)
    with vault.fleet() as fleet, vault.stream(rate=100):
        until(
            lambda: any(
                "not authorised to read the topics (29)" in (worker.exit_reason or "")
                for worker in fleet.workers()
            ),
            "a worker to say what it lacks",
        )


@pytest.mark.long
def test_a_fleet_whose_records_cannot_be_read(vault):
    """The offsets topic withheld: real changes are carried out, and no receipt claims a count."""
    vault.create_topic(4)
    withheld = {str(g): g for g in _grants("act", vault.group, vault.topic) if g.name == OFFSETS}
    assert withheld
    for grant in withheld.values():
        vault.guarded.deny(vault.user, grant)
    with vault.stream(rate=100):
        assert _unverified(vault) == 1
        vault.new_code()
        assert _unverified(vault) == 0
    assert vault.lost_and_duplicates() == (0, 0)


def _unverified(vault: Vault) -> int:
    """Apply as said beforehand, without a count; what was recorded, by DumpLogSegments."""
    before = _recorded(vault)
    with vault.fleet() as fleet:
        assert any("unverified" in note for note in fleet.plan(vault.group).notes)
    change = vault.apply()
    assert {r.result for r in change.receipts} == {ReceiptResult.UNVERIFIED}
    assert {(r.ours, r.others) for r in change.receipts} == {(0, 0)}
    return _recorded(vault) - before


LETTERS = "vault-letters"
BY_RANGES = {"protocol": "consumer", "reading": "ranges", "dead_letter_topic": LETTERS}
POISON = """
    if df.where("CAST(value AS STRING) = '7'").count():
        raise ValueError("poison")
"""


@pytest.mark.long
@pytest.mark.parametrize("vault", [pytest.param(BY_RANGES, id="consumer-ranges")], indirect=True)
def test_spark_tasks_log_in(vault, capsys):
    """KIP-848, read by Spark's tasks with the worker's login, a dead letter: just their ACLs."""
    vault.create_topic(2)
    vault.guarded.topic(LETTERS, 1)
    vault.edit_job("    write_journal", f"{POISON}\n    write_journal")
    vault.guarded.produce(vault.topic, 20)
    vault.apply(1)
    vault.await_drained()
    end = TopicPartition(LETTERS, 0)
    found = vault.guarded.admin.list_offsets({end: OffsetSpec.latest()})
    assert found[end].result(120).offset == 1
    _search(vault, capsys)


def _apply(vault: Vault, wanted: int | None = None) -> int:
    """Carry out what fleet.yaml says; recorded generations, by DumpLogSegments [33]."""
    before = _recorded(vault)
    change = vault.apply(wanted)
    assert [r.result for r in change.receipts] == [ReceiptResult.EQUAL] * len(change.receipts)
    return _recorded(vault) - before


def _recorded(vault: Vault) -> int:
    return rebalances(vault.guarded.broker, vault.group)


# --- secrets ---------------------------------------------------------------------------------


def _search(vault: Vault, capsys) -> None:
    """Look for every secret wherever something is written, printed, shown or kept."""
    found = {name: text for name, text in _told(vault, capsys).items() if _holds(vault, text)}
    assert not found, sorted(found)


def _told(vault: Vault, capsys) -> dict[str, bytes]:
    told: dict[str, bytes] = {}
    for arguments in (("status",), ("status", vault.group), ("plan",), ("doctor",)):
        capsys.readouterr()
        config = ("--config", str(vault.config))
        cli.run([*arguments, *config, "-o", "json"])
        out, err = capsys.readouterr()
        assert json.loads(out)
        told[f"fleet {' '.join(arguments)}"] = (out + err).encode()
    for worker, port in _ports(vault).items():
        for page in ("metrics", "status", "livez", "readyz"):
            told[f"{worker} /{page}"] = _page(f"http://127.0.0.1:{port}/{page}")
    told |= _dagster(vault)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            told[str(process)] = process.read_bytes()
    files = [file for file in files_below(vault.home) if file.is_file()]
    assert {"fleet.db", "events", "settings.json"} <= {file.name for file in files}
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            told[str(file)] = file.read_bytes()
    return told


def _holds(vault: Vault, text: bytes) -> bool:
    return any(secret.encode() in text for secret in vault.secrets())


def _ports(vault: Vault) -> dict[str, int]:
    with vault.fleet() as fleet:
        found = {r.worker: r.http_port for r in fleet.reports(vault.group) if r.http_port}
    assert found
    return found


def _page(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except OSError:  # a worker that has just gone, or is not ready
        return b""


def _dagster(vault: Vault) -> dict[str, bytes]:
    """The plan asset, materialised for real; all that Dagster keeps of it."""
    folder = vault.home / "dagster-of-test"
    folder.mkdir()
    fleet = FleetResource(config=str(vault.config), home=str(vault.home))
    with DagsterInstance.local_temp(str(folder)) as instance:
        made = materialize(
            [plan_asset(fleet)],
            partition_key=name_of(fleet.spec.fleets[0].group),
            instance=instance,
        )
        assert made.success
        kept = {f"event {e.event_type_value}": str(e).encode() for e in made.all_events}
    assert any(folder.rglob("*.db"))
    return kept  # the files are in the home, which is searched whole
