"""A certificate or a password that was renewed under a worker: its client never reads it again.

The client is a double: which errors librdkafka tells, and when, is as it does on a refused login.
"""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet.clock import ManualClock
from fleet.config.spec import ClusterSpec
from fleet.errors import FleetError
from fleet.kafka_source.login import references
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.membership import ClientErrors
from fleet.worker.reach import reach_of
from tests.support.batch_parts import events_of

TLS, DOWN, LOST = -181, -187, -195


@pytest.fixture
def cert(tmp_path: Path) -> Path:
    """A client's certificate."""
    file = tmp_path / "user.crt"
    file.write_text("of last year")
    (tmp_path / "user.key").write_text("key")
    (tmp_path / "ca.crt").write_text("authority")
    return file


@pytest.fixture
def files(cert: Path) -> LoginFiles:
    """As a client was made of them."""
    names = {"ca_file": "ca.crt", "cert_file": "user.crt", "key_file": "user.key"}
    tls = {key: str(cert.with_name(name)) for key, name in names.items()}
    security = {"protocol": "SSL", "tls": tls}
    cluster = ClusterSpec.model_validate({"bootstrap_servers": "kafka:9093", "security": security})
    return LoginFiles(references(cluster, "kafka:9093"))


@pytest.fixture
def clock() -> ManualClock:
    """That stands."""
    return ManualClock()


@pytest.fixture
def errors(files: LoginFiles, clock: ManualClock) -> ClientErrors:
    """Of a membership."""
    return ClientErrors(events_of("w1", clock), clock=clock, replaced=files.replaced)


def refused(code: int = TLS, broker: str = "ssl://kafka-1:9093/1") -> KafkaError:
    """As librdkafka tells it."""
    return KafkaError(code, f"{broker}: SSL handshake failed: certificate expired")


def test_a_refused_login_is_weather_as_long_as_its_files_are_the_same(
    errors: ClientErrors, clock: ManualClock
) -> None:
    """An identity provider that is away, brokers that start: a restart would mend nothing."""
    for _ in range(20):
        errors.tell(refused())
        clock.sleep(30)
    errors.check()


@pytest.mark.parametrize(("code", "times"), [(TLS, 1), (DOWN, 10), (-169, 1)])
def test_a_worker_whose_files_were_renewed_ends_and_starts_again(
    errors: ClientErrors, clock: ManualClock, cert: Path, code: int, times: int
) -> None:
    """Once the same broker has refused it for a while; else it was alive and idle for ever.

    Where none is connected they may just be away, and a session be there when they are back.
    """
    cert.write_text("of this year")
    for _ in range(times):
        errors.tell(refused(code))
        errors.check()
        clock.sleep(30)
    errors.tell(refused(code))
    with pytest.raises(FleetError, match=r"user\.crt was replaced .* start again"):
        errors.check()


def test_a_certificate_refused_after_the_handshake_counts_as_one_in_it(
    errors: ClientErrors, clock: ManualClock, cert: Path
) -> None:
    """TLS 1.3: the connection is lost by an alert; a connection that is just lost is weather."""
    cert.write_text("of this year")
    why = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate"
    alert = f"ssl://kafka-1:9093/1: {why}: SSL alert number 42 (after 1ms in state APIVERSION)"
    for _ in range(40):
        errors.tell(KafkaError(LOST, alert))
        errors.check()
        clock.sleep(0.5)
    errors.tell(KafkaError(LOST, alert))
    with pytest.raises(FleetError, match=r"user\.crt was replaced"):
        errors.check()


def test_brokers_that_restart_one_by_one_end_nobody(
    errors: ClientErrors, clock: ManualClock, cert: Path
) -> None:
    """A renewed file alone is no reason: the old certificate may be good for weeks."""
    cert.write_text("of this year")
    for number in range(10):
        errors.tell(refused(broker=f"ssl://kafka-{number}:9093/{number}"))
        errors.tell(refused(LOST))
        clock.sleep(60)
    errors.tell(refused(broker="ssl://kafka-0:9093/0"))
    errors.check()


def test_a_file_that_is_just_being_replaced_is_not_there_yet(files: LoginFiles, cert: Path) -> None:
    """A mounted Secret is swapped."""
    cert.unlink()
    assert files.replaced() == ()
    cert.write_text("of this year")
    assert files.replaced() == (str(cert),)
    files.read_again()
    assert files.replaced() == ()


def test_a_standby_asks_by_what_the_files_hold_now(files: LoginFiles, cert: Path) -> None:
    """It was cut off for ever, and so never ready."""
    clients: list[str] = []

    class Client:
        """Whom brokers let in by the certificate of this year alone."""

        def __init__(self, options: dict[str, Any]) -> None:
            self.certificate = options["certificate"]
            clients.append(self.certificate)

        def poll(self, timeout: float) -> None:
            """Nothing comes."""

        def close(self) -> None:
            """At once."""
            clients.remove(self.certificate)

        def list_topics(self, topic: str, timeout: float) -> None:
            if self.certificate != "of this year":
                raise KafkaException(KafkaError(LOST))

    reach = reach_of(
        lambda: {"certificate": cert.read_text()},
        files=files,
        group="orders",
        topics=("orders",),
        bootstrap="kafka:9093",
        client=Client,
    )
    reach.look()
    assert reach.trouble
    cert.write_text("of this year")
    reach.look()
    reach.look()
    assert reach.trouble is None
    assert clients == ["of this year"]
