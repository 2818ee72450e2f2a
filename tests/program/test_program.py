"""Programs that Fleet did not write hold slots: what each change costs on a real broker."""

import os
import signal

import pytest

from fleet.model import StepKind
from fleet.slots import Phase

pytestmark = pytest.mark.broker


def test_a_program_is_scaled_rolled_and_killed(shop, count):
    """Opened in 1, a kill and a roll cost 0, three more at most 2, three fewer 1: as planned."""
    shop.run_program()
    with shop.stream(rate=100):
        assert count.apply()[StepKind.OPEN] == [1]
        before = count.recorded()
        with shop.fleet() as fleet:
            owner = {s.number: (s.owner, s.token) for s in fleet.slots(shop.group)}[0]
            pids = {w.name: w.pid for w in fleet.workers(shop.group)}
        os.kill(pids[owner[0]], signal.SIGKILL)
        shop.until(lambda: _took_over(shop, owner[1]), "a standby to own slot 0")
        assert count.recorded() == before
        shop.run_program("client.id=second")
        assert count.apply() == {StepKind.ROLL: [0]}
        assert count.apply(5)[StepKind.OPEN][0] <= 2
        assert count.apply(2) == {StepKind.LEAVE: [1]}
    assert shop.lost_and_duplicates()[0] == 0


def _took_over(shop, token):
    with shop.fleet() as fleet:
        slot = next(s for s in fleet.slots(shop.group) if s.number == 0)
    return slot.token > token and slot.phase is Phase.ACTIVE
