"""Dagster's page, asked as a browser asks it: GraphQL over HTTP.

The demo follows its runs by it, and tests drive a served page. Only the client of an address:
whoever started the page ends it.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.errors import FleetError, Unreachable

OVER: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
_LOCATION: Final = "fleet"
_JOB: Final = "change_group"
_REPOSITORY: Final = {
    "repositoryName": "__repository__",
    "repositoryLocationName": _LOCATION,
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
class RunNews:
    """What a run said since the last look, and how it stands."""

    status: str
    cursor: str | None
    events: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.status in OVER

    def told(self) -> Iterator[str]:
        """What it logged, and why a step failed."""
        for event in self.events:
            if event["__typename"] == "LogMessageEvent":
                yield str(event["message"])
            elif event["__typename"] == "ExecutionStepFailureEvent":
                yield "failed: " + _cause(event.get("error") or {})


class DagsterPage:
    """The page at `url`.

    Raises Unreachable where it does not answer, FleetError where it says no.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """One GraphQL question; its data."""
        request = urllib.request.Request(  # noqa: S310 - an http address of ours
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        # A proxy of the environment has no business with the loopback address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30.0) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise FleetError(f"Dagster refuses a question: {text[:500]}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unreachable(f"Dagster does not answer at {self.url} ({error})") from error
        if answer.get("errors"):
            raise FleetError(f"Dagster refuses a question: {answer['errors'][0]['message']}")
        data: dict[str, Any] = answer["data"]
        return data

    def loaded(self) -> bool:
        """Whether the definitions are loaded; FleetError with what is wrong with them."""
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
        """Start a run of `change_group` with the group as its partition; its id.

        `config` is that of both assets.
        """
        paths = [[cluster, asset] for asset in assets]
        ops = {"__".join(path): {"config": dict(config)} for path in paths} if config else {}
        marks = {"dagster/partition": group, **(tags or {})}
        params = {
            "selector": {
                **_REPOSITORY,
                "pipelineName": _JOB,
                "assetSelection": [{"path": path} for path in paths],
            },
            "runConfigData": {"ops": ops},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in marks.items()]},
        }
        answer = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise FleetError(f"Dagster does not launch the run: {_reason(answer)}")
        return str(answer["run"]["runId"])

    def news(self, run: str, cursor: str | None = None) -> RunNews:
        """What the run said after `cursor`, and its status."""
        answer = self.ask(_FOLLOW, run=run, cursor=cursor)
        logs = answer["logsForRun"]
        return RunNews(
            status=str(answer["runOrError"].get("status")),
            cursor=logs.get("cursor") or cursor,
            events=tuple(logs.get("events") or ()),
        )


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
