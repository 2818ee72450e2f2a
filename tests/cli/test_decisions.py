"""`fleet history decisions`: what a policy decided, from the store alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.decide.decision_log import KeptDecision
from fleet.manager.cycle import Fleet
from fleet.manager.decisions import keep_decision
from tests.support.command import answer, said
from tests.support.json_contract import documented, shape

FLEET = """
cluster: {name: main, bootstrap_servers: "127.0.0.1:9"}
fleets:
  - group: orders
    topics: [orders]
    scaling: {policy: lag}
    worker: {entrypoint: "fleet.demo.orders:process"}
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A declared group; nothing listens at the brokers' address."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    with Fleet.open() as opened:
        yield opened


def test_the_past_of_a_policy(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a broker: as a table with the refusal, as documented JSON, and since a time."""
    told, _ = said(capsys, "history", "decisions", "orders")
    assert "group orders has no decision to show: declare `scaling:`" in told
    now = fleet.clock.now()
    for hours, members in ((5, 2), (1, 3)):
        made = KeptDecision(
            at=now - 3_600 * hours, wanted=3, current=members, members=members, lag=24_000,
            lag_seconds=31.5, reason="24,000 records waiting", refused="group orders is [paused]",
            inputs={"records per second of a worker": 1_000.0}, alternatives=("2 slots: too few",),
        )  # fmt: skip
        keep_decision(fleet.store, "orders", made)
    told, _ = said(capsys, "history", "decisions", "orders")
    assert told.count("24,000 records waiting; refused: group orders is") == 2, told
    assert "[paused]" in told
    found = answer(capsys, "history", "decisions", "orders")
    assert shape(found) == shape(documented("fleet history decisions -o json"))
    assert [each["member_hours"] for each in found["decisions"]] == [0.0, 8.0]
    (last,) = answer(capsys, "history", "decisions", "orders", "--since", "2h")["decisions"]
    assert last["members"] == 3
    told, _ = said(capsys, "history", "decisions", "orders", "--since", "10m")
    assert "no decision to show: the last one is of 20" in told
    _, why = said(capsys, "history", "decisions", "order", code=2)
    assert "did you mean 'orders'" in why
