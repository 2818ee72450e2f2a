"""Which slots stay where fewer are wanted than there are.

Problem: a wave of dynamic members that was given up (its manager died, `fleet apply --abort`)
leaves one more member than is wanted, of the new code, and it may be the only one that does not
have to roll: closing it as the highest number costs two rebalances that are not needed. Choice:
numbers stay from the lowest on, but a good canary of the wanted revision comes before those that
would have to roll. Cost: none for static members, whose roll costs no rebalance: their numbers stay
together.
"""

from collections.abc import Collection

from fleet.decide.world import GroupWorld
from fleet.slots import Phase


def slots_that_stay(
    held: tuple[int, ...], wanted: int, *, old: Collection[int], canaries: Collection[int]
) -> tuple[int, ...]:
    """At most `wanted` of the open slots, in order.

    old: those that would have to roll. canaries: see `good_canaries`.
    """
    first = {n for n in canaries if n not in old} if old else set()
    return tuple(sorted(sorted(held, key=lambda n: (n not in first, n))[:wanted]))


def good_canaries(world: GroupWorld) -> tuple[int, ...]:
    """Slots whose holders have committed as many batches as a canary must, and do well: without
    that, a member could take partitions from others and fail.
    """
    needs = world.spec.rollout.canary_batches
    slots = [world.slot(n) for n in world.open_slots()]
    return tuple(
        slot.number
        for slot in slots
        if slot.phase is Phase.ACTIVE and slot.batches >= needs and slot.error is None
    )
