"""A pod's own way to the API server: what it sends is what the package `kubernetes` would send."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from kubernetes.config import incluster_config

from fleet.clock import ManualClock
from fleet.errors import ConfigError, Unreachable
from fleet.kubernetes.client import connection
from fleet.kubernetes.client.api import BRISK, Api, Request, transmit
from tests.support.authority import Authority
from tests.support.fresh_interpreter import ran
from tests.support.json_server import JsonHandler, serving


class Pod:
    """A service account's files and variables, and the server that they lead to."""

    def __init__(self, folder: Path, port: str) -> None:
        self.folder = folder
        self.environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        self.clock = ManualClock()
        self.asked: list[dict[str, str]] = []
        self.token("first")

    def token(self, value: str) -> None:
        (self.folder / "token").write_text(value, encoding="utf-8")

    def opened(self) -> connection.Connection:
        return connection.connection_of(context=None, environ=self.environ, clock=self.clock)

    def ask(self, opened: connection.Connection) -> dict[str, str]:
        """The headers that a request came with."""
        answer = transmit(opened, Request("GET", "/version"), (5.0, 5.0))
        assert (answer.status, answer.read()) == (200, b"{}")
        return self.asked[-1]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """A server behind TLS, signed by the authority in ca.crt."""
    asked: list[dict[str, str]] = []

    class Answering(JsonHandler):
        def get(self) -> None:
            asked.append(dict(self.headers))
            self.say(200, {})

    authority = Authority(tmp_path, "ca")
    authority.ca.rename(tmp_path / "ca.crt")
    with serving(Answering, tls=authority.sign("server")) as address:
        made = Pod(tmp_path, address.rpartition(":")[2])
        made.asked = asked
        monkeypatch.setattr(connection, "SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
        for name in connection._PROXIES:
            monkeypatch.delenv(name, raising=False)
        for name, value in made.environ.items():
            monkeypatch.setenv(name, value)
        yield made


def test_a_pod_sends_what_the_package_would_send(pod: Pod) -> None:
    """The same address and the same headers, over TLS that is checked by the pod's authority."""
    light, package = pod.opened(), connection._of_package(None, None, inside=True)
    assert light.host == package.host
    assert pod.ask(light) == pod.ask(package)
    assert pod.asked[-1]["Authorization"] == "bearer first"


def test_a_token_is_read_again_every_minute(pod: Pod) -> None:
    """The kubelet replaces it; where that is under way, the one before holds."""
    opened = pod.opened()
    pod.token("second")
    assert pod.ask(opened)["Authorization"] == "bearer first"
    pod.clock.sleep(61)
    assert pod.ask(opened)["Authorization"] == "bearer second"
    (pod.folder / "token").unlink()
    pod.clock.sleep(61)
    assert pod.ask(opened)["Authorization"] == "bearer second"


def test_a_server_of_another_authority_is_not_asked(pod: Pod, tmp_path: Path) -> None:
    """No token goes to whoever answers there."""
    other = tmp_path / "other"
    other.mkdir()
    Authority(other, "ca").ca.rename(tmp_path / "ca.crt")
    calls = Api(pod.opened(), namespace="fleets", clock=pod.clock, retries=BRISK)
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        calls.get("Lease", "orders")
    assert pod.asked == []


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_file_that_is_empty_is_told(pod: Pod, missing: str) -> None:
    (pod.folder / missing).write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"cannot reach the Kubernetes API server: .*{missing}"):
        pod.opened()


def test_a_proxy_is_the_packages_business(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows for which hosts there is none."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    pod.environ["HTTPS_PROXY"] = "http://127.0.0.1:1"
    assert isinstance(pod.opened().pool, urllib3.ProxyManager)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert not isinstance(pod.opened().pool, urllib3.ProxyManager)


def test_a_worker_does_not_load_the_package(pod: Pod) -> None:
    """It costs a pod 50 MB and half a second; nor is what a manager alone needs loaded."""
    found = ran(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from fleet.clock import SystemClock\n"
        "from fleet.kubernetes import kind\n"
        "from fleet.kubernetes.client import connection as c\n"
        f"c.SERVICE_ACCOUNT = Path({str(pod.folder)!r})\n"
        "how = {'environ': os.environ, 'clock': SystemClock()}\n"
        "print(c.connection_of(context=None, **how).host, *sys.modules)\n"
    )
    assert pod.opened().host in found
    assert {"kubernetes", "yaml"}.isdisjoint(found)
