"""What an assignor is given and what it gives back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fleet.sim.hashing.hash_order import HashOrder

Target: TypeAlias = HashOrder[bytes, HashOrder[int, None]]
"""Partitions by topic id (16 bytes): what a member shall own."""
Targets: TypeAlias = dict[str, Target]
"""What each member shall own, by member id."""


class AssignmentFailed(Exception):
    """The assignor could not place every partition."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A member to be assigned to: the ids of its topics, and what it shall own until now.

    `subscribed` is how many topics it names, existing or not.
    """

    id: str
    instance: str | None
    topics: Iterable[bytes]
    subscribed: int
    target: Target


@dataclass(frozen=True, slots=True)
class Applicants:
    """All members, in the order in which the coordinator walks them."""

    members: tuple[Applicant, ...]
    partitions: Mapping[bytes, int]
    owners: Mapping[bytes, Mapping[int, str]]
    homogeneous: bool

    def topics_of_first(self) -> list[bytes]:
        """The topics of the first member, as a Java set of them is walked."""
        first = self.members[0]
        return list(HashOrder.collected(first.topics, None, first.subscribed))


def unfolded(target: Target) -> Target:
    """A copy that may be changed."""
    copy: Target = HashOrder(len(target))
    for topic, partitions in target.items():
        copy[topic] = HashOrder.collected(partitions, None)
    return copy
