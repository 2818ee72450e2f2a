"""A real `dagster dev` (web server, daemon, code server) in a folder of its own."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.demo.dagster_ui import DagsterPage
from fleet.system import processes
from fleet.system.ports import on_free_ports, says_taken
from fleet.system.processes import ProcessId
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
TERMINATE = """
mutation($run: String!) { terminateRun(runId: $run) { __typename
  ... on TerminateRunFailure { message } ... on PythonError { message } } }
"""
LAUNCH = """
mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
TICKS = """
query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor {
  sensorState { status ticks(limit: 20) { status skipReason error { message stack
    errorChain { error { message } } } } } } } }
"""
FLEET_WATCH = {
    "repositoryName": "__repository__",
    "repositoryLocationName": "fleet",
    "sensorName": "main_fleet_watch",
}


class Page(DagsterPage):
    """Dagster's page, waited for as tests wait."""

    def finished(self, run: str) -> str:
        """Wait for the end of a run, as long as it says more; its status."""

        def ended() -> str:
            news = self.updates(run)
            return news.status if news.is_over else ""

        return until(
            ended,
            f"the end of run {run}",
            progress=lambda: self.story(run),
            picture=lambda: self.story(run),
            every=1.0,  # each look is a second's tenth of a processor
        )

    def story(self, run: str) -> str:
        """What the run logged, for a failed assertion."""
        lines = []
        for event in self.updates(run).events:
            lines.append(event.get("message") or "")
            if event.get("error"):
                lines.append(event["error"]["message"] + "".join(event["error"]["stack"]))
        return "\n".join(lines)

    def cancel(self, run: str) -> None:
        """Ask for the end of a run, as the page's Terminate button does."""
        told = self.ask(TERMINATE, run=run)["terminateRun"]
        assert told["__typename"] == "TerminateRunSuccess", told

    def launch_job(self, job: str, config: Mapping[str, Any]) -> str:
        """Start a run of a job that a team defines; its id."""
        params = {
            "selector": {
                "repositoryName": "__repository__",
                "repositoryLocationName": "fleet",
                "pipelineName": job,
            },
            "runConfigData": config,
            "mode": "default",
        }
        told = self.ask(LAUNCH, params=params)["launchPipelineExecution"]
        assert told["__typename"] == "LaunchRunSuccess", told
        return str(told["run"]["runId"])

    def ticks(self) -> list[dict[str, Any]]:
        """The sensor's last ticks."""
        told = self.ask(TICKS, sensor=FLEET_WATCH)
        return list(told["sensorOrError"]["sensorState"]["ticks"])


class Served(Page):
    """The page of a process here."""

    def __init__(self, url: str, log: Path, process: ProcessId) -> None:
        super().__init__(url)
        self.log = log
        self._process = process

    def kill(self) -> None:
        """A power cut: web server, daemon, code server and run workers at once."""
        processes.signal_group(self._process, signal.SIGKILL)
        processes.wait_ended(self._process, timeout=10.0)


@contextmanager
def dagster_dev(folder: Path, environ: Mapping[str, str]) -> Iterator[Served]:
    """Start it in a copy of the checkout's configuration; its whole process group is ended.

    `dagster dev` is run bare, as a person would in the checkout: workspace.yaml and
    dagster.yaml are those of the repository, the packages are found beside them.
    """
    for name in ("workspace.yaml", "dagster.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for package in ("assets", "fleet", "k8s"):
        if not (folder / package).exists():
            (folder / package).symlink_to(ROOT / package)
    with on_free_ports("Dagster", lambda port: _dagster_dev(folder, environ, port)) as served:
        yield served


@contextmanager
def _dagster_dev(folder: Path, environ: Mapping[str, str], port: int) -> Iterator[Served]:
    kept = {k: v for k, v in os.environ.items() if k not in ("DAGSTER_HOME", "FLEET_CONFIG")}
    (folder / "dagster.log").unlink(missing_ok=True)
    process = processes.spawn(
        [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)],
        log=folder / "dagster.log",
        # A code server that gets no processor for a minute is slow, and fails no run.
        env={**kept, "DAGSTER_GRPC_TIMEOUT_SECONDS": "600", **environ},
        cwd=folder,
    )
    served = Served(f"http://127.0.0.1:{port}", folder / "dagster.log", process)
    try:

        def loaded() -> bool:
            words = served.log.read_text()
            assert processes.alive(process) and not says_taken(words), words  # noqa: PT018
            return served.is_loaded()

        until(loaded, "Dagster's page", picture=served.log.read_text)
        yield served
    finally:
        processes.end(process, grace=10.0)
