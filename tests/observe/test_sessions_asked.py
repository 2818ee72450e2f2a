"""Sessions of KIP-848 groups are asked of a real broker, and followed when they change."""

import signal
import time

from fleet.clock import ManualClock, SystemClock
from fleet.kafka_source.broker_settings import SessionQueries
from fleet.log.readers.tail import Tail
from fleet.model.rebalances import Cause, Confidence
from fleet.model.sessions import Session
from tests.support.lane import CONSUMER, HEARTBEAT_S, SESSION_S, Lane
from tests.support.waiting import until


def test_a_killed_member_of_a_group_with_a_short_session_expired(broker, unique) -> None:
    """The live view, by the group's own 3 s: at the broker's 45 s nobody could have expired."""
    config, group = {"bootstrap.servers": broker.bootstrap_servers}, f"session-{unique}"
    lane = Lane(broker.bootstrap_servers, group, {group: 4}, **CONSUMER)
    try:
        with Tail(config, cluster="test", clock=SystemClock()).start() as tail:
            lane.step(lambda: lane.start("a"), "created")
            lane.step(lambda: lane.spawn("p"), "join")
            lane.run(1)
            lane.step(lambda: lane.signal("p", signal.SIGKILL), "expiry")
            lane.step(lambda: lane.start("c"), "join")
            lane.run(0.5)
            lane.step(lambda: lane.close("c"), "leave")
            assert tail.catch_up(20)
            causes = [(row.cause, row.confidence) for row in tail.rebalances(group=group)]
        assert (Cause.EXPIRY, Confidence.LIKELY) in causes
        assert causes[-1][0] is Cause.LEAVE
        with SessionQueries(config, clock=SystemClock()) as sessions:
            at = time.time()
            then = sessions.of(group, "consumer", at)
            assert (then.least_s, then.silent_s, then.sure) == (
                SESSION_S,
                SESSION_S - HEARTBEAT_S,
                False,
            )
            broker_s = sessions.of(f"no-{group}", "consumer", at)
            assert broker_s.least_s == 45.0
            lane.session(5.0)
            until(
                lambda: (s := sessions.of(group, "consumer", time.time())) and s.most_s == 5.0,
                "the change to be told",
            )
    finally:
        lane.end()


def test_a_cluster_that_does_not_answer_is_not_asked_again_and_again() -> None:
    """One question, then none for a while; nothing is known."""
    clock = ManualClock()
    with SessionQueries({"bootstrap.servers": "127.0.0.1:1"}, clock=clock) as sessions:
        assert sessions.of("g", "consumer", clock.now()) is None  # waits for half a second
        began = time.monotonic()
        for _ in range(40):
            assert sessions.of("g", "consumer", clock.now()) is None
        assert time.monotonic() - began < 10


def test_who_was_set_back_asks_again(monkeypatch) -> None:
    """Else nobody would be asked until the clock had caught up, whatever was changed meanwhile."""
    holds = [Session(45.0, 5.0)]
    monkeypatch.setattr("fleet.kafka_source.broker_settings.sessions", lambda *_: {"g": holds[-1]})
    clock = ManualClock(at=5_000.0)
    with SessionQueries({"bootstrap.servers": "127.0.0.1:1"}, clock=clock) as sessions:
        assert sessions.of("g", "consumer", 4_999.0) is not None
        holds.append(Session(6.0, 2.0))
        clock.at = 1_400.0
        then = sessions.of("g", "consumer", 1_399.0)
    assert then.most_s == 6.0
