"""What a person sees on the page of `fleet ui`, in a browser, at 1,000 groups.

With FLEET_SCREENSHOTS naming a folder pictures are kept there.
"""

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from fleet.clock import SystemClock
from fleet.commands.ui import Latest
from fleet.decide.decision_log import KeptDecision
from fleet.slots import ChangeState, Pause
from tests.page.worlds import LATE, MARKUP, ODD, ROLLING, STORMY, rolling, without_groups
from tests.support.waiting import until

pytestmark = [pytest.mark.browser]

NAMES = "return [...document.querySelectorAll('#overview tbody a')].map(e => e.textContent)"
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def page(page_browser, shown):
    """All groups, as the page comes."""
    page_browser.resize(1280, 900)
    page_browser.open("about:blank")
    page_browser.open(f"{shown.url}/")
    page_browser.wait_for(STORMY, "1,000 groups, 1 with a problem, 1 in a storm")
    return page_browser


def kept(browser, name, tmp_path):
    """A picture for who looks."""
    browser.screenshot(Path(os.environ.get("FLEET_SCREENSHOTS") or tmp_path) / f"{name}.png")


def rows(browser, many):
    until(lambda: len(browser.script(NAMES)) == many, f"{many} rows", every=0.05)
    return browser.script(NAMES)


def press(browser, label):
    """A column's head."""
    browser.script(
        "[...document.querySelectorAll('th button')]"
        ".find(e => e.textContent === arguments[0]).click()", label,
    )  # fmt: skip


def test_groups_stand_worst_first_and_in_any_order(page, tmp_path):
    """A storm, what has something to tell, what waits; then by a column; filtered."""
    assert rows(page, 1000)[:3] == [STORMY, ROLLING, LATE]
    assert f"storm: {STORMY}-3 joins and leaves every 40 s" in page.text()
    assert "3 workers too many: busy for 12 % of the last 60 s" in page.text()
    kept(page, "groups", tmp_path)
    press(page, "Lag")
    assert page.script(NAMES)[0] == LATE
    press(page, "Group")
    first = page.script(NAMES)
    assert first == sorted(first)
    press(page, "Group")
    assert page.script(NAMES) == first[::-1]
    page.script(
        "const f = document.getElementById('filter'); f.value = 'SERVICE-004';"
        "f.dispatchEvent(new Event('input'))"
    )
    assert len(rows(page, 10)) == 10
    assert "10 shown" in page.text()


def test_a_failed_change_stands_before_pauses(page_browser, shown):
    """And counts as a problem, which a pause is not."""
    found, failed = shown.picture, "team-31-service-0991"
    rolled = rolling(failed, now=found.view.snapshot.at)
    change = replace(rolled.change, state=ChangeState.ROLLED_BACK, sentence="the canary failed")
    pause = Pause(group=None, reason="freeze", by="ann", at=0.0)
    statuses = {name: replace(each, pauses=(pause,)) for name, each in found.statuses.items()}
    statuses[failed] = replace(statuses[failed], managed=replace(rolled, change=change))
    shown.latest = Latest(value=replace(found, statuses=statuses).with_overview())
    page_browser.show(f"{shown.url}/", "1,000 groups, 2 with a problem, 1 in a storm")
    assert rows(page_browser, 1000)[:2] == [STORMY, failed]


PAINTED = """
const done = arguments[arguments.length - 1];
const seen = new PerformanceObserver((list) => {
  const shown = list.getEntries().filter((each) => each.element?.closest("#overview tbody"));
  if (shown.length) done(shown[0].startTime);
});
seen.observe({ type: "largest-contentful-paint", buffered: true });
"""
"""Milliseconds from asking for the page to the first picture with a group in it, by the browser."""


PLAIN = """
const row = `<tr>${"<td>some words</td>".repeat(12)}</tr>`;
const began = performance.now();
document.body.innerHTML = `<table>${row.repeat(1000)}</table>`;
document.body.getBoundingClientRect();
return performance.now() - began;
"""
"""Milliseconds that a table of as many rows takes this browser now, from nothing to its layout."""
MOST_PLAIN = 5
"""So many plain tables the page may take; less than two on a quiet machine, 0.2 s."""
TRIES = 20
"""So many times the page is asked for before it is called slow: other tests run beside it."""


def painted(browser, url):
    """Milliseconds until a new browser's page shows a group, and those of a plain table before."""
    browser.open("about:blank")
    plain = browser.script(PLAIN)
    browser.open(f"{url}/")
    return browser.later(PAINTED), plain


def test_a_thousand_groups_are_painted_within_a_second(page_browser, shown, tmp_path):
    """Asked for, made, sent, laid out and painted, at least once; or beside a plain table,
    where the machine is so busy that this one takes long.
    """
    page_browser.resize(1280, 900)
    seen = []
    while not any(page < max(1000, MOST_PLAIN * plain) for page, plain in seen):
        assert len(seen) < TRIES, seen
        seen.append(painted(page_browser, shown.url))
        assert len(rows(page_browser, 1000)) == 1000
    print("painted after, and a plain table", seen)
    kept(page_browser, "painted", tmp_path)


def test_names_are_text(page, shown):
    """Markup in a group id is shown and not run, in the list and on its own page."""
    rows(page, 1000)
    page.show(f"{shown.url}/#/groups/{quote(MARKUP, safe='')}", "← all groups", "Stable")
    assert MARKUP in page.text()
    assert page.script("return document.querySelectorAll('img').length") == 0
    assert page.script("return document.title") == f"{MARKUP}: Fleet"


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("encoded", [quote, quote_plus], ids=["uri", "alert"])
def test_a_link_leads_to_a_group_of_any_name(page_browser, shown, name, encoded):
    """As the page writes links, and as Prometheus' `urlquery` does."""
    page_browser.open("about:blank")
    page_browser.open(f"{shown.url}/#/groups/{encoded(name, safe='')}")
    page_browser.wait_for("← all groups", "classic group, Stable")
    assert page_browser.script("return document.querySelector('h1').textContent") == name


def test_a_roll_shows_how_far_it_is(page, shown, tmp_path):
    """Slots on the new code of all, the step in hand, who does it; a click leads there."""
    page.click(ROLLING)
    text = page.wait_for("step 1 of 1, 2 of 4 slots on revision newcode123", "running", "draining")
    assert "plan main-orders-17 by deploy@ci:4711" in text
    assert page.script("return document.querySelector('progress').position") == 0.5
    kept(page, "group", tmp_path)


def test_the_timeline_has_a_mark_for_each_rebalance(page, shown, tmp_path):
    """With its cause on hovering; as many rows in the table; none in ten minutes without one."""
    page.show(f"{shown.url}/#/groups/{STORMY}", "Rebalances", "join 6", "leave 5")
    titles = page.script(
        "return [...document.querySelectorAll('svg.timeline rect title')].map(e => e.textContent)"
    )
    assert len({each for each in titles if each.startswith("generation ")}) == 11
    assert page.script("return document.querySelectorAll('details tbody tr').length") == 11
    kept(page, "timeline", tmp_path)
    page.show(f"{shown.url}/#/groups/{LATE}", "no rebalance in this time")


def test_a_policy_is_drawn_with_its_reasons(page, shown):
    """Wanted and actual members, and each decision in the table; nothing without a policy."""
    at = SystemClock().now() - 600
    made = KeptDecision(at=at, wanted=4, current=3, members=3, lag=12_000, lag_seconds=30.0,
                        reason="12,000 <b>records</b> waiting", refused="group orders is paused",
                        member_hours=41.52)  # fmt: skip
    shown.latest = Latest(value=replace(shown.picture, decisions={ROLLING: (made,)}))
    page.click(ROLLING)
    page.wait_for("Scaling", "members 0 to 4", "0 to 12,000")
    cells = "return [...document.querySelectorAll('details')[0].querySelectorAll('td')].slice(1)"
    assert page.script(f"{cells}.map(e => e.textContent)") == [
        *("4", "3", "3", "12K", "30 s", "41.5"),
        "12,000 <b>records</b> waiting; refused: group orders is paused",
    ]
    page.show(f"{shown.url}/#/groups/{LATE}", "no rebalance in this time")
    assert "Scaling" not in page.text()


def test_figures_of_a_cluster_that_is_away_are_old(page, shown):
    """Since when, why, and of when the figures are; and well again."""
    shown.fails("the brokers at kafka:9092 do not answer")
    text = page.wait_for("the brokers at kafka:9092 do not answer", "the figures are from")
    assert "fleet has not read the cluster since" in text
    assert page.script("return document.body.classList.contains('old')")
    assert STORMY in text
    shown.latest = Latest(value=shown.picture)
    until(lambda: not page.script("return document.body.classList.contains('old')"), "well again")
    assert "fleet has not read the cluster" not in page.text()


def test_a_server_that_ended_is_told(page, shown):
    """The page stays with its figures."""
    shown.server.close()
    page.wait_for("fleet ui has not answered since", STORMY)


def test_before_the_first_look_and_without_groups(page_browser, shown):
    """Neither is an error, nor an empty table; an unknown name is told."""
    shown.latest = Latest()
    page_browser.open("about:blank")
    page_browser.open(f"{shown.url}/")
    page_browser.wait_for("waiting for the first refresh of the cluster")
    shown.latest = Latest(value=without_groups(shown.picture))
    page_browser.wait_for("cluster main has no consumer groups")
    page_browser.open(f"{shown.url}/#/groups/nobody")
    page_browser.wait_for("has no group of this name")


def test_what_is_not_known_is_no_zero(page_browser, shown):
    """Rates after one look, rebalances that may not be read."""
    blind = replace(shown.picture, past=None)
    shown.latest = replace(shown.latest, value=blind)
    page_browser.open("about:blank")
    page_browser.open(f"{shown.url}/#/groups/{LATE}")
    page_browser.wait_for("rebalances are unknown")
    figures = page_browser.script(
        "return Object.fromEntries([...document.querySelectorAll('dl div')]"
        ".map(e => [e.children[0].textContent, e.children[1].textContent]))"
    )
    assert (figures["in/s"], figures["out/s"], figures["lag"]) == ("-", "-", "3,600")


@pytest.mark.parametrize("width", [500, 1280])
def test_nothing_is_wider_than_the_window(page_browser, shown, width):
    """A phone, as narrow as Chromium's window goes, and a laptop: list and group."""
    page_browser.resize(width, 860)
    page_browser.open("about:blank")
    page_browser.show(f"{shown.url}/", STORMY)
    assert page_browser.script(WIDER) <= 0
    page_browser.show(f"{shown.url}/#/groups/{STORMY}", "join 6")
    assert page_browser.script(WIDER) <= 0


def test_a_reader_without_a_mouse_gets_everywhere(page):
    """`/` to the filter, Escape out of it and back from a group; a row that has the focus stays."""
    key = (
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))"
    )
    page.script(key, "/")
    assert page.script("return document.activeElement.id") == "filter"
    page.script("document.querySelectorAll('#overview tbody a')[1].focus()")
    before = page.script("return document.activeElement.textContent")
    press(page, "Lag")
    assert page.script("return document.activeElement.textContent") == before
    page.script("document.activeElement.click()")
    page.wait_for("← all groups")
    page.script(key, "Escape")
    page.wait_for("1,000 groups")
