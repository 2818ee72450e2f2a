"""The chart's `dagster.database` at work: Dagster's memory in Postgres, a Job for each of its runs.

Postgres runs outside of the cluster, as in most companies.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client

from tests.conftest import RunningBroker
from tests.dagster_ui.served import Page
from tests.kubernetes.test_manager_pod import install
from tests.support import postgres
from tests.support.kafka_tools import generations
from tests.support.postgres import Postgres
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.kube import Kube

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.postgres,
    pytest.mark.slow,
]


class Manager:
    """The manager of one namespace, and the runs that it starts."""

    def __init__(self, kube: "Kube", namespace: str, memory: Postgres) -> None:
        self.kube, self.namespace, self.memory = kube, namespace, memory

    def pod(self) -> Any:
        """The one that is not on its way out; None where there is none."""
        found = self.kube.core.list_namespaced_pod(
            self.namespace, label_selector="app.kubernetes.io/name=fleet-dagster"
        ).items
        return next((pod for pod in found if pod.metadata.deletion_timestamp is None), None)

    def page(self) -> Page:
        """Dagster's page, once all parts of the pod are ready."""
        self.kube.await_rollout(self.namespace, "fleet-dagster")
        return Page(f"http://{self.pod().status.pod_ip}:3000")

    def job(self, run: str) -> Any:
        """A run's Job; None where there is none."""
        try:
            return self.batch.read_namespaced_job(f"dagster-run-{run}", self.namespace)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return None

    def first(self) -> str | None:
        """The oldest run that is a Job; None where there is none."""
        found = self.batch.list_namespaced_job(self.namespace).items
        names = sorted(found, key=lambda job: job.metadata.creation_timestamp)
        return names[0].metadata.name.removeprefix("dagster-run-") if names else None

    def pods_of(self, run: str) -> list[Any]:
        chosen = f"job-name=dagster-run-{run}"
        return list(self.kube.core.list_namespaced_pod(self.namespace, label_selector=chosen).items)

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float = 90.0) -> Any:
        """What comes true, once it does; a failure shows what there is."""
        return until(condition, what, still=seconds, every=0.3, picture=self.said)

    def said(self) -> str:
        """Pods as they are, and the last words of the manager and of the runs."""
        told = self.kube.kubectl("-n", self.namespace, "get", "pods,jobs", "-o", "wide")
        for what in ("fleet-dagster", "fleet-run"):
            chosen = ("-l", f"app.kubernetes.io/name={what}", "--all-containers", "--prefix")
            told += self.kube.kubectl("-n", self.namespace, "logs", *chosen, "--tail=40")
        return told

    @property
    def batch(self) -> client.BatchV1Api:
        return client.BatchV1Api(self.kube.api)


@pytest.fixture(scope="module")
def memory(kube: "Kube") -> Iterator[Postgres]:
    """A Postgres where pods reach it."""
    with postgres.running(kube.host_address) as made:
        yield made


@contextmanager
def managed(
    kube: "Kube", broker: RunningBroker, memory: Postgres, *, mode: str
) -> Iterator[Manager]:
    """Dagster of the chart with this database, in a namespace of its own."""
    from tests.support.kube import image

    with kube.namespace(f"jobs-{uuid.uuid4().hex[:8]}") as namespace:
        cluster = {
            "cluster": {"bootstrap_servers": broker.bootstrap_servers},
            "mode": mode,
            "dagster": {"schedules": ["reconcile"] if mode == "act" else []},
            "defaults": {"runtime": {"image": image("spark"), "pull_policy": "Never"}},
        }
        worker = {"entrypoint": "fleet.demo.orders:process", "spark": "local[1]"}
        fleet = {
            "group": namespace,
            "topics": [namespace],
            "create": {"partitions": 4},
            "worker": {"protocol": "classic", **worker},
            "replicas": {"min": 1, "max": 1, "standby": 0},
            "scaling": {"policy": "fixed", "workers": 1},
            "rollout": {"warm_timeout": "5m"},
        }
        url = f"postgresql+psycopg2://{postgres.USER}:{memory.password}@{memory.host}:{memory.port}"
        secret = {
            "metadata": {"name": "database"},
            "stringData": {"url": f"{url}/{postgres.USER}"},
        }
        kube.core.create_namespaced_secret(namespace, secret)
        install(kube, namespace, cluster, fleets=[fleet], database={"secret": "database"})
        yield Manager(kube, namespace, memory)


@pytest.fixture(scope="module")
def manager(kube: "Kube", kube_broker: RunningBroker, memory: Postgres) -> Iterator[Manager]:
    """One that plans, and does nothing by itself."""
    with managed(kube, kube_broker, memory, mode="plan") as made:
        yield made


def test_a_run_is_a_job_that_ends_well_and_is_cleaned_up(manager: Manager) -> None:
    """Started on the page, launched by the daemon, run by a pod, remembered by Postgres.

    The password is in the Secret alone: neither in what is applied nor in what a run is started by.
    """
    page = manager.page()
    run = page.launch(manager.namespace, cluster="main", assets=("plan",))
    assert page.finished(run) == "SUCCESS", page.story(run)
    job = manager.until(lambda: (j := manager.job(run)) and j.status.succeeded and j, "its end")
    assert job.spec.ttl_seconds_after_finished == 86400
    assert job.spec.backoff_limit == 0
    (pod,) = manager.pods_of(run)
    assert pod.spec.service_account_name == "fleet-dagster-run"
    assert pod.spec.containers[0].image == manager.pod().spec.containers[0].image
    assert manager.memory.ask(f"SELECT status FROM runs WHERE run_id = '{run}'") == ["SUCCESS"]
    asked = ("get", "configmaps,deployments,jobs,pods", "-o", "json")
    told = manager.kube.kubectl("-n", manager.namespace, *asked)
    assert all(f'"{name}"' in told for name in (job.metadata.name, "DAGSTER_DATABASE"))
    assert manager.memory.password not in told
    # A day later.
    manager.batch.patch_namespaced_job(
        job.metadata.name, manager.namespace, {"spec": {"ttlSecondsAfterFinished": 0}}
    )
    manager.until(lambda: not manager.job(run) and not manager.pods_of(run), "Job and pod to go")
    assert page.finished(run) == "SUCCESS", "Dagster remembers it"


def test_a_runs_tags_do_not_change_its_pod(manager: Manager) -> None:
    """Else whoever reaches the page could run anything with a run's rights."""
    page = manager.page()
    asked = json.dumps({"container_config": {"command": ["id"]}})
    run = page.launch(
        manager.namespace, cluster="main", assets=("plan",), tags={"dagster-k8s/config": asked}
    )
    assert page.finished(run) == "FAILURE"
    assert "unrecoverable error" in page.story(run), "the launcher refused it, no pod failed"
    assert manager.job(run) is None


@pytest.mark.long
def test_a_cancelled_run_leaves_no_job(manager: Manager) -> None:
    """With the rights that the chart gives; test_chart_rights.py asks for each of them."""
    page = manager.page()
    run = page.launch(manager.namespace, cluster="main", assets=("plan",))
    stored = f"SELECT status FROM runs WHERE run_id = '{run}'"
    manager.until(lambda: manager.memory.ask(stored) == ["STARTED"], "the run to start")
    page.cancel(run)
    manager.until(lambda: not manager.job(run) and not manager.pods_of(run), "Job and pod to go")


@pytest.mark.long
def test_a_run_outlives_the_managers_pod(kube: "Kube", kube_broker: RunningBroker) -> None:
    """The schedule's own run starts the fleet; its manager's pod goes meanwhile, the run does not.

    It is a change from nothing to one worker: one rebalance.
    """
    with (
        postgres.running(kube.host_address) as memory,
        managed(kube, kube_broker, memory, mode="act") as manager,
    ):
        manager.page()
        run = manager.until(manager.first, "the schedule's run", seconds=120)
        stored = f"SELECT status FROM runs WHERE run_id = '{run}'"
        manager.until(lambda: memory.ask(stored) == ["STARTED"], "the run to start")
        before = manager.pod().metadata.name
        manager.kube.kubectl("-n", manager.namespace, "delete", "pod", before, "--wait=false")
        manager.until(lambda: (p := manager.pod()) and p.metadata.name != before, "another pod")
        page = manager.page()
        assert page.finished(run) == "SUCCESS", page.story(run)
        assert manager.until(lambda: (j := manager.job(run)) and j.status.succeeded, "its end") == 1
        assert {g for g in generations(kube_broker.broker, manager.namespace) if g > 0} == {1}
