"""The states of a classic group, and which may follow which.

States, moves and their causes as in org.apache.kafka.coordinator.group.classic (4.3.1).
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


class ClassicState(StrEnum):
    """What a classic group is at.

    EMPTY: nobody is in it; offsets may be.
      action: members may join; everything else is from an unknown member, but for commits
        without a generation
      transitions: a member joins => PREPARING_REBALANCE; unloaded or deleted => DEAD
    PREPARING_REBALANCE: it waits until its members have joined anew.
      action: park JoinGroup; heartbeats and SyncGroup hear REBALANCE_IN_PROGRESS; commits of the
        last generation are taken
      transitions: all have joined, or time is up => COMPLETING_REBALANCE; nobody is left => EMPTY;
        unloaded => DEAD
    COMPLETING_REBALANCE: the new generation waits for its leader's assignment.
      action: park SyncGroup; heartbeats are fine; commits hear REBALANCE_IN_PROGRESS
      transitions: the assignment is durable => STABLE; someone joins, leaves, fails, does not
        sync in time, or the write fails => PREPARING_REBALANCE; unloaded => DEAD
    STABLE: everyone has an assignment.
      action: heartbeats are fine; SyncGroup gets the assignment again; a follower that joins
        unchanged, and a static member that comes back, get the current generation
      transitions: a new or changed member or the leader joins, someone leaves or fails
        => PREPARING_REBALANCE; unloaded => DEAD
    DEAD: this coordinator has it no more.
      action: every request hears COORDINATOR_NOT_AVAILABLE
      transitions: none
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


BEFORE: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING_REBALANCE}),
    ClassicState.PREPARING_REBALANCE: frozenset(
        {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY}
    ),
    ClassicState.COMPLETING_REBALANCE: frozenset({ClassicState.PREPARING_REBALANCE}),
    ClassicState.STABLE: frozenset({ClassicState.COMPLETING_REBALANCE}),
    ClassicState.DEAD: frozenset(ClassicState),
}
"""State → the states that it may follow."""


class IllegalTransition(RuntimeError):
    """A group was to make a move that there is not: the model is wrong, and tells the story."""

    def __init__(
        self, group: str, state: ClassicState, target: ClassicState, story: Iterable[str]
    ) -> None:
        allowed = ", ".join(sorted(BEFORE[target]))
        lines = "\n  ".join(story)
        super().__init__(
            f"group {group} is {state} and cannot become {target}, which follows {allowed}; "
            f"what led there:\n  {lines}"
        )


class UnexpectedRequest(Exception):
    """Where Kafka's coordinator throws what it has no error code for: UNKNOWN_SERVER_ERROR."""
