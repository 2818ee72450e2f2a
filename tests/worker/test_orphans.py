"""When a holder asks for a rebalance because nobody owns a partition, and when it does not."""

from collections.abc import Callable, Sequence

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.model import Member, TopicPartition
from fleet.slots import Gate, Handover, Phase, Slot
from fleet.worker.asking import LOOK, PATIENCE, Answer, Orphans
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of


class Kafka:
    """Answers at once about a group that owns these partitions of four."""

    def __init__(self, *owned: int, state: str = "STABLE", why: str = "") -> None:
        self.owned, self.state, self.why, self.asked = owned, state, why, 0

    def ask(self, topics: Sequence[str]) -> "Kafka":
        """A question; one member has all that is owned."""
        assert topics == ["t"]
        self.asked += 1
        return self

    def done(self) -> bool:
        return True

    def answer(self) -> Answer:
        """As it was made."""
        if self.why:
            raise FleetError(self.why)
        owned = frozenset(TopicPartition("t", p) for p in self.owned)
        member = Member(member_id="m", instance_id=None, client_id="c", host="/h", partitions=owned)
        due = frozenset(TopicPartition("t", p) for p in range(4))
        return Answer(state=self.state, members=(member,), partitions=due)


Ask = Callable[[Sequence[str]], Kafka]


def asks(
    kafka: Kafka,
    gate: Gate,
    *,
    number: int = 0,
    seconds: float = 2 * PATIENCE,
    ask: Ask | None = None,
) -> int:
    """How often a rebalance is asked for in so many seconds; every slot has token 1."""
    return len(asked_at(kafka, gate, number=number, seconds=seconds, ask=ask))


def asked_at(
    kafka: Kafka,
    gate: Gate,
    *,
    number: int = 0,
    seconds: float,
    frozen: float = 0.0,
    ask: Ask | None = None,
) -> list[float]:
    """When; the machine is frozen for so long after half a minute."""
    clock, asked = ManualClock(at=0.0), []
    context = worker_context(settings_of(group_spec("g", topics=["t"])), clock=clock)
    watch = Orphans(context, rejoin=lambda: asked.append(clock.at), ask=ask or kafka.ask)
    slots = [Slot(group="g", number=n, holder=f"w{n}", token=1, phase=Phase.ACTIVE) for n in (0, 1)]
    while clock.at < seconds:
        watch.step(number, gate, slots)
        clock.at += 0.5
        if clock.at == 30.0:
            clock.at += frozen
    return asked


GATE = Gate(group="g", open=frozenset({0, 1}))


def pinned(token: int) -> Gate:
    """With a pin of slot 1."""
    return Gate(group="g", handover={1: Handover(token=token, revision="r2")})


def rejoining(token: int) -> Gate:
    """With slot 1 asked for a forced rebalance."""
    return Gate(group="g", rejoin={1: token})


def test_an_orphan_is_given_an_owner_once_patience_ends():
    """Once, and not before: members find an added partition themselves."""
    assert asks(Kafka(0, 1, 2), GATE, seconds=PATIENCE) == 0
    assert asks(Kafka(0, 1, 2), GATE, seconds=PATIENCE + 3 * LOOK) == 1


@pytest.mark.parametrize(
    ("kafka", "gate", "number"),
    [
        pytest.param(Kafka(0, 1, 2, 3), GATE, 0, id="all owned"),
        pytest.param(Kafka(0, state="PREPARING_REBALANCING"), GATE, 0, id="rebalancing"),
        pytest.param(Kafka(0, why="no answer"), GATE, 0, id="no answer"),
        pytest.param(Kafka(0), GATE, 1, id="another holder looks"),
        pytest.param(Kafka(0), Gate(group="g", leaving=frozenset({1})), 0, id="a change runs"),
        pytest.param(Kafka(0), pinned(token=1), 0, id="a holder is asked to hand over"),
        pytest.param(Kafka(0), rejoining(token=1), 0, id="a holder is asked to join again"),
    ],
)
def test_otherwise_nothing_is_asked(kafka: Kafka, gate: Gate, number: int):
    """Nor is Kafka asked for nothing."""
    assert asks(kafka, gate, number=number) == 0
    assert kafka.asked <= 2 * PATIENCE / LOOK


@pytest.mark.parametrize("gate", [pinned(token=0), rejoining(token=0)], ids=["pin", "rejoin"])
def test_what_is_asked_of_a_former_holder_blinds_nobody(gate: Gate):
    """Its plan has ended, its manager or that holder died: it asks nobody for anything any more."""
    assert asks(Kafka(0, 1, 2), gate, seconds=PATIENCE + 3 * LOOK) == 1


def test_a_question_that_cannot_be_put_is_put_again():
    """No process is to be had for the moment: Kafka has its holder as a member all the same."""
    kafka, refused = Kafka(0, 1, 2), [FleetError("no room for a process")] * 3

    def ask(topics: Sequence[str]) -> Kafka:
        if refused:
            raise refused.pop()
        return kafka.ask(topics)

    assert asks(kafka, GATE, seconds=PATIENCE + 6 * LOOK, ask=ask) == 1


def test_a_frozen_machine_asks_for_nothing_at_once():
    """Between two looks it saw nothing, so that patience begins anew [39]."""
    asked = asked_at(Kafka(0, 1, 2), GATE, seconds=400.0, frozen=100.0)
    assert asked
    assert asked[0] >= 130.0 + PATIENCE
