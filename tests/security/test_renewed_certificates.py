"""A client's certificate that brokers refuse: what librdkafka tells, what a worker makes of it.

tests/worker/test_pod.py has the rule; this is the client that it is about.
"""

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from fleet.clock import ManualClock
from fleet.config.spec import ClusterSpec
from fleet.errors import FleetError
from fleet.kafka_source.login import references
from fleet.security import client_config
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.membership import ClientErrors
from tests.support.authority import Authority
from tests.support.batch_parts import events_of
from tests.support.waiting import until

pytestmark = pytest.mark.broker


def test_a_refused_certificate_that_was_renewed_ends_the_worker(guarded, unique, tmp_path: Path):
    """By each refusal alone, which TLS 1.3 shows as a lost connection; before it was renewed it is
    weather.
    """
    security = guarded.login_by_certificate(f"renewed-{unique}")
    certificate, key = Authority(tmp_path, "stranger").sign("stranger")
    changed = {"cert_file": str(certificate), "key_file": str(key), "key_password_file": None}
    assert security.tls is not None
    security = security.model_copy(update={"tls": security.tls.model_copy(update=changed)})
    cluster, where = ClusterSpec(security=security), guarded.address(security)
    files, clock = LoginFiles(references(cluster, where)), ManualClock()
    errors = ClientErrors(events_of("w1", clock), clock=clock, replaced=files.replaced)
    told = []

    def tell(error) -> None:
        clock.sleep(1.0)
        told.append(error)
        errors.tell(error)

    login = client_config(cluster, where, {})
    client = Consumer({**login, "group.id": unique, "error_cb": tell, "log_level": 0})
    try:
        client.subscribe([f"none-{unique}"])
        until(lambda: client.poll(0.1) or len(told) > 40, "refusals", every=0.0)
        errors.check()
        assert sum("SSL alert number" in error.str() for error in told) > 30
        certificate.write_text("of this year")
        asked = len(told)
        until(lambda: client.poll(0.1) or len(told) > asked, "one more", every=0.0)
        with pytest.raises(FleetError, match=r"stranger-cert\.pem was replaced"):
            errors.check()
    finally:
        client.close()
