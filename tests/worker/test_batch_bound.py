"""How many records the next batch may have: of a job, a machine and a stream that are played."""

import random
from collections.abc import Callable
from statistics import mean

import pytest

from fleet.worker.batch.batches import BatchBound

TARGET = 5.0
MOST = 1000


def bound(first: int = MOST, growth: int = 2) -> BatchBound:
    return BatchBound(first, most=MOST, target=TARGET, growth=growth)


@pytest.mark.parametrize(
    ("records", "seconds", "after"),
    [
        pytest.param(100, 10.0, 50, id="twice as long: half"),
        pytest.param(1000, 4.0, 1000, id="quick, already at the most"),
        pytest.param(1, 99.0, 1000, id="one record cannot be less"),
    ],
)
def test_the_next_one_takes_no_longer_than_it_should(records: int, seconds: float, after: int):
    """In proportion, as long as nothing else is known."""
    made = bound()
    made.took(records, seconds)
    assert made.records == after


def test_it_grows_back_and_no_further():
    """Full batches that are quick, up to the most; those that are not full say nothing."""
    made = bound()
    made.took(1000, 10.0)
    made.took(499, 0.1)
    assert made.records == 500
    made.took(500, 0.1)
    assert made.records == 1000
    made.took(1000, 0.1)
    assert made.records == 1000


def test_a_full_batch_that_takes_less_than_it_may_leaves_room_for_more():
    """In proportion; a quick one at most for so many times more."""
    made = bound(80)
    made.took(80, 4.0)
    assert made.records == 100
    made = bound(80, growth=8)
    made.took(80, 0.01)
    assert made.records == 640


def test_fewer_records_that_are_no_quicker_are_given_back():
    """As soon as there are enough fewer to tell."""
    made = bound()
    made.took(1000, 8.0)
    assert made.records == 625
    made.took(625, 8.0)
    assert made.records == 1000


def test_what_times_seem_to_say_doubles_a_batch_at_most():
    """Two batches may lie about it, and the next one should not take eight times as long."""
    made = BatchBound(1000, most=100_000, target=TARGET, growth=8)
    made.took(1000, 8.0)
    made.took(625, 8.0)
    assert made.records == 1250


def test_a_slow_batch_among_quick_ones_is_made_up_for():
    """A machine that was busy for a moment, a Spark that had just started."""
    made = bound()
    made.took(300, 60.0)
    assert made.records == 25
    for _ in range(6):
        made.took(made.records, 0.5)
    assert made.records == MOST


def play(
    whatever: Callable[[float], float], each: float, arriving: float, seed: int
) -> list[tuple[int, float, float]]:
    """(records, seconds, waiting) of 120 batches whose times vary by a third.

    whatever: seconds that a batch takes whatever is in it, at a time. each: seconds a record.
    arriving: records a second.
    """
    varying, made = random.Random(seed), bound()
    now, waiting, done = 0.0, 0.0, []
    for _ in range(120):
        records = min(made.records, max(1, int(waiting)))
        seconds = (whatever(now) + each * records) * varying.uniform(0.7, 1.3)
        made.took(records, seconds)
        waiting = max(0.0, waiting + arriving * seconds - records)
        now += seconds
        done.append((records, seconds, waiting))
    return done


@pytest.mark.parametrize("seed", range(8))
def test_a_machine_too_busy_for_any_batch_does_not_make_them_ever_smaller(seed: int):
    """Each takes 8 s, whatever is in it: with 80 records a second to do nothing piles up."""
    done = play(lambda _: 8.0, 0.001, 80.0, seed)
    assert mean(records for records, _, _ in done[20:]) > 600
    assert done[-1][2] < 2000
    assert max(seconds for _, seconds, _ in done) < 13


@pytest.mark.parametrize("seed", range(8))
def test_when_it_has_time_again_batches_take_what_they_should(seed: int):
    """Nothing is left of what was believed while it was busy."""
    done = play(lambda now: 9.0 if now < 300 else 0.2, 0.008, 200.0, seed)
    assert mean(seconds for _, seconds, _ in done[-40:]) < 1.2 * TARGET


@pytest.mark.parametrize("seed", range(8))
def test_records_that_take_long_make_small_batches(seed: int):
    """A job's own time is told from the batch's, though both vary."""
    done = play(lambda _: 0.2, 0.02, 1000.0, seed)
    assert mean(seconds for _, seconds, _ in done[10:]) < 1.2 * TARGET
    done = play(lambda _: 0.1, 1.5, 10.0, seed)
    assert mean(records for records, _, _ in done[10:]) < 5


@pytest.mark.parametrize("seed", range(8))
def test_a_job_that_gets_slower_while_the_machine_is_busy_is_found_out(seed: int):
    """What is believed of a busy machine is tried again after some batches."""
    made, varying = bound(), random.Random(seed)
    for _ in range(10):
        made.took(made.records, 9.0 * varying.uniform(0.8, 1.2))
    assert made.records > 500
    for _ in range(60):
        made.took(made.records, made.records * 0.02 * varying.uniform(0.8, 1.2))
    assert made.records < 400
