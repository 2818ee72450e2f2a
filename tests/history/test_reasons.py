"""Which evidence leads to which verdict."""

from typing import Any

import pytest

from fleet.log.replay.reasons import (
    EpochChange,
    GenerationChange,
    Reason,
    Silence,
    of_assignment,
    of_epoch,
    of_generation,
)
from fleet.model.rebalances import Cause, Confidence

CERTAIN, LIKELY, AMBIGUOUS = Confidence.CERTAIN, Confidence.LIKELY, Confidence.AMBIGUOUS


def silence(**values: Any) -> Silence:
    usual = {"quiet_s": 60.0, "session_s": 45.0, "silent_s": 45.0, "rebalance_s": 300.0}
    return Silence(**{**usual, **values})


RECENT = silence(quiet_s=2.0)
STEADY_THEN_SILENT = silence(since_commit_s=47.0, gap_s=1.0)
NEVER_COMMITTED = silence()
SIX = {"session_s": 6.0, "silent_s": 4.0}
"""A KIP-848 group of its own session timeout, and a heartbeat every 2 s."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(GenerationChange(joined=True), Reason(Cause.JOIN), id="joined"),
        pytest.param(
            GenerationChange(left=(RECENT,)), Reason(Cause.LEAVE), id="too soon for an expiry"
        ),
        pytest.param(
            GenerationChange(left=(STEADY_THEN_SILENT,)),
            Reason(Cause.EXPIRY, LIKELY),
            id="steady, then silent for a session",
        ),
        pytest.param(
            GenerationChange(left=(silence(quiet_s=300.0, since_commit_s=300.0, gap_s=1.0),)),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="steady, then idle for far more than a session, then gone",
        ),
        pytest.param(
            GenerationChange(
                left=(silence(since_commit_s=47.0, gap_s=1.0, rebalance_s=48.0),),
            ),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="silent for a session, and for max.poll.interval.ms, after which clients leave",
        ),
        pytest.param(
            GenerationChange(
                left=(silence(since_commit_s=47.0, gap_s=1.0, rebalance_s=60.0),),
            ),
            Reason(Cause.EXPIRY, LIKELY),
            id="silent for a session, and not yet for max.poll.interval.ms",
        ),
        pytest.param(
            GenerationChange(left=(NEVER_COMMITTED,)),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="idle: nothing tells",
        ),
        pytest.param(
            GenerationChange(left=(silence(since_commit_s=50.0, gap_s=20.0),)),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="commits too seldom to tell",
        ),
        pytest.param(
            GenerationChange(left=(silence(quiet_s=2.0, dropped=True),)),
            Reason(Cause.LEAVE, LIKELY),
            id="may have been dropped at the rebalance timeout",
        ),
        pytest.param(
            GenerationChange(left=(RECENT, STEADY_THEN_SILENT)),
            Reason(Cause.REMOVAL, AMBIGUOUS, (Cause.EXPIRY, Cause.LEAVE)),
            id="one left, one expired",
        ),
        pytest.param(
            GenerationChange(left=(RECENT, RECENT), static=True),
            Reason(Cause.BATCHED_LEAVE, LIKELY),
            id="two static members removed at once",
        ),
        pytest.param(
            GenerationChange(left=(RECENT, RECENT)), Reason(Cause.LEAVE), id="two dynamic ones left"
        ),
        pytest.param(
            GenerationChange(left=(STEADY_THEN_SILENT,) * 2, static=True),
            Reason(Cause.EXPIRY, LIKELY),
            id="two static members expired",
        ),
        pytest.param(
            GenerationChange(joined=True, left=(RECENT,)),
            Reason(Cause.JOIN, AMBIGUOUS, (Cause.LEAVE,)),
            id="which came first is not told",
        ),
        pytest.param(GenerationChange(resubscribed=True), Reason(Cause.SUBSCRIPTION), id="topics"),
        pytest.param(GenerationChange(grown=True), Reason(Cause.PARTITIONS), id="partitions"),
        pytest.param(
            GenerationChange(noticed=True),
            Reason(Cause.PARTITIONS, LIKELY),
            id="others noticed later",
        ),
        pytest.param(GenerationChange(assignor=True), Reason(Cause.ASSIGNOR), id="assignor"),
        pytest.param(
            GenerationChange(assignor=True, left=(RECENT,)),
            Reason(Cause.LEAVE, CERTAIN, (Cause.ASSIGNOR,)),
            id="the last one with the old assignor left",
        ),
        pytest.param(
            GenerationChange(withheld=True), Reason(Cause.SECOND_ROUND), id="second round"
        ),
        pytest.param(GenerationChange(), Reason(Cause.LEADER_REJOIN, LIKELY), id="nothing differs"),
        pytest.param(
            GenerationChange(coordinator=True),
            Reason(Cause.COORDINATOR_MOVE, LIKELY),
            id="coordinator",
        ),
        pytest.param(
            GenerationChange(aborted=1),
            Reason(Cause.UNKNOWN, AMBIGUOUS),
            id="came and went in between",
        ),
        pytest.param(
            GenerationChange(cooperative=True),
            Reason(Cause.LEADER_REJOIN, AMBIGUOUS),
            id="a follower of a cooperative group may be it",
        ),
        pytest.param(
            GenerationChange(aborted=1, joined=True), Reason(Cause.JOIN, LIKELY), id="aborted"
        ),
        pytest.param(
            GenerationChange(first=True), Reason(Cause.UNKNOWN, AMBIGUOUS), id="log begins here"
        ),
        pytest.param(
            GenerationChange(origin=Cause.CREATED, joined=True, aborted=1),
            Reason(Cause.CREATED),
            id="new",
        ),
        pytest.param(
            GenerationChange(origin=Cause.MIGRATION, left=(RECENT,)),
            Reason(Cause.MIGRATION, CERTAIN, (Cause.LEAVE,)),
            id="downgraded",
        ),
    ],
)
def test_a_generation(change: GenerationChange, expected: Reason) -> None:
    assert of_generation(change) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(EpochChange(joined=True, hash_changed=True), Reason(Cause.JOIN), id="join"),
        pytest.param(
            EpochChange(left=(NEVER_COMMITTED,) * 2), Reason(Cause.BATCHED_LEAVE), id="one request"
        ),
        *(
            pytest.param(
                EpochChange(left=(silence(session_s=None, since_commit_s=since, gap_s=1.0),)),
                Reason(Cause.REMOVAL, AMBIGUOUS),
                id=f"session not known, silent for {since:g} s",
            )
            for since in (1.5, 10.0, 46.0)
        ),
        pytest.param(
            EpochChange(left=(silence(quiet_s=7.0, since_commit_s=5.0, gap_s=0.5, **SIX),)),
            Reason(Cause.EXPIRY, LIKELY),
            id="killed under a session of 6 s, of which a commit shortened the silence",
        ),
        pytest.param(
            EpochChange(left=(silence(quiet_s=70.0, since_commit_s=60.0, gap_s=0.5, **SIX),)),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="silent for ten sessions: it had heartbeats all the time",
        ),
        pytest.param(
            EpochChange(left=(silence(quiet_s=2.0, sure=False),)),
            Reason(Cause.LEAVE, LIKELY),
            id="the session was asked for later",
        ),
        pytest.param(EpochChange(left=(RECENT,)), Reason(Cause.LEAVE), id="session known"),
        pytest.param(
            EpochChange(left=(silence(quiet_s=2.0, overdue=True),)),
            Reason(Cause.EXPIRY, LIKELY),
            id="never gave up its partitions",
        ),
        pytest.param(
            EpochChange(left=(silence(quiet_s=2.0, away=True),)),
            Reason(Cause.REMOVAL, AMBIGUOUS),
            id="static and away: expired, or removed",
        ),
        pytest.param(EpochChange(resubscribed=True), Reason(Cause.SUBSCRIPTION), id="topics"),
        pytest.param(EpochChange(hash_changed=True), Reason(Cause.PARTITIONS), id="partitions"),
        pytest.param(EpochChange(assignor=True), Reason(Cause.ASSIGNOR), id="assignor"),
        pytest.param(EpochChange(), Reason(Cause.UNKNOWN, AMBIGUOUS), id="nothing"),
    ],
)
def test_an_epoch(step: EpochChange, expected: Reason) -> None:
    assert of_epoch(step) == expected


def test_an_assignment_answers_the_first_of_its_epochs() -> None:
    steps = [Reason(Cause.LEAVE, LIKELY), Reason(Cause.JOIN), Reason(Cause.JOIN)]
    assert of_assignment(steps, None) == Reason(Cause.LEAVE, LIKELY, (Cause.JOIN,))
    assert of_assignment(steps[1:], Cause.RECREATED) == Reason(Cause.RECREATED)
    assert of_assignment([], None) == Reason(Cause.UNKNOWN, AMBIGUOUS)
