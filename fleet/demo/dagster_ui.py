"""Runs Dagster for the demo: web server and daemon in one process group, driven by GraphQL.

Problem: the demo's changes should be runs in Dagster's web page, but the library does not import
Dagster. Choice: `dagster dev` is a separate process with its own storage. The demo starts and
follows runs over HTTP on the loopback address. No schedule runs: the demo decides when each step
begins. Cost: 20 s to start beside the broker and Spark, and about 10 s per run.
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.decide.slugs import plain_name
from fleet.errors import FleetError, Unreachable
from fleet.system import processes
from fleet.system.home import write_whole
from fleet.system.ports import PortTaken, free_ports, says_taken
from fleet.system.processes import ProcessId
from fleet.system.retrying import retry

# A client of Dagster's GraphQL: the demo follows its runs, and tests drive a served page.


OVER: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
LOCATION: Final = "fleet"
_JOB: Final = "change_group"
_REPOSITORY: Final = {
    "repositoryName": "__repository__",
    "repositoryLocationName": LOCATION,
}
_WORKSPACE: Final = """
{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus
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
  logsForRun(runId: $run, afterCursor: $cursor) { ... on EventConnection { cursor
    events { __typename ... on MessageEvent { message }
      ... on ExecutionStepFailureEvent { error { message stack cause { message } } } } } } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """The events of a run since the last poll, and its status."""

    status: str
    cursor: str | None
    events: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def is_over(self) -> bool:
        """Returns whether the run is over."""
        return self.status in OVER

    def messages(self) -> Iterator[str]:
        """Yields the log messages, and why a step failed."""
        for event in self.events:
            if event["__typename"] == "LogMessageEvent":
                yield str(event["message"])
            elif event["__typename"] == "ExecutionStepFailureEvent":
                yield "failed: " + _cause(event.get("error") or {})


class DagsterPage:
    """A client of the page at `url`.

    Raises Unreachable if it does not answer, FleetError if it refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Sends one GraphQL query; returns its data."""
        request = urllib.request.Request(  # noqa: S310 - an http address of the demo
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        # A proxy from the environment must not get requests to the loopback address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30.0) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise FleetError(f"Dagster refused a query: {text[:500]}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unreachable(f"Dagster does not answer at {self.url} ({error})") from error
        if answer.get("errors"):
            raise FleetError(f"Dagster refused a query: {answer['errors'][0]['message']}")
        data: dict[str, Any] = answer["data"]
        return data

    def is_loaded(self) -> bool:
        """Returns whether the definitions are loaded. Raises FleetError if they cannot be."""
        try:
            entries = self.ask(_WORKSPACE)["workspaceOrError"].get("locationEntries") or []
        except Unreachable:
            return False
        for entry in entries:
            found = entry["locationOrLoadError"] or {}
            if found.get("__typename") == "PythonError":
                raise FleetError(f"Dagster cannot load {entry['name']}: {found['message'].strip()}")
        return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)

    def launch(
        self,
        group: str,
        *,
        cluster: str,
        assets: tuple[str, ...] = ("plan", "rollout"),
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Starts a run of `change_group` for this partition; returns its id.

        `config` is that of the plan, or of the one asset that runs.
        """
        paths = [[cluster, asset] for asset in assets]
        ops = {"__".join(paths[0]): {"config": dict(config)}} if config else {}
        labels = {"dagster/partition": group, **(tags or {})}
        params = {
            "selector": {
                **_REPOSITORY,
                "pipelineName": f"{cluster}_{_JOB}",
                "assetSelection": [{"path": path} for path in paths],
            },
            "runConfigData": {"ops": ops},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in labels.items()]},
        }
        answer = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise FleetError(f"Dagster did not start the run: {_reason(answer)}")
        return str(answer["run"]["runId"])

    def updates(self, run: str, cursor: str | None = None) -> RunUpdate:
        """Returns the run's events after `cursor`, and its status."""
        answer = self.ask(_FOLLOW, run=run, cursor=cursor)
        logs = answer["logsForRun"]
        return RunUpdate(
            status=str(answer["runOrError"].get("status")),
            cursor=logs.get("cursor") or cursor,
            events=tuple(logs.get("events") or ()),
        )


def _reason(answer: Mapping[str, Any]) -> str:
    if answer.get("errors"):
        return "; ".join(str(each["message"]) for each in answer["errors"])
    return str(answer.get("message", answer["__typename"]))


def _cause(error: Mapping[str, Any]) -> str:
    """Returns the first line of the innermost error: Dagster wraps Fleet's in its own."""
    while error.get("cause"):
        error = error["cause"]
    lines = str(error.get("message", "")).strip().splitlines()
    return lines[0] if lines else "no reason given"


HOST: Final = "127.0.0.1"
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
    """Runs `dagster dev` for the demo: `start`, then `wait_ready`, and `end` in any case."""

    home: Path
    log: Path
    environ: Mapping[str, str]
    clock: Clock
    port: int | None = None
    _process: ProcessId | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Returns the page's address."""
        return f"http://{HOST}:{self.port}"

    @property
    def page(self) -> DagsterPage:
        """Returns a client of the page."""
        return DagsterPage(self.url)

    def start(self) -> None:
        """Starts the process; returns at once."""
        package = Path(__file__).resolve().parents[2]
        workspace = self.home / "workspace.yaml"
        write_whole(self.home / "dagster.yaml", _INSTANCE)
        where = {
            "module_name": "fleet.dagster.project",
            "working_directory": str(package),
            "location_name": LOCATION,
        }
        # JSON is valid YAML, and quotes any folder name.
        write_whole(workspace, json.dumps({"load_from": [{"python_module": where}]}) + "\n")
        self.port = self.port or free_ports(1, HOST)[0]
        command = (sys.executable, "-m", "dagster", "dev", "-w", str(workspace))
        self.log.unlink(missing_ok=True)  # `_wait_ready` reads it for a port in use
        self._process = processes.spawn(
            (*command, "-h", HOST, "-p", str(self.port), "--log-level", "warning"),
            log=self.log,
            env={**self.environ, "DAGSTER_HOME": str(self.home)},
            cwd=self.home,
        )

    def end(self) -> None:
        """Stops the whole process group, with its runs."""
        if self._process is not None:
            processes.end(self._process, grace=_END_GRACE)
            self._process = None

    def wait_ready(self) -> None:
        """Waits until the page answers and the definitions are loaded.

        Starts Dagster again on another port if its port is in use. Raises Unreachable or FleetError
        with Dagster's message.
        """
        deadline = self.clock.monotonic() + _START_SECONDS
        retry("starting Dagster", lambda: self._wait_ready(deadline), on=PortTaken)

    def _wait_ready(self, deadline: float) -> None:
        while not self.page.is_loaded():
            # Without its port the web server logs that, and neither it nor the daemon stops.
            if says_taken(self.log.read_text(encoding="utf-8", errors="replace")):
                taken = f"port {self.port} of {HOST} is in use"
                self.end()
                self.port = None
                self.start()
                raise PortTaken(taken)
            if self._process is None or not processes.alive(self._process):
                raise FleetError(f"dagster dev stopped during its start; see {self.log}")
            if self.clock.monotonic() > deadline:
                raise Unreachable(
                    f"Dagster did not answer at {self.url} within {_START_SECONDS:g} s; "
                    f"see {self.log}, or run `fleet demo --no-dagster`"
                )
            self.clock.sleep(_POLL_SECONDS)

    def launch(self, cluster: str, group: str, *, wanted: int | None) -> str:
        """Starts a run of the group's plan and rollout; returns its id."""
        config = None if wanted is None else {"wanted": wanted}
        return self.page.launch(plain_name(group), cluster=cluster, config=config)

    def follow(self, run: str, *, say: Callable[[str], None]) -> str:
        """Prints the run's log messages until it is over; returns its status."""
        cursor: str | None = None
        deadline = self.clock.monotonic() + _RUN_SECONDS
        while self.clock.monotonic() < deadline:
            update = self.page.updates(run, cursor)
            for sentence in update.messages():
                say(sentence)
            if update.is_over:
                return update.status
            cursor = update.cursor
            self.clock.sleep(_POLL_SECONDS)
        raise FleetError(
            f"run {run} did not end within {_RUN_SECONDS:g} s; see {self.url}/runs/{run}"
        )


def dagster_environ(*, config: Path, home: Path) -> dict[str, str]:
    """Returns the environment in which Dagster loads this fleet's definitions."""
    return {**os.environ, "FLEET_CONFIG": str(config), "FLEET_HOME": str(home)}
