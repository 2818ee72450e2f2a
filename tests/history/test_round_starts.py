"""When a round began, from looks at which groups are unsettled: always right, or not said."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from fleet.log.replay.group_state import RoundStarts, StartBounds
from fleet.model.rebalances import TimeSource
from tests.history.test_replay import START, A, B, Story
from tests.support.sampling import examples


def looked(
    *rounds: tuple[float, float],
    until: float = 60.0,
    every: float = 1.0,
    missed: tuple[float, float] = (0.0, 0.0),
    names: Collection[str] = ("g",),
) -> RoundStarts:
    """Looks at full seconds, 0.02 s each; none whole within `missed`."""
    starts, at = RoundStarts(), 0.0
    starts.listed(names)
    while at < until:
        now = {"g"} if any(begin <= at + 0.01 < end for begin, end in rounds) else set()
        whole = not missed[0] <= at < missed[1]
        starts.look(now if whole else (), asked=at, answered=at + 0.02, whole=whole)
        at += every
    return starts


def test_a_broker_that_was_silent_widens_the_bounds_until_nothing_is_known() -> None:
    starts = looked((10.4, 17.0), missed=(8.0, 14.0))
    found = starts.of("g", after=None, ended=17.0)
    assert found == StartBounds(7.0, 14.02)
    assert found.known(17.0) is None
    assert starts.of("hidden", after=None, ended=17.0) is None, "no Describe on it: nothing is seen"


def test_a_group_that_is_newer_than_the_last_listing_is_known_once_it_was_seen() -> None:
    starts = looked((3.0, 6.0), (10.2, 10.7), names=())
    assert starts.of("g", after=6.0, ended=10.7) == StartBounds(10.0, 10.7)


def test_who_looks_first_in_the_middle_of_a_round_knows_only_its_latest_start() -> None:
    starts = RoundStarts()
    starts.look({"g"}, asked=5.0, answered=5.1, whole=True)
    found = starts.of("g", after=None, ended=9.0)
    assert found == StartBounds(None, 5.1)
    assert found.known(9.0) is None


@examples(200)
@given(
    st.lists(st.tuples(st.floats(0.3, 20.0), st.floats(0.01, 12.0)), min_size=1, max_size=6),
    st.booleans(),
)
def test_the_start_of_every_round_is_within_its_bounds(parts, gapless) -> None:
    """Rounds after pauses of any length; every one is known, within a second or a quarter."""
    rounds, at = [], 1.0
    for pause, length in parts:
        begin = at + (0.001 if gapless and rounds else pause)
        rounds.append((begin, begin + length))
        at = begin + length
    starts, after = looked(*rounds, until=at + 2), None
    for begin, end in rounds:
        found = starts.of("g", after=after, ended=end)
        assert found is not None
        assert found.earliest is not None
        assert found.earliest - 0.011 <= begin <= found.latest + 0.211, (found, begin, end)
        known = found.known(end)
        assert known is not None
        assert abs(known - begin) <= max(1.22, 0.26 * (end - begin)), (known, begin, end)
        after = end


def begun() -> tuple[Story, RoundStarts]:
    """A group's first generation, whose replay asks these for the starts of rounds."""
    story, starts = Story(), RoundStarts()
    starts.listed({"g"})
    story.replay.ask_start(lambda **when: starts.of("g", **when))
    story.generation(1, A, B)
    return story, starts


def test_a_replay_asks_for_them() -> None:
    """Half a minute of standstill is told as such, where it was 0.1 s or nothing."""
    story, starts = begun()
    for second in range(60):
        now = {"g"} if second >= 28 else set()
        at = START + second
        starts.look(now, asked=at, answered=at, whole=True)
    story.later(60)
    story.generation(2, A, stable=0.5)
    row = story.rebalances[-1]
    assert (row.start_source, row.is_timed) == (TimeSource.STATES, True)
    assert abs(row.seconds - 32.5) < 0.1


def test_a_commit_out_of_its_rhythm_is_no_revocation_where_the_group_was_seen_settled() -> None:
    """As of a consumer that gets no processor: its commits come late, and then two at once."""
    story, starts = begun()
    story.commits(0, 1, times=20)
    story.later(-0.7)
    story.commits(0, every=0.0)  # its burst, two seconds before the round
    for second in range(23):
        starts.look((), asked=START + second, answered=START + second, whole=True)
    story.later(START + 22.9 - story.at)
    story.generation(2, A, stable=0.0)
    row = story.rebalances[-1]
    assert (row.start_source, row.is_timed) == (TimeSource.STATES, True)
    assert row.seconds < 1
