"""A cluster that cannot be looked at, in a sentence that says what to correct. Pure."""

import re
from typing import Final

from fleet.errors import Unreachable
from fleet.kafka_source.connections import NoAnswer, NoAnswerKind

_TLS: Final = (
    (
        re.compile("certificate required|bad certificate|handshake failure", re.IGNORECASE),
        (
            "asks for a client's certificate and got none that it takes ({why}); check "
            "cluster.security.tls.cert_file and key_file, and who signed them"
        ),
    ),
    (
        re.compile("unknown ca|certificate unknown|certificate expired", re.IGNORECASE),
        "does not trust this client's certificate ({why}); check cluster.security.tls.cert_file",
    ),
    (
        re.compile("mismatch", re.IGNORECASE),
        (
            "has a certificate for another name ({why}); name the brokers in "
            "cluster.bootstrap_servers as their certificate does"
        ),
    ),
)


def unreachable(error: NoAnswer, *, place: str, login: str, timeout: float) -> Unreachable:
    """`place`: the cluster and its address; `login`: who asked; `timeout`: seconds of a look."""
    why = _short(error)
    if error.kind is NoAnswerKind.LOGIN:
        return Unreachable(f"{place} refuses the login of {login} ({why}); {_login(why)}")
    if error.kind is NoAnswerKind.TOKEN:
        return Unreachable(f"nobody can log in to {place}: {error}")
    if error.kind is NoAnswerKind.DOOR:
        return Unreachable(f"{place} cannot be looked at: {error}")
    if error.kind is NoAnswerKind.TLS:
        for pattern, told in _TLS:
            if pattern.search(why):
                return Unreachable(f"{place} {told.format(why=why)}")
        return Unreachable(
            f"{place} cannot be reached by TLS ({why}); check cluster.security: tls.ca_file must "
            "hold the authority that signed the brokers' certificates, and protocol be the "
            "listener's"
        )
    return Unreachable(
        f"{place} does not answer within {timeout:g} s ({error}); see whether a broker listens "
        "there and the security settings are right"
    )


def _login(why: str) -> str:
    if "invalid_token" in why:
        return (
            "its brokers do not take this token: compare issuer, audience and scope with what they "
            "expect, and the clocks"
        )
    if "SaslMechanism" in why:
        return "its listener has another cluster.security.sasl.mechanism"
    if "SaslState" in why:
        return "its listener wants no login: cluster.security.protocol is PLAINTEXT or SSL there"
    return "check cluster.security.sasl: mechanism, username and where the password comes from"


def _short(error: NoAnswer) -> str:
    """The reason without names of classes and lines of code."""
    text = re.sub(r"SaslAuthenticationFailedError: |KafkaError: ", "", str(error))
    return re.sub(r"SSL\w*Error: |\[SSL[^]]*\] | \(_ssl\.c:\d+\)", "", text).strip()
