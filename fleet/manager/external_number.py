"""Asks other programs by HTTP for the number of slots of a group (policy external).

Problem: a program that decides on the size of a group may be down, slow, or answer with an error
page, and a wrong number stops workers. Choice: only a finite number from 0 to the highest
`replicas.max` counts. Anything else is no number, with the reason, and the group keeps its size.
One limit in time covers the whole answer, so that a server that sends single bytes cannot hold up
a plan. Redirects are not followed, since they would send the login to another server. Reasons name
the server and its status, never its answer or the login. Cost: no proxy of the environment is used.
"""

import io
import json
import math
import re
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from fleet.clock import Clock
from fleet.config.spec import ExternalScaling
from fleet.decide.scaling import ExternalNumber
from fleet.kafka_source.login import resolve

_LIMIT: Final = 5.0
"""Seconds for one answer, from the connection to the last byte."""
_SLOW: Final = 1.0
"""Seconds after which a failed request counts as slow."""
_REST: Final = 10.0
"""Seconds for which a server that fails slowly is not asked again, for other groups either."""
_MOST: Final = 1 << 16
"""Bytes of an answer; a longer one is no number."""
_HIGHEST: Final = 10_000
"""The highest `replicas.max`."""
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_HEADER: Final = re.compile(r"[\x21-\x7e][\x20-\x7e]*")
_WHO: Final = "for the process that plans"


class _NoNumberError(Exception):
    """The answer is no number; the text says why."""


class ExternalNumbers:
    """Asks for the numbers of all groups; `environ` holds the logins."""

    def __init__(self, environ: Mapping[str, str], *, clock: Clock) -> None:
        self._environ = environ
        self._clock = clock
        self._slow: dict[str, tuple[float, str]] = {}

    def ask(self, policy: ExternalScaling) -> ExternalNumber:
        """Returns the number, or why there is none; never raises."""
        source, began = urlsplit(policy.url).netloc, self._clock.monotonic()
        until, why = self._slow.get(source, (0.0, ""))
        if began < until:
            return ExternalNumber(source=source, why=why)
        try:
            value = _value(policy, _answer(policy, self._environ, self._clock))
        except _NoNumberError as error:
            ended = self._clock.monotonic()
            if ended - began > _SLOW:
                self._slow[source] = (ended + _REST, str(error))
            return ExternalNumber(source=source, why=str(error))
        return ExternalNumber(source=source, wanted=math.ceil(value))


# One request and its answer.


def _answer(policy: ExternalScaling, environ: Mapping[str, str], clock: Clock) -> bytes:
    until = clock.monotonic() + _LIMIT
    headers = {"Accept": "application/json, text/plain", "Connection": "close"}
    if login := _login(policy, environ):
        headers["Authorization"] = login
    connection = _connection(policy)
    connection.response_class = _bounded_response(until, clock)
    try:
        connection.request("GET", _target(policy), headers=headers)
        with connection.getresponse() as response:
            if response.status != 200:
                raise _NoNumberError(_refused(response.status, policy))
            text = response.read(_MOST + 1)
            if len(text) > _MOST:
                raise _NoNumberError(f"it answers more than {_MOST >> 10} KiB")
            if response.length:
                raise _NoNumberError("its answer is cut short")
            return text
    except ssl.SSLCertVerificationError as error:
        why = f"its certificate is not trusted, {error.verify_message}; check scaling.ca_file"
        raise _NoNumberError(why) from error
    except TimeoutError as error:
        raise _NoNumberError(f"no whole answer within {_LIMIT:g} s") from error
    except OSError as error:
        raise _NoNumberError(f"it cannot be reached: {error.strerror or error}") from error
    except (HTTPException, ValueError) as error:  # their texts may repeat what was sent
        raise _NoNumberError(
            f"it does not answer as HTTP ({type(error).__name__}); check scaling.url"
        ) from error
    finally:
        connection.close()


def _connection(policy: ExternalScaling) -> HTTPConnection:
    place = urlsplit(policy.url)
    if place.scheme == "http":
        return HTTPConnection(place.hostname or "", place.port, timeout=_LIMIT)
    try:
        trust = ssl.create_default_context(cafile=policy.ca_file)
    except OSError as error:
        why = f"scaling.ca_file {policy.ca_file} cannot be read: {error.strerror or error}"
        raise _NoNumberError(why) from error
    return HTTPSConnection(place.hostname or "", place.port, timeout=_LIMIT, context=trust)


def _target(policy: ExternalScaling) -> str:
    place = urlsplit(policy.url)
    if policy.query:
        return f"{place.path.rstrip('/')}/api/v1/query?{urlencode({'query': policy.query})}"
    target = f"{place.path or '/'}{'?' if place.query else ''}{place.query}"
    return quote(target, safe="%/:=&?~#+!$,;'@()*[]")


def _login(policy: ExternalScaling, environ: Mapping[str, str]) -> str:
    places = {"env": policy.authorization_env, "file": policy.authorization_file}
    named = {kind: name for kind, name in places.items() if name}
    if not named:
        return ""
    key = "scaling.authorization"
    try:
        text = str(resolve({key: named}, environ, who=_WHO)[key]).strip()
    except ValueError as error:
        raise _NoNumberError(str(error)) from error
    if _HEADER.fullmatch(text) is None:
        raise _NoNumberError(f"{key}: {' '.join(named.values())} holds no header for one line")
    return text if " " in text else f"Bearer {text}"


def _refused(status: int, policy: ExternalScaling) -> str:
    if status in {401, 403}:
        hint = "check" if policy.authorization_env or policy.authorization_file else "set"
        return f"it answers {status}; {hint} scaling.authorization_env or authorization_file"
    if 300 <= status < 400:
        return f"it redirects ({status}); write the URL of the number itself as scaling.url"
    if policy.query and status in {400, 422}:
        return f"it answers {status}; check scaling.query"
    return f"it answers {status}; check scaling.url"


class _UntilDeadline(io.RawIOBase):
    """Reads from a socket until a moment of the monotonic clock."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, until: float, clock: Clock) -> None:
        self._sock, self._raw, self._until, self._clock = sock, raw, until, clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()


def _bounded_response(until: float, clock: Clock) -> type[HTTPResponse]:
    class BoundedResponse(HTTPResponse):
        """Reads head and body until the deadline."""

        def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
            super().__init__(sock, *arguments, **named)
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_UntilDeadline(sock, raw, until, clock))

    return BoundedResponse


# The number in an answer.


def _value(policy: ExternalScaling, answer: bytes) -> float:
    try:
        text = answer.decode().strip()
        if not policy.query and not policy.value_location and _NUMBER.fullmatch(text):
            return _checked(text)
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NoNumberError(_unlike(answer, "number or JSON")) from error
    if policy.query:
        return _checked(_only_sample(found))
    return _checked(_located(found, policy.value_location))


def _unlike(answer: bytes, what: str) -> str:
    if not answer.strip():
        return "its answer is empty"
    head = answer.lstrip()[:64].lower()
    if head.startswith((b"<!doctype", b"<html")):
        return "it answers with a web page; check scaling.url"
    return f"its answer is no {what}"


def _checked(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        raise _NoNumberError("its answer holds no number there; check scaling.value_location")
    text = str(found).strip()
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        raise _NoNumberError(f"it answers {text}")
    if _NUMBER.fullmatch(text) is None:
        raise _NoNumberError("its answer holds no number there; check scaling.value_location")
    # In thousandths, as KEDA and an HPA count, so that 3.0000000001 is 3.
    value = round(float(text), 3)
    if not 0 <= value <= _HIGHEST:
        raise _NoNumberError(f"it answers {value:g}; allowed are 0 to {_HIGHEST:,}")
    return value


def _located(found: Any, location: str) -> object:
    steps = [step.replace("\\.", ".") for step in re.split(r"(?<!\\)\.", location) if step]
    for step in steps:
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise _NoNumberError(f"its answer has no {location}; check scaling.value_location")
    return found


def _only_sample(found: Any) -> object:
    """Returns the value of Prometheus' answer to an instant query."""
    try:
        kind, result = found["data"]["resultType"], found["data"]["result"]
        if kind == "scalar":
            return result[1]
        if kind != "vector":
            raise _NoNumberError(f"scaling.query has a {kind} as its result; ask for one value")
        if not result:
            raise _NoNumberError("scaling.query finds no series")
        if len(result) > 1:
            raise _NoNumberError(
                f"scaling.query finds {len(result)} series; make them one, such as by max(…)"
            )
        return result[0]["value"][1]
    except (KeyError, IndexError, TypeError) as error:
        raise _NoNumberError("its answer is not that of Prometheus; check scaling.url") from error
