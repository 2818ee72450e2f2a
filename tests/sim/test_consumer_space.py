"""Seven invariants hold in every state of a small group: the six of KIP-848's TLA+ model and ours.

Three clients and three partitions, dynamic and static, the assignment interval, and one
disturbance: by default the first states, breadth first; in the long form (FLEET_LONG) all.
"""

from collections import deque

import pytest

from tests.sim import consumer_space as space
from tests.support.sampling import LONG

STATES = 10_000_000 if LONG else 300
"""By default the first so many, breadth first."""
EVERY = 100
"""Of so many states one is led to its end: it has to converge."""

CASES = {
    "dynamic": (False, False, False),
    "one static": (True, False, False),
    "static": (True, True, True),
}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES)
def test_every_state(case) -> None:
    """With its shortest story where one does not hold."""
    static = CASES[case]
    start = space.begin(static=static, partitions=3, disturbances=1)
    known = {space.key(start): None}
    coming = deque([(start, ())])
    seen = 0
    while coming and seen < STATES:
        world, story = coming.popleft()
        seen += 1
        for what, after in space.moves(world):
            state = space.key(after)
            if state in known:
                continue
            known[state] = None
            path = (*story, what)
            assert (wrong := space.broken(after)) is None, f"{wrong} Not so after: {path}"
            if len(known) % EVERY == 0:
                assert space.converges(after), f"no convergence after: {path}"
            coming.append((after, path))
    assert seen == STATES or not coming
    print(f"{case}: {len(known)} states{'' if coming else ', all there are'}")


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "NoDoubleClientAssignment"), (1, "ValidStableGroupState"), (2, "Settled")],
)
def test_invariants_see_faults(number, name) -> None:
    """Of states made by hand."""
    world = space.begin(static=(False, False), partitions=2, disturbances=0)
    for _ in range(4):
        world = space.beat(world, 0)
        world = world.having(0, space.acknowledged(world.members[0]))
    if number == 0:
        world = space.beat(world, 1)
        thief = space.replace(world.members[1], joined=True, owned=frozenset({0}))
        world = world.having(1, thief)
    elif number == 2:  # topics that the group has not heard of yet
        group = space.group_of(world)
        group.set_epoch(group.epoch, 7)
        group.note_topic_check(0, 0)
    else:
        group = space.group_of(world)
        (member,) = group.members.values()
        group.members[member.id] = member.having(epoch=member.epoch + 1)
    assert (space.broken(world) or "").startswith(name)
