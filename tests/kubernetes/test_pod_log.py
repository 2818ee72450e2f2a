"""A pod's log, read on from where one was, whatever its worker writes into a line."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api
from fleet.kubernetes.client.connection import Connection
from fleet.kubernetes.deployment.pod_status import read_log

News = Callable[[], list[str]]


class Kubelet:
    """What it has of one container, stamped; none ended before it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusal: str | None = None

    def request(self, method: str, url: str, **_: Any) -> SimpleNamespace:
        asked = parse_qs(urlsplit(url).query)
        if asked.get("container") != ["worker"]:
            return _refused("a container name must be specified for pod orders-1")
        if "previous" in asked:
            return _refused('previous terminated container "worker" in pod "orders-1" not found')
        if self.refusal is not None:
            return _refused(self.refusal)
        since = asked.get("sinceTime", [""])[0].rstrip("Z")
        sent = "".join(f"{line}\n" for line in self.lines if line[:19] >= since)
        return SimpleNamespace(status=200, read=sent.encode)


def _refused(why: str) -> SimpleNamespace:
    said = json.dumps({"kind": "Status", "message": why}).encode()
    return SimpleNamespace(status=400, read=lambda: said)


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def news(kubelet: Kubelet) -> News:
    """Reads on: the texts that are new."""
    pool: Any = SimpleNamespace(request=kubelet.request, clear=lambda: None)
    ours = Connection(host="http://memory", pool=pool, authorization=lambda: None)
    api, places = Api(ours, namespace="ns", clock=SystemClock()), [None]

    def read() -> list[str]:
        part = read_log(api, "orders-1", places[0])
        places[0] = part.place
        return [line.text for line in part.lines]

    return read


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\r[Stage 0:>  ]\r[Stage 0:=> ]\r   ", ["", "[Stage 0:>  ]", "[Stage 0:=> ]", "   "]),
        ("a key\u2028of two lines", ["a key", "of two lines"]),
        ("a page\x0cand another", ["a page", "and another"]),
        ("", [""]),
    ],
    ids=["progress-bar", "line-separator", "form-feed", "blank"],
)
def test_what_was_read_is_not_read_again(
    kubelet: Kubelet, news: News, text: str, shown: list[str]
) -> None:
    """A line ends where the kubelet ends it; what else a terminal breaks at is within it."""
    kubelet.lines = ["2026-11-25T10:00:01.1Z one", f"2026-11-25T10:00:02.2Z {text}"]
    assert news() == ["one", *shown]
    assert news() == []
    kubelet.lines += ["2026-11-25T10:00:02.9Z two"]
    assert news() == ["two"]
    assert news() == []


def test_what_has_no_stamp_is_no_place_to_read_on_from(kubelet: Kubelet, news: News) -> None:
    """The kubelet's own words, where it cannot read the container's log."""
    kubelet.lines = ["2026-11-25T10:00:01.1Z one", "unable to retrieve container logs"]
    assert news() == ["one", "unable to retrieve container logs"]
    kubelet.lines[1:] = ["2026-11-25T10:00:02.2Z two"]
    assert news() == ["two"]


def test_a_container_that_waits_to_start_says_why(kubelet: Kubelet, news: News) -> None:
    """Once: whoever follows reads on when it writes."""
    kubelet.refusal = 'container "worker" in pod "orders-1" is waiting to start: ErrImageNeverPull'
    assert news() == [kubelet.refusal]
    assert news() == []
    kubelet.refusal, kubelet.lines = None, ["2026-11-25T10:00:01.1Z one"]
    assert news() == ["one"]


def test_any_other_refusal_is_an_error(kubelet: Kubelet, news: News) -> None:
    """It is not taken for a container that has written nothing."""
    kubelet.refusal = "container worker is not valid for pod orders-1"
    with pytest.raises(FleetError, match="container worker is not valid"):
        news()
