"""The shared Spark Connect server: one per home, at one address for good."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleet.act import spark_server
from fleet.act.local.local_runtime import find_orphans
from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.system.home import write_state
from fleet.system.ports import is_listening, on_free_ports
from fleet.system.processes import ProcessId, alive, home_processes, spawn
from fleet.worker.batch.spark_link import SparkLink
from tests.support.waiting import until

CLIENT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(spark.range(10).count())
spark.stop()
"""


def count_to_ten(url: str, token: str | None) -> str:
    """What PySpark's own client gets, or the error."""
    env = {k: v for k, v in os.environ.items() if k != spark_server.TOKEN_ENV}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLIENT, url],
        env=env if token is None else {**env, spark_server.TOKEN_ENV: token},
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.stdout.strip() or done.stderr


def test_a_home_without_a_server_has_no_address(tmp_path):
    """Nothing is guessed; stopping nothing is fine; the wait says what the log says."""
    assert spark_server.connect_url(tmp_path) is None
    assert spark_server.token(tmp_path) is None
    assert spark_server.process(tmp_path) is None
    assert not spark_server.ready(tmp_path)
    spark_server.stop(tmp_path)
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "log").write_text("java: not found\n")
    with pytest.raises(Unreachable, match="java: not found"):
        spark_server.wait_ready(tmp_path, timeout=5.0, clock=SystemClock())


@pytest.mark.parametrize(
    "left", [None, b"", bytes(43), b"\xff\xfe"], ids=["nothing", "empty", "zeroes", "no-text"]
)
def test_a_token_is_made_where_none_can_be_read(tmp_path: Path, left: bytes | None):
    """A power cut leaves a file without what was written to it; the next start makes it anew."""
    file = tmp_path / "spark" / "token"
    file.parent.mkdir()
    if left is not None:
        file.write_bytes(left)
    assert spark_server.token(tmp_path) is None
    made = spark_server._keep_token(tmp_path)
    assert len(made) >= 40
    assert spark_server.token(tmp_path) == spark_server._keep_token(tmp_path) == made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["token"]


@pytest.mark.parametrize(
    ("master", "own"),
    [
        *((each, True) for each in ("local", "local[*]", "local[4]", "local[2,3]")),
        *(
            (each, False)
            for each in ("local-cluster[2,1,512]", "spark://m:7077", "k8s://h", "yarn")
        ),
    ],
)
def test_spark_makes_its_own_secret_where_it_is_one_process(master: str, own: bool):
    """Elsewhere it would not start without one that its executors are told, too."""
    assert spark_server.makes_own_secret(master) == own


@pytest.mark.spark
def test_the_drivers_own_ports_want_a_secret(spark_home: Path):
    """They read serialized Java objects from whoever connects; tasks run as before."""
    link = SparkLink(
        where=lambda: spark_server.connect_url(spark_home),
        token=lambda: spark_server.token(spark_home),
        clock=SystemClock(),
        app="test",
    )
    spark = link.connect(timeout=300.0, given_up=lambda: False)
    assert spark.conf.get("spark.authenticate") == "true"
    assert spark.range(10).repartition(3).count() == 10
    link.close()


def test_workers_wait_for_a_server_that_cannot_start_and_say_so(bench, monkeypatch):
    """No Java: the supervisor lives, the worker is not started, and its reason is readable."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    bench.runtime.ensure()
    (name,) = bench.start(1, spark="shared")
    bench.until(lambda: "Spark server" in (bench.worker(name).exit_reason or ""))
    assert not bench.worker(name).running
    assert "/nowhere" in bench.worker(name).exit_reason


@pytest.mark.spark
def test_the_server_is_shared_comes_back_and_goes(bench, monkeypatch):
    """It starts with the first worker that needs it; after kill -9 it is back on its port."""
    monkeypatch.setenv("FLEET_SPARK_MEMORY", "700m")
    home = bench.runtime.home
    bench.runtime.ensure()
    assert spark_server.process(home) is None
    (name,) = bench.start(1, spark="shared")
    bench.until(lambda: bench.worker(name).running)
    url = spark_server.wait_ready(home, timeout=1.0, clock=SystemClock())
    first = spark_server.process(home)
    assert first is not None
    token = spark_server.token(home)
    assert token is not None
    assert count_to_ten(url, token) == "10"
    assert find_orphans(home) == []  # the server's Python workers are its children

    pid = bench.worker(name).pid
    os.kill(first.pid, 9)
    bench.until(lambda: spark_server.process(home) not in {None, first})
    assert spark_server.wait_ready(home, timeout=300.0, clock=SystemClock()) == url
    assert bench.worker(name).pid == pid  # workers are not restarted for it
    assert spark_server.token(home) == token, "nor do they lose their way in"

    second = spark_server.process(home)
    assert second is not None
    bench.runtime.down(grace=2.0)
    assert not alive(second)
    assert list(home_processes(home)) == []


def _everything_of(process: ProcessId) -> str:
    """What other users of the machine see of a process."""
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().replace("\0", " ")


@pytest.mark.spark
def test_a_client_without_the_token_is_refused(spark_home: Path):
    """PySpark's own and ours; the token is in a file of its owner's alone, and nowhere else."""
    url, token = spark_server.connect_url(spark_home), spark_server.token(spark_home)
    assert url is not None
    assert token is not None
    assert len(token) >= 40
    for wrong in (None, f"{token}x"):
        assert "UNAUTHENTICATED" in count_to_ten(url, wrong)
        link = SparkLink(
            where=lambda: url, token=lambda w=wrong: w, clock=SystemClock(), app="test"
        )
        with pytest.raises(Unreachable, match=r"Unauthenticated|UNAUTHENTICATED|token"):
            link.connect(timeout=1.0, given_up=lambda: False)
    link = SparkLink(where=lambda: url, token=lambda: token, clock=SystemClock(), app="test")
    spark = link.connect(timeout=300.0, given_up=lambda: False)
    assert spark.range(10).count() == 10
    other = SparkLink(where=lambda: url, token=lambda: token, clock=SystemClock(), app="test")
    other.connect(timeout=300.0, given_up=lambda: False)
    assert other.end_session(str(link.session_id)) is None, "a successor may end its session"
    other.close()

    file = spark_home / "spark" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    server = spark_server.process(spark_home)
    assert server is not None
    assert token not in _everything_of(server)
    assert token not in spark_server.log_file(spark_home).read_text()
    assert token not in (spark_home / "spark" / "connect.json").read_text()


@pytest.mark.parametrize(
    ("listen", "token", "told"),
    [
        pytest.param("127.0.0.1:15002", None, "AUTHENTICATE_TOKEN is not set", id="no token"),
        pytest.param("15002", "secret", "--listen 15002: write HOST:PORT", id="no host"),
        pytest.param("0.0.0.0:x", "secret", "--listen 0.0.0.0:x: write", id="no port"),
    ],
)
def test_a_foreground_server_wants_an_address_and_a_token(
    tmp_path: Path, listen: str, token: str | None, told: str
):
    """Exit 2 and a sentence; nothing listens without a token."""
    env = {k: v for k, v in os.environ.items() if k != spark_server.TOKEN_ENV}
    env |= {"FLEET_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "fleet.act.spark_server", "--listen", listen],
        env=env if token is None else {**env, spark_server.TOKEN_ENV: token},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("writes", [True, False])
def test_a_server_that_writes_its_archive_is_waited_for(tmp_path: Path, writes: bool):
    """At its end, beyond the grace; killed meanwhile, no server would ever have one."""
    written = tmp_path / "archive"
    ending = f"trap 'sleep 0.3; touch {written}; exit' TERM; touch up; while :; do sleep 0.02; done"
    server = spawn(["sh", "-c", ending], log=tmp_path / "log", env=dict(os.environ), cwd=tmp_path)
    until((tmp_path / "up").exists, "the process to be up")
    state = {"port": 15002, "process": server.as_json(), "writes_archive": writes}
    write_state(tmp_path / "spark" / "connect.json", state, schema=spark_server.SCHEMA)
    spark_server.stop(tmp_path, grace=0.0)
    assert not alive(server)
    assert written.exists() is writes


def test_a_foreground_server_writes_no_archive_of_classes(tmp_path: Path):
    """It would go with the container, whose end waits for it; one that is there is used."""
    (tmp_path / "pyspark" / "bin").mkdir(parents=True)
    program = tmp_path / "pyspark" / "bin" / "spark-submit"
    program.write_text('#!/bin/sh\nprintf "%s " "$@"\n')
    program.chmod(0o755)
    begin = f"""if True:
        from pathlib import Path
        from fleet.act import spark_server
        spark_server.pyspark_folder = lambda: Path({str(tmp_path / "pyspark")!r})
        spark_server.main(["--listen", "127.0.0.1:15002"])"""
    (tmp_path / "pyspark" / "jars").mkdir()
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    told = subprocess.run(
        [sys.executable, "-c", begin],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "JAVA_HOME": "",
            "HOME": str(tmp_path),
            "FLEET_HOME": str(tmp_path),
            spark_server.TOKEN_ENV: "given",
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-XX:+UseSerialGC" in told
    assert "ArchiveClassesAtExit" not in told


@pytest.mark.spark
def test_a_foreground_server_serves_and_ends_on_sigterm(tmp_path: Path):
    """As a container runs it: the token is its environment's, signals are the JVM's own."""
    with on_free_ports("the server", lambda port: foreground(tmp_path, port)) as (server, port):
        url = f"sc://127.0.0.1:{port}"
        link = SparkLink(where=lambda: url, token=lambda: "given", clock=SystemClock(), app="test")
        spark = link.connect(timeout=300.0, given_up=lambda: server.poll() is not None)
        assert spark.range(10).count() == 10
        link.close()
        assert "UNAUTHENTICATED" in count_to_ten(f"sc://localhost:{port}", None)
        server.terminate()
        assert server.wait(120) == 143
    assert "given" not in (tmp_path / "log").read_text()


@contextmanager
def foreground(folder: Path, port: int) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """A server for all addresses, which listens."""
    env = {
        **os.environ,
        "FLEET_HOME": str(folder),
        "FLEET_SPARK_MEMORY": "700m",
        spark_server.TOKEN_ENV: "given",
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "fleet.act.spark_server", "--listen", f"0.0.0.0:{port}"],
            env=env,
            stdout=log,
            stderr=log,
        )

    def listens() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        return is_listening(server.pid, port)

    try:
        until(listens, "the server to listen")
        yield server, port
    finally:
        server.kill()
        server.wait(120)


@pytest.mark.spark
def test_a_batch_does_not_stay_on_the_server(spark: Any):
    """Neither uploaded by its hash nor in a plan that is kept, both until the session ends."""
    table = pa.table({"value": pa.array([bytes([n % 256]) * 1000 for n in range(4_000)])})
    assert table.nbytes > 2 << 20
    frame = spark.createDataFrame(table)
    sent = frame._plan.to_proto(spark.client).root  # nothing public tells
    assert sent.ByteSize() > table.nbytes, "the batch is in the plan, and not uploaded before it"
    assert frame.count() == 4_000
    assert spark.conf.get("spark.connect.session.planCache.enabled") == "false"


@pytest.mark.spark
def test_a_session_that_waits_is_kept_and_one_left_behind_is_closed(tmp_path: Path, monkeypatch):
    """A standby may wait for days; what a killed worker left costs the server its memory."""
    manager = "spark.connect.session.manager"
    monkeypatch.setitem(spark_server._SETTINGS, f"{manager}.defaultSessionTimeout", "4s")
    monkeypatch.setitem(spark_server._SETTINGS, f"{manager}.maintenanceInterval", "1s")
    monkeypatch.setenv("FLEET_SPARK_MEMORY", "700m")
    clock = SystemClock()
    spark_server.start(tmp_path)
    try:
        url = spark_server.wait_ready(tmp_path, timeout=120, clock=clock)
        waits, left = (
            SparkLink(
                where=lambda: url,
                token=lambda: spark_server.token(tmp_path),
                clock=clock,
                app="test",
                keep_alive=each,
            )
            for each in (0.5, 3600.0)
        )
        kept = waits.connect(timeout=120, given_up=lambda: False)
        lost = left.connect(timeout=120, given_up=lambda: False)
        clock.sleep(9)
        assert kept.range(3).count() == 3
        with pytest.raises(Exception, match="SESSION_CLOSED"):
            lost.range(3).count()
        waits.close()
        left.close()
    finally:
        spark_server.stop(tmp_path)
