"""A member of a KIP-848 group: what it told of itself, where it stands, what it owns.

The machine of a member (`ConsumerMemberState`) moves by what the coordinator finds at a heartbeat
(`MemberAction`); `MOVES` is the one table, `moved` the one way through it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, TypeAlias

from fleet.errors import FleetError
from fleet.sim.hashing.hash_order import HashOrder

Owned: TypeAlias = HashOrder[bytes, HashOrder[int, int]]
"""Partitions by topic id, each with the epoch in which it was given (KIP-1251)."""

LEFT: Final = -1
AWAY: Final = -2


class ConsumerMemberState(Enum):
    """Where a member stands on its way to its target.

    STABLE: it has all of its target, at its own epoch.
    UNREVOKED: it was told to give up partitions and has not yet said that it did; its epoch
      stays, and its rebalance timer runs.
    UNRELEASED: it has reached the target's epoch, but partitions of it are still another's.
    UNKNOWN: a record of a newer broker said something else; it must come back with nothing.
    """

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> "ConsumerMemberState":
        """The state that a record names; UNKNOWN for a number of a newer broker."""
        return cls(number) if number in _NUMBERS else cls.UNKNOWN


_NUMBERS: Final = {0, 1, 2}


class MemberAction(Enum):
    """What the coordinator finds for a member at a heartbeat.

    REVOKE: the member owns partitions that are not in its target, and has not let them go.
    WAIT: it owns nothing too much, but some of its target is still owned by another.
    SETTLE: it owns all of its target.
    PRUNE: its subscription changed: what it no longer subscribes to goes before a new target.
    """

    REVOKE = "revoke"
    WAIT = "wait"
    SETTLE = "settle"
    PRUNE = "prune"


_RECONCILED: Final = {
    MemberAction.REVOKE: ConsumerMemberState.UNREVOKED,
    MemberAction.WAIT: ConsumerMemberState.UNRELEASED,
    MemberAction.SETTLE: ConsumerMemberState.STABLE,
}
MOVES: Final[Mapping[tuple[ConsumerMemberState, MemberAction], frozenset[ConsumerMemberState]]] = {
    **{
        (old, what): frozenset({new})
        for old in ConsumerMemberState
        for what, new in _RECONCILED.items()
    },
    (ConsumerMemberState.STABLE, MemberAction.PRUNE): frozenset(
        {ConsumerMemberState.STABLE, ConsumerMemberState.UNREVOKED}
    ),
    (ConsumerMemberState.UNREVOKED, MemberAction.PRUNE): frozenset({ConsumerMemberState.UNREVOKED}),
}


def moved(
    old: ConsumerMemberState, what: MemberAction, new: ConsumerMemberState
) -> ConsumerMemberState:
    """The new state. Raises FleetError for a move that the table does not have."""
    legal = MOVES.get((old, what), frozenset())
    if new not in legal:
        allowed = ", ".join(sorted(each.name for each in legal)) or "nothing"
        raise FleetError(
            f"a member in state {old.name} cannot become {new.name} by {what.name}: "
            f"from there it leads to {allowed}; the story that led here is a bug of the model"
        )
    return new


def _no_owned() -> Owned:
    return HashOrder()


def _no_names() -> HashOrder[str, None]:
    return HashOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member; never changed in place. Times in ms, -1 where the member told none."""

    id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: ConsumerMemberState = ConsumerMemberState.STABLE
    instance: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    client: str = ""
    host: str = ""
    topics: HashOrder[str, None] = field(default_factory=_no_names)
    regex: str | None = ""
    assignor: str | None = None
    assigned: Owned = field(default_factory=_no_owned)
    revoking: Owned = field(default_factory=_no_owned)

    def having(self, **changed: Any) -> "ConsumerMember":
        """This member with fields changed. Raises TypeError for one that there is not.

        What `dataclasses.replace` does in a quarter of its time.
        """
        if not changed.keys() <= _FIELDS.keys():
            raise TypeError(f"a member has no {', '.join(changed.keys() - _FIELDS.keys())}")
        made = object.__new__(ConsumerMember)
        for name, (known, put) in _FIELDS.items():
            put(made, changed[name] if name in changed else known(self))
        return made

    def reached(self, epoch: int, **changed: Any) -> "ConsumerMember":
        """This member at an epoch, the one it had as its previous one."""
        return self.having(epoch=epoch, previous_epoch=self.epoch, **changed)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all of the target of that epoch."""
        return self.state is ConsumerMemberState.STABLE and self.epoch == epoch

    @property
    def subscribed_regex(self) -> str | None:
        """The regular expression, None where it has none."""
        return self.regex or None


_FIELDS: Final = {
    each.name: (slot.__get__, slot.__set__)
    for each in fields(ConsumerMember)
    for slot in (vars(ConsumerMember)[each.name],)
}
"""Field → how it is read and, once, written."""
