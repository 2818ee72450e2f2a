"""`fleet operator` that kills itself at a chosen write to the API server, before or after it.

Several writes in a row to objects of one kind count as one. Run as a program: WRITES PATH NUMBER
before|after NAMESPACE CLUSTERS. It ends at the NUMBER-th write whose path contains PATH. The file
WRITES gets one line for each write.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import cli
from fleet.kubernetes.client import api
from fleet.kubernetes.client.connection import Connection
from tests.support.needs import repository

INTERVAL = "1"
_NUMBER = re.compile(r"-\d+$")
_POD = re.compile(r"/pods/.*")


@dataclass(frozen=True)
class Kill:
    """When an operator ends."""

    number: int
    moment: str
    path: str = ""


class MortalTransmit:
    """Sends requests until the chosen write."""

    def __init__(self, file: Path, kill: Kill) -> None:
        self._file = file.open("a", buffering=1)
        self._kill = kill
        self._left = kill.number
        self._last = ""
        self._send = api.transmit
        self._lock = threading.Lock()

    def __call__(
        self,
        connection: Connection,
        request: api.Request,
        timeouts: tuple[float, float],
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Sends; kill -9 where the chosen write is due."""
        if request.method == "GET" or "subjectaccessreviews" in request.path:
            return self._send(connection, request, timeouts, headers)
        with self._lock:
            due = self._is_due(request)
        if due and self._kill.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = self._send(connection, request, timeouts, headers)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def _is_due(self, request: api.Request) -> bool:
        self._file.write(f"{request.method} {request.path}\n")
        before, self._last = self._last, _POD.sub("", _NUMBER.sub("", request.path))
        if before == self._last or self._kill.path not in request.path:
            return False
        self._left -= 1
        return self._left == 0


@contextmanager
def running(
    home: Path, kill: Kill, *, kubeconfig: Path, namespace: str, clusters: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """One operator; `manager-operator.log` and `writes` in the home say what it does."""
    words = (home / "writes", kill.path, kill.number, kill.moment, namespace, clusters)
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "FLEET_HOME": str(home / "operator")}
    with (home / "manager-operator.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.mortal_operator", *map(str, words)],
            cwd=repository(), env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Runs the operator."""
    writes, path, number, moment, namespace, clusters = sys.argv[1:]
    api.transmit = MortalTransmit(Path(writes), Kill(int(number), moment, path))
    words = ("--watch-namespace", namespace, "--clusters", clusters, "--interval", INTERVAL)
    return cli.run(["operator", *words])


if __name__ == "__main__":
    sys.exit(main())
