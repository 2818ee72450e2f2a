"""What a token endpoint may answer that is no HTTP: told as that; a token still valid serves."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fleet.kafka_source import tokens
from fleet.kafka_source.tokens import NoToken, TokenSource

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
    monkeypatch.setattr(tokens, "_FRESH", 0.0)
    source = serve(GOOD, odd)
    assert source.token().value == "first"
    assert source.token().value == "first"
