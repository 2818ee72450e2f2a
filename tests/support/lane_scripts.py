"""What happens to the groups of the truth test, one function per kind of group.

Each step names the causes of the rebalances that it must bring, in order; `a|b` where the
timing decides. Together they are every cause that one broker can show.
"""

import signal
import time

from tests.support.lane import CLASSIC, CONSUMER, SESSION_S, Lane

RANGE = {**CLASSIC, "partition.assignment.strategy": "range"}
COMMITTING = {**RANGE, "enable.auto.commit": True, "auto.commit.interval.ms": 500}
"""librdkafka commits by itself, and once more when partitions are revoked."""
COOPERATIVE = {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"}
BOTH = {**CLASSIC, "partition.assignment.strategy": "roundrobin,range"}


def dynamic_range(lane: Lane) -> None:
    """Eager and dynamic: every change is a round of all."""
    topic, other = lane.topics
    lane.step(lambda: lane.start("a"), "created")
    lane.step(lambda: lane.start("b"), "join")
    lane.step(lambda: lane.spawn("p"), "join")
    lane.run(0.5)
    lane.step(lambda: lane.signal("p", signal.SIGKILL), "expiry")
    lane.step(lambda: lane.start("c"), "join")
    lane.run(0.5)
    lane.step(lambda: lane.close("c"), "leave")
    lane.step(lambda: lane.members["b"].subscribe([topic, other]), "subscription change")
    lane.step(lambda: lane.grow(topic, 8), "partition count")
    lane.step(lambda: lane.members["a"].subscribe([topic]), "leader rejoin")
    lane.step(lambda: lane.close("b"), "leave")
    lane.step(lambda: lane.close("a"), "leave")
    lane.delete()
    lane.step(lambda: lane.start("d"), "group recreated")


def dynamic_cooperative(lane: Lane) -> None:
    """Two rounds where partitions move between those who stay."""
    (topic,) = lane.topics
    lane.step(lambda: lane.start("a"), "created")
    lane.step(lambda: lane.start("b"), "join", "second cooperative round")
    lane.step(lambda: lane.spawn("p"), "join", "second cooperative round")
    lane.run(0.5)
    lane.step(lambda: lane.signal("p", signal.SIGSTOP), "expiry")
    lane.step(lambda: lane.signal("p", signal.SIGCONT), "join", "second cooperative round")
    lane.run(0.5)
    lane.step(lambda: lane.signal("p", signal.SIGTERM), "leave")
    lane.step(lambda: lane.grow(topic, 9), "partition count")


def static_range(lane: Lane) -> None:
    """Static: replaced for nothing, removed in one request, expired."""
    lane.step(lambda: lane.start("i0", "i1", "i2", "i3", static=True), "created")
    lane.run(0.5)
    lane.close("i1")
    lane.step(lambda: lane.start("i1", static=True))
    lane.run(0.5)
    lane.step(lambda: lane.leave("i2", "i3"), "batched leave")
    lane.step(lambda: lane.start("i2", static=True), "join")
    lane.run(0.5)
    lane.step(lambda: lane.leave("i2"), "leave")
    lane.close("i1")
    lane.step(lambda: lane.run(SESSION_S), "expiry")
    lane.close("i0")
    lane.step(lambda: lane.start("i0", static=True, **BOTH), "assignor change")


def consumer(lane: Lane) -> None:
    """KIP-848, dynamic and static."""
    topic, other = lane.topics
    lane.step(lambda: lane.start("a"), "created")
    lane.step(lambda: lane.start("b"), "join")
    lane.step(lambda: lane.start("i1", static=True), "join")
    lane.step(lambda: lane.spawn("p"), "join")
    lane.run(1)
    lane.step(lambda: lane.signal("p", signal.SIGKILL), "expiry")
    lane.step(lambda: lane.start("i2", static=True), "join")
    lane.close("i1")
    lane.step(lambda: lane.start("i1", static=True))
    lane.run(0.5)
    lane.step(lambda: lane.leave("i1", "i2"), "batched leave")
    lane.step(lambda: lane.members["b"].subscribe([topic, other]), "subscription change")
    lane.step(lambda: lane.grow(topic, 8), "partition count")
    lane.run(1)
    lane.step(lambda: lane.close("b"), "leave")


def migrated(lane: Lane) -> None:
    """Classic → KIP-848 → classic, deleted and recreated."""
    lane.step(lambda: lane.start("a"), "created")
    lane.step(lambda: lane.start("b", **CONSUMER), "migration")
    lane.run(1)
    lane.step(lambda: lane.close("a"), "leave")
    lane.step(lambda: lane.start("c"), "join")
    lane.step(lambda: lane.close("b"), "migration")
    lane.step(lambda: lane.close("c"), "leave")
    lane.delete()
    lane.step(lambda: lane.start("d", **CONSUMER), "group recreated")
    time.sleep(0.1)
