"""What must hold of a replay whatever it is fed, and wherever its reader stops."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fleet.log.records import Record
from fleet.log.replay.causes import Replay
from fleet.model.rebalances import MembershipSpan, Rebalance
from tests.support.group_streams import GROUP, TOPIC_IDS, streams
from tests.support.sampling import examples


def fresh() -> Replay:
    replay = Replay("main", GROUP)
    replay.name_topics(TOPIC_IDS)
    return replay


def kept(replay: Replay) -> Replay:
    """After a restart."""
    again = Replay.from_json(json.loads(json.dumps(replay.as_json())))
    again.name_topics(TOPIC_IDS)
    return again


def fed(replay: Replay, records: list[Record]) -> list[Rebalance | MembershipSpan]:
    return [row for record in records for row in replay.feed(7, record)]


@examples(60)
@given(streams(), st.sets(st.integers(0, 40)))
def test_a_reader_that_stops_anywhere_and_goes_on_gives_the_same_rows(
    records: list[Record], stops: set[int]
) -> None:
    whole, parts = fresh(), fresh()
    expected = fed(whole, records)
    found = []
    for number, record in enumerate(records):
        if number in stops:
            parts = kept(parts)
        found += parts.feed(7, record)
    assert found == expected
    assert parts.as_json() == whole.as_json()
    assert kept(parts).pending() == whole.pending()


@examples(60)
@given(streams())
def test_a_rebalance_has_its_own_place_in_the_log(records: list[Record]) -> None:
    replay = fresh()
    rows = [row for row in fed(replay, records) if isinstance(row, Rebalance)]
    rows += replay.pending()
    places = [(row.log_partition, row.log_offset) for row in rows]
    assert len(set(places)) == len(places)
    for row in rows:
        assert row.seconds is None or row.seconds >= 0
        assert row.aborted >= 0


@examples(60)
@given(streams())
def test_records_fed_twice_count_once(records: list[Record]) -> None:
    once, twice = fresh(), fresh()
    expected = fed(once, records)
    assert fed(twice, records) + fed(twice, records) == expected


@examples(60)
@given(streams(most=40))
def test_the_members_are_those_whose_rows_say_so(records: list[Record]) -> None:
    replay = fresh()
    incarnation, present = 0, {}
    for record in records:
        rows = replay.feed(7, record)
        if replay.incarnation != incarnation:
            incarnation, present = replay.incarnation, {}
        for row in rows:
            if isinstance(row, MembershipSpan):
                present[row.member] = row
                if row.event == "left":
                    del present[row.member]
    waiting = {member.identity for member in replay._state.gone.values()}
    members = {member.identity: member for member in replay.members()}
    assert present.keys() - waiting == members.keys() - waiting
    for who, member in members.items():
        assert present[who].owned == member.owned
