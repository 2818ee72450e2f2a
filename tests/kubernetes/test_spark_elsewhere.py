"""Pods whose batches run on a standalone cluster outside of Kubernetes (`worker.spark: sc://…`)."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from fleet.act.spark_server import TOKEN_ENV
from tests.conftest import RunningBroker
from tests.support.kube import Kube, image
from tests.support.pod_shop import PodShop
from tests.support.spark_cluster import application_of, connect_server, standalone
from tests.support.workshop import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.spark, pytest.mark.long]

TOKEN = "of-this-test-alone"
SECRET = "spark-elsewhere"
BEFORE = '    df.selectExpr("count(*) AS n").collect()\n'
AFTER = """    found = df.mapInArrow(places, "place STRING").distinct().collect()
    PRODUCER.produce(os.environ["PLACES"], json.dumps([row.place for row in found]))
    assert PRODUCER.flush(120) == 0


def places(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([WHERE] * batch.num_rows)], ["place"])
"""


def tell_places(shop: PodShop, where: str) -> str:
    """Batches by ranges whose tasks say where they run, by this expression; the topic for that."""
    shop.edit_job(BEFORE, AFTER.replace("WHERE", where))
    shop.declare(worker={"batch": {"inline": 100, "ranges": 2000, "max_wait": "500ms"}})
    shop.create_topic(4)
    places = shop.create_another("places", 1)
    shop.declare(worker={"env": {**shop.spec()["worker"]["env"], "PLACES": places}})
    return places


def test_pods_whose_batches_run_on_a_cluster(
    kube: Kube, kube_broker: RunningBroker, namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """The token from a Secret; every record once, by the executors of that master's application."""
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    given = f"--from-literal={TOKEN_ENV}={TOKEN}"
    kube.kubectl("-n", namespace, "create", "secret", "generic", SECRET, given)
    runtime = {
        "namespace": namespace,
        "image": image("worker"),
        "pull_policy": "Never",
        "lease": "10s",
        "env_from": [SECRET],
    }
    with (
        standalone(tmp_path / "cluster", cores=2, host=kube.host_address) as cluster,
        connect_server(cluster, token=TOKEN) as url,
    ):
        application = application_of(cluster)
        shop = PodShop(
            tmp_path / "shop", kube_broker.bootstrap_servers, namespace, runtime=runtime,
            spark=url,
        )  # fmt: skip
        places = tell_places(shop, "os.getcwd()")
        try:
            shop.apply()
            shop.produce_to(shop.topic, 3000)
            assert shop.lost_and_duplicates() == (0, 0)
            ran = told(shop.bootstrap, places)
            assert ran
            assert all(f"/{application['id']}/" in place for place in ran), ran
            assert application_of(cluster)["id"] == application["id"]
            settings = kube.kubectl("-n", namespace, "get", "configmaps,deployments", "-o", "yaml")
            assert url in settings
            assert TOKEN not in settings
        finally:
            with shop.fleet() as fleet:
                fleet.down(purge=True)
    pods = ("-n", namespace, "get", "pods", "-o", "name")
    until(lambda: not kube.kubectl(*pods).strip(), 60, "the pods to go")


def told(bootstrap: str, topic: str) -> set[str]:
    """Where tasks ran, as the pods wrote it down."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "places-reader"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    try:
        for _ in range(end):
            message = consumer.poll(20)
            assert message is not None
            found += json.loads(message.value())
    finally:
        consumer.close()
    return set(found)
