"""A timeline of a group that rebalances all the time: what it costs, and the same pauses."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.manager.past import ReplayedRows
from fleet.report.timeline import Span, lay_out
from fleet.report.timeline_html import as_svg
from tests.asking.worlds import START, membership, partitions, rebalance
from tests.support.calls import calls_of


def coming_and_going(rounds, *, stays=1):
    """A client that comes and goes, under a name of its own each time; so many at once."""
    rows, rebalances = [], []
    for n in range(rounds):
        who = {"instance_id": None, "client_id": "app"}
        rows.append(membership("joined", f"app-{n}", n * 20, 4, **who))
        rows.append(membership("left", f"app-{n}", n * 20 + 20 * stays - 10, **who))
        rebalances += [
            rebalance(2 * n + 1, n * 20.0, took=1.0),
            rebalance(2 * n + 2, n * 20.0 + 10, took=1.0),
        ]
    return {"rebalances": rebalances, "memberships": rows, "since": START, "until": START + 10**6}


def test_its_cost_is_that_of_its_rebalances():
    """Four times as many cost four times as much, of stays in turn and of stays that meet."""
    for stays, lanes in ((1, 1), (3, 60)):
        few, many = (coming_and_going(rounds, stays=stays) for rounds in (100, 400))
        assert len(lay_out(**many).lanes) == lanes
        assert calls_of(lay_out, **many) < 5 * calls_of(lay_out, **few)
        assert calls_of(as_svg, lay_out(**many)) < 5 * calls_of(as_svg, lay_out(**few))


class Told:
    """A member's stay as its rows tell it."""

    def __init__(self, member, came):
        self.member, self.came, self.went, self.lost = member, came, None, []


@st.composite
def stays(draw):
    """Rows of members that come, get other partitions and leave, and the stays they tell."""
    rows, told = [], []
    for number in range(draw(st.integers(1, 5))):
        static = draw(st.booleans())
        name, at, owned = f"m-{number}", draw(st.integers(0, 100)), set()
        who = {"instance_id": name if static else None, "client_id": draw(st.sampled_from("ab"))}
        stay = None
        for _ in range(draw(st.integers(1, 8))):
            if stay is not None and draw(st.booleans()):
                rows.append(membership("left", name, at, **who))
                stay.went = START + at
                stay.lost.append(START + at)
                stay, owned = None, set()
            else:
                now = set(partitions(draw(st.integers(0, 3)), first=draw(st.integers(0, 3))))
                event = "joined" if stay is None else "owns"
                rows.append(membership(event, name, at, tuple(sorted(now)), **who))
                if stay is None:
                    stay = Told(name, START + at)
                    told.append(stay)
                elif owned - now:
                    stay.lost.append(START + at)
                owned = now
            at += draw(st.integers(0, 30))
    return rows, told


@st.composite
def rounds(draw):
    """Rebalances of eager and cooperative groups, some of unknown beginning."""
    made = []
    for number in range(draw(st.integers(1, 25))):
        took = draw(st.none() | st.integers(0, 40))
        assignor = draw(st.sampled_from(["range", "cooperative-sticky"]))
        known = {} if took is None else {"took": float(took)}
        at = draw(st.integers(0, 250))
        made.append(rebalance(number + 1, at, assignor=assignor, **known))
    return made


def paused(told, shown):
    """Each rebalance against each stay: who was a member throughout, and had to stop."""
    for each in shown:
        start, end = each.started_at, each.ended_at
        if start is None or end <= start:
            continue
        for stay in told:
            there = stay.came <= start and (stay.went is None or stay.went >= end)
            gives = any(start <= at <= end + 1.0 for at in stay.lost)
            if there and (each.assignor == "range" or gives):
                yield Span(start, end)
                break


@given(stays(), rounds(), st.integers(0, 200), st.integers(1, 200))
def test_pauses_are_those_of_each_rebalance_against_each_stay(made, shown, since, lasts):
    """Of all lanes, shared ones too, in any part of the time."""
    rows, told = made
    begin, end = START + since, START + since + lasts
    line = lay_out(rebalances=shown, memberships=rows, since=begin, until=end)
    seen = [r for r in sorted(shown, key=lambda r: r.ended_at) if begin <= r.ended_at <= end]
    for lane in line.lanes:
        mine = [s for s in told if s.member in lane.members and (s.went or end) > begin]
        assert lane.pauses == tuple(paused(mine, seen))


@given(stays(), rounds(), st.integers(0, 200), st.integers(1, 200))
def test_who_left_before_changes_nothing(made, shown, since, lasts):
    """The rows of those who are members when it begins, and what comes then, make the picture."""
    rows, _ = made
    past = ReplayedRows(rows)
    known = {"rebalances": shown, "since": START + since, "until": START + since + lasts}
    stand = past.standing(group="orders", at=START + since)
    later = past.memberships(group="orders", since=START + since)
    everything = past.memberships(group="orders")
    assert lay_out(memberships=[*stand, *later], **known) == lay_out(
        memberships=everything, **known
    )


def test_of_who_came_and_went_before_no_row_is_there():
    """The latest stay of who stands, whole; nothing of the others."""
    rows = [
        membership("joined", "orders-0", 0, 4),
        membership("joined", "orders-1", 1, 4),
        membership("left", "orders-1", 2),
        membership("joined", "orders-2", 3, 4),
        membership("left", "orders-2", 3),
        membership("joined", "orders-2", 3, 2),
        membership("owns", "orders-2", 4, 1),
        membership("left", "orders-0", 5),
    ]
    past = ReplayedRows(rows)
    assert past.standing(group="orders", at=START + 5) == [rows[0], *rows[5:7]]
    assert past.standing(group="orders", at=START) == []
    assert past.standing(group="payments", at=START + 5) == []
