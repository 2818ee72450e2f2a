"""Names the cause of a rebalance from what changed. Pure rules without state.

Problem: the log shows what is different after a rebalance, seldom why. A missing member left, was
removed, or let its session expire; the order of two changes in one round is unknown. Choice: every
rule names its evidence, and a cause has a confidence. CERTAIN: the records exclude everything else.
LIKELY: a rhythm points to it. AMBIGUOUS: the records allow more than one cause. Cost: idle members
leave no evidence, so their cause stays `removal`.

The evidence on a removal is silence. Kafka removes a classic member by session timeout only that
long after its last heartbeat, and a commit counts as one (docs/contributing/protocol.md 1.2, R20;
2.2), so a shorter silence excludes expiry. A member that committed steadily and fell silent for
longer than its session most likely expired; one that was gone within two of its gaps left. A client
that is too slow leaves `max.poll.interval.ms` after its last poll: where that time has passed as
well, the silence allows both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleet.model.rebalances import Cause, Confidence

_SLACK: Final = 0.1
"""Seconds by which timestamps of one broker's timers and records may differ."""
_STEADY: Final = 3
"""A session this many gaps long would have seen commits of a live member."""
_SOON: Final = 2
"""Gaps of silence that a live member's rhythm explains."""
_EARLY: Final = 1 / 3
"""So much of a session is silence also where a heartbeat may be older than the last commit."""
_LATE: Final = 1 / 2
"""So much of a session (or two gaps) may pass after an expiry until the log shows it: others have
to notice the round first. Who was silent for longer had heartbeats meanwhile, and no commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What is known of a member that is gone."""

    quiet_s: float
    """From the last proof of life to the end of the join phase (KIP-848: to its removal)."""
    since_commit_s: float | None = None
    gap_s: float | None = None
    """Its usual time between commits; None where it has no rhythm."""
    session_s: float | None = None
    """Removal by session timeout takes so long after a proof of life; None: not known."""
    longest_s: float | None = None
    """Where it changed meanwhile, the longest that it can have been."""
    silent_s: float = 0.0
    """And so long after a last commit, at least: less than a session where that is no heartbeat."""
    sure: bool = True
    """The session timeout was known at that time, and is not concluded from a later one."""
    rebalance_s: float | None = None
    dropped: bool = False
    """It may have been dropped for not rejoining: the round may have lasted long enough."""
    overdue: bool = False
    """KIP-848: it had not given up partitions for longer than its rebalance timeout."""
    away: bool = False
    """KIP-848: it had said that it would be back (static, epoch -2)."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A cause, how sure it is, and what else changed."""

    cause: Cause
    confidence: Confidence = Confidence.CERTAIN
    also: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """What a classic generation changed against the one before it."""

    origin: Cause | None = None
    first: bool = False
    """The log no longer has the one before."""
    joined: bool = False
    left: tuple[Silence, ...] = ()
    static: bool = False
    """All who left were static members."""
    replaced: bool = False
    assignor: bool = False
    resubscribed: bool = False
    grown: bool = False
    withheld: bool = False
    """The generation before had partitions given up for others (KIP-429)."""
    noticed: bool = False
    """A cooperative round after one for a topic that grew: each member notices by itself."""
    cooperative: bool = False
    aborted: int = 0
    coordinator: bool = False
    """Another broker became the coordinator shortly before."""


def of_generation(change: GenerationChange) -> Reason:
    """The cause of a classic generation (docs/contributing/protocol.md 2.2, 2.4, 3.5)."""
    if change.origin is None and change.first:
        return Reason(Cause.UNKNOWN, Confidence.AMBIGUOUS)
    found: list[Reason] = []
    if change.joined:
        found.append(Reason(Cause.JOIN))
    if change.left:
        found.append(_batched(change) or removal(change.left))
    if change.resubscribed:
        found.append(Reason(Cause.SUBSCRIPTION))
    if change.grown:
        found.append(Reason(Cause.PARTITIONS))
    if change.withheld:
        found.append(Reason(Cause.SECOND_ROUND))
    # A selected assignor changes with those who bring or take one: then it is no trigger.
    if change.assignor:
        found.append(Reason(Cause.ASSIGNOR))
        if found[0].cause in {Cause.JOIN, Cause.LEAVE} and len(found) == 2 and not change.origin:
            return Reason(found[0].cause, found[0].confidence, (Cause.ASSIGNOR,))
    if change.origin is not None:
        begun = change.origin in {Cause.CREATED, Cause.RECREATED}
        also = tuple(each.cause for each in found if not (begun and each.cause is Cause.JOIN))
        return Reason(change.origin, Confidence.CERTAIN, also)
    if not found:
        return _without_change(change)
    if len(found) > 1:  # in which order they came is not in the log
        also = tuple(each.cause for each in found[1:])
        return Reason(found[0].cause, Confidence.AMBIGUOUS, also)
    if change.aborted and found[0].confidence is Confidence.CERTAIN:
        # Somebody may have come and gone in the rounds that never completed.
        return Reason(found[0].cause, Confidence.LIKELY)
    return found[0]


def _without_change(change: GenerationChange) -> Reason:
    """Nothing that the records show is different."""
    if change.coordinator:
        return Reason(Cause.COORDINATOR_MOVE, Confidence.LIKELY)
    if change.noticed:
        return Reason(Cause.PARTITIONS, Confidence.LIKELY)
    if change.aborted or change.replaced:
        return Reason(Cause.UNKNOWN, Confidence.AMBIGUOUS)
    # Followers of a cooperative group rejoin with what they own, and that counts as a change.
    sure = Confidence.AMBIGUOUS if change.cooperative else Confidence.LIKELY
    return Reason(Cause.LEADER_REJOIN, sure)


def _batched(change: GenerationChange) -> Reason | None:
    """Several static members that did not expire were removed: clients send no such leave."""
    if len(change.left) < 2 or not change.static:
        return None
    departures = [_departed(each) for each in change.left]
    if all(each is not None and each.cause is Cause.LEAVE for each in departures):
        return Reason(Cause.BATCHED_LEAVE, Confidence.LIKELY)
    return None


def removal(silences: Sequence[Silence]) -> Reason:
    """Whether the members that are gone left or expired."""
    departures = [_departed(each) for each in silences]
    causes = {None if each is None else each.cause for each in departures}
    if len(causes) == 1 and departures[0] is not None:
        sure = all(
            each is not None and each.confidence is Confidence.CERTAIN for each in departures
        )
        return Reason(departures[0].cause, Confidence.CERTAIN if sure else Confidence.LIKELY)
    also = tuple(sorted(each for each in causes if each is not None))
    return Reason(Cause.REMOVAL, Confidence.AMBIGUOUS, also)


def _departed(silence: Silence) -> Reason | None:
    """One member; None where its silence allows both."""
    if silence.overdue:
        return Reason(Cause.EXPIRY, Confidence.LIKELY)
    if silence.away:  # its session ran out, or somebody removed it
        return None
    session, gap, since = silence.session_s, silence.gap_s, silence.since_commit_s
    if session is None:
        return None
    if silence.quiet_s < min(session, silence.rebalance_s or session) - _SLACK:
        likely = silence.dropped or not silence.sure
        return Reason(Cause.LEAVE, Confidence.LIKELY if likely else Confidence.CERTAIN)
    if gap is None or since is None:
        return None
    longest = max(session, silence.longest_s or 0.0)
    earliest = max(silence.silent_s - _SLACK, _EARLY * longest, _STEADY * gap)
    if earliest <= since <= longest + max(_SOON * gap, _LATE * longest) + _SLACK:
        poll = silence.rebalance_s  # clients send their max.poll.interval.ms as rebalance timeout
        if poll is not None and since >= poll - _SOON * gap - _SLACK:
            return None  # a client that polls too late leaves by itself after that time
        return Reason(Cause.EXPIRY, Confidence.LIKELY)
    if since <= min(_SOON * gap, silence.silent_s / 2):
        return Reason(Cause.LEAVE, Confidence.LIKELY)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChange:
    """What one KIP-848 group epoch changed against the one before it; one event each."""

    joined: bool = False
    left: tuple[Silence, ...] = ()
    resubscribed: bool = False
    assignor: bool = False
    hash_changed: bool = False


def of_epoch(step: EpochChange) -> Reason:
    """The cause of one group epoch (docs/contributing/protocol.md 2.5)."""
    if len(step.left) > 1:  # expiry takes one member per epoch, one request any number
        return Reason(Cause.BATCHED_LEAVE)
    if step.left:
        return removal(step.left)
    if step.joined:
        return Reason(Cause.JOIN)
    if step.resubscribed:
        return Reason(Cause.SUBSCRIPTION)
    if step.hash_changed:
        return Reason(Cause.PARTITIONS)
    if step.assignor:
        return Reason(Cause.ASSIGNOR)
    return Reason(Cause.UNKNOWN, Confidence.AMBIGUOUS)


def of_assignment(steps: Sequence[Reason], origin: Cause | None) -> Reason:
    """The cause of an assignment epoch: the first event since the last one that it answers."""
    first = steps[0] if steps else Reason(Cause.UNKNOWN, Confidence.AMBIGUOUS)
    also = [cause for step in steps for cause in (step.cause, *step.also)]
    if origin is not None:
        begun = origin in {Cause.CREATED, Cause.RECREATED}
        also = [cause for cause in also if not (begun and cause is Cause.JOIN)]
        first = Reason(origin)
    also = [cause for cause in dict.fromkeys(also) if cause is not first.cause]
    return Reason(first.cause, first.confidence, tuple(also))
