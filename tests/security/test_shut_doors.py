"""Whoever does not get in reads why: another sentence for each cause, the same in every command."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import yaml

from fleet import cli
from fleet.config.spec import Oidc, Sasl, Security, TokenProvider
from tests.support.authority import Authority
from tests.support.oidc_server import oidc_server
from tests.support.sampling import LONG

pytestmark = pytest.mark.broker


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """An address that takes connections and says that to whatever it hears; None: nothing."""
    held = []

    def serve(sock: socket.socket) -> None:
        with sock, suppress(OSError):  # whoever asked may be gone
            sock.recv(64)
            sock.sendall(answer or b"")

    def accept() -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            if answer is None:
                held.append(sock)
            else:
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for each in held:
            each.close()


@contextmanager
def sends_on(broker: str, host: bytes, port: int) -> Iterator[str]:
    """An address whose broker answers, and names another one of as many letters as its own."""
    at = ("127.0.0.1", int(broker.rpartition(":")[2]))
    named, other = (h + p.to_bytes(4) for h, p in ((at[0].encode(), at[1]), (host, port)))
    assert len(named) == len(other)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with source, sink, suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data.replace(named, other))

    def accept() -> None:
        with suppress(OSError):
            while True:
                pair = (server.accept()[0], socket.create_connection(at))
                for each in (pair, pair[::-1]):
                    threading.Thread(target=pump, args=each, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def plain(broker) -> str:
    """A listener without TLS or login."""
    return broker.bootstrap_servers


def oauth(guarded, **changes) -> Security:
    """Client credentials of nobody."""
    secret = guarded.folder / "nobodys-secret"
    secret.write_text("hunter2")
    given = {"endpoint": guarded.issuer.endpoint, "client_id": "nobody"}
    oidc = Oidc(**{**given, "client_secret_file": str(secret), **changes})
    return by_token(guarded, oidc=oidc)


def by_token(guarded, **tokens) -> Security:
    """An OAUTHBEARER login with these tokens."""
    sasl = Sasl(mechanism="OAUTHBEARER", **tokens)
    return Security(protocol="SASL_SSL", sasl=sasl, tls=guarded.broker.security().tls)


def cases(guarded, plain, folder, stack) -> dict[str, tuple[str, Security, str]]:
    """Name → (address, login, a pattern of the sentence)."""
    boot, certificate = guarded.bootstrap, guarded.broker.status().certificate_servers
    none, good = Security(), guarded.broker.security()
    assert good.sasl is not None
    tls = good.tls
    stranger = Authority(folder, "stranger")
    server = stack.enter_context(oidc_server(stranger.sign("idp")))
    wrong = folder / "wrong"
    wrong.write_text("not-the-password")
    password = good.sasl.model_copy(update={"password_file": str(wrong)})
    mechanism = password.model_copy(update={"mechanism": "SCRAM-SHA-256"})
    plainly = password.model_copy(update={"mechanism": "PLAIN"})
    cert, key = stranger.sign("mallory")
    mallory = tls.model_copy(update={"cert_file": str(cert), "key_file": str(key)})
    untrusted = tls.model_copy(update={"ca_file": str(stranger.ca)})
    rest = stack.enter_context(listener(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    odd = stack.enter_context(listener(b"SSH-2.0-OpenSSH_9.9\r\n"))
    mute = stack.enter_context(listener(None))
    signer = "tests.support.token_signer"
    unknown = stack.enter_context(sends_on(plain, b"a.invalid", 9092))
    refused = stack.enter_context(sends_on(plain, b"127.0.0.1", 1))
    silent = stack.enter_context(sends_on(plain, b"127.0.0.1", int(mute.rpartition(":")[2])))

    def function(name: str) -> Security:
        return by_token(guarded, provider=TokenProvider(function=name))

    def scram(sasl: Sasl) -> Security:
        return Security(protocol="SASL_SSL", sasl=sasl, tls=tls)

    return {
        "name": ("nowhere.invalid:9092", none, "name nowhere.invalid is not known"),
        "port": ("127.0.0.1:1", none, "nothing listens at 127.0.0.1:1"),
        **{
            f"advertised-{why}": (
                address,
                none,
                rf"{address} answers and sends clients to {named}, .*\({told}.*\): advertised",
            )
            for why, address, named, told in (
                ("name", unknown, r"a\.invalid:9092", "the name is not known"),
                ("port", refused, "127.0.0.1:1", "nothing listens there"),
                ("mute", silent, mute, "no answer within"),
            )
        },
        "web": (rest, none, f"{rest} is not a Kafka listener: it answers as a web server"),
        "web-by-tls": (rest, good, f"{rest} is not a Kafka listener: it answers as a web server"),
        "ssh": (odd, none, f"{odd} is not a Kafka listener: it answers with something else"),
        "mute": (mute, none, f"{mute} is not a Kafka listener: it accepts connections and does n"),
        "no-tls": (boot, none, f"{boot} uses TLS: .*protocol to SSL or SASL_SSL"),
        "tls": (plain, Security(protocol="SSL"), f"{plain} does not use TLS: .*to PLAINTEXT"),
        "authority": (
            boot,
            good.model_copy(update={"tls": untrusted}),
            "TLS to .* failed .*verify failed.*ca_file must hold",
        ),
        "no-certificate": (
            certificate, Security(protocol="SSL", tls=tls), "did not accept a client certificate",
        ),
        "certificate": (
            certificate, Security(protocol="SSL", tls=mallory), "client's certificate .*cert_file",
        ),
        "password": (boot, scram(password), "refuses the login of admin .*username and password"),
        "mechanism": (boot, scram(mechanism), "refuses the login of admin .*sasl.mechanism"),
        "plain-mechanism": (boot, scram(plainly), "refuses the login of admin .*sasl.mechanism"),
        "login-unwanted": (
            plain,
            Security(protocol="SASL_PLAINTEXT", sasl=password),
            "refuses the login of admin .*takes no login",
        ),
        "client": (boot, oauth(guarded), "refuses the client nobody .401 invalid_client: who is"),
        "endpoint-away": (
            boot, oauth(guarded, endpoint="http://127.0.0.1:1/token"), "1/token cannot be reached",
        ),
        "endpoint-mute": (
            boot, oauth(guarded, endpoint=f"http://{mute}/token"), "does not answer within 3 s",
        ),
        "endpoint-path": (
            boot, oauth(guarded, endpoint=f"{guarded.issuer.url}/x"), "answers 404 .*oidc.endpoint",
        ),
        "endpoint-tls": (
            boot, oauth(guarded, endpoint=server.endpoint), "cannot be trusted .*oidc.ca_file",
        ),
        "endpoint-trusted": (
            boot,
            oauth(guarded, endpoint=server.endpoint, ca_file=str(stranger.ca)),
            "refuses the client nobody",
        ),
        "expired": (
            boot, guarded.login_by_token("late", lifetime=-5.0), "a token that expired",
        ),
        "expired-function": (boot, function(f"{signer}:expired"), "a token that expired 60 s ago"),
        "function-fails": (boot, function(f"{signer}:broken"), "RuntimeError: no credentials"),
        "no-function": (boot, function("nowhere_msk:token"), "cannot be imported .*install"),
        "external-token": (
            boot,
            function("tests.support.token_signer:unsigned"),
            "refuses the login of this client .*rejected the token",
        ),
    }  # fmt: skip


NAMES = (
    *("name", "port", "web", "web-by-tls", "ssh", "mute", "no-tls", "tls", "authority"),
    *("no-certificate", "certificate", "password", "mechanism", "plain-mechanism"),
    *("login-unwanted", "client", "endpoint-away", "endpoint-mute", "endpoint-path"),
    *("endpoint-tls", "endpoint-trusted", "expired", "expired-function", "function-fails"),
    *("no-function", "external-token", "advertised-name", "advertised-port", "advertised-mute"),
)
COMMANDS = (("status",), ("up",), ("doctor",))


@pytest.fixture(scope="module")
def doors(guarded, broker, tmp_path_factory):
    """All of them, made once."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        found = cases(guarded, broker.bootstrap_servers, tmp_path_factory.mktemp("doors"), stack)
        assert set(found) == set(NAMES)
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_why_it_is_shut(doors, desk, capsys, name):
    """Exit 1 and one sentence, without a secret; others and `fleet init` say the same."""
    address, security, pattern = doors[name]
    held = security.model_dump(mode="json", exclude_none=True)
    spec = yaml.safe_load(desk.file("act", security))
    spec["cluster"]["bootstrap_servers"] = address
    (desk.folder / "fleet.yaml").write_text(yaml.safe_dump(spec))
    (desk.folder / "login.yaml").write_text(yaml.safe_dump(held))
    init = ("init", "--bootstrap", address, "--security", "login.yaml", "--output-file", "new.yaml")
    for arguments in (*COMMANDS, init) if name in EVERYWHERE else COMMANDS[:1]:
        capsys.readouterr()
        code = cli.run(list(arguments))
        out, err = capsys.readouterr()
        told = " ".join((out + err).split())
        assert (code, bool(re.search(pattern, told))) == (1, True), told
        assert not [s for s in (*guarded_secrets(desk), "hunter2") if s in told]
    assert not (desk.folder / "new.yaml").exists()


EVERYWHERE = (
    frozenset(NAMES)
    if LONG
    else frozenset({"port", "no-tls", "authority", "password", "endpoint-mute"})
)
"""What is said by every command alike; of the rest one command is asked in the short form."""


def guarded_secrets(desk) -> list[str]:
    """All that were made here."""
    return [*desk.guarded.secrets, "not-the-password"]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("kafka://127.0.0.1:9092", "without a scheme (kafka://) or a path"),
        ("127.0.0.1", "is not host:port"),
        ("127.0.0.1:99999", "port 1 to 65535"),
    ],
)
def test_no_address_at_all(tmp_path, monkeypatch, capsys, address, told):
    """Exit 2 with the line of the file, before anything is asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(f"cluster:\n  bootstrap_servers: {address}\nfleets: []\n")
    for arguments in (*COMMANDS, ("init", "--bootstrap", address, "--output-file", "new.yaml")):
        capsys.readouterr()
        assert cli.run(list(arguments)) == (1 if arguments == ("doctor",) else 2), arguments
        said = "".join(capsys.readouterr())
        assert told in " ".join(said.split())
        assert ("fleet.yaml:2:" in said) == (arguments[0] != "init")
