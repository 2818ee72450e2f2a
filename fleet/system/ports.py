"""Chooses ports for servers.

Problem: a port that is free now may be taken before the server listens on it. Choice: ports below
the kernel's range for outgoing connections (32768 up), at random, so that two starters seldom
meet; and a server that finds its port taken is started again on another one.
"""

import contextlib
import random
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeVar

from fleet.errors import FleetError
from fleet.system.retrying import retry

PORTS: Final = range(20000, 32000)
_LISTEN: Final = "0A"
_IN_USE: Final = ("address already in use", "bindexception", "failed to bind", "port in use")
_Server = TypeVar("_Server")


class PortTaken(FleetError):
    """Another program listens on the port that a server was given."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nothing listens on that port of that address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free, one with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def is_listening(pid: int, port: int) -> bool:
    """Whether this process, and not another one, listens on that port."""
    with contextlib.suppress(OSError):
        fields = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()
        ]
        inodes = {
            f"socket:[{each[9]}]"
            for each in fields
            if each[3] == _LISTEN and int(each[1].rpartition(":")[2], 16) == port
        }
        files = Path(f"/proc/{pid}/fd").iterdir() if inodes else ()
        for file in files:
            with contextlib.suppress(OSError):  # closed meanwhile
                if str(file.readlink()) in inodes:
                    return True
    return False


def free_ports(
    count: int, host: str = "127.0.0.1", candidates: Iterable[int] | None = None
) -> list[int]:
    """Return the first `count` free ports of the candidates, by default some of `PORTS`."""
    if candidates is None:
        candidates = random.sample(PORTS, k=1000)
    chosen: list[int] = []
    for port in candidates:
        if is_free(port, host):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise FleetError(
        f"found no {count} free ports on {host} for a server; stop other programs, or retry"
    )


def says_taken(words: str) -> bool:
    """Whether a server's last words tell that its port was taken."""
    return any(each in words.lower() for each in _IN_USE)


@contextlib.contextmanager
def on_free_ports(
    what: str,
    serve: Callable[..., AbstractContextManager[_Server]],
    *,
    count: int = 1,
    host: str = "127.0.0.1",
) -> Iterator[_Server]:
    """Enter `serve(*ports)`, which waits for its server; other ports if one was taken meanwhile."""
    with contextlib.ExitStack() as stack:

        def attempt() -> _Server:
            ports = free_ports(count, host)
            try:
                return stack.enter_context(serve(*ports))
            except Exception as error:
                if says_taken(str(error)) or not all(is_free(port, host) for port in ports):
                    raise PortTaken(f"ports {ports} of {host} for {what}: {error}") from error
                raise

        yield retry(f"starting {what}", attempt, on=PortTaken)
