"""`benchmarks packing`: the paper's orderings on a short walk, and its plot."""

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from benchmarks.packing import (
    CAPACITY,
    DELTAS,
    PARTITIONS,
    READS,
    STOPPED,
    PackingResult,
    p99_of,
    packed_by,
    plotted,
    rates_of,
    run,
)
from fleet.decide.packing import ALGORITHMS


@pytest.fixture(scope="module")
def result() -> PackingResult:
    """Of 60 steps."""
    return run(steps=60, seed=1)


def test_the_orderings_are_those_of_the_paper(result: PackingResult) -> None:
    """Fewest members, least R-score, the front, and p99 beside Kafka's assignment."""
    assert result.met, result.answer()["goals"]
    means = result.means()
    assert means["BFD"][0] < means["MBFP"][0] < means["MWF"][0]
    assert means["MWF"][1] < means["MBF"][1] < means["BFD"][1]
    assert result.kafka_members is None or result.kafka_members > 1.2 * result.members


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_member_gets_more_than_it_reads(name: str) -> None:
    """At each step; every partition has an owner."""
    rates = rates_of(10, steps=20, seed=2)
    for row, owners in zip(rates, packed_by(name, rates), strict=True):
        assert min(owners) >= 0
        assert np.bincount(owners, weights=row).max() <= CAPACITY * (1 + 1e-6)


def test_rates_change_by_at_most_delta_and_are_the_same_by_seed() -> None:
    """Within the capacity of a worker."""
    rates = rates_of(15, steps=50, seed=3)
    assert abs(np.diff(rates, axis=0)).max() <= 15
    assert (rates.min() >= 0, rates.max() <= CAPACITY) == (True, True)
    assert (rates == rates_of(15, steps=50, seed=3)).all()


def test_only_a_moved_partition_waits() -> None:
    """A record that comes when its partition stops is read when its owner has caught up."""
    rates = np.full((4, 2), CAPACITY / 2)
    stays = [(0, 1)] * 4
    assert p99_of(rates, stays) == pytest.approx(0.0, abs=1e-6)
    assert STOPPED - 1 <= p99_of(rates, [(0, 1), (1, 0), (0, 1), (1, 0)]) <= STOPPED
    assert p99_of(2 * rates, [(0, 0)] * 4) > 20 * (2 * CAPACITY - READS) / READS


def test_the_plot_names_each_algorithm(result: PackingResult) -> None:
    """A line with a point for each δ but 0."""
    root = ET.fromstring(plotted(result))
    assert set(ALGORITHMS) <= set(" ".join(root.itertext()).split())
    points = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(points) == len(ALGORITHMS) * (len(DELTAS) - 1)
    assert result.found[0].members <= PARTITIONS
