"""A Postgres of a test's own: one folder, one address, and nothing left of either."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.system.ports import on_free_ports
from tests.support.needs import postgres_programs

USER = "dagster"
"""The database's name, too."""


@dataclass(frozen=True)
class Postgres:
    """A server that runs."""

    host: str
    port: int
    password: str
    folder: Path

    def ask(self, sql: str) -> list[str]:
        """The rows of an answer, their fields separated by `|`."""
        done = self._psql(USER, sql)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def wait(
        self, server: "subprocess.Popen[bytes] | None" = None, *, seconds: float = 120.0
    ) -> None:
        """Until it answers, and has its database."""
        deadline = time.monotonic() + seconds
        while (done := self._psql("postgres", f"CREATE DATABASE {USER}")).returncode != 0:
            assert server is None or server.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, done.stderr + (self.folder / "log").read_text()
            time.sleep(0.2)

    def _psql(self, database: str, sql: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(_program("psql"), "--no-psqlrc", "--tuples-only", "--no-align"),
                *("--host", self.host, "--port", str(self.port), "--username", USER),
                *("--dbname", database, "--command", sql),
            ],
            env={"PGPASSWORD": self.password, "PATH": os.environ["PATH"]},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip


@contextmanager
def running(host: str) -> Iterator[Postgres]:
    """A server that listens on one address of this machine."""
    with on_free_ports("Postgres", lambda port: _running(host, port), host=host) as made:
        yield made


@contextmanager
def _running(host: str, port: int) -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-postgres-"))
    try:
        made = Postgres(host, port, secrets.token_hex(16), folder)
        account = _account()
        _prepare(made, account)
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    *(_program("postgres"), "-D", str(folder / "data")),
                    *("-h", host, "-p", str(port), "-k", ""),
                    # What a power cut does to it is not asked here.
                    *("-c", "fsync=off"),
                ],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **account,
            )  # fmt: skip
        try:
            made.wait(server)
            yield made
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(120)
    finally:
        shutil.rmtree(folder)


def _prepare(made: Postgres, account: Mapping[str, Any]) -> None:
    """Make its files."""
    if account:
        os.chown(made.folder, account["user"], account["group"])
    password = made.folder / "password"
    password.write_text(made.password)
    password.chmod(0o644)
    data = made.folder / "data"
    subprocess.run(
        [
            *(_program("initdb"), "--pgdata", str(data), "--username", USER),
            *("--pwfile", str(password), "--auth", "scram-sha-256"),
            *("--encoding", "UTF8", "--no-locale", "--no-sync"),
        ],
        cwd=made.folder, check=True, capture_output=True, timeout=300, **account,
    )  # fmt: skip
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 0.0.0.0/0 scram-sha-256\n")  # of the one address


def _account() -> dict[str, Any]:
    """Who runs it, as subprocess takes it: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam("postgres")
    except KeyError:
        found = pwd.getpwnam("nobody")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _program(name: str) -> str:
    folder = postgres_programs()
    assert folder is not None, "the need `postgres` was not asked for"
    return str(folder / name)
