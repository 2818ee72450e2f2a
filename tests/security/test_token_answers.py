"""What a token endpoint is asked, and may answer that is no HTTP; a token still valid serves."""

import base64
import re
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fleet.config.spec import ClusterSpec
from fleet.kafka_source import login
from fleet.kafka_source.login import NoToken, TokenSource, references, resolve

TOKEN = b'{"access_token": "first", "expires_in": 60}'
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(TOKEN), TOKEN)
ODD = {
    "another protocol": b"SSH-2.0-OpenSSH\r\n",
    "cut short": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"acc',
    "refused, cut short": b"HTTP/1.1 503 Away\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nsor",
}


@pytest.fixture
def serve() -> Iterator[Callable[..., TokenSource]]:
    """A source whose endpoint gives these answers, one after the other."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(answers: tuple[bytes, ...]) -> None:
        for each in answers:
            asked, _ = listening.accept()
            with asked:
                asked.recv(65536)
                asked.sendall(each)

    def made(*answers: bytes) -> TokenSource:
        threading.Thread(target=answer, args=(answers,), daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        names = {TokenSource.ENDPOINT: url, TokenSource.CLIENT: "c", TokenSource.SECRET: "hunter2"}
        return TokenSource(names)

    with listening:
        yield made


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_it_is_no_token(serve: Callable[..., TokenSource], odd: bytes):
    """With the endpoint's address, and nothing of the login."""
    with pytest.raises(NoToken, match=r"token endpoint http://127\.0\.0\.1:") as raised:
        serve(odd).token()
    assert "hunter2" not in str(raised.value)


def test_the_login_goes_nowhere_else(serve: Callable[..., TokenSource]):
    """An endpoint that redirects, or who stands in its place, would get it to any address."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.3)
        there = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/".encode()
        moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % there
        with pytest.raises(NoToken, match=r"answers 302 Found; check .*oidc\.endpoint"):
            serve(moved).token()
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_token_that_is_still_valid_serves(
    serve: Callable[..., TokenSource], odd: bytes, monkeypatch: pytest.MonkeyPatch
):
    """It was to be renewed; it holds for a little longer."""
    monkeypatch.setattr(login, "_FRESH", 0.0)
    source = serve(GOOD, odd)
    assert source.token().value == "first"
    assert source.token().value == "first"


@pytest.mark.parametrize(
    ("more", "sent"), [({}, b"a%2Fb~c:s%2Ft%3D"), ({"header_urlencode": False}, b"a/b~c:s/t=")]
)
def test_the_header_is_encoded_or_raw(more: dict[str, bool], sent: bytes):
    """RFC 6749 encodes id and secret; endpoints that do not decode them want them as they are."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked: list[bytes] = []

        def answer() -> None:
            taken, _ = listening.accept()
            with taken:
                asked.append(taken.recv(65536))
                taken.sendall(GOOD)

        threading.Thread(target=answer, daemon=True).start()
        oidc = {
            "endpoint": f"http://127.0.0.1:{listening.getsockname()[1]}/token",
            "client_id": "a/b~c",
            "client_secret_env": "S",
            **more,
        }
        sasl = {"mechanism": "OAUTHBEARER", "oidc": oidc}
        security = {"protocol": "SASL_SSL", "sasl": sasl}
        cluster = ClusterSpec.model_validate({"security": security})
        options = resolve(references(cluster, "b:9092"), {"S": "s/t="})
        assert options["oauth_cb"].token().value == "first"
    found = re.search(rb"Authorization: Basic (\S+)", asked[0])
    assert found is not None
    assert base64.b64decode(found[1]) == sent
