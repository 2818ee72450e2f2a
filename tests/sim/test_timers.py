"""Timers on simulated time go off in one order, whatever the seed."""

import random

from fleet.sim.timers import Timers, advance


def test_order() -> None:
    """By deadline; at one deadline as they were set; set again is set last."""
    timers: Timers[str] = Timers()
    for key, deadline in (("a", 5), ("b", 5), ("c", 3), ("d", 9), ("a", 5)):
        timers.schedule(key, deadline, key.upper())
    timers.cancel("d")
    timers.cancel("unknown")
    assert timers.deadlines() == {"b": 5, "c": 3, "a": 5}
    assert timers.next_deadline == 3
    assert [due.action for due in iter(lambda: timers.take(5), None)] == ["C", "B", "A"]
    assert timers.next_deadline is None
    assert len(timers) == 0


def test_advance_tells_each_moment() -> None:
    """A timer that another one sets goes off in the same stretch, at its own time."""
    timers = Timers()
    told = []

    def again() -> None:
        timers.schedule("b", 7, lambda: None)

    timers.schedule("a", 4, again)
    timers.schedule("c", 20, again)
    assert list(advance(timers, 10, told.append)) == ["a", "b"]
    assert told == [4, 7, 10]
    assert "c" in timers


def test_as_a_sorted_list_has_it() -> None:
    """Against the plainest queue there is."""
    numbers = random.Random(1)
    timers: Timers[int] = Timers()
    plain: dict[str, tuple[int, int]] = {}
    for count in range(2000):
        key = str(numbers.randrange(20))
        step = numbers.random()
        if step < 0.5:
            deadline = numbers.randrange(50)
            timers.schedule(key, deadline, count)
            plain[key] = (deadline, count)
        elif step < 0.7:
            timers.cancel(key)
            plain.pop(key, None)
        else:
            until = numbers.randrange(50)
            due = min(((at, n, k) for k, (at, n) in plain.items() if at <= until), default=None)
            found = timers.take(until)
            assert (found is None) == (due is None)
            if found is not None and due is not None:
                assert (found.deadline, found.action, found.key) == due
                del plain[found.key]
        assert len(timers) == len(plain)
