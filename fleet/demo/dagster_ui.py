"""Dagster for the demo: web server and daemon in one process group, asked through GraphQL.

Problem: the demo's changes shall be Dagster's runs, seen in its web page, while the library
knows no Dagster. Choice: `dagster dev` as a process of its own with its own home; runs are
launched and followed over HTTP on the loopback address. Nothing acts by itself: schedules are
stopped as soon as the page answers, because the demo decides when each step begins. Cost: 20 s
to start (beside the broker and Spark) and about 10 s per run.
"""

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.decide.slugs import slug
from fleet.errors import FleetError, Unreachable
from fleet.system import processes
from fleet.system.home import write_whole
from fleet.system.processes import ProcessId

HOST: Final = "127.0.0.1"
LOCATION: Final = "fleet"
_JOB: Final = "change_group"
_START_SECONDS: Final = 120.0
_RUN_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.5
_END_GRACE: Final = 8.0
_OVER: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})

_INSTANCE: Final = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
run_monitoring: {enabled: false}
"""

_SCHEDULES: Final = """
{ repositoriesOrError { ... on RepositoryConnection { nodes { schedules {
    scheduleState { id status } } } } } }
"""
_STOP: Final = """
mutation($id: String!) { stopRunningSchedule(id: $id) { __typename
  ... on PythonError { message } } }
"""
_REPOSITORY: Final = """
{ repositoriesOrError { __typename ... on PythonError { message }
  ... on RepositoryConnection { nodes { name location { name } } } }
  workspaceOrError { __typename ... on Workspace { locationEntries { name loadStatus
    locationOrLoadError { __typename ... on PythonError { message } } } } } }
"""
_LAUNCH: Final = """
mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PipelineNotFoundError { message } } }
"""
_FOLLOW: Final = """
query($run: ID!, $cursor: String) { runOrError(runId: $run) { ... on Run { status } }
  logsForRun(runId: $run, afterCursor: $cursor) { __typename ... on EventConnection { cursor
    events { __typename ... on MessageEvent { message level }
      ... on ExecutionStepFailureEvent { error { message cause { message } } } } } } }
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
    _repository: str = field(default="__repository__", init=False)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Start it; returns at once."""
        package = Path(__file__).resolve().parents[2]
        workspace = self.home / "workspace.yaml"
        write_whole(self.home / "dagster.yaml", _INSTANCE)
        where = {
            "module_name": "assets.definitions",
            "working_directory": str(package),
            "location_name": LOCATION,
        }
        # JSON is YAML, and quotes whatever a folder is called.
        write_whole(workspace, json.dumps({"load_from": [{"python_module": where}]}) + "\n")
        self.port = self.port or _free_port()
        command = (sys.executable, "-m", "dagster", "dev", "-w", str(workspace))
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
        """Wait until the page answers and the definitions are loaded; then stop schedules.

        Raises Unreachable or FleetError with what Dagster said.
        """
        deadline = self.clock.monotonic() + _START_SECONDS
        while not self._loaded():
            if self._process is None or not processes.alive(self._process):
                raise FleetError(f"dagster dev ended while it started; see {self.log}")
            if self.clock.monotonic() > deadline:
                raise Unreachable(
                    f"Dagster does not answer at {self.url} after {_START_SECONDS:g} s; "
                    f"see {self.log}, or run `fleet demo --no-dagster`"
                )
            self.clock.sleep(_POLL_SECONDS)
        self._stop_schedules()

    def _loaded(self) -> bool:
        try:
            answer = self._ask(_REPOSITORY, {})
        except Unreachable:
            return False
        entries = answer["workspaceOrError"].get("locationEntries") or []
        for entry in entries:
            error = entry["locationOrLoadError"] or {}
            if error.get("__typename") == "PythonError":
                raise FleetError(f"Dagster cannot load {entry['name']}: {error['message'].strip()}")
        nodes = answer["repositoriesOrError"].get("nodes") or []
        for node in nodes:
            if node["location"]["name"] == LOCATION:
                self._repository = node["name"]
                return True
        return False

    def _stop_schedules(self) -> None:
        answer = self._ask(_SCHEDULES, {})
        for node in answer["repositoriesOrError"].get("nodes") or []:
            for schedule in node["schedules"]:
                state = schedule["scheduleState"]
                if state["status"] == "RUNNING":
                    self._ask(_STOP, {"id": state["id"]})

    def change(
        self, cluster: str, group: str, *, wanted: int | None, say: Callable[[str], None]
    ) -> str:
        """Materialise the group's plan and rollout in one run, follow it to its end; its status.

        Raises FleetError where the run cannot be launched or does not end in bounded time.
        """
        return self.follow(self.launch(cluster, group, wanted=wanted), say=say)

    def launch(self, cluster: str, group: str, *, wanted: int | None) -> str:
        """Launch the run; its id."""
        name = slug(cluster, group)
        keys = [[cluster, "plan", name], [cluster, "rollout", name]]
        config = {} if wanted is None else {"config": {"wanted": wanted}}
        params = {
            "selector": {
                "repositoryLocationName": LOCATION,
                "repositoryName": self._repository,
                "pipelineName": _JOB,
                "assetSelection": [{"path": path} for path in keys],
            },
            "runConfigData": {"ops": {"__".join(path): config for path in keys}} if config else {},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": "fleet/group", "value": name}]},
        }
        answer = self._ask(_LAUNCH, {"params": params})["launchPipelineExecution"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise FleetError(f"Dagster does not launch the run: {_reason(answer)}")
        return str(answer["run"]["runId"])

    def follow(self, run: str, *, say: Callable[[str], None]) -> str:
        """Tell the run's log messages as they come until it is over; its status."""
        cursor: str | None = None
        deadline = self.clock.monotonic() + _RUN_SECONDS
        while self.clock.monotonic() < deadline:
            answer = self._ask(_FOLLOW, {"run": run, "cursor": cursor})
            status = str(answer["runOrError"].get("status"))
            logs = answer["logsForRun"]
            for event in logs.get("events") or []:
                if event["__typename"] == "LogMessageEvent":
                    say(event["message"])
                elif event["__typename"] == "ExecutionStepFailureEvent":
                    say("failed: " + _cause(event.get("error") or {}))
            cursor = logs.get("cursor") or cursor
            if status in _OVER:
                return status
            self.clock.sleep(_POLL_SECONDS)
        raise FleetError(
            f"run {run} is not over after {_RUN_SECONDS:g} s; see {self.url}/runs/{run}"
        )

    def _ask(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own http address
            f"{self.url}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        # A proxy of the environment has no business with the loopback address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30.0) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise FleetError(f"Dagster refuses a question: {text[:500]}") from error
        except (OSError, ValueError) as error:
            raise Unreachable(f"Dagster does not answer at {self.url} ({error})") from error
        if answer.get("errors"):
            raise FleetError(f"Dagster refuses a question: {answer['errors'][0]['message']}")
        data: dict[str, Any] = answer["data"]
        return data


def dagster_environ(*, config: Path, home: Path) -> dict[str, str]:
    """The environment that tells the definitions which fleet they are of."""
    return {**os.environ, "FLEET_CONFIG": str(config), "FLEET_HOME": str(home)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _reason(answer: Mapping[str, Any]) -> str:
    if answer.get("errors"):
        return "; ".join(str(each["message"]) for each in answer["errors"])
    return str(answer.get("message", answer["__typename"]))


def _cause(error: Mapping[str, Any]) -> str:
    """The first line of the innermost error: Dagster wraps ours in its own."""
    while error.get("cause"):
        error = error["cause"]
    lines = str(error.get("message", "")).strip().splitlines()
    return lines[0] if lines else "no reason given"
