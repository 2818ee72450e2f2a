"""What the page's server answers, and to whom."""

import gzip
import json
import re
import socket
import struct
from dataclasses import replace
from importlib.resources import files
from types import SimpleNamespace
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest

from fleet import cli
from fleet.clock import ManualClock, SystemClock
from fleet.commands.ui import ClusterView, Latest, Watch, live_rows
from fleet.decide.decision_log import KeptDecision
from fleet.log.readers.log_view import LogView, all_groups
from fleet.manager.past import Recent, make_recent
from fleet.model import GroupState, LagCase
from fleet.ui.page_server import PageServer, is_served
from tests.asking.worlds import START, rebalance
from tests.page.worlds import LATE, ODD, ROLLING, STORMY
from tests.support.json_contract import documented, shape
from tests.support.seen_groups import group_seen, partition_seen
from tests.support.snapshots import snapshot_of


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:9309", True),
        ("localhost:9309", True),
        ("LOCALHOST", True),
        ("[::1]:9309", True),
        ("10.1.2.3", True),
        ("fleet.example.com", True),
        ("fleet.example.com:443", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9309", False),
        ("fleet.example.com.evil.example", False),
        ("user@evil.example", False),
        ("[::1", False),
        ("", False),
        (None, False),
    ],
)
def test_a_name_that_leads_here_is_not_enough(host, answered):
    """DNS rebinding needs a name of its own; addresses and given names are answered."""
    assert is_served(host, {"localhost", "fleet.example.com"}) is answered


def test_every_path_is_refused_to_a_foreign_name(shown, get):
    """Page and answers alike."""
    for path in ("/", "/page.js", "/api/groups", "/api/group?name=orders", "/groups/x", "/nothing"):
        found = get(f"{shown.url}{path}", Host="evil.example")
        assert found.status == 421, path
        assert b"orders" not in found.body


def test_it_only_reads(shown, get):
    """No method changes anything, since there is none that does."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert get(f"{shown.url}/api/groups", method=method).status == 501


def test_nothing_else_may_read_frame_or_run(shown, get):
    """The headers of every answer; no answer lets another origin in."""
    for path in ("/", "/page.js", "/page.css", "/paints.css", "/api/groups", "/nothing"):
        headers = get(f"{shown.url}{path}").headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
    assert get(f"{shown.url}/page.js").headers["Content-Type"].startswith("text/javascript")


def test_the_page_brings_all_that_it_needs(shown, get):
    """Every address in it is its own, and markup is made nowhere from text."""
    page = files("fleet.ui").joinpath("page")
    for each in page.iterdir():
        text = each.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, each.name
        assert "https:" not in text, each.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert get(f"{shown.url}/{each.name}").status == (404 if "index" in each.name else 200)
    for address in re.findall(r'(?:href|src)="(/[^"]*)"', page.joinpath("index.html").read_text()):
        assert get(shown.url + address).status == 200, address


def test_a_formatter_is_made_once_and_not_for_each_figure():
    """Of 5,000 groups those took a third of a second of each refresh."""
    text = files("fleet.ui").joinpath("page", "page.js").read_text(encoding="utf-8")
    made = [line for line in text.splitlines() if "new Intl." in line]
    assert made
    assert [line for line in made if not line.startswith("const ")] == []


def test_a_group_of_any_name_is_found(shown, get):
    """By its name in the query, and by a path that leads to the page's own address."""
    for name in ODD:
        found = get(f"{shown.url}/api/group?name={quote(name, safe='')}")
        assert json.loads(found.body)["status"]["groups"][0]["group"] == name
        led = get(f"{shown.url}/groups/{quote(name, safe='')}")
        assert (led.status, led.headers["Location"]) == (302, f"/#/groups/{quote(name, safe='')}")
    assert get(f"{shown.url}/api/group?name=nobody").status == 404


def test_answers_are_packed_where_that_is_asked(shown, get):
    """1,000 groups are half a megabyte."""
    plain = get(f"{shown.url}/api/groups").body
    packed = get(f"{shown.url}/api/groups", **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.body) < len(plain) / 10
    told, also = json.loads(gzip.decompress(packed.body)), json.loads(plain)
    assert len(told["status"]["groups"]) == 1000
    assert told["status"] == also["status"]


@pytest.mark.parametrize("query", ["seconds=0", "seconds=1e9", "width=x", "width=nan"])
def test_a_wrong_question_is_told(shown, get, query):
    """With what is allowed."""
    found = get(f"{shown.url}/api/timeline?name=orders&{query}")
    assert found.status == 400
    assert b"write a number above 0" in found.body


def test_answers_have_the_documented_shape(shown, get):
    """What is the commands' own has its own test; here is what the page adds."""
    groups = json.loads(get(f"{shown.url}/api/groups").body)
    known = documented("fleet ui: /api/groups")
    assert set(groups) == set(known)
    assert shape(groups["load"][ROLLING]) == shape(known["load"]["orders"])
    live = groups["top"]["groups"]
    assert set(groups["top"]) == set(known["top"])
    assert set(live[0]) == set(known["top"]["groups"][0])
    assert [row["group"] for row in live[:2]] == [STORMY, LATE], "worst first"
    group = json.loads(get(f"{shown.url}/api/group?name={ROLLING}").body)
    assert set(group) == set(documented("fleet ui: /api/group"))
    line = json.loads(get(f"{shown.url}/api/timeline?name={STORMY}&seconds=3600").body)
    assert set(line) == set(documented("fleet ui: /api/timeline"))
    assert len(line["rebalances"]["rebalances"]) == 11
    drawn = ET.fromstring(line["svg"])
    assert {each.tag.rpartition("}")[2] for each in drawn} == {"rect", "line", "text"}


def test_the_line_has_what_a_policy_decided(shown, get):
    """The decisions of that time, drawn from the one before it on; none before the first."""
    now = SystemClock().now()
    kept = tuple(
        KeptDecision(at=now - ago, wanted=4, current=3, members=3, lag=lag, lag_seconds=1.0,
                     reason=f"{lag} records <waiting>")
        for ago, lag in ((7_000, 10), (3_000, 40), (60, None))
    )  # fmt: skip
    shown.latest = Latest(value=replace(shown.picture, decisions={ROLLING: kept}))
    line = json.loads(get(f"{shown.url}/api/timeline?name={ROLLING}&seconds=3600").body)
    known = documented("fleet ui: /api/timeline")
    assert set(line["scaling"]) == set(known["scaling"])
    assert [each["lag"] for each in line["scaling"]["decisions"]] == [40, None]
    drawn = ET.fromstring(line["scaling"]["svg"])
    titles = [each.text.partition("UTC: ")[2] for each in drawn.iter() if "title" in each.tag]
    assert titles == [f"{lag} records <waiting>" for lag in (10, 40, None)]
    narrow = json.loads(get(f"{shown.url}/api/timeline?name={ROLLING}&width=1").body)
    assert ET.fromstring(narrow["scaling"]["svg"]).get("viewBox", "").startswith("0 0 300 ")
    other = json.loads(get(f"{shown.url}/api/timeline?name={LATE}").body)
    assert other["scaling"] is None


def test_what_is_not_known_is_null(shown, get):
    """No rebalances may be read: no count, no picture; no rates after one refresh."""
    shown.latest = replace(shown.latest, value=replace(shown.picture, past=None))
    line = json.loads(get(f"{shown.url}/api/timeline?name={STORMY}").body)
    assert (line["rebalances"], line["svg"]) == (None, None)
    group = json.loads(get(f"{shown.url}/api/group?name={LATE}").body)
    assert group["status"]["groups"][0]["rebalances"] is None
    assert group["top"]["groups"][0]["in_per_second"] is None


def orders(at, end, committed):
    """Group orders at a moment: where its partitions end, and where it stands in all."""
    known = {"committed": committed, "case": LagCase.UNKNOWN}
    parts = [partition_seen(number, None, log_end=last, **known) for number, last in enumerate(end)]
    return snapshot_of(group_seen(partitions=parts), GONE, at=at)


GONE = group_seen("gone", exists=False, state=GroupState.DEAD, type="unknown", assignor=None)


def test_live_rows_join_snapshot_and_rebalances():
    """Rates are summed over partitions that did not go back; what does not exist has no row."""
    before, seen = orders(START, (10, 10, 5), 10), orders(START + 10, (60, 80, 4), 3)
    recent = make_recent([rebalance(9, 0)], kind="log", sentence="", now=START + 60)
    view = ClusterView(snapshot=seen, before=before, recent=recent)
    (found,) = live_rows(view)
    assert (found["in_per_second"], found["out_per_second"]) == (12.0, None)
    assert [found[key] for key in ("generation", "rebalances_per_hour")] == [9, 1]
    assert (found["last_cause"], found["storm"]) == ("join", None)
    (known,) = live_rows(replace(view, before=None, generations={"orders": 10}))
    assert (known["generation"], known["in_per_second"]) == (10, None)
    (dark,) = live_rows(replace(view, recent=Recent(kind="none", sentence="")))
    assert dark["rebalances_per_hour"] is None


def test_what_waits_since_before_every_look_is_furthest_behind():
    """It has no age, and is older than all that have one; a group that is unknown is none."""
    groups = [
        group_seen("late", partitions=[partition_seen(0, 9_000, lag_seconds=75.0)]),
        group_seen("oldest", partitions=[partition_seen(0, 3, lag_seconds=None)]),
        group_seen("unknown", partitions=[partition_seen(0, None, lag_seconds=None)]),
    ]
    recent = make_recent([], kind="log", sentence="", now=START)
    rows = live_rows(ClusterView(snapshot=snapshot_of(*groups), before=None, recent=recent))
    assert [row["group"] for row in rows] == ["oldest", "late", "unknown"]


class Stopped(LogView):
    """Reading ended three hours ago."""

    problem = "__consumer_offsets may not be read (TOPIC_AUTHORIZATION_FAILED)"

    def age(self) -> float:
        return 3 * 3600.0


def test_a_reading_that_stopped_tells_nothing_of_now():
    """No count, no storm, no end of one: the sentence says why."""
    clock = ManualClock(1_000_000.0)
    watch = Watch.__new__(Watch)
    watch._fleet, watch._every = SimpleNamespace(clock=clock), 2.0
    watch._tail = Stopped(cluster="c", clock=clock, groups=all_groups, keep=60.0, most=9)
    told = watch._recent()
    assert (told.kind, told.known, told.per_hour("g")) == ("none", False, None)
    assert told.sentence == Stopped.problem
    Stopped.problem = None
    assert watch._recent().sentence == "__consumer_offsets was read 3 h ago"


@pytest.mark.parametrize("header", ["Content-Length: 40", "Transfer-Encoding: chunked"])
def test_a_body_is_no_next_request(header):
    """A proxy that keeps its connection would give that one's answer to whoever asks next."""
    inner = b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    outer = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode()
    with (
        PageServer("127.0.0.1:0", {}, columns={}) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as one,
    ):
        one.sendall(outer + inner)
        answer = b"".join(iter(lambda: one.recv(65_536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer


def test_what_goes_wrong_is_answered_and_told_in_a_line(capsys):
    """An odd address, a defect of ours, a browser that hangs up: no traceback, no empty answer."""

    def asked(line: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one:
            one.sendall(line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: one.recv(65_536), b""))

    with PageServer(
        "127.0.0.1:0", {"/api/x": lambda _: str(1 // 0).encode()}, columns={}
    ) as server:
        assert asked(b"GET http://[x").startswith(b"HTTP/1.1 400 ")
        broken = asked(b"GET /api/x")
        assert broken.startswith(b"HTTP/1.1 500 ")
        assert b"ZeroDivisionError: integer division or modulo by zero; this is a defect" in broken
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert one.recv(4_000)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert asked(b"GET /healthz").startswith(b"HTTP/1.1 200 ")
    for error, told in ((ConnectionResetError("gone"), ""), (KeyError("x"), "KeyError: 'x'")):
        try:
            raise error
        except Exception:  # noqa: BLE001
            server._server.handle_error(None, ("10.0.0.1", 7))
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == bool(told)


def test_an_address_that_is_taken_is_told(shown, tmp_path, capsys, monkeypatch):
    """Before anything is looked at: exit 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("cluster: {bootstrap_servers: '127.0.0.1:1'}\n")
    address = shown.url.removeprefix("http://")
    assert cli.run(["ui", "--listen", address]) == 2
    assert f"cannot bind ui.listen {address}" in capsys.readouterr().err
    assert cli.run(["ui", "--listen", "nowhere"]) == 2
