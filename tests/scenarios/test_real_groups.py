"""What real members do on a real broker is what the model says they do.

Each tale is played by members of confluent-kafka in a group of its own, all groups side by side,
and by the model with a score of seeds of delays: a machine at rest, a faster one and busy ones.
Rebalances after each event and the owners in the end have to be among the model's outcomes, and
the time until the coordinator wrote no more near the model's.
"""

from statistics import median
from typing import NamedTuple

import pytest

from tests.scenarios.generated import Tale, tale
from tests.scenarios.outcomes import CALM, Outcome, Seen, modelled
from tests.scenarios.playing import played
from tests.support.brokers import RunningBroker
from tests.support.sampling import LONG

pytestmark = pytest.mark.broker

SIDE_BY_SIDE = 30
TALES = 300 if LONG else 30
MOST_OUTCOMES = 4
NEAR_MS = 100
NEAR_SHARE = 0.15
MOST_TIMES = 0.9
"""How many times have to be near."""
AGAIN = 2
"""How often a tale whose members were held up longer than the model's is played again."""


class Compared(NamedTuple):
    """A tale, what the model says and what was recorded."""

    tale: Tale
    model: list[Seen]
    real: Seen

    @property
    def outcomes(self) -> set[Outcome]:
        """The model's."""
        return {each.outcome for each in self.model}

    @property
    def errors(self) -> list[float]:
        """After each event: how far the real time is from the model's, 1 being as far as may be."""
        alike = [each for each in self.model[:CALM] if each.outcome == self.real.outcome]
        found = []
        for place, real in enumerate(self.real.settled):
            expected = median(each.settled[place] for each in alike or self.model)
            found.append(abs(real - expected) / max(NEAR_MS, NEAR_SHARE * real))
        return found


@pytest.fixture(scope="module")
def compared(broker: RunningBroker) -> list[Compared]:
    """All tales, so many at a time."""
    found = []
    for first in range(0, TALES, SIDE_BY_SIDE):
        tales = [tale(seed) for seed in range(first, first + SIDE_BY_SIDE)]
        models = {each.name: modelled(each) for each in tales}
        real = played(tales, broker.bootstrap_servers)
        found += [Compared(each, models[each.name], real[each.name]) for each in tales]
    return found


@pytest.mark.timeout(3600 if LONG else 600)
def test_every_real_outcome_is_one_of_the_models(
    compared: list[Compared], broker: RunningBroker
) -> None:
    """Rebalances after each event, and who owns what in the end."""
    wrong = [each for each in compared if each.real.outcome not in each.outcomes]
    for _ in range(AGAIN):
        if wrong:
            print(*map(_told, wrong), sep="\n")
            real = played([each.tale for each in wrong], broker.bootstrap_servers)
            again = [each._replace(real=real[each.tale.name]) for each in wrong]
            wrong = [each for each in again if each.real.outcome not in each.outcomes]
    assert not wrong, "\n".join(map(_told, wrong))


def _told(each: Compared) -> str:
    return f"{each.tale.name}: {each.real.outcome}, the model says {sorted(each.outcomes)}"


def test_the_model_says_one_thing_of_most(compared: list[Compared]) -> None:
    """At rest of four in five exactly one; at work hardly ever more than four."""
    many = [each.tale.name for each in compared if len(each.outcomes) > MOST_OUTCOMES]
    assert len(many) <= len(compared) / 100, many
    at_rest = [len({each.outcome for each in tale.model[:CALM]}) for tale in compared]
    assert at_rest.count(1) >= 0.8 * len(at_rest)


@pytest.mark.long
def test_times_are_near_the_models(compared: list[Compared]) -> None:
    """Within 15 % or 100 ms for nine in ten, where nothing else runs."""
    errors = sorted(
        (error, each.tale.name, each.real.settled, [m.settled for m in each.model][:3])
        for each in compared
        for error in each.errors
    )
    near = sum(error <= 1 for error, *_ in errors)
    assert near >= MOST_TIMES * len(errors), f"{near} of {len(errors)}: {errors[-12:]}"
