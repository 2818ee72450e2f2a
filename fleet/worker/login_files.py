"""Notices when the files of a login are replaced.

Problem: librdkafka reads certificates and keys once, when a client is created, and Fleet reads
passwords then. cert-manager, Strimzi or a mounted Secret replace the files under a process that may
run for months. Choice: a digest of the files' content at the client's creation is kept. It is
compared only when brokers refuse the login. Cost: a client with a valid old certificate keeps it
until its brokers refuse it.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel

from fleet.config.references import has_reference
from fleet.config.settings import WorkerSettings
from fleet.kafka_source.login import References


class LoginFiles:
    """The files of one login; create it right before the client, so that no change is missed."""

    def __init__(self, login: References) -> None:
        self._files = [
            Path(name).expanduser()
            for where in login.values()
            for kind, name in where.items()
            if kind in {"file", "path"}
        ]
        self._read = self._digests()

    def replaced(self) -> tuple[str, ...]:
        """Returns the files with other content now, without those that are only missing."""
        now = self._digests()
        return tuple(str(file) for file in self._files if now[file] not in {None, self._read[file]})

    def read_again(self) -> None:
        """Records the present content, because another client is created."""
        self._read = self._digests()

    def _digests(self) -> dict[Path, str | None]:
        return {file: _digest(file) for file in self._files}


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


_SECRET: Final = re.compile(r"(password|secret|token)\w*_(env|file)$")
_IN_URL: Final = (
    re.compile(r"://[^:/@\s]*:([^@\s]+)@"),  # for several addresses, each one's
    re.compile(r"://[^:/@\s]*:(\S+)@"),  # a password that holds @ itself
)


def known_secrets(settings: WorkerSettings, environ: Mapping[str, str]) -> frozenset[str]:
    """Returns the secrets of the login, of `worker.env` by reference, and Spark's token.

    environ: the worker's, with `worker.env` in it.
    """
    return frozenset(_found(settings, environ))


def _found(settings: WorkerSettings, environ: Mapping[str, str]) -> Iterator[str]:
    yield from _of_login(settings.cluster.security, environ)
    worker = settings.group.worker
    for key, text in worker.env.items() if worker is not None else ():
        if has_reference(text) and key in environ:
            yield environ[key]
            found = [each for pattern in _IN_URL for each in pattern.findall(environ[key])]
            yield from (*found, *map(unquote, found))
    yield environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN", "")


def _of_login(section: BaseModel, environ: Mapping[str, str]) -> Iterator[str]:
    """Returns what keys such as password_env and client_secret_file refer to."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _of_login(value, environ)
        elif isinstance(value, str) and (match := _SECRET.search(name)) is not None:
            if match[2] == "env":
                yield environ.get(value, "")
            else:
                with contextlib.suppress(OSError, UnicodeDecodeError):  # the connection reports it
                    yield Path(value).expanduser().read_text(encoding="utf-8").strip()
