"""Seeded schedules of a fleet of pods: managers, controllers, kubelets and workers, all at once.

A few here; 2,000 in the long form. Beside what holds of any fleet: no ready pod that holds a slot
is deleted that nobody asked to go (K1), in the end there are just the pods that are wanted, of the
revision that is wanted, in a Deployment that keeps itself (K2), and an apply with nothing wrong
succeeds (K3).
"""

import gc
from collections.abc import Iterable, Iterator

import pytest

from tests.schedules.pod_schedule import BAD, OF_PODS, PodsPlayed, pods_drawn
from tests.schedules.schedule import first_of, told

ONCE = (11, 57, 275, 388, 499, 502)
"""What was found by these is mended: a rolling batch one worker short for as long as anybody waits;
bad code that had nothing to read while it was on trial; a pod that counted as owner of a slot that
was shut since, for good; a warm standby whose report was dropped as that of a pod that is gone.
"""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """See test_schedules.py."""
    gc.disable()
    yield
    gc.enable()


def hold(seeds: Iterable[int], *, most: int = 4) -> None:
    for seed in seeds:
        broken = first_of([pods_drawn(seed, most=most)], play=PodsPlayed)
        gc.collect()
        if broken is not None:
            pytest.fail(told(broken, play=PodsPlayed), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_pods_hold(part: int) -> None:
    """Six, with up to four workers each at first, and what was found once."""
    hold([*range(part * 3, part * 3 + 3), *ONCE[part::2]])


@pytest.mark.long
@pytest.mark.parametrize("part", range(40))
def test_long_pods_hold(part: int) -> None:
    """2,000, with up to six workers."""
    hold(range(100 + part * 50, 150 + part * 50), most=6)


def test_every_kind_of_fault_of_pods_is_drawn() -> None:
    """And both kinds of members are rolled."""
    schedules = [pods_drawn(seed) for seed in range(200)]
    assert {f.kind for s in schedules for f in s.faults} >= {*OF_PODS, *BAD}
    assert {(s.change, s.static) for s in schedules} >= {("roll", True), ("roll", False)}
