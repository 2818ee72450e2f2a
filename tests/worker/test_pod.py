"""What a pod tells its worker: revision, address, code; and files of its login that are renewed."""

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from fleet.clock import ManualClock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import ClusterSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError, FleetError
from fleet.kafka_source.login import references
from fleet.system.code import packed_code
from fleet.worker.batch.entrypoint import load
from fleet.worker.broker_reach import make_broker_reach
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.membership import ClientErrors
from fleet.worker.pod_environment import (
    put_first,
    raw_revision,
    spark_url,
    template_of,
    unpack,
    with_pod_settings,
)
from tests.support.batch_parts import events_of
from tests.support.declared import group_spec, settings_of


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, "abc", id="no pod"),
        pytest.param({"FLEET_TEMPLATE_HASH": "5d9f"}, "abc~5d9f", id="template"),
        pytest.param(
            {"FLEET_REVISION": "def", "FLEET_TEMPLATE_HASH": "5d9f"}, "def~5d9f", id="both"
        ),
        pytest.param({"FLEET_REVISION": "def"}, "def", id="annotation alone"),
        pytest.param({"FLEET_REVISION": "", "FLEET_TEMPLATE_HASH": ""}, "abc", id="empty"),
    ],
)
def test_the_raw_revision(environ: dict[str, str], expected: str):
    """`<revision>~<pod-template-hash>`: another template is another revision [22]."""
    assert raw_revision("abc", environ) == expected
    assert template_of(expected) == (environ.get("FLEET_TEMPLATE_HASH") or None)


def settings(kind: str) -> WorkerSettings:
    return settings_of(group_spec(runtime={"kind": kind}), revision="abc")


def test_a_pods_worker_listens_on_its_address():
    """The port that the template names `http`; locally nothing changes."""
    there = with_pod_settings(settings("kubernetes"), {"FLEET_TEMPLATE_HASH": "5d9f"})
    assert (there.group.worker.http, there.revision) == ("0.0.0.0:9464", "abc~5d9f")
    local = settings("local")
    assert with_pod_settings(local, {"FLEET_TEMPLATE_HASH": "5d9f"}) is local


def test_where_the_shared_server_is():
    """The namespace's Service, or what the environment names."""
    runtime = KubernetesRuntimeSpec(kind="kubernetes", namespace="pay")
    assert spark_url(runtime, {}) == "sc://fleet-spark.pay.svc:15002"
    assert spark_url(runtime, {"FLEET_SPARK": "sc://10.0.0.7:15002"}) == "sc://10.0.0.7:15002"


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def unpacked(archive: Path, home: Path, digest: str = "") -> Path | None:
    """As a pod of fleet:1 does it, whose template names this digest."""
    runtime = KubernetesRuntimeSpec(kind="kubernetes", image="fleet:1")
    return unpack(archive, home, runtime=runtime, environ={"FLEET_CODE_DIGEST": digest})


def test_the_code_beside_the_settings_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is unpacked once, whole, and wins over a folder of the same module."""
    old = tmp_path / "image"
    old.mkdir()
    (old / "pod_job.py").write_text("def process(df, context):\n    raise ValueError\n")
    text = "WHO = 'copied'\n\ndef process(df, context):\n    pass\n"
    packed = archive(tmp_path / "code.tgz", {"pod_job.py": text})
    folder = unpacked(packed, tmp_path / "home")
    assert (folder / "pod_job.py").read_text() == text
    stamp = folder.stat().st_mtime_ns
    assert unpacked(packed, tmp_path / "home") == folder, "a container that starts again"
    assert folder.stat().st_mtime_ns == stamp
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = load("pod_job:process", (str(folder), str(old)))
    assert loaded.function.__globals__["WHO"] == "copied"
    environ = {"PYTHONPATH": "/app"}
    put_first(folder, environ)
    assert environ == {"PYTHONPATH": f"{folder}:/app"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../beside.py", r"code\.tgz cannot be unpacked .*beside\.py is not a file"),
        ("a/../../beside.py", r"code\.tgz cannot be unpacked .*beside\.py is not a file"),
        ("-> /etc/passwd", r"job\.py is not a file below its folder"),
        ("", "publish the revision again"),
    ],
)
def test_an_archive_stays_inside_its_folder(tmp_path: Path, name: str, told: str):
    """Nothing is written beside it: no path, no link; a damaged archive is named; none is none."""
    packed, home = tmp_path / "code.tgz", tmp_path / "home"
    assert unpacked(packed, home) is None
    if name.startswith("->"):
        link = tarfile.TarInfo("job.py")
        link.type, link.linkname = tarfile.SYMTYPE, name[3:]
        with tarfile.open(packed, "w:gz") as tar:
            tar.addfile(link)
    elif name:
        archive(packed, {"fine.py": "x", name: "x"})
    else:
        packed.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=told):
        unpacked(packed, home)
    assert not list(home.glob("code/*"))


@pytest.mark.parametrize("change", ["other code", "more code", "no code"])
def test_code_that_the_template_does_not_name_is_not_run(tmp_path: Path, change: str):
    """Whoever may write the ConfigMap alone does not choose what a pod runs."""
    source = tmp_path / "src" / "pod_job.py"
    source.parent.mkdir()
    source.write_text("def process(df, context):\n    pass\n")
    on_path = {"entrypoint": "pod_job:process", "python_path": [str(source.parent)]}
    runtime = {"kind": "kubernetes", "image": "fleet:1"}
    digest, packed = packed_code(group_spec(worker=on_path, runtime=runtime))
    place = tmp_path / "code.tgz"
    place.write_bytes(packed)
    folder = unpacked(place, tmp_path / "home", digest)
    assert (folder / "pod_job.py").read_text() == source.read_text()
    if change == "no code":
        place.unlink()
    else:
        there = {"pod_job.py": source.read_text()}
        more = {"site.py": ""} if change == "more code" else {"pod_job.py": "import os\n"}
        archive(place, {**there, **more})
    with pytest.raises(
        ConfigError, match=rf"but the pod template names {digest[:12]}.*fleet apply"
    ):
        unpacked(place, tmp_path / "home", digest)


def test_code_beside_an_image_that_has_it_is_not_run(tmp_path: Path):
    """The template names the image alone."""
    digest, packed = packed_code(group_spec(runtime={"kind": "kubernetes", "image": "fleet:1"}))
    assert packed is None
    place = tmp_path / "code.tgz"
    assert unpacked(place, tmp_path / "home", digest) is None
    archive(place, {"job.py": ""})
    with pytest.raises(ConfigError, match="was changed after it was published"):
        unpacked(place, tmp_path / "home", digest)


# --- a certificate renewed under a worker: its client never reads it again --------------------


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
    """Once the same broker has refused it for a while; else it was alive and idle for ever."""
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

    reach = make_broker_reach(
        lambda: {"certificate": cert.read_text()},
        files=files,
        group="orders",
        topics=("orders",),
        bootstrap="kafka:9093",
        client=Client,
    )
    reach.check()
    assert reach.trouble
    cert.write_text("of this year")
    reach.check()
    reach.check()
    assert reach.trouble is None
    assert clients == ["of this year"]
