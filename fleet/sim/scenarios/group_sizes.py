"""One change of a group of any size, each way to make it: what `make bench-rebalance-table` plays.

Problem: how long a rebalance of N members takes, and who stands still meanwhile, is told nowhere.
Choice: three changes (join, leave, restart) of a settled group with two partitions a member, made
by one member, by a tenth of the members at once, and by that tenth in Fleet's way: the gate, the
batched leave, handovers to standbys, all with the worker's own settings. Cost: a tenth one by one
is not played, since the first says what each of them costs.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fleet.sim.scenarios.group_story import Happening, Scenario
from fleet.sim.scenarios.library import (
    FLEET_HEARTBEAT,
    FLEET_NUDGE,
    FLEET_SESSION,
    HANDOVER,
    SETTLED,
)

CHANGES: Final = ("join", "leave", "restart")
SIZED_PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")
WAYS: Final = ("one", "tenth", "fleet")
LONGEST_HEARTBEAT: Final = 5_000
"""Milliseconds: KIP-848's interval; changes at random moments of so long meet every phase."""
AWAY: Final = 5_000
"""Milliseconds from a member's close to its start: the ordinary restart."""


class SizedChange(NamedTuple):
    """One cell of the table, without the size."""

    change: str
    """One of CHANGES."""
    protocol: str
    membership: str
    """dynamic or static; Fleet's workers are static."""
    way: str
    """One of WAYS."""

    def changed(self, members: int) -> int:
        """How many members change at once: one, or a tenth, at least two."""
        return 1 if self.way == "one" else max(2, members // 10)

    def scenario(self, members: int, shift: int = 0) -> Scenario:
        """The story; `shift` milliseconds later than a minute after the start.

        Raises KeyError for a change that CHANGES does not have.
        """
        together, fleet = self.changed(members), self.way == "fleet"
        at, last = SETTLED + shift, members - together
        happening = {
            "join": Happening(at, "start", members, together=together),
            "leave": Happening(
                at, "batched-leave" if fleet else "leave", last, 0, together=together
            ),
            "restart": Happening(
                at, "restart", last, HANDOVER if fleet else AWAY, together=together
            ),
        }[self.change]
        story = Scenario(
            members,
            self.membership == "static",
            2 * members,
            happenings=(happening,),
            drifts_at=SETTLED // 2,
        ).by(self.protocol)
        if not fleet:
            return story
        if self.protocol == "consumer":
            return story._replace(nudge=FLEET_NUDGE)
        return story._replace(heartbeat_interval=FLEET_HEARTBEAT, session_timeout=FLEET_SESSION)


def sized_changes(protocols: Iterable[str] = SIZED_PROTOCOLS) -> Iterator[SizedChange]:
    """All of them: 15 for each protocol."""
    for change in CHANGES:
        for protocol in protocols:
            for membership in ("dynamic", "static"):
                for way in WAYS:
                    if way != "fleet" or membership == "static":
                        yield SizedChange(change, protocol, membership, way)
