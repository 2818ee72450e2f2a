"""What members cannot roll into is a step of its own, at its expected cost [23], on a real
broker.
"""

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from fleet.commands.doctor import topics as doctor_on_topics
from fleet.errors import Refused
from fleet.model import LagCase, Severity, StepKind
from fleet.slots import ChangeState

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

FAILS_LATE = """VERSION = 2
SECONDS = [30]


def write_journal(context, rows):
    if not context.warm:
        time.sleep(SECONDS.pop() if SECONDS else 0)
        raise ValueError("no such column")
"""
FAILS_IN_SETUP = """VERSION = 2


def setup(spark):
    raise ValueError("no such secret")
"""
FAILS_AT_ONCE = """VERSION = 2


def write_journal(context, rows):
    if not context.warm:
        raise ValueError("no such column")
"""
CLASSIC_ONLY = {"assignor", "heartbeat_interval", "session_timeout"}
STOPPED = {StepKind.STOP_ALL: [1], StepKind.OPEN: [1]}


@pytest.mark.parametrize(("assignor", "most"), [("range", 1), ("cooperative-sticky", 2)])
def test_another_topic(assignor, most, unique, open_shop, counting):
    """Rolled at 0; one forced rebalance then gives the new topic out, as a step of its own."""
    shop = open_shop(f"topics-{unique}", assignor=assignor, heartbeat_interval="1s")
    shop.create_topic(4)
    other = shop.create_another("returns", 4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        shop.declare(topics=[shop.topic, other])
        costs = count.apply()
        assert costs[StepKind.ROLL] == [0]
        (forced,) = costs[StepKind.REJOIN]
        assert 1 <= forced <= most
        shop.produce_to(other, 40)
        shop.until(lambda: _processed(shop, other) == 40, "the new topic's records")
        shop.declare(topics=[shop.topic])
        costs = count.apply()
        assert costs[StepKind.ROLL] == [0]
        assert 1 <= costs[StepKind.REJOIN][0] <= most
    assert shop.lost_and_duplicates() == (0, 0)


def test_what_cannot_share_a_generation(unique, open_shop, counting):
    """Assignor, session timeout, static or dynamic: all stop in one leave, all open in one join."""
    shop = open_shop(f"stops-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        for change in (
            {"assignor": "cooperative-sticky"},
            {"session_timeout": "60s"},
            {"membership": "dynamic"},
            {"membership": "static", "assignor": "range"},
        ):
            shop.declare(worker=change)
            assert count.apply() == STOPPED, change
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.parametrize(
    ("worker", "code"),
    [
        ({"assignor": "cooperative-sticky"}, "VERSION = {}['missing']"),
        ({"protocol": "consumer"}, FAILS_IN_SETUP),
        ({"membership": "dynamic"}, FAILS_AT_ONCE),
    ],
)
def test_what_fails_with_another_membership_puts_back_what_ran(
    worker, code, unique, open_shop, counting
):
    """Nobody leaves before others are warm; who fails after the leave makes room again."""
    shop = open_shop(f"back-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        before = count.recorded()
        with shop.fleet() as fleet:
            ran = {s.revision for s in fleet.slots(shop.group)}
        declared = dict(shop._worker)
        changed = {"protocol": "consumer"}.items() <= worker.items()
        shop._worker = {k: v for k, v in declared.items() if not changed or k not in CLASSIC_ONLY}
        shop.edit_job("VERSION = 1", code)
        shop.declare(worker=worker)
        with shop.fleet() as fleet:
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert change.state is ChangeState.ROLLED_BACK, change.sentence
            assert {s.revision for s in fleet.slots(shop.group) if s.owner} == ran
            with pytest.raises(Refused, match="was rolled back"):
                fleet.apply(shop.group, actor="test", progress=shop.say)
        shop.until(lambda: shop.all_active(2), "what ran to run")
        if code is not FAILS_AT_ONCE:
            assert count.recorded() == before
    assert shop.lost_and_duplicates() == (0, 0)


def _processed(shop, topic: str) -> int:
    return sum(e.last - e.first + 1 for e in shop.entries() if e.tp.topic == topic)


# --- A revision that never gets warm has touched nothing, and leaves nothing behind -----------


def test_code_that_cannot_start_goes_back(unique, open_shop, counting):
    """The roll ends rolled back with the reason; the old workers never drained."""
    shop = open_shop(f"cold-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply()
        shop.edit_job("VERSION = 1", "VERSION = {}['missing']")
        before = count.recorded()
        with shop.fleet() as fleet:
            held = {s.number: (s.owner, s.token) for s in fleet.slots(shop.group) if s.owner}
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert change.state is ChangeState.ROLLED_BACK
            assert "got warm" in change.sentence
            assert "KeyError" in change.sentence
            assert held == {
                s.number: (s.owner, s.token) for s in fleet.slots(shop.group) if s.owner
            }
            new = change.plan.revision
            shop.until(
                lambda: all(w.revision != new for w in fleet.workers(shop.group)),
                "its workers to be gone",
            )
        assert count.recorded() == before
    assert shop.lost_and_duplicates() == (0, 0)


def test_a_fleet_starts_again_after_a_rollback(unique, open_shop, counting, tmp_path):
    """What failed came from elsewhere: with nothing running there is nothing to roll back to."""
    shop = open_shop(f"again-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    missing = tmp_path / "there"
    with shop.stream(rate=100):
        count.apply()
        shop.edit_job("VERSION = 1", f"VERSION = open({str(missing)!r}).read()")
        with shop.fleet() as fleet:
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert change.state is ChangeState.ROLLED_BACK
            with pytest.raises(Refused, match=f"fleet roll {shop.group}"):
                fleet.apply(shop.group, actor="test")
            fleet.down()
        missing.write_text("")
        shop.declare(scaling={"policy": "fixed", "workers": 3})
        with shop.fleet() as fleet:
            (change,) = fleet.up(actor="test", progress=shop.say)
            assert change.state is ChangeState.DONE, change.sentence
        assert shop.all_active(3)
    assert shop.lost_and_duplicates() == (0, 0)


def test_a_canarys_first_batch_is_waited_for(unique, open_shop, counting):
    """Idle when it took its slot, it gets a record that takes longer than `bake`, and fails."""
    shop = open_shop(f"slow-{unique}", heartbeat_interval="1s")
    shop.declare(rollout={"bake": "12s", "warm_timeout": "5m"})
    shop.create_topic(2)
    count = counting(shop)
    count.apply()
    shop.edit_job("VERSION = 1", FAILS_LATE)
    before, asked = count.recorded(), list[str]()

    def say(sentence: str) -> None:
        shop.say(sentence)
        if "must commit" in sentence:
            asked.append(sentence)
            shop.produce_to(shop.topic, 40)

    with shop.fleet() as fleet:
        change = fleet.apply(shop.group, actor="test", progress=say)
        assert len(asked) == 1
        assert change.state is ChangeState.ROLLED_BACK, change.sentence
        assert "no such column" in change.sentence
    assert count.recorded() == before
    shop.until(lambda: shop.lost_and_duplicates() == (0, 0), "what it failed with to be processed")


# --- A topic grows under a fleet: picked up by its workers, then scaled for by the policy -----


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_partitions_are_picked_up_and_scaled_for(assignor, unique, open_shop, counting):
    """The growth is one episode that no plan is charged for; the next plan opens slots for it."""
    shop = open_shop(
        f"grows-{unique}", assignor=assignor, metadata_refresh="1s", heartbeat_interval="1s"
    )
    shop.declare(scaling={"policy": "partitions", "per_worker": 2})
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        before = count.recorded()
        admin = AdminClient({"bootstrap.servers": shop.bootstrap})
        admin.create_partitions([NewPartitions(shop.topic, 6)])[shop.topic].result(120)
        shop.produce_to(shop.topic, 60)  # the stream's own producer learns of them much later
        with shop.fleet() as fleet:

            def owned() -> int:
                group = fleet.snapshot([shop.group]).groups[shop.group]
                return sum(len(m.partitions) for m in group.members)

            shop.until(lambda: owned() == 6, "the new partitions to be owned")
            plan = fleet.plan(shop.group)
        assert [step.kind for step in plan.steps] == [StepKind.OPEN]
        assert len(plan.steps[0].slots) == 1
        grown = count.recorded() - before
        print(f"growth cost {grown} rebalance(s) under {assignor}")
        assert 1 <= grown <= 2
        (up,) = count.apply()[StepKind.OPEN]
        assert 1 <= up <= 2
    assert shop.lost_and_duplicates() == (0, 0)


# --- A fleet whose topics are a pattern: before anything matches, and as topics appear --------


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
    assert shop.lost_and_duplicates() == (0, 0)
