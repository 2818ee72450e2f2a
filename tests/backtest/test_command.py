"""`fleet simulate scaling`: loads, rules, and what is refused.

The commands of docs/how-to/simulate.md are run here, with less load.
"""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from fleet import cli
from fleet.backtest.comparison import RULES
from fleet.backtest.load import SHAPES, from_ends
from fleet.clock import ManualClock
from fleet.commands import simulate_scaling
from fleet.errors import ConfigError
from fleet.history.tables import TablePlace, Writer
from tests.support.json_contract import documented, shape


def run(*words: str, code: int = 0) -> None:
    """`fleet simulate scaling` with these words."""
    assert cli.run(["simulate", "scaling", *words]) == code


def test_json_is_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """The floor, and the figures of each rule."""
    run("--shape", "steady", "--days", "0.1", "--policy", "flink", "-o", "json")
    told = json.loads(capsys.readouterr().out)
    assert shape(told) == shape(documented("fleet simulate scaling -o json"))


def test_a_trace_is_replayed_and_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--partitions spreads its columns, --rate scales them."""
    trace = tmp_path / "load.csv"
    trace.write_text("".join(f"{60 * n},{n % 7},{n % 3}\n" for n in range(60)))
    words = ("--trace", str(trace), "--partitions", "5", "--rate", "400", "-o", "json")
    run(*words, "--policy", "lag", "--policy", "keda")
    told = json.loads(capsys.readouterr().out)
    assert (told["load"]["partitions"], told["load"]["records_per_second"]) == (5, 400.0)
    assert list(told["policies"]) == ["lag", "keda"]


def test_the_table_has_a_line_per_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """The floor stands above it, the packing below."""
    run("--shape", "steady", "--days", "0.05", "--policy", "clairvoyant")
    said = capsys.readouterr().out
    assert "12 partitions, 1.2 h, 2,500 records/s; floor 0.00 h late" in said
    assert "clairvoyant" in said
    assert "A packing by rate would need 4 worker hours, but members of librdkafka" in said


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--trace", "x.csv", "--group", "orders"), "two loads", 2),
        (("--since", "3d"), "--since needs --group", 2),
        (("--policy", "declared"), "--policy declared needs --group", 2),
        (("--trace", "none.csv"), "cannot read none.csv", 2),
        (("--shape", "square"), "is not one of", 2),
    ],
)
def test_wrong_words_are_named(
    words: tuple[str, ...], said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is replayed."""
    run(*words, code=code)
    assert said in capsys.readouterr().err


def test_the_words_are_those_of_the_back_test() -> None:
    """The command names them without loading numpy."""
    assert simulate_scaling.SHAPES == SHAPES
    assert (*RULES, "declared") == simulate_scaling.POLICIES


def test_recorded_ends_become_rates() -> None:
    """Linear between samples; a recreated topic begins anew."""
    times = np.array([0.0, 120.0, 240.0])
    load = from_ends("g", {"a-0": (times, np.array([0.0, 1200.0, 0.0])), "a-1": (times, times * 2)})
    assert load.rates.tolist() == [[10.0, 2.0], [10.0, 2.0], [0.0, 2.0]]
    with pytest.raises(ConfigError, match="too short to replay"):
        from_ends("g", {})


def test_a_group_is_replayed_from_its_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own policy is `declared`; without history tables the command names what records them."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    config = tmp_path / "fleet.yaml"
    config.write_text(
        "cluster: {name: main, bootstrap_servers: 127.0.0.1:1}\n"
        f"history: {{path: {tmp_path / 'history'}}}\n"
        "fleets: [{group: orders, topics: [orders], worker: {entrypoint: j:p}, "
        "scaling: {policy: fixed, workers: 2}}]\n"
    )
    asked = ("--config", str(config), "--group", "orders")
    run(*asked, code=1)
    assert "no load of orders is recorded; run `fleet history sync" in capsys.readouterr().err
    clock = ManualClock(at=time.time())
    writer = Writer(
        TablePlace(tmp_path / "history"), cluster="main", clock=clock, retention=30 * 86_400.0
    )
    rows = [
        {
            "cluster": "main",
            "sampled_at": clock.now() - 3_600 + 10 * n,
            "group_id": group,
            "topic": "orders",
            "topic_partition": partition,
            "committed": 0,
            "log_start": 0,
            "log_end": 3_000 * n * (partition + 1),
            "records": 0,
            "seconds": 0.0,
            "lag_case": "ok",
            "known": "looked",
        }
        for n in range(300)
        for partition in range(2)
        for group in ("orders", "other")
    ]
    writer.commit("look", files=writer.write("lag", rows))
    run(*asked, "--policy", "declared", "--since", "2h", "-o", "json")
    told = json.loads(capsys.readouterr().out)
    assert told["load"]["partitions"] == 2
    assert told["load"]["records_per_second"] == pytest.approx(900, rel=0.01)
    assert told["policies"]["declared"]["rebalances"] == 1
