"""The files that a login is read from, and whether they were replaced since.

Problem: librdkafka reads certificates and keys once, when a client is made, and so do we passwords;
whoever renews them (cert-manager, Strimzi, a Secret that is mounted) replaces the files under a
process that may run for months. Choice: what stood in the files when a client was made is kept as a
digest; it is looked at where brokers refuse the login, and only then. Cost: a client whose old
certificate is still good goes on with that until its brokers refuse it.
"""

import hashlib
from pathlib import Path

from fleet.kafka_source.login import References


class LoginFiles:
    """Of one login; make it right before the client, so that nothing is missed."""

    def __init__(self, login: References) -> None:
        self._files = [
            Path(name).expanduser()
            for where in login.values()
            for kind, name in where.items()
            if kind in {"file", "path"}
        ]
        self._read = self._digests()

    def replaced(self) -> tuple[str, ...]:
        """Those that hold something else now; not those that are just not there."""
        now = self._digests()
        return tuple(str(file) for file in self._files if now[file] not in {None, self._read[file]})

    def read_again(self) -> None:
        """Another client is made of them."""
        self._read = self._digests()

    def _digests(self) -> dict[Path, str | None]:
        return {file: _digest(file) for file in self._files}


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
