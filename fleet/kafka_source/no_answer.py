"""Why a broker does not answer: in words, and as far as it makes a difference to who asked."""

import re
import ssl
from enum import StrEnum
from typing import Final

from fleet.kafka_source.tokens import NoToken


class NoAnswerKind(StrEnum):
    """Why there is no answer, as far as it makes a difference."""

    LOGIN = "login"
    """The broker refuses the login."""
    TOKEN = "token"  # noqa: S105 - a kind
    """There is no token to log in with."""
    TLS = "tls"
    """No agreement about certificates or TLS itself."""
    DOOR = "door"
    """Whatever listens at bootstrap.servers is not what the login says."""
    LOST = "lost"
    """No connection, or one that ended: another may work."""
    SILENT = "silent"
    """Connected, and no answer in time."""
    OLD = "old"
    """The broker does not know the request."""


class NoAnswer(ConnectionError):
    """No broker answered in time; or, for one broker, why not."""

    def __init__(self, text: str, kind: NoAnswerKind = NoAnswerKind.SILENT) -> None:
        super().__init__(text)
        self.kind = kind


def no_answer(error: BaseException | None, timeout: float) -> NoAnswer:
    """Why there is none after so many seconds; None: kafka-python says nothing yet."""
    from kafka import errors  # noqa: PLC0415 - loads kafka-python

    if error is None or isinstance(error, errors.KafkaTimeoutError | errors.RequestTimedOutError):
        return NoAnswer(f"no answer within {timeout:.3g} s", NoAnswerKind.SILENT)
    if isinstance(error, NoAnswer):
        return error
    if isinstance(error, NoToken):
        return NoAnswer(str(error), NoAnswerKind.TOKEN)
    text = told(error)
    if isinstance(error, _login_errors()):
        return NoAnswer(text, NoAnswerKind.LOGIN)
    ended = ssl.SSLEOFError | ssl.SSLZeroReturnError
    if isinstance(error, ssl.SSLError) and not isinstance(error, ended):
        return NoAnswer(text, NoAnswerKind.TLS)
    if isinstance(error, errors.IncompatibleBrokerVersion | errors.UnsupportedVersionError):
        return NoAnswer(text, NoAnswerKind.OLD)
    return NoAnswer(text, NoAnswerKind.LOST)


def _login_errors() -> tuple[type[BaseException], ...]:
    from kafka import errors  # noqa: PLC0415 - loads kafka-python

    return (
        errors.SaslAuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
        errors.IllegalSaslStateError,
    )


_WORDS: Final = (
    (re.compile("ECONNREFUSED"), "nobody listens there"),
    (re.compile("DNS"), "the name is not known"),
    (re.compile("NodeNotReadyError|UnknownBrokerIdError"), "no connection to it"),
    (re.compile("socket disconnected|closed the connection"), "the broker closed the connection"),
)


def told(error: BaseException) -> str:
    """An error of kafka-python in words."""
    parts = [error.strerror] if isinstance(error, OSError) and error.strerror else error.args
    text = " ".join(str(part) for part in parts).strip()
    for pattern, words in _WORDS:
        if pattern.search(f"{type(error).__name__}: {text}"):
            return words
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
