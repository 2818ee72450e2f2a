"""Fleet finds the process of a run in what Dagster stores; a real code server starts the run."""

import os
import signal
import socket
import sys

import pytest
from dagster import DagsterInstance, DagsterRunStatus, instance_for_test
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._grpc.client import DagsterGrpcClient

from fleet.dagster import asset_keys, build_definitions
from fleet.dagster.dead_runs import end_ended_runs
from fleet.dagster.reconcile_schedule import request_for
from fleet.dagster.resources import FleetResource
from fleet.system import processes
from fleet.system.ports import free_ports
from tests.orchestration.made import FLEET_YAML, group, plan, spec, step
from tests.support.needs import repository
from tests.support.waiting import until

pytestmark = pytest.mark.slow
JOB = asset_keys.definition_name("main", asset_keys.CHANGE_JOB)


@pytest.fixture
def silent_broker():
    """An address that takes connections and never answers: a run waits there for a while."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def server(tmp_path, silent_broker):
    """A code server of this folder's fleet.yaml."""
    (port,) = free_ports(1)
    config = tmp_path / "fleet.yaml"
    config.write_text(FLEET_YAML.read_text().replace("127.0.0.1:9", silent_broker))
    environ = {
        "FLEET_CONFIG": str(config),
        "FLEET_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(repository()),
    }
    words = ("api", "grpc", "-m", "fleet.dagster.project", "-h", "127.0.0.1", "-p", str(port))
    log = tmp_path / "code.log"
    process = processes.spawn(
        [sys.executable, "-m", "dagster", *words], log=log, env={**os.environ, **environ}
    )
    client = DagsterGrpcClient(host="127.0.0.1", port=port)

    def answers() -> bool:
        try:
            return bool(client.ping("."))
        except DagsterUserCodeUnreachableError:
            return False

    try:
        until(answers, "the code server", picture=log.read_text)
        yield client, process
    finally:
        processes.end(process, grace=5.0)


def test_a_killed_run_and_its_code_server(server):
    """The run of a tick is left alone while its process lives, also without the code server."""
    client, code = server
    asked = request_for(plan(step()), group())
    tags = {**asked.tags, asset_keys.PARTITION_TAG: str(asked.partition_key)}
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=client.port)
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), JOB)
    job = build_definitions(FleetResource.of(spec())).resolve_job_def(JOB)
    with instance_for_test() as instance:
        run = instance.create_run_for_job(
            job, tags=tags, remote_job_origin=origin, status=DagsterRunStatus.STARTING
        )
        DefaultRunLauncher.launch_run_from_grpc_client(instance, run, client)

        def started() -> bool:
            return instance.get_run_by_id(run.run_id).status is DagsterRunStatus.STARTED

        until(started, "the run to start", picture=lambda: said(instance, run.run_id))
        os.kill(code.pid, signal.SIGKILL)
        until(lambda: processes.identify(code.pid) is None, "the code server to end")
        assert end_ended_runs(instance, "main") == []
        processes.signal_group(code, signal.SIGKILL)
        (ended,) = until(lambda: end_ended_runs(instance, "main"), "the run to end")
        assert "has ended before it stored a result" in ended


def said(instance: DagsterInstance, run: str) -> str:
    """The events of a run."""
    return "\n".join(each.message for each in instance.all_logs(run))
