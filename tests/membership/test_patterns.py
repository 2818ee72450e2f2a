"""A fleet whose topics are a pattern: before anything matches, and as topics appear."""

import pytest

from fleet.commands.doctor.checks_fleet import topics as doctor_on_topics
from fleet.errors import Refused
from fleet.model import LagCase, StepKind
from fleet.model.findings import Severity

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_topics_of_a_pattern(unique, open_shop, counting):
    """Plan and doctor say that nothing matches; later topics count and show in the status."""
    group = f"pattern-{unique}"
    shop = open_shop(group, assignor="range", metadata_refresh="1s", heartbeat_interval="1s")
    shop.declare(
        topics=[f"^{group}-.*"], scaling={"policy": "partitions", "per_worker": 2, "up_after": "0s"}
    )
    with shop.fleet() as fleet:
        plan = fleet.plan(group)
        assert plan.empty
        assert any("no topic matches" in note for note in plan.notes)
        with pytest.raises(Refused, match="no topic matches"):
            fleet.apply(group, wanted=2, actor="test")
        (finding,) = doctor_on_topics(fleet, fleet.snapshot())
        assert finding.level is Severity.WARN
        assert "no topic matches" in finding.found
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        late = shop.create_another("late", 2)
        shop.produce_to(late, 100)
        with shop.fleet() as fleet:

            def read() -> bool:
                seen = fleet.snapshot([group]).groups[group]
                late_ones = [p for p in seen.partitions if p.tp.topic == late]
                return len(late_ones) == 2 and all(
                    p.lag == 0 and p.case is LagCase.OK for p in late_ones
                )

            shop.until(read, "the new topic to be read, and its lag to be known")
            assert len(fleet.plan(group).steps[0].slots) == 1
            (finding,) = doctor_on_topics(fleet, fleet.snapshot())
            assert "2 topics with 6 partitions" in finding.found
        assert count.apply() == {StepKind.OPEN: [1]}
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)
