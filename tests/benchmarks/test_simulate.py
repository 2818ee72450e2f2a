"""`benchmarks simulate`: its goals, its answer, and a small run."""

import yaml

from benchmarks.__main__ import benchmarks
from benchmarks.simulate import RollCost, SimulateResult, rolls
from fleet import cli


def result(rate: float = 120_000, seconds: float = 2.0, settled: float | None = 96.3):
    """Of one model and one roll."""
    return SimulateResult(
        members=10,
        partitions=10,
        rates={"classic": rate, "KIP-848": rate},
        rolls=[RollCost(name="range", cpu_seconds=seconds, rebalances=8, settled=settled)],
        memory=200.0,
    )


def test_goals() -> None:
    """100,000 events/s and 3 s; a roll that never settled was not measured."""
    assert result().met
    assert not result(rate=99_999).met
    assert not result(seconds=3.01).met
    assert not result(settled=None).met


def test_every_member_is_rolled_once() -> None:
    """Also where a quarter does not divide."""
    for scenario in rolls(10, 100).values():
        rolled = [each.member + n for each in scenario.events for n in range(each.together)]
        assert rolled == list(range(10))


def test_for_real(capsys) -> None:
    """A small one: every roll settles, and Fleet's costs no rebalance."""
    args = ["simulate", "--events", "1000", "--members", "8", "--partitions", "16"]
    cli.run(args, command=benchmarks)
    (told,) = yaml.safe_load(capsys.readouterr().out)["results"]
    assert all(each["settled"] for each in told["rolls"])
    costs = {each["name"]: each["rebalances"] for each in told["rolls"]}
    assert costs["range, with Fleet"] == costs["KIP-848, with Fleet"] == 0
    assert costs["range, baseline"] == 8
    assert min(told["rates"].values()) > 0
