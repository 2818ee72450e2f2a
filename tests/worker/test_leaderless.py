"""A partition whose leader is away holds up no other of its member: on a cluster in memory."""

import pytest

from fleet.model import TopicPartition
from fleet.worker.member import assigning, losses
from fleet.worker.member.commit_metadata import encode_plan
from tests.worker.rig import Drive, Driven

P = [TopicPartition("t", number) for number in range(2)]
BOTH = pytest.mark.parametrize("reading", ["inline", "ranges"])
ANSWERS = pytest.mark.parametrize("code", [5, None], ids=["no leader", "no offset"])
"""Seen of a broker that was killed: None where the answer came after its timeout."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as real brokers are."""
    monkeypatch.setattr(assigning, "_ABSENT_AFTER", 0.02)
    monkeypatch.setattr(assigning, "_PAUSE", 0.01)
    monkeypatch.setattr(losses, "_EVERY", 0.02)


@ANSWERS
@BOTH
def test_a_leader_that_goes_stops_its_own_partition_alone(kafka, drive: Drive, reading, code):
    """Fault: nothing is named before every leader has told where its partition ends."""
    driven = drive(*P, reading=reading)
    driven.until(lambda: [kafka.committed(tp)[-1:] for tp in P] == [[3]] * 2, "what is there")
    kafka.leaderless[P[1]] = code
    for more in range(4, 7):
        kafka.produce(P[0], b"more")
        driven.until(lambda end=more: kafka.committed(P[0])[-1] == end, "the other one's records")
    kafka.produce(P[1], b"late")
    del kafka.leaderless[P[1]]
    driven.until(lambda: kafka.committed(P[1])[-1] == 4, "its own records")
    assert len(driven.rows) == len(set(driven.rows)) == 10


@ANSWERS
@BOTH
def test_what_has_no_leader_when_it_is_assigned_is_begun_later(kafka, drive: Drive, reading, code):
    """Fault: nothing of the assignment begins, and after three minutes the worker ends."""
    kafka.commits[P[1]] = (1, encode_plan(2, "r1", "id-1", cluster="this-cluster"))
    kafka.leaderless[P[1]] = code
    driven = drive(*P, reading=reading)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the other one")
    driven.until(lambda: "t-1: no leader" in (driven.member.state.error or ""), "its name")
    assert kafka.committed(P[1]) == []
    del kafka.leaderless[P[1]]
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "what has a leader now")
    its = [(r.start, r.end) for c in driven.contexts for r in c.ranges if r.partition == 1]
    assert its == [(1, 2), (2, 3)], "from its commit, by its predecessor's plan [4]"
    driven.until(lambda: driven.member.state.error is None, "nothing to tell")


@pytest.mark.parametrize("on_truncated", ["stop", "skip"])
def test_what_goes_while_it_has_no_leader_is_a_named_loss(kafka, drive: Drive, on_truncated):
    """Retention goes on elsewhere, or the leader that is elected lacks it [7]."""
    kafka.commits[P[1]] = (0, "")
    kafka.leaderless[P[1]] = 5
    driven = drive(*P, on_truncated=on_truncated)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the other one")
    kafka.truncate(P[1], 2)
    del kafka.leaderless[P[1]]
    driven.until(lambda: driven.member.state.lost_records == 2, "the loss")
    if on_truncated == "skip":
        driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "what is left")
        assert kafka.committed(P[1])[0] == 2, "chosen, and committed before it is read [42]"
    else:
        driven.until(lambda: driven.member.state.stopped_partitions == {P[1]}, "the quarantine")
        assert kafka.committed(P[1]) == []


class AfterItsStart(dict[TopicPartition, int | None]):
    """Leaders that go once they have told where their partitions start."""

    told = 0

    def get(self, tp, default=None):
        self.told += tp in self
        return super().get(tp, default) if self.told > 1 else default


@pytest.mark.parametrize("kind", [dict, AfterItsStart])
def test_an_end_that_nobody_tells_is_not_begun_at(kafka, drive: Drive, kind):
    """Fault: with `latest` it begins at its start, since only that was told."""
    kafka.leaderless = kind({P[1]: 5})
    driven = drive(*P, start_from="latest")
    driven.until(lambda: kafka.committed(P[0]) == [3], "the other one")
    driven.turns()
    assert kafka.committed(P[1]) == []
    del kafka.leaderless[P[1]]
    driven.until(lambda: kafka.committed(P[1]) == [3], "its beginning")
    assert driven.rows == []


def test_whoever_goes_has_it_no_more(kafka, drive: Drive):
    """Fault: a partition that was taken away is begun, since its leader is back."""
    kafka.leaderless[P[1]] = 5
    driven = drive(*P)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the other one")
    kafka.lose(P[1])
    driven.until(lambda: driven.member.state.partitions == {P[0]}, "the loss")
    del kafka.leaderless[P[1]]
    driven.turns(20)
    assert kafka.committed(P[1]) == []
    assert driven.member.state.error is None


# --- partitions that are not there any more ---------------------------------------------------


def test_a_partition_that_its_topic_does_not_have_is_no_leaders_absence(kafka, drive: Drive):
    """A sticky assignor gives out what was there before (librdkafka)."""
    late = TopicPartition("t", 5)
    driven = drive(*P, late)
    driven.until(lambda: [kafka.committed(tp)[-1:] for tp in P] == [[3]] * 2, "what is there")
    driven.turns()
    assert driven.member.state.error is None
    kafka.make("t", 6)
    kafka.produce(late, b"a", b"b")
    driven.until(lambda: kafka.committed(late)[-1:] == [2], "what was made since")


@pytest.mark.parametrize("now", [1, 0, 3], ids=["fewer", "none", "more"])
def test_a_topic_is_made_again_with_other_partitions(kafka, drive: Drive, monkeypatch, now):
    """Those that it does not have are let go, the others read from their beginning."""
    monkeypatch.setattr(assigning, "_SOON", 0.02)
    driven = drive(*P)
    driven.until(lambda: [kafka.committed(tp)[-1:] for tp in P] == [[3]] * 2, "what is there")
    kafka.make("t", now, topic_id="id-2")
    if not now:
        del kafka.ids["t"]
    for number in range(now):
        kafka.produce(TopicPartition("t", number), b"x")
    driven.member._commands.put(driven.member._topics.soon)
    if now == 0:
        driven.turns(20)
    for tp in P[:now]:
        driven.until(lambda tp=tp: kafka.committed(tp)[-1:] == [1], "what is in it now")
    if now == 1:
        driven.until(lambda: gone_in(driven) == [("t-1", 3)], "the other one to be let go")
    assert driven.member.state.error is None


def test_one_look_that_lacks_a_partition_is_not_believed(kafka, drive: Drive, monkeypatch):
    """A broker may not know of a partition that was added a moment ago."""
    monkeypatch.setattr(assigning, "_SOON", 0.02)
    driven = drive(*P)
    driven.until(lambda: [kafka.committed(tp)[-1:] for tp in P] == [[3]] * 2, "what is there")
    kafka.unknown.append(P[1])
    driven.member._commands.put(driven.member._topics.soon)
    driven.until(lambda: not kafka.unknown, "a look")
    kafka.produce(P[1], b"more")
    driven.until(lambda: kafka.committed(P[1])[-1:] == [4], "its records")
    assert gone_in(driven) == []


def gone_in(driven: Driven) -> list[tuple[str, int]]:
    """Partitions that it let go so far, and where it was."""
    return [(e["partition"], e["position"]) for e in driven.events("partition_gone")]
