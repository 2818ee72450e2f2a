"""Which evidence leads to which verdict."""

from typing import Any

import pytest

from fleet.log.replay.reasons import (
    Change,
    Silence,
    Step,
    Verdict,
    of_assignment,
    of_epoch,
    of_generation,
)
from fleet.rebalances import Cause, Confidence

CERTAIN, LIKELY, AMBIGUOUS = Confidence.CERTAIN, Confidence.LIKELY, Confidence.AMBIGUOUS


def silence(**values: Any) -> Silence:
    return Silence(**{"quiet_s": 60.0, "session_s": 45.0, "rebalance_s": 300.0, **values})


RECENT = silence(quiet_s=2.0)
STEADY_THEN_SILENT = silence(since_commit_s=47.0, gap_s=1.0)
NEVER_COMMITTED = silence()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(Change(joined=True), Verdict(Cause.JOIN), id="joined"),
        pytest.param(Change(left=(RECENT,)), Verdict(Cause.LEAVE), id="too soon for an expiry"),
        pytest.param(
            Change(left=(STEADY_THEN_SILENT,)),
            Verdict(Cause.EXPIRY, LIKELY),
            id="steady, then silent for a session",
        ),
        pytest.param(
            Change(left=(NEVER_COMMITTED,)),
            Verdict(Cause.DEPARTURE, AMBIGUOUS),
            id="idle: nothing tells",
        ),
        pytest.param(
            Change(left=(silence(since_commit_s=50.0, gap_s=20.0),)),
            Verdict(Cause.DEPARTURE, AMBIGUOUS),
            id="commits too seldom to tell",
        ),
        pytest.param(
            Change(left=(silence(quiet_s=2.0, dropped=True),)),
            Verdict(Cause.LEAVE, LIKELY),
            id="may have been dropped at the rebalance timeout",
        ),
        pytest.param(
            Change(left=(RECENT, STEADY_THEN_SILENT)),
            Verdict(Cause.DEPARTURE, AMBIGUOUS, (Cause.EXPIRY, Cause.LEAVE)),
            id="one left, one expired",
        ),
        pytest.param(
            Change(left=(RECENT, RECENT), static=True),
            Verdict(Cause.BATCHED_LEAVE, LIKELY),
            id="two static members removed at once",
        ),
        pytest.param(
            Change(left=(RECENT, RECENT)), Verdict(Cause.LEAVE), id="two dynamic ones left"
        ),
        pytest.param(
            Change(left=(STEADY_THEN_SILENT,) * 2, static=True),
            Verdict(Cause.EXPIRY, LIKELY),
            id="two static members expired",
        ),
        pytest.param(
            Change(joined=True, left=(RECENT,)),
            Verdict(Cause.JOIN, AMBIGUOUS, (Cause.LEAVE,)),
            id="which came first is not told",
        ),
        pytest.param(Change(resubscribed=True), Verdict(Cause.SUBSCRIPTION), id="topics"),
        pytest.param(Change(grown=True), Verdict(Cause.PARTITIONS), id="partitions"),
        pytest.param(
            Change(noticed=True), Verdict(Cause.PARTITIONS, LIKELY), id="others noticed later"
        ),
        pytest.param(Change(assignor=True), Verdict(Cause.ASSIGNOR), id="assignor"),
        pytest.param(
            Change(assignor=True, left=(RECENT,)),
            Verdict(Cause.LEAVE, CERTAIN, (Cause.ASSIGNOR,)),
            id="the last one with the old assignor left",
        ),
        pytest.param(Change(withheld=True), Verdict(Cause.SECOND_ROUND), id="second round"),
        pytest.param(Change(), Verdict(Cause.LEADER_REJOIN, LIKELY), id="nothing differs"),
        pytest.param(
            Change(coordinator=True), Verdict(Cause.COORDINATOR_MOVE, LIKELY), id="coordinator"
        ),
        pytest.param(
            Change(aborted=1), Verdict(Cause.UNKNOWN, AMBIGUOUS), id="came and went in between"
        ),
        pytest.param(
            Change(cooperative=True),
            Verdict(Cause.LEADER_REJOIN, AMBIGUOUS),
            id="a follower of a cooperative group may be it",
        ),
        pytest.param(Change(aborted=1, joined=True), Verdict(Cause.JOIN, LIKELY), id="aborted"),
        pytest.param(Change(first=True), Verdict(Cause.UNKNOWN, AMBIGUOUS), id="log begins here"),
        pytest.param(
            Change(origin=Cause.CREATED, joined=True, aborted=1), Verdict(Cause.CREATED), id="new"
        ),
        pytest.param(
            Change(origin=Cause.MIGRATION, left=(RECENT,)),
            Verdict(Cause.MIGRATION, CERTAIN, (Cause.LEAVE,)),
            id="downgraded",
        ),
    ],
)
def test_a_generation(change: Change, expected: Verdict) -> None:
    assert of_generation(change) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(Step(joined=True, hash_changed=True), Verdict(Cause.JOIN), id="join"),
        pytest.param(
            Step(left=(NEVER_COMMITTED,) * 2), Verdict(Cause.BATCHED_LEAVE), id="one request"
        ),
        pytest.param(
            Step(left=(silence(session_s=None, since_commit_s=1.5, gap_s=1.0),)),
            Verdict(Cause.LEAVE, LIKELY),
            id="still in its rhythm",
        ),
        pytest.param(
            Step(left=(silence(session_s=None, since_commit_s=10.0, gap_s=1.0),)),
            Verdict(Cause.DEPARTURE, AMBIGUOUS),
            id="silent, but not for a default session",
        ),
        pytest.param(
            Step(left=(silence(session_s=None, since_commit_s=46.0, gap_s=1.0),)),
            Verdict(Cause.EXPIRY, LIKELY),
            id="silent for a default session",
        ),
        pytest.param(Step(left=(RECENT,)), Verdict(Cause.LEAVE), id="session known"),
        pytest.param(
            Step(left=(silence(quiet_s=2.0, overdue=True),)),
            Verdict(Cause.EXPIRY, LIKELY),
            id="never gave up its partitions",
        ),
        pytest.param(
            Step(left=(silence(quiet_s=2.0, away=True),)),
            Verdict(Cause.DEPARTURE, AMBIGUOUS),
            id="static and away: expired, or removed",
        ),
        pytest.param(Step(resubscribed=True), Verdict(Cause.SUBSCRIPTION), id="topics"),
        pytest.param(Step(hash_changed=True), Verdict(Cause.PARTITIONS), id="partitions"),
        pytest.param(Step(assignor=True), Verdict(Cause.ASSIGNOR), id="assignor"),
        pytest.param(Step(), Verdict(Cause.UNKNOWN, AMBIGUOUS), id="nothing"),
    ],
)
def test_an_epoch(step: Step, expected: Verdict) -> None:
    assert of_epoch(step) == expected


def test_an_assignment_answers_the_first_of_its_epochs() -> None:
    steps = [Verdict(Cause.LEAVE, LIKELY), Verdict(Cause.JOIN), Verdict(Cause.JOIN)]
    assert of_assignment(steps, None) == Verdict(Cause.LEAVE, LIKELY, (Cause.JOIN,))
    assert of_assignment(steps[1:], Cause.REBORN) == Verdict(Cause.REBORN)
    assert of_assignment([], None) == Verdict(Cause.UNKNOWN, AMBIGUOUS)
