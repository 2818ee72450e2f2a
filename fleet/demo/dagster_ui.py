"""Dagster for the demo: web server and daemon in one process group, asked through GraphQL.

Problem: the demo's changes shall be Dagster's runs, seen in its web page, while the library
knows no Dagster. Choice: `dagster dev` as a process of its own with its own home; runs are
launched and followed over HTTP on the loopback address. Nothing acts by itself: the demo's
fleet.yaml names no schedule, and the demo decides when each step begins. Cost: 20 s to start
(beside the broker and Spark) and about 10 s per run.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet.clock import Clock
from fleet.decide.slugs import plain_name
from fleet.demo.dagster_page import DagsterPage
from fleet.errors import FleetError, Unreachable
from fleet.system import processes
from fleet.system.home import write_whole
from fleet.system.ports import PortTaken, free_ports, says_taken
from fleet.system.processes import ProcessId
from fleet.system.retrying import retry

HOST: Final = "127.0.0.1"
LOCATION: Final = "fleet"
_START_SECONDS: Final = 120.0
_RUN_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.5
_END_GRACE: Final = 8.0

_INSTANCE: Final = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
run_monitoring: {enabled: false}
"""


@dataclass(kw_only=True)
class DagsterUi:
    """`dagster dev` of the demo. `start`, then `wait_ready`, and `end` whatever happens."""

    home: Path
    log: Path
    environ: Mapping[str, str]
    clock: Clock
    port: int | None = None
    _process: ProcessId | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{HOST}:{self.port}"

    @property
    def page(self) -> DagsterPage:
        """The page, to be asked."""
        return DagsterPage(self.url)

    def start(self) -> None:
        """Start it; returns at once."""
        package = Path(__file__).resolve().parents[2]
        workspace = self.home / "workspace.yaml"
        write_whole(self.home / "dagster.yaml", _INSTANCE)
        where = {
            "module_name": "fleet.dagster.project",
            "working_directory": str(package),
            "location_name": LOCATION,
        }
        # JSON is YAML, and quotes whatever a folder is called.
        write_whole(workspace, json.dumps({"load_from": [{"python_module": where}]}) + "\n")
        self.port = self.port or free_ports(1, HOST)[0]
        command = (sys.executable, "-m", "dagster", "dev", "-w", str(workspace))
        self.log.unlink(missing_ok=True)  # what it says of its port is read there
        self._process = processes.spawn(
            (*command, "-h", HOST, "-p", str(self.port), "--log-level", "warning"),
            log=self.log,
            env={**self.environ, "DAGSTER_HOME": str(self.home)},
            cwd=self.home,
        )

    def end(self) -> None:
        """End the whole group; running runs are in it."""
        if self._process is not None:
            processes.end(self._process, grace=_END_GRACE)
            self._process = None

    def wait_ready(self) -> None:
        """Wait until the page answers and the definitions are loaded.

        Raises Unreachable or FleetError with what Dagster said. One whose port was taken is started
        again on another one.
        """
        deadline = self.clock.monotonic() + _START_SECONDS
        retry("starting Dagster", lambda: self._wait_ready(deadline), on=PortTaken)

    def _wait_ready(self, deadline: float) -> None:
        while not self.page.loaded():
            # Without its port the web server says so, and neither it nor the rest ends.
            if says_taken(self.log.read_text(encoding="utf-8", errors="replace")):
                taken = f"port {self.port} of {HOST} is taken"
                self.end()
                self.port = None
                self.start()
                raise PortTaken(taken)
            if self._process is None or not processes.alive(self._process):
                raise FleetError(f"dagster dev ended while it started; see {self.log}")
            if self.clock.monotonic() > deadline:
                raise Unreachable(
                    f"Dagster does not answer at {self.url} after {_START_SECONDS:g} s; "
                    f"see {self.log}, or run `fleet demo --no-dagster`"
                )
            self.clock.sleep(_POLL_SECONDS)

    def launch(self, cluster: str, group: str, *, wanted: int | None) -> str:
        """Launch a run of the group's plan and rollout; its id."""
        config = None if wanted is None else {"wanted": wanted}
        return self.page.launch(plain_name(group), cluster=cluster, config=config)

    def follow(self, run: str, *, say: Callable[[str], None]) -> str:
        """Tell the run's log messages as they come until it is over; its status."""
        cursor: str | None = None
        deadline = self.clock.monotonic() + _RUN_SECONDS
        while self.clock.monotonic() < deadline:
            news = self.page.news(run, cursor)
            for sentence in news.told():
                say(sentence)
            if news.over:
                return news.status
            cursor = news.cursor
            self.clock.sleep(_POLL_SECONDS)
        raise FleetError(
            f"run {run} is not over after {_RUN_SECONDS:g} s; see {self.url}/runs/{run}"
        )


def dagster_environ(*, config: Path, home: Path) -> dict[str, str]:
    """The environment that tells the definitions which fleet they are of."""
    return {**os.environ, "FLEET_CONFIG": str(config), "FLEET_HOME": str(home)}
