"""Workers forked from processes that have loaded what they are made of.

Problem: of the second that a worker takes to be warm nearly all are imports. Choice: a fork server
(`fleet.worker.slot.fork_server`) for each environment in which workers are started, which is one
for each revision, kept for as long as a worker of it is wanted. A worker with a Spark of its own
(`spark: local[2]`) is started as a program, since its JVM takes ten times as long; so is every
worker whose fork server ended, did not answer, or did not load within half a minute: the next one
is tried a minute later. Cost: the first worker of a revision waits for its server.
"""

import json
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.act.local.process_table import Launch, ProcessRow
from fleet.clock import Clock
from fleet.system.processes import ProcessId, end, environment, home_processes, inherit, spawn

PART: Final = "fork-server"
_WORKER: Final = "fleet.worker"
_READY: Final = b"ready"
_ROOM: Final = 1024
"""Characters for the arguments of a worker, where `ps` finds them."""
_NAME_ROOM: Final = 255
_LOAD_SECONDS: Final = 30.0
_ANSWER_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 60.0
_MOST: Final = 1 << 16
"""Bytes of an answer."""
_Key = tuple[str, tuple[tuple[str, str], ...]]

_log = logging.getLogger("fleet.supervisor")


@dataclass(slots=True)
class _Server:
    process: ProcessId
    channel: socket.socket
    began: float
    """Monotonic."""
    ready: bool = False


class ForkServers:
    """Manages the fork servers of one state directory, for its supervisor only."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self._home = home
        self._log = home / "supervisor" / "log"
        self._clock = clock
        self._servers: dict[_Key, _Server] = {}
        self._not_before: dict[_Key, float] = {}

    def keep(self, rows: Iterable[ProcessRow]) -> None:
        """Stops the servers that have none of these workers."""
        used = {_key(row) for row in rows}
        for key in [key for key in self._servers if key not in used]:
            self._end(key)

    def ready(self, row: ProcessRow) -> bool:
        """Tells whether the worker can start now; starts its server if needed."""
        key = _key(row)
        if key is None:
            return True
        server = self._servers.get(key)
        if server is None:
            if self._clock.monotonic() < self._not_before.get(key, 0.0):
                return True
            self._begin(key, row.launch)
            return key not in self._servers
        if not server.ready:
            self._hear(key, server)
        return server.ready or key not in self._servers

    def start(self, row: ProcessRow, *, log: Path) -> ProcessId | None:
        """Forks a worker; None if it must start as a program.

        Raises OSError where there is no room for its log, or it was gone at once.
        """
        key = _key(row)
        server = None if key is None else self._servers.get(key)
        if key is None or server is None or not server.ready:
            return None
        log.parent.mkdir(parents=True, exist_ok=True)
        answer = self._ask(server, row, log)
        if "pid" in answer:
            return inherit(answer["pid"], row.name)
        if "stale" in answer:
            _log.info("%s has changed: restarting the fork server", answer["stale"])
            self._end(key)
            return None
        self._give_up(key, answer["error"])
        self._end_unheard(row.name)
        return None

    def close(self) -> None:
        """Stops all servers; workers go on."""
        for key in list(self._servers):
            self._end(key)

    def _begin(self, key: _Key, launch: Launch) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = spawn(
                (launch.argv[0], "-m", _WORKER, "--fork-server", " " * _ROOM),
                log=self._log,
                env=environment(self._home, part=PART, extra=launch.env, worker=" " * _NAME_ROOM),
                cwd=self._home,
                stdin=theirs.fileno(),
            )
        except OSError as error:
            ours.close()
            self._give_up(key, str(error))
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._servers[key] = _Server(process, ours, self._clock.monotonic())
        _log.info("starting a fork server as pid %d", process.pid)

    def _hear(self, key: _Key, server: _Server) -> None:
        try:
            said = server.channel.recv(_MOST)
        except BlockingIOError:
            if self._clock.monotonic() - server.began > _LOAD_SECONDS:
                self._give_up(key, f"it was not ready within {_LOAD_SECONDS:g} s")
            return
        except OSError as error:
            self._give_up(key, str(error))
            return
        if said == _READY:
            server.ready = True
        else:
            self._give_up(key, "it ended while it loaded; see above")

    def _ask(self, server: _Server, row: ProcessRow, log: Path) -> dict[str, Any]:
        order = {"name": row.name, "argv": row.launch.argv, "log": str(log)}
        server.channel.settimeout(_ANSWER_SECONDS)
        try:
            server.channel.send(json.dumps(order).encode())
            answer = server.channel.recv(_MOST)
        except TimeoutError:
            return {"error": f"no answer within {_ANSWER_SECONDS:g} s"}
        except OSError as error:
            return {"error": str(error)}
        found: dict[str, Any] = json.loads(answer) if answer else {"error": "it has ended"}
        return found

    def _give_up(self, key: _Key, why: str) -> None:
        _log.warning("fork server: %s; starting workers without it for %g s", why, _PAUSE_SECONDS)
        self._not_before[key] = self._clock.monotonic() + _PAUSE_SECONDS
        if key in self._servers:
            self._end(key)

    def _end(self, key: _Key) -> None:
        """It holds nothing: no file is half written, no worker is its child."""
        server = self._servers.pop(key)
        server.channel.close()
        end(server.process, grace=0.0)

    def _end_unheard(self, name: str) -> None:
        """A worker whose pid was not heard is known by its marks alone, and would be a second."""
        for found in list(home_processes(self._home)):
            if found.worker == name and found.leads:
                end(found.process, grace=0.0)


def _key(row: ProcessRow) -> _Key | None:
    """Workers of one key differ only in their arguments; None where it is not for us to fork."""
    launch = row.launch
    if not row.shared_spark or launch.argv[1:3] != ("-m", _WORKER):
        return None
    return launch.argv[0], tuple(sorted(launch.env.items()))
