"""The take protocol in thousands of orders: new owners, slot targets, a store that goes away,
deaths.

What must hold, whoever comes between whose requests: of an unproven revision one slot at most is
taken from another revision; a slot that was seen free after its slot targets shut is nobody's; what
is not told to be taken is given back; a former actor of a change writes no slot targets.
"""

import contextlib
from dataclasses import replace

import pytest

from fleet.errors import LostLease, Unreachable
from fleet.slots import Change, Handover, Phase, Slot, SlotTargets
from fleet.slots.store import Store
from tests.slots.interleaving import Stopped, World
from tests.support.plans import plan_of

GROUP = "orders"
SLOTS = 3


@pytest.fixture(
    params=[pytest.param(500, id="some"), pytest.param(2000, marks=pytest.mark.long, id="many")]
)
def rounds(request: pytest.FixtureRequest) -> int:
    """Orders of each story: thirteen times 500, thirteen times 2,000 more in the long form."""
    return int(request.param)


def prepared(world: World) -> None:
    """Slots that an old revision held and has worked on."""
    store = world.quiet()
    assert store.write_targets(SlotTargets(group=GROUP, open=frozenset(range(SLOTS))))
    for slot in store.slots(GROUP):
        held = store.take(slot, worker="old", revision="old", spark_session="s-old")
        worked = store.renew(replace(held, phase=Phase.ACTIVE, batches=1))
        assert store.release(worked, clean=True)


class NewOwner:
    """A standby: takes one of the slots, tries again, and looks after what was not answered."""

    def __init__(
        self, world: World, name: str, revision: str, number: int, *, away: float, reads_cache: bool
    ) -> None:
        self.name = name
        self.revision = revision
        self.held: Slot | None = None
        self._number = number
        self._store: Store = world.store(away=away, reads_cache=reads_cache)
        self._world = world
        world.add(name, self)

    def __call__(self) -> None:
        """To its end; a killed one does nothing more."""
        try:
            self._take()
            for _ in range(40):  # what it left in doubt is settled with its next reports
                try:
                    self._store.return_uncertain_takes()
                    return
                except Unreachable:
                    self._world.clock.sleep(1.0)
        except Stopped:
            self.held = None

    def _take(self) -> None:
        for _ in range(3):
            try:
                seen = next(s for s in self._store.slots(GROUP) if s.number == self._number)
                if seen.owner is not None:
                    continue
                self.held = self._store.take(
                    seen, worker=self.name, revision=self.revision, spark_session=self.name
                )
            except Unreachable:
                continue
            if self.held is not None:
                return
            self._world.clock.sleep(1.0)


def new_owners(
    world: World, *revisions: str, away: float = 0.0, reads_cache: bool = False
) -> list[NewOwner]:
    """One standby for each, before slots by chance."""
    return [
        NewOwner(
            world,
            f"w{n}",
            revision,
            world.random.randrange(SLOTS),
            away=away,
            reads_cache=reads_cache,
        )
        for n, revision in enumerate(revisions)
    ]


def check(world: World, some: list[NewOwner]) -> None:
    """One owner of each slot; what is stored is what its new owner was told."""
    told = {(t.held.number, t.held.token) for t in some if t.held is not None}
    assert len({number for number, _ in told}) == len(told), "two hold one slot"
    for slot in world.quiet().slots(GROUP):
        if slot.owner is not None and slot.owner not in world.killed:
            assert (slot.number, slot.token) in told, f"{slot.owner} holds it and was not told"
    for new_owner in some:
        if new_owner.held is not None:
            (stored,) = (s for s in world.quiet().slots(GROUP) if s.number == new_owner.held.number)
            assert stored.owner == new_owner.name, "told to hold what is another's"


def trial_slots(some: list[NewOwner], revision: str) -> list[int]:
    """Which its workers were told to hold."""
    return [t.held.number for t in some if t.held is not None and t.revision == revision]


@pytest.mark.parametrize(
    "reads_cache", [pytest.param(False, id="asks"), pytest.param(True, id="hears")]
)
@pytest.mark.parametrize("away", [pytest.param(0.0, id="answering"), pytest.param(0.05, id="away")])
@pytest.mark.parametrize("kills", [pytest.param(0.0, id="living"), pytest.param(0.03, id="dying")])
def test_an_unproven_revision_gets_one_slot(away, kills, reads_cache, rounds):
    """Of three slots and five standbys of two new revisions, whoever is slow, silent or dead."""
    tried = 0
    for seed in range(rounds):
        world = World(seed)
        prepared(world)
        some = new_owners(
            world, "new", "new", "new", "newer", "newer", away=away, reads_cache=reads_cache
        )

        def one_each(some: list[NewOwner] = some, seed: int = seed) -> None:
            for revision in ("new", "newer"):
                assert len(trial_slots(some, revision)) <= 1, f"seed {seed}: two on trial"

        world.run(kills=kills, after=one_each)
        check(world, some)
        tried += bool(trial_slots(some, "new"))
    assert tried > rounds // 3, "hardly anybody gets anything: nothing was tried"


@pytest.mark.parametrize(
    "reads_cache", [pytest.param(False, id="asks"), pytest.param(True, id="hears")]
)
@pytest.mark.parametrize("away", [pytest.param(0.0, id="answering"), pytest.param(0.05, id="away")])
def test_what_was_seen_free_behind_a_shut_targets_stays_free(away, reads_cache, rounds):
    """A leave counts who is there after its slot targets shut: nobody comes later."""
    seen_free = 0
    for seed in range(rounds):
        world = World(seed)
        prepared(world)
        some = new_owners(world, "old", "old", "old", "old", away=away, reads_cache=reads_cache)
        free: set[int] = set()
        how = world.random.choice(["open", "leaving", "quarantined", "pinned"])

        def shut(world: World = world, free: set[int] = free, how: str = how) -> None:
            store = world.store()
            keep = {
                "open": {"open": frozenset({2})},
                "leaving": {"leaving": frozenset({0, 1})},
                "quarantined": {"quarantined": frozenset({0, 1})},
                "pinned": {"handover": {n: Handover(token=0, revision="x") for n in (0, 1)}},
            }[how]
            changed = store.change_targets(GROUP, lambda targets: replace(targets, **keep))
            assert changed is not None
            free.update(s.number for s in store.slots(GROUP) if s.owner is None)

        world.add("manager", shut)

        def nobody(some: list[NewOwner] = some, free: set[int] = free, seed: int = seed) -> None:
            late = [t.name for t in some if t.held is not None and t.held.number in free - {2}]
            assert not late, f"seed {seed}: {late} took a slot that was seen free"

        world.run(after=nobody)
        check(world, some)
        seen_free += bool(free - {2})
    assert seen_free > rounds // 10


def test_a_former_actor_writes_no_targets(rounds):
    """Whoever adopted a change has looked at the slot targets: what it saw is only changed by
    itself.
    """
    fenced = 0
    for seed in range(rounds):
        world = World(seed)
        prepared(world)
        first = world.quiet().begin_change(plan_of(group=GROUP), actor="ann", started_at=0.0)
        assert first is not None

        def slept(world: World = world, first: Change = first) -> None:
            with contextlib.suppress(LostLease):
                world.store().change_targets(
                    GROUP, lambda targets: replace(targets, open_at=targets.open_at + 1.0), by=first
                )

        def adopter(world: World = world, first: Change = first, seed: int = seed) -> None:
            store = world.store()
            mine = store.adopt(first, actor="bob")
            assert mine is not None
            seen = store.targets(GROUP)
            wrote = store.write_targets(replace(seen, open=frozenset({0})), by=mine)
            assert wrote is not None, f"seed {seed}: written between"

        world.add("ann", slept)
        world.add("bob", adopter)
        world.run()
        fenced += not world.quiet().targets(GROUP).open_at
        assert world.quiet().targets(GROUP).open == {0}
    assert 0 < fenced < rounds
