"""docs/concepts/cost.md, cell by cell: what one change cost a fleet, by Kafka's own records."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleet.clock import SystemClock
from fleet.slots import Phase
from tests.support.kafka_tools import rebalances
from tests.support.manager_process import spawn_manager, watch_and_kill
from tests.support.workshop import Workshop, kill

SETTLED = 5.0
"""Seconds without a new assignment until a group is settled [25]."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of one cell cost; seconds: what the cell's promise is about, where it is."""

    rebalances: int
    lost: int
    twice: int
    seconds: float | None = None


class Cells:
    """One fleet that the cells are tried on, in an order that begins and ends with two slots."""

    def __init__(self, shop: Workshop, broker: Any, kind: str) -> None:
        self.shop = shop
        self.broker = broker
        self.kind = kind
        self._twice = self._lost = 0

    def begin(self) -> None:
        """Two slots and a standby."""
        with self.shop.stream(rate=100):
            self._apply(2)
            self._settle()

    def run(self, name: str) -> Outcome:
        """One run of one cell under a steady stream; then everything written is processed."""
        before = self.recorded()
        with self.shop.stream(rate=100):
            time.sleep(2)
            seconds = CELLS[name](self)
            self._settle()
            cost = self.recorded() - before
            time.sleep(1)
        lost, twice = self.shop.lost_and_duplicates()
        outcome = Outcome(cost, lost - self._lost, twice - self._twice, seconds)
        self._lost, self._twice = lost, twice
        return outcome

    def recorded(self) -> int:
        """Completed generations, or under KIP-848 computed assignments."""
        return rebalances(self.broker, self.shop.group)

    # --- the cells -------------------------------------------------------------------------

    def up(self) -> float | None:
        """2 → 4 by a synchronized join."""
        return self._apply(4)

    def down(self) -> float | None:
        return self._apply(2)

    def roll(self) -> float | None:
        """All to new code; the longest pause of a partition."""
        self.shop.new_code()
        return self._apply(None)

    def kill_worker(self) -> float:
        """-9; seconds until the last of its partitions is processed again."""
        with self.shop.fleet() as fleet:
            victim = next(s for s in fleet.slots(self.shop.group) if s.phase is Phase.ACTIVE)
            pids = {w.name: w.pid for w in fleet.workers(self.shop.group)}
            had = self._partitions_of(str(victim.owner))
            assert had, "it has partitions"
            killed = time.time()
            kill(pids[victim.owner])

        def again() -> dict[int, float]:
            return {
                e.tp.partition: e.at
                for e in reversed(self.shop.entries())
                if e.at > killed and e.worker != victim.owner
            }

        self.shop.until(lambda: had <= again().keys(), "the dead one's partitions to be processed")
        took = max(again()[p] for p in had) - killed
        self.shop.until(lambda: self.shop.all_active(self._open()), "all slots active")
        self._restocked()
        return took

    def killed_opening(self) -> None:
        """The manager of 2 → 4 is killed when the slot targets is open, another completes it."""
        self._killed(4, "opened slot")

    def killed_rolling(self) -> None:
        """The manager of a roll is killed at the canary."""
        self.shop.new_code()
        self._killed(None, "canary")

    def killed_leaving(self) -> None:
        """The manager of 4 → 2 is killed while slots drain."""
        self._killed(2, "draining slot")

    # --- parts -----------------------------------------------------------------------------

    def _apply(self, wanted: int | None) -> float | None:
        change = self.shop.apply(self._open() if wanted is None else wanted)
        pauses = [r.longest_downtime_s for r in change.receipts if r.longest_downtime_s is not None]
        return max(pauses, default=None)

    def _killed(self, wanted: int | None, moment: str) -> None:
        target = self._open() if wanted is None else wanted
        manager = spawn_manager(self.shop, target)
        watch_and_kill(self.shop, manager, lambda output: moment in output)
        self._apply(target)
        self.shop.until(lambda: self.shop.all_active(target), f"{target} active slots")

    def _open(self) -> int:
        with self.shop.fleet() as fleet:
            return len(fleet.targets(self.shop.group).open)

    def _partitions_of(self, worker: str) -> set[int]:
        """What it was called for in the last seconds."""
        now = time.time()
        return {
            e.tp.partition for e in self.shop.entries() if e.worker == worker and e.at > now - 3
        }

    def _restocked(self) -> None:
        """The killed worker's replacement waits as a standby."""

        def warm() -> bool:
            with self.shop.fleet() as fleet:
                reports = fleet.store.reports(self.shop.group)
                alive = {w.name for w in fleet.workers(self.shop.group) if w.running}
            return any(r.phase == "standby" and r.worker in alive for r in reports)

        self.shop.until(warm, "a standby")

    def _settle(self) -> None:
        """Until every partition has an owner and nothing more is assigned for a while [25]."""
        clock = SystemClock()
        with self.shop.fleet() as fleet:

            def owned() -> bool:
                group = fleet.snapshot([self.shop.group]).groups[self.shop.group]
                has = [tp for member in group.members for tp in member.partitions]
                return group.state == "Stable" and len(has) == len(set(has)) == self.shop.partitions

            since = clock.monotonic()
            deadline = since + 90
            while clock.monotonic() - since < SETTLED:
                assert clock.monotonic() < deadline, "the group does not settle"
                if not owned():
                    since = clock.monotonic()
                clock.sleep(0.5)


CELLS: dict[str, Callable[[Cells], float | None]] = {
    "+2 workers by a synchronized join": Cells.up,
    "roll all 4 workers": Cells.roll,
    "worker killed (-9)": Cells.kill_worker,
    "-2 workers": Cells.down,
    "manager killed opening 2 slots": Cells.killed_opening,
    "manager killed in a roll": Cells.killed_rolling,
    "manager killed while 2 leave": Cells.killed_leaving,
}
"""Name → the change, in the order of one run."""
