"""One member with thousands of partitions: what its consumer thread does for all of them at once.

Four times as many partitions cost four times as much, not sixteen times.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fleet.clock import ManualClock
from fleet.model import TopicPartition
from fleet.worker.member.losses import Losses
from fleet.worker.offsets.assigning import DescribedTopic
from tests.support.batch_parts import worker_context
from tests.support.calls import calls_of
from tests.worker.flow import Broker, Process


def losses_of(worker: Process) -> Losses:
    """Over a member's pipeline; nothing else is asked."""
    worker.state.partitions = frozenset(TopicPartition("t", each) for each in worker.broker.ends)
    return Losses(
        worker_context(clock=ManualClock()),
        consumer=None,
        pipeline=worker.flow,
        assigner=SimpleNamespace(ask_first=None, ask_ends=None),
        protocol=SimpleNamespace(restart=lambda *_: True),
        state=worker.state,
    )


def test_a_turn_without_an_answer_about_topics_goes_through_no_partition():
    """It comes every 20 ms, an answer every 30 s; and one about another topic is no reason."""
    worker = Process(Broker(ends=dict.fromkeys(range(300), 1)), print)
    losses = losses_of(worker)
    assert calls_of(losses.recreated, {}) < 5
    another = DescribedTopic(id="A", partitions=frozenset({0}))
    assert calls_of(losses.recreated, {"another": another}) < 5 + 2 * 300
    worker.end()


def rewound(worker: Process, _losses: Losses) -> None:
    """What was read is not believed: a void commit, a batch that failed, a drain called off."""
    worker.flow.rewind(sorted(worker.state.partitions))


def assigned_again(worker: Process, losses: Losses) -> None:
    """One fetch stopped, and an eager member can only begin all again."""
    worker.flow.stopped.add(min(worker.state.partitions))
    losses.restart()


def lifted(worker: Process, losses: Losses) -> None:
    """The marks of all but a few."""
    marked = set(sorted(worker.state.partitions)[8:])
    worker.flow.quarantined |= marked
    losses.lift(marked)
    assert not worker.flow.quarantined


@pytest.mark.parametrize("work", [rewound, assigned_again, lifted])
def test_partitions_leave_a_prepared_batch_in_one_go(
    work: Callable[[Process, Losses], None], capsys: pytest.CaptureFixture[str]
):
    """And each is read again from what is committed, once."""

    def cost(partitions: int) -> int:
        worker = Process(Broker(ends=dict.fromkeys(range(partitions), 1)), print)
        losses = losses_of(worker)
        worker.read()
        worker.flow._prepare()
        before = dict(worker.flow.owned.all)
        calls = calls_of(work, worker, losses)
        again = {tp for tp, each in worker.flow.owned.all.items() if each is not before[tp]}
        positions = worker.reading.positions()
        assert len(again) >= partitions - 8
        assert all(positions[tp] == 0 for tp in again)
        worker.end()
        return calls

    few, many = cost(100), cost(400)
    assert many < 5 * few
    capsys.readouterr()
