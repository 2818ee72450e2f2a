"""The policy external: what counts as a number of slots, and what never shrinks a group."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from fleet import cli
from fleet.clock import ManualClock
from fleet.config.spec import ExternalScaling
from fleet.decide.scaling import (
    Decision,
    ExternalNumber,
    ScalingMemory,
    restraint_note,
    wanted_slots,
)
from fleet.manager import external_number
from fleet.manager.external_number import ExternalNumbers
from tests.support.authority import Authority
from tests.support.declared import group_spec
from tests.support.json_server import JsonHandler, serving

NOW = 1_000_000.0
MOST = 1 << 16


def policy(url: str, **keys: Any) -> ExternalScaling:
    """As fleet.yaml declares it."""
    return ExternalScaling.model_validate({"policy": "external", "url": url, **keys})


def http(body: bytes | str, status: str = "200 OK", *, length: int | None = None) -> bytes:
    """An answer."""
    body = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n".encode() + body


def vector(*values: str) -> str:
    """What Prometheus answers to an instant query."""
    result = [{"metric": {"n": str(n)}, "value": [1.5, each]} for n, each in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


class Answering:
    """Gives each connection the next answer, in these pieces; keeps what it was asked."""

    def __init__(self, *answers: bytes, pause: float = 0.0) -> None:
        self.asked: list[bytes] = []
        self._answers, self._pause, self._ends = answers, pause, False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Answering":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        socket.create_connection(self._socket.getsockname()).close()  # ends the wait for one
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._socket.accept()
            with connection:
                if self._ends:
                    return
                self.asked.append(connection.recv(65_536))
                self._send(connection, answer)

    def _send(self, connection: socket.socket, answer: bytes) -> None:
        size = 1 if self._pause else len(answer) or 1
        try:
            for start in range(0, len(answer), size):
                connection.sendall(answer[start : start + size])
                time.sleep(self._pause)
        except OSError:
            return  # whoever asked has gone


def number(url: str, environ: dict[str, str] | None = None, **keys: Any) -> ExternalNumber:
    """What a plan gets there."""
    return ExternalNumbers(environ or {}, clock=ManualClock()).ask(policy(url, **keys))


def asked(answer: bytes, environ: dict[str, str] | None = None, **keys: Any) -> ExternalNumber:
    """What one answer comes to."""
    with Answering(answer) as server:
        return number(server.url, environ, **keys)


def decided(number: ExternalNumber | None, current: int, **keys: Any) -> Decision:
    """A check that has found these calm: fewer slots would be removed now."""
    spec = group_spec(scaling={"policy": "external", "url": "http://sizer:1"}, **keys)
    calm = ScalingMemory(current=current, down_since=NOW - 999, looks=9, asked=((NOW - 1, 1),))
    return wanted_slots(
        spec=spec,
        group=None,
        topics={"orders": 12},
        current=current,
        memory=calm,
        now=NOW,
        external=number,
    )


@pytest.mark.parametrize(
    ("body", "keys", "wanted"),
    [
        pytest.param("7\n", {}, 7, id="text"),
        pytest.param("0", {}, 0, id="zero"),
        pytest.param("2.3", {}, 3, id="rounded-up"),
        pytest.param("3.0000000004", {}, 3, id="a-float's-noise"),
        pytest.param('"4"', {}, 4, id="json-text"),
        pytest.param("1e1", {}, 10, id="exponent"),
        pytest.param(
            '{"data": [{"wanted.slots": "5"}]}',
            {"value_location": r"data.0.wanted\.slots"},
            5,
            id="json-by-place",
        ),
        pytest.param(vector("6"), {"query": "max(up)"}, 6, id="prometheus"),
        pytest.param(
            '{"data": {"resultType": "scalar", "result": [1.5, "8"]}}',
            {"query": "scalar(up)"},
            8,
            id="prometheus-scalar",
        ),
        pytest.param(vector("9"), {"value_location": "data.result.0.value.1"}, 9, id="by-hand"),
    ],
)
def test_a_number(body: str, keys: dict[str, Any], wanted: int) -> None:
    """As text, in JSON, or as the only series of a query."""
    found = asked(http(body), **keys)
    assert (found.wanted, found.why) == (wanted, "")
    decision = decided(found, current=12)
    assert decision.wanted == max(1, wanted)
    assert decision.sentence.startswith(f"{found.source} asks for {wanted}")


NONE = {
    "web page": (http("<!DOCTYPE html><p>3</p>"), {}, "a web page; check scaling.url"),
    "empty": (http(""), {}, "its answer is empty"),
    "text": (http("three"), {}, "no number or JSON"),
    "binary": (http(b"\x1f\x8b\xff"), {}, "no number or JSON"),
    "nested": (http("[" * 60_000), {}, "no number or JSON"),
    "true": (http("true"), {}, "no number there"),
    "object": (http("{}"), {}, "no number there; check scaling.value_location"),
    "no such key": (http('{"a": 1}'), {"value_location": "b"}, "has no b; check"),
    "no such place": (http("[1]"), {"value_location": "1"}, "has no 1; check"),
    "nan": (http("NaN"), {}, "it answers nan"),
    "prometheus nan": (http(vector("NaN")), {"query": "up"}, "it answers NaN"),
    "infinite": (http('"+Inf"'), {}, r"it answers \+Inf"),
    "negative": (http("-3"), {}, "it answers -3; allowed are 0 to 10,000"),
    "huge": (http("1e99"), {}, r"it answers 1e\+99; allowed"),
    "endless": (http("9" * 5000), {}, "it answers inf; allowed"),
    "no series": (http(vector()), {"query": "up"}, "finds no series"),
    "two series": (http(vector("1", "2")), {"query": "up"}, r"finds 2 series; .* max"),
    "range": (
        http('{"data": {"resultType": "matrix", "result": []}}'), {"query": "up[5m]"}, "a matrix"
    ),
    "not prometheus": (http("[3]"), {"query": "up"}, "not that of Prometheus"),
    "bad query": (http("{}", "400 Bad Request"), {"query": "up{"}, "400; check scaling.query"),
    "not found": (http("3", "404 Not Found"), {}, "it answers 404; check scaling.url"),
    "broken": (http("3", "503 Away"), {}, "it answers 503"),
    "no login": (http("3", "401 Unauthorized"), {}, "401; set scaling.authorization_env"),
    "redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: /?key=hunter2\r\nContent-Length: 1\r\n\r\n3",
        {},
        r"it redirects \(302\)",
    ),
    "large": (http("3" + " " * MOST), {}, "more than 64 KiB"),
    "cut": (http("3", length=5), {}, "cut short"),
    "cut in pieces": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n3", {}, "does not answer as"
    ),
    "other protocol": (b"SSH-2.0-OpenSSH\r\n", {}, "does not answer as HTTP"),
    "closed": (b"", {}, "cannot be reached"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "keys", "why"), NONE.values(), ids=NONE)
def test_what_is_no_number_holds(answer: bytes, keys: dict[str, Any], why: str) -> None:
    """The plan says why; nothing is removed or added, and the next number counts anew."""
    found = asked(answer, **keys)
    decision = decided(found, current=7)
    assert (found.wanted, decision.wanted) == (None, 7)
    reason = decision.sentence
    assert reason.startswith(f"no number from {found.source} (")
    assert reason.endswith("): 7 slots")
    assert re.search(why, reason), reason
    assert restraint_note([reason]) == reason
    assert decision.memory == ScalingMemory(current=7)
    assert "hunter2" not in reason


def test_nobody_asked_holds() -> None:
    """A program that asks nobody, such as a back-test, changes nothing."""
    assert decided(None, current=7).wanted == 7


def test_a_number_that_falls_waits_as_with_every_policy() -> None:
    """down_after, and the bounds of the group."""
    spec = group_spec(scaling={"policy": "external", "url": "http://a:1", "down_after": "60s"})
    memory, sizes = ScalingMemory(), []
    for seconds, wanted in ((0, 2), (30, 4), (60, 2), (90, 99)):
        decision = wanted_slots(
            spec=spec, group=None, topics={"orders": 8}, current=6, memory=memory,
            now=NOW + seconds, external=ExternalNumber(source="a:1", wanted=wanted),
        )  # fmt: skip
        memory = decision.memory
        sizes.append(decision.wanted)
    assert sizes == [6, 6, 4, 8]


class Passing(ManualClock):
    """A clock on which a twentieth of a second passes whenever it is asked."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Returns the time, and advances."""
        self.at += 0.05
        return self.at


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 9_000, http("3" * 9_000)])
def test_single_bytes_do_not_hold_up_a_plan(answer: bytes) -> None:
    """The limit is that of the whole answer. The server then rests, for other groups too."""
    clock = Passing()
    with Answering(answer, http("3"), pause=0.002) as server:
        numbers = ExternalNumbers({}, clock=clock)
        first = numbers.ask(policy(server.url))
        again = numbers.ask(policy(f"{server.url}/other"))
        assert len(server.asked) == 1
        clock.sleep(10)
        assert numbers.ask(policy(server.url)).wanted == 3
    assert first.why == again.why == "no whole answer within 5 s"


def test_silence_does_not_hold_up_a_plan() -> None:
    """The limit lies on each wait, also on one that begins late."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        raw, clock = ours.makefile("rb", buffering=0), ManualClock()
        began = time.monotonic()
        reader = external_number._UntilDeadline(ours, raw, clock.at + 0.1, clock)
        with reader, pytest.raises(TimeoutError):
            reader.read(1)
        assert time.monotonic() - began < 20


def test_a_server_that_is_away_is_named() -> None:
    """And asked again at once: it costs no time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert number(f"http://127.0.0.1:{port}/").why == "it cannot be reached: Connection refused"


@pytest.mark.parametrize(
    ("url", "keys", "target"),
    [
        ("", {}, "/"),
        ("/a%20b?x=ü&y=1", {}, "/a%20b?x=%C3%BC&y=1"),
        ("/prom/", {"query": 'max(m{a="b c"})'}, "/prom/api/v1/query?query=max%28m%7Ba%3D%22b+c"),
    ],
)
def test_what_is_asked(url: str, keys: dict[str, str], target: str) -> None:
    """The path as written; a query is Prometheus' own API."""
    with Answering(http("3")) as server:
        number(server.url + url, **keys)
    assert server.asked[0].startswith(f"GET {target}".encode())
    assert b"Authorization" not in server.asked[0]


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """A file with a token and the newline of an editor."""
    file = tmp_path / "token"
    file.write_text("hunter2\n")
    return file


def test_a_login_is_read_for_each_question(login: Path) -> None:
    """A word alone is a bearer token; a renewed file counts at once."""
    environ = {"LOGIN": "Basic aHVudGVyMg=="}
    with Answering(http("3"), http("3"), http("3", "403 No")) as server:
        numbers = ExternalNumbers(environ, clock=ManualClock())
        assert numbers.ask(policy(server.url, authorization_env="LOGIN")).wanted == 3
        assert numbers.ask(policy(server.url, authorization_file=str(login))).wanted == 3
        login.write_text("renewed")
        refused = numbers.ask(policy(server.url, authorization_file=str(login)))
    assert b"\r\nAuthorization: Basic aHVudGVyMg==\r\n" in server.asked[0]
    assert b"\r\nAuthorization: Bearer hunter2\r\n" in server.asked[1]
    assert b"\r\nAuthorization: Bearer renewed\r\n" in server.asked[2]
    assert refused.why == "it answers 403; check scaling.authorization_env or authorization_file"


@pytest.mark.parametrize("held", ["hunter2\nX: y", "hunter2 é", "hunter2\r"])
def test_a_login_never_shows(held: str, login: Path) -> None:
    """Whatever is wrong with it: the reason has its name only, and nobody is asked."""
    keys: list[tuple[dict[str, str], str]] = [
        ({"authorization_env": "AWAY"}, "environment variable AWAY is not set"),
        ({"authorization_file": f"{login}.away"}, "does not exist"),
    ]
    if held.strip() != "hunter2":
        keys.append(({"authorization_env": "LOGIN"}, "LOGIN holds no header for one line"))
    for each, why in keys:
        found = number("http://127.0.0.1:1", {"LOGIN": held}, **each)
        assert found.wanted is None
        assert why in found.why
        assert "hunter2" not in found.why


def test_a_redirect_does_not_get_the_login() -> None:
    """It might lead to another server."""
    with Answering(http("3")) as elsewhere:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n"
        found = asked(moved.encode(), {"LOGIN": "hunter2"}, authorization_env="LOGIN")
        assert found.wanted is None
        assert elsewhere.asked == []


def test_doctor_asks_once_and_reports_the_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each policy. A login that is not set has its own, and nobody is asked."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))
    with Answering(http("3"), http("3", "401 No"), http("5")) as server:
        declared = {"policy": "external", "url": server.url}
        policies = {
            "pays": declared,
            "bills": declared,
            "mails": {**declared, "authorization_env": "AWAY"},
            "notes": {"policy": "fixed", "workers": 2},
        }
        file = {
            "cluster": {"name": "idle"},
            "fleets": [{"group": g, "topics": ["t"], "scaling": s} for g, s in policies.items()],
            "exporter": {"wanted_members": [{"scaling": declared}]},
        }
        (tmp_path / "fleet.yaml").write_text(json.dumps(file))
        cli.run(["--config", str(tmp_path / "fleet.yaml"), "doctor", "-o", "json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    source = urlsplit(server.url).netloc
    keeps = "without a number the group keeps its size"
    assert [tuple(each.values()) for each in checks if each["check"] == "scaling"] == [
        ("scaling", "OK", f"pays: {source} asks for 3", None),
        (
            "scaling",
            "WARN",
            f"bills: no number from {source}: it answers 401",
            f"set scaling.authorization_env or authorization_file; {keeps}",
        ),
        (
            "scaling",
            "WARN",
            "mails: not asked for its number: environment variable AWAY is not set",
            f"set it here, and for every process that plans; {keeps}",
        ),
        ("scaling", "OK", f"exporter.wanted_members[0]: {source} asks for 5", None),
    ]


class Sizer(JsonHandler):
    """Serves a number in JSON."""

    def get(self) -> None:
        """By the query, as Prometheus does, or 3."""
        asked = parse_qs(urlsplit(self.path).query).get("query", ["3"])
        self.say(200, json.loads(vector(*asked)))


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Callable[..., ExternalNumber]]]:
    """The CA's file, and asking a server whose certificate it signed."""
    authority = Authority(tmp_path, "house")
    with serving(Sizer, tls=authority.sign("sizer")) as url:
        yield (
            str(authority.ca),
            lambda **keys: number(url, query="5", **keys),
        )


def test_a_certificate_must_be_trusted(
    secure: tuple[str, Callable[..., ExternalNumber]], tmp_path: Path
) -> None:
    """By the CA that is named."""
    ca, ask = secure
    assert ask(ca_file=ca).wanted == 5
    assert "is not trusted" in ask().why
    assert ask().why.endswith("check scaling.ca_file")
    assert "No such file" in ask(ca_file=str(tmp_path / "away.pem")).why
    (tmp_path / "odd.pem").write_text("hunter2")
    assert "odd.pem cannot be read" in ask(ca_file=str(tmp_path / "odd.pem")).why


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"url": "http://user:hunter2@sizer/"}, "url"),
        ({"url": "ftp://sizer/"}, "url"),
        ({"url": "http://sizer:99999/"}, "is not a URL"),
        ({"url": "http://[zz]/"}, "url"),
        ({"query": "up", "value_location": "a"}, "remove value_location"),
        ({"authorization_env": "A", "authorization_file": "b"}, "remove one"),
        ({"authorization_env": "Bearer hunter2"}, "write its name"),
    ],
)
def test_a_declaration_that_is_refused(keys: dict[str, str], why: str) -> None:
    """Before anybody is asked."""
    with pytest.raises(ValidationError, match=why):
        policy(**{"url": "http://sizer/", **keys})
