"""The layout of a timeline: who owned how many when, what paused, which lanes there are."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from fleet.model.rebalances import Cause, Confidence, TimeSource
from fleet.report.timeline import Span, extent, lay_out, ticks
from fleet.report.timeline_html import LETTERS, as_html, as_svg
from fleet.report.wording import sentence
from tests.asking.worlds import START, membership, partitions, rebalance


def picture(rebalances, memberships=(), *, since=0.0, until=100.0, **more):
    """A layout between two seconds after START."""
    return lay_out(
        rebalances=rebalances,
        memberships=memberships,
        since=START + since,
        until=START + until,
        **more,
    )


def bars(lane):
    """(from, to, owned) in seconds after START."""
    return [(bar.start - START, bar.end - START, bar.owned) for bar in lane.bars]


def shapes(line, tag):
    """Every one of a kind in the picture."""
    return ET.fromstring(as_svg(line)).findall(f"{{*}}{tag}")


def texts(line):
    """Every text of the picture."""
    return [
        "".join(t for t in (each.text, *(e.tail for e in each)) if t)
        for each in shapes(line, "text")
    ]


def dynamic(event, member, client, at, owned=0):
    """A row of a member without an instance id."""
    return membership(event, member, at, owned, instance_id=None, client_id=client)


@pytest.mark.parametrize(
    ("rows", "lanes"),
    [
        pytest.param(
            [
                membership("joined", "orders-0", 10, 4),
                membership("joined", "orders-1", 40, 2),
                membership("owns", "orders-0", 40, 2),
                membership("left", "orders-1", 70),
            ],
            {"orders-0": [(10, 40, 4), (40, 100, 2)], "orders-1": [(40, 70, 2)]},
            id="a bar lasts until the number changes",
        ),
        pytest.param(
            [
                membership("joined", "orders-0", 10, 2),
                membership("owns", "orders-0", 30, owned=partitions(2, first=2)),
            ],
            {"orders-0": [(10, 100, 2)]},
            id="other partitions are no new bar",
        ),
        pytest.param(
            [
                membership("joined", "orders-0", -10, 0),
                membership("joined", "orders-1", -9, 4),
                membership("left", "orders-1", -5),
            ],
            {"orders-0": [(0, 100, 0)]},
            id="from the edge, if idle too; who left before it has no lane",
        ),
        pytest.param(
            [
                membership("joined", "orders-0", 10, 4),
                membership("left", "orders-0", 20),
                membership("joined", "orders-0", 50, 4),
            ],
            {"orders-0": [(10, 20, 4), (50, 100, 4)]},
            id="a member that returns has a gap",
        ),
        pytest.param(
            [
                dynamic("joined", "steady-1", "steady", 5, 4),
                dynamic("joined", "flaky-0", "flaky", 10, 2),
                dynamic("left", "flaky-0", "flaky", 15),
                dynamic("joined", "flaky-1", "flaky", 20, 2),
            ],
            {"steady-1": [(5, 100, 4)], "flaky (2 in turn)": [(10, 15, 2), (20, 100, 2)]},
            id="stays of a client that never meet share a lane",
        ),
        pytest.param(
            [dynamic("joined", f"rdkafka-{n}", "rdkafka", 10, 2) for n in range(2)],
            {f"rdkafka-{n}": [(10, 100, 2)] for n in range(2)},
            id="those that meet do not",
        ),
        pytest.param(
            [membership("joined", f"orders-{n}", 10, 1) for n in (10, 2, 0)],
            {f"orders-{n}": [(10, 100, 1)] for n in (0, 2, 10)},
            id="in the order of their numbers",
        ),
    ],
)
def test_a_lane_tells_how_many_partitions_a_member_owned_when(rows, lanes):
    """From second to second, in this order of lanes."""
    line = picture([rebalance(1, -20), rebalance(2, 40)], rows)
    assert [(lane.label, bars(lane)) for lane in line.lanes] == list(lanes.items())
    assert ([mark.number for mark in line.marks], line.before) == ([2], 1)


def test_a_replaced_static_member_is_marked_and_goes_on():
    """No rebalance and no gap: a diamond."""
    line = picture(
        [rebalance(1, 10)],
        [membership("joined", "orders-0", 10, 4), membership("replaced", "orders-0", 30, 4)],
    )
    assert bars(line.lanes[0]) == [(10, 100, 4)]
    assert line.lanes[0].replaced == (START + 30,)
    assert len(shapes(line, "path")) == 2, "with its legend"


@pytest.mark.parametrize(
    ("assignor", "paused"),
    [
        pytest.param("range", ["orders-0", "orders-1"], id="eager-pauses-all"),
        pytest.param("cooperative-sticky", ["orders-1"], id="cooperative-pauses-who-gives"),
    ],
)
def test_a_pause_is_on_the_lanes_that_had_to_stop(assignor, paused):
    """Who joins with the rebalance had nothing to stop."""
    line = picture(
        [rebalance(2, 50, took=5.0, assignor=assignor)],
        [
            membership("joined", "orders-0", 10, 4),
            membership("joined", "orders-1", 10, 4),
            membership("owns", "orders-0", 50, 5),
            membership("owns", "orders-1", 50, owned=partitions(4, first=4)),
            membership("joined", "orders-2", 50, 4),
        ],
    )
    found = {lane.label: lane.pauses for lane in line.lanes if lane.pauses}
    assert sorted(found) == paused
    assert found["orders-1"] == (Span(START + 45, START + 50),)


def test_who_leaves_had_paused_from_its_last_sign_of_life():
    """A cooperative group reads on; what the dead member owned was read by nobody."""
    line = picture(
        [rebalance(2, 50, took=8.0, how=TimeSource.COMMITS, assignor="cooperative-sticky")],
        [
            membership("joined", "orders-0", 10, 2),
            membership("joined", "orders-1", 10, 2),
            membership("owns", "orders-0", 50, 4),
            membership("left", "orders-1", 50),
        ],
    )
    assert [lane.pauses for lane in line.lanes] == [(), (Span(START + 42, START + 50),)]


def test_a_rebalance_whose_beginning_is_not_known_pauses_nobody():
    """Nothing is guessed."""
    line = picture([rebalance(2, 50)], [membership("joined", "orders-0", 10, 4)])
    assert line.lanes[0].pauses == ()
    assert line.longest is None
    assert "all durations unknown" in texts(line)


def test_lanes_beyond_the_most_are_counted():
    """Those that owned most stay, in their order."""
    rows = [membership("joined", f"orders-{n}", 10, n) for n in range(8)]
    line = picture([rebalance(1, 10)], rows, max_lanes=3)
    assert [lane.label for lane in line.lanes] == ["orders-5", "orders-6", "orders-7"]
    assert line.hidden == 5
    assert "5 more members owned fewer partitions and are not drawn" in texts(line)


def test_causes_are_counted_and_every_cause_has_a_letter():
    """Most frequent first; letters differ."""
    line = picture(
        [rebalance(1, 10), rebalance(2, 20), rebalance(3, 30, cause=Cause.EXPIRY)], until=40
    )
    assert line.counts == ((Cause.JOIN, 2), (Cause.EXPIRY, 1))
    assert {"join 2", "expiry 1"} <= set(texts(line))
    assert set(LETTERS) == set(Cause)
    assert len(set(LETTERS.values())) == len(Cause)


def test_without_memberships_the_picture_says_so():
    """Polled, or compacted away: rebalances alone."""
    assert "partition owners are unknown for this time" in texts(picture([rebalance(1, 10)]))


def test_storms_are_shaded_as_far_as_the_picture_goes():
    """A storm that began earlier is cut at the edge."""
    line = picture([rebalance(1, 10)], storms=[Span(START - 50, START + 20), Span(0, 1)])
    assert line.storms == (Span(START, START + 20),)
    assert any(s.get("class") == "storm" and len(s) for s in shapes(line, "rect"))


@pytest.mark.parametrize("span", [0.4, 7, 60, 3600, 86400, 30 * 86400, 400 * 86400])
def test_ticks_are_few_and_inside(span):
    """Whatever the span, a handful of labels, the first with its date."""
    found = ticks(START, START + span)
    assert len(found) <= 15
    assert all(START <= at <= START + span for at, _ in found)
    assert all(re.match(r"[A-Z][a-z]{2} \d\d", text) for _, text in found[:1])


def test_the_extent_shows_all_rebalances_and_the_present_where_it_is_near():
    """Long after the last one the picture ends behind it; right after it, now."""
    rounds = [rebalance(1, 0), rebalance(2, 100, took=5.0)]
    near = extent(rounds, now=START + 120)
    far = extent(rounds, now=START + 100_000)
    assert near.start < START
    assert near.end == START + 120
    assert START + 100 < far.end < START + 110
    alone = extent([rebalance(1, 0)], now=START + 9_999)
    assert alone.start < START < alone.end


def busy(members=12, rounds=60):
    """A group that changes all the time, with a name that HTML would eat."""
    rebalances, rows = [], []
    for n in range(rounds):
        at = 1 + n * 98 / rounds
        confidence = Confidence.LIKELY if n % 3 else Confidence.CERTAIN
        rebalances.append(
            rebalance(n + 1, at, took=0.5, assignor="range", confidence=confidence,
                      joined=("$a<b>&",), cause=list(Cause)[n % len(Cause)])
        )  # fmt: skip
        event = "owns" if n >= members else "joined"
        name = f"orders-{n % members}" if n % members else "$a<b>&"
        rows.append(membership(event, name, at, n % 7))
    return picture(rebalances, rows), rebalances


class _Page(HTMLParser):
    """Tags with their attributes, and whether all that opened was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "line", "rect"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag) -> None:
        if tag in {"line", "rect"}:
            return
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_refers_to_nothing_outside():
    """No address, script, font or image; every rebalance has a title and a row of the table."""
    line, rebalances = busy()
    html = as_html(line, rebalances).replace("http://www.w3.org/2000/svg", "")
    page = _Page()
    page.feed(html)
    page.close()
    assert page.open == []
    assert not re.search(r"https?:|//|url\(|@import|src=|href=", html)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert page.tags.count("tr") == len(rebalances) + 1
    assert page.text.count("$a<b>&") == 2, "the lane's label and its title, unharmed"
    titles = "".join(page.text)
    assert all(sentence(mark) in titles for mark in line.marks)


@pytest.mark.parametrize(("members", "rounds"), [(2, 1), (60, 500)])
def test_all_shapes_stay_on_the_paper(members, rounds):
    """From the smallest to the largest."""
    line = busy(members, rounds)[0]
    _, _, width, height = map(float, ET.fromstring(as_svg(line)).attrib["viewBox"].split())
    for box in shapes(line, "rect"):
        x, y, wide, high = (float(box.attrib[n]) for n in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width + 20
        assert 0 <= y <= y + high <= height
    for words in shapes(line, "text"):
        assert 0 <= float(words.attrib["x"]) <= width
        assert 0 <= float(words.attrib["y"]) <= height
