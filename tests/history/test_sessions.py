"""Which session timeout held for a member that was removed, from what was told now and then."""

from fleet.model.sessions import Session, SessionAtRemoval, SessionTimes

LONG, SHORT = Session(45.0, 5.0), Session(6.0, 2.0)


def told(*looks: tuple[float, Session]) -> SessionTimes:
    times = SessionTimes()
    for at, session in looks:
        times.note(at, {"g": session})
    return times


def every_five(session: Session, first: int, last: int) -> list[tuple[float, Session]]:
    return [(float(at), session) for at in range(first, last + 1, 5)]


def then(session: Session, *, sure: bool = True) -> SessionAtRemoval:
    return SessionAtRemoval(
        least_s=session.timeout_s,
        most_s=session.timeout_s,
        silent_s=session.timeout_s - session.heartbeat_s,
        sure=sure,
    )


def test_what_was_told_all_the_time_is_sure() -> None:
    times = told(*every_five(LONG, 0, 100))
    assert times.of("g", 99.0) == then(LONG)
    assert times.of("g", 104.0) == then(LONG)
    assert times.of("other", 99.0) is None


def test_what_was_before_the_first_asking_is_concluded() -> None:
    times = told(*every_five(LONG, 100, 130))
    assert times.of("g", 120.0) == then(LONG, sure=False)
    assert times.of("g", 50.0) == then(LONG, sure=False)


def test_what_nobody_could_tell_lately_is_not_known() -> None:
    assert told(*every_five(LONG, 0, 100)).of("g", 131.0) is None


def test_a_timer_that_was_armed_before_a_change_runs_out_as_it_was() -> None:
    """From 45 s to 6 s at 102: for the next 45 s a member may expire by either."""
    times = told(*every_five(LONG, 0, 100), *every_five(SHORT, 105, 200))
    assert times.of("g", 104.0) == then(LONG)
    assert times.of("g", 120.0) == SessionAtRemoval(
        least_s=6.0, most_s=45.0, silent_s=4.0, sure=True
    )
    assert times.of("g", 160.0) == then(SHORT)
    times = told(*every_five(SHORT, 0, 100), *every_five(LONG, 105, 200))
    assert times.of("g", 108.0) == then(SHORT)
    assert times.of("g", 120.0) is None, "no timer can have run out then"
    assert times.of("g", 160.0) == then(LONG)


def test_what_was_told_before_the_clock_was_set_back_counts_no_more() -> None:
    """The same times come again, and the timeout may have changed: first told is first known."""
    before = (*every_five(LONG, 3600, 3650), *every_five(SHORT, 3655, 3700))
    for session in (LONG, SHORT):
        times = told(*before, *every_five(session, 100, 200))
        assert times.of("g", 104.0) == then(session, sure=False)
        assert times.of("g", 199.0) == then(session)
        assert times.of("g", 3650.0) is None


def test_a_clock_that_is_slewed_forgets_nothing() -> None:
    """A few milliseconds back are no other time."""
    times = told(*every_five(LONG, 0, 100), (99.99, LONG), (100.2, SHORT), (100.1, SHORT))
    assert times.of("g", 99.0) == then(LONG)


def test_few_changes_are_kept() -> None:
    times = told(*((float(at), Session(6.0 + at % 2, 2.0)) for at in range(100)))
    assert len(times._spans["g"]) == 8
