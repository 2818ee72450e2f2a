"""Rebalances, moves and pauses follow from the coordinator's records alone."""

from itertools import count as counter

import pytest

from fleet.log.records import (
    ClassicMember,
    GroupMetadata,
    OffsetCommit,
    Record,
    Undecoded,
)
from fleet.log.replay.counting import count
from fleet.model import TopicPartition

_OFFSETS = counter()


def t(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def generation(number: int, at: float = 0.0, **members: str) -> GroupMetadata:
    """A record; `a="x1:0,1"` is instance a as member x1 with partitions 0 and 1 of t.

    A name that begins with `dyn` is a dynamic member.
    """
    made = []
    for name, told in members.items():
        member_id, _, numbers = told.partition(":")
        made.append(
            ClassicMember(
                member_id=member_id,
                instance_id=None if name.startswith("dyn") else name,
                client_id="c",
                client_host="h",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                subscription=b"",
                assignment=b"",
                topics=("t",),
                assigned={"t": tuple(int(n) for n in numbers.split(",") if n)},
            )
        )
    return GroupMetadata(
        offset=next(_OFFSETS),
        timestamp_ms=int(at * 1000),
        type=2,
        group="g",
        protocol_type="consumer",
        generation=number,
        protocol="range",
        leader=None,
        state_timestamp_ms=None,
        members=tuple(made),
    )


def commit(partition: int, offset: int, at: float, topic_id: str | None = None) -> OffsetCommit:
    return OffsetCommit(
        offset=next(_OFFSETS),
        timestamp_ms=round(at * 1000),
        type=1,
        group="g",
        tp=t(partition),
        committed=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp_ms=0,
        topic_id=topic_id,
    )


def steady(partition: int, *, start: float, end: float, first: int) -> list[Record]:
    """A commit per second from start to end, each advancing by one."""
    return [commit(partition, first + n, start + n) for n in range(int(end - start) + 1)]


BEFORE = generation(5, a="a1:0,1", b="b1:2,3")


def test_pause_is_from_the_old_owners_last_commit_to_the_new_ones_first_less_the_usual_gap():
    """A commit per second, then 4 s of silence over a static replacement: 3 s [27]."""
    records = [
        *steady(0, start=100, end=110, first=1),
        generation(5, at=112, a="a2:0,1", b="b1:2,3"),
        commit(0, 11, 113.0),  # read again, nothing new: does not end the pause
        commit(0, 12, 114.0),
        commit(0, 13, 130.0),  # later silence is not the hand-over's
    ]
    found = count(records, before=BEFORE)
    assert found.pauses == {t(0): pytest.approx(3.0)}
    assert found.longest_downtime_s == pytest.approx(3.0)


def test_commits_before_the_stretch_give_the_usual_gap():
    """A hand-over right at the start is measured against what was before."""
    before = [BEFORE, *steady(1, start=100, end=110, first=1)]
    records = [generation(6, at=110.5, a="a1:0", b="b1:1,2,3"), commit(1, 12, 112.5)]
    assert count(records, before=before).pauses == {t(1): pytest.approx(1.5)}


def test_a_pause_that_has_not_ended_is_told_so_far():
    """To the last record; not of a partition that nothing came to before it was handed over."""
    records = [
        *steady(0, start=80, end=90, first=1),
        *steady(1, start=100, end=110, first=1),
        *steady(2, start=100, end=110, first=1),
        generation(5, at=111, a="a2:2,3", b="b1:0,1"),
        commit(2, 12, 112.0),
        commit(1, 11, 115.0),  # read again, nothing new
    ]
    found = count(records, before=BEFORE)
    assert found.open_downtimes == {t(1): pytest.approx(4.0)}
    assert found.pauses == {t(2): pytest.approx(1.0)}
    ended = count([*records, commit(1, 12, 116.0)], before=BEFORE)
    assert (ended.open_downtimes, ended.longest_downtime_s) == ({}, pytest.approx(5.0))


def test_a_silence_of_an_owner_that_stayed_is_downtime():
    """A broker was away for 12 s in the middle of a change, after its hand-overs and before."""
    before = [BEFORE, *steady(2, start=80, end=98, first=1)]
    records = [
        *steady(0, start=100, end=110, first=1),
        generation(5, at=110.5, a="a2:0,1", b="b1:2,3"),
        commit(0, 12, 112.0),
        commit(2, 20, 112.0),
        *steady(0, start=113, end=118, first=13),
        commit(0, 19, 131.0),
    ]
    found = count(records, before=before)
    assert found.pauses == {t(0): pytest.approx(1.0)}
    assert found.silences == {t(0): pytest.approx(12.0), t(2): pytest.approx(13.0)}
    assert (found.longest_downtime_s, found.longest_silence_s) == (
        pytest.approx(1.0),
        pytest.approx(13.0),
    )
    unended = count(records[:-1], before=before).silences
    assert t(0) not in unended, "nothing may come to it any more"


def test_a_frozen_standby_is_a_silence_of_what_moved():
    """The owner drained at 110, its slot was taken at 130: until then no record tells of it."""
    records = [
        *steady(0, start=100, end=110, first=1),
        generation(5, at=130, a="a2:0,1", b="b1:2,3"),
        commit(0, 12, 131.0),
    ]
    found = count(records, before=BEFORE)
    assert found.pauses == {t(0): pytest.approx(20.0)}
    assert (found.moved_silence_s, found.stayed_silences) == (pytest.approx(20.0), {})


def test_what_idled_long_before_its_hand_over_has_a_pause_and_no_silence():
    """Nothing came to it, which is no fault of the step."""
    before = [BEFORE, *steady(0, start=50, end=60, first=1), commit(1, 1, 129.0)]
    records = [generation(5, at=130, a="a2:0,1", b="b1:2,3"), commit(0, 12, 131.0)]
    found = count(records, before=before)
    assert (found.longest_downtime_s, found.moved_silence_s) == (pytest.approx(70.0), 0.0)


def test_what_comes_seldom_or_by_fits_is_no_silence():
    """Nor one that began long before, nor one of few commits."""
    fits = [commit(0, n, at) for n, at in enumerate([100, 101, 102, 103, 111, 112, 125], start=1)]
    few = [commit(1, n, at) for n, at in enumerate([100, 101, 102, 116], start=1)]
    old = steady(2, start=50, end=60, first=1)
    records = [*fits, *few, commit(2, 30, 126.0)]
    assert count(records, before=[BEFORE, *old, commit(3, 1, 99.0)]).silences == {}


def test_a_cooperative_pause_starts_at_the_commit_in_the_revocation():
    """The old owner may commit after the withholding generation, until the next one."""
    records = [
        *steady(1, start=100, end=110, first=1),
        generation(6, at=110.2, a="a1:0", b="b1:2,3", c="c1:"),
        commit(1, 12, 110.4),
        generation(7, at=111.0, a="a1:0", b="b1:2,3", c="c1:1"),
        commit(1, 13, 113.4),
    ]
    assert count(records, before=BEFORE).pauses == {t(1): pytest.approx(2.0)}


def test_two_hand_overs_without_a_commit_between_are_one_pause():
    """From the last commit of the first owner to the first of the last one."""
    records = [
        *steady(0, start=100, end=110, first=1),
        generation(5, at=111, a="a2:0,1", b="b1:2,3"),
        generation(5, at=114, a="a3:0,1", b="b1:2,3"),
        commit(0, 12, 116.0),
    ]
    assert count(records, before=BEFORE).pauses == {t(0): pytest.approx(5.0)}


def test_without_a_known_gap_no_pause_is_said():
    """One commit before tells nothing about steady input."""
    records = [
        commit(0, 1, 100.0),
        generation(5, at=101, a="a2:0,1", b="b1:2,3"),
        commit(0, 2, 160.0),
    ]
    assert count(records, before=BEFORE).pauses == {}


def test_a_pause_is_never_negative():
    """The new owner may be faster than usual."""
    records = [
        *steady(0, start=100, end=110, first=1),
        generation(5, at=110.1, a="a2:0,1", b="b1:2,3"),
        commit(0, 20, 110.2),
    ]
    assert count(records, before=BEFORE).pauses == {t(0): 0.0}


def test_undecoded_records_are_counted():
    """Nothing is guessed from them, and nobody is left unaware of them."""
    broken = Undecoded(
        offset=next(_OFFSETS), timestamp_ms=0, type=2, reason="x", key=b"", value=b""
    )
    assert count([broken], before=BEFORE).undecoded == 1
