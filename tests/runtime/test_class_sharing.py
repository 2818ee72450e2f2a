"""A JVM's archive of classes is found, adopted and given up by itself."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.broker import Broker
from fleet.broker.jars import find_kafka
from fleet.system import class_sharing

WHOLE = bytes.fromhex("a8ab0bf0") + b"classes"


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A program of that name."""
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A class path."""
    folder = tmp_path / "jars"
    folder.mkdir()
    return folder


def written(told: list[str]) -> Path:
    """Where the JVM is to write at its end."""
    return Path(told[-1].removeprefix("-XX:ArchiveClassesAtExit="))


def used(told: list[str]) -> Path:
    """What the JVM maps."""
    assert told[-1].startswith("-XX:SharedArchiveFile="), told
    return Path(told[-1].partition("=")[2])


def test_the_second_uses_what_the_first_wrote(java: Path, jars: Path, tmp_path: Path) -> None:
    """Two began without one: the first whole archive is it, and nothing else stays."""
    first = written(class_sharing.options("x", java, jars, cache=tmp_path))
    second = written(class_sharing.options("x", java, jars, cache=tmp_path))
    assert first != second
    first.write_bytes(bytes(4096))  # killed while it wrote: the first page comes last
    assert written(class_sharing.options("x", java, jars, cache=tmp_path)) not in {first, second}
    second.write_bytes(WHOLE)
    archive = used(class_sharing.options("x", java, jars, cache=tmp_path))
    assert archive.read_bytes() == WHOLE
    assert used(class_sharing.options("x", java, jars, cache=tmp_path)) == archive
    assert list(archive.parent.iterdir()) == [archive]
    archive.write_bytes(WHOLE[:-1])  # cut short: a JVM that maps it would crash
    written(class_sharing.options("x", java, jars, cache=tmp_path))
    assert not archive.exists()


def test_one_for_each_java_set_of_jars_and_kind(java: Path, jars: Path, tmp_path: Path) -> None:
    """A new Java, jars installed anew, another server: each has its own; the last eight stay."""
    seen = set()
    for n in range(10):
        for kind in ("x", "y"):
            written(class_sharing.options(kind, java, jars, cache=tmp_path)).write_bytes(WHOLE)
            seen.add(used(class_sharing.options(kind, java, jars, cache=tmp_path)))
        os.utime(java if n % 2 else jars, (n, n))
    assert len(seen) == 20
    class_sharing.options("x", java, jars, cache=tmp_path)
    kept = sorted(each.name[0] for each in (tmp_path / "classes").iterdir())
    assert kept.count("x") == 8
    assert 8 <= kept.count("y") <= 9


def test_what_cannot_be_is_done_without(java: Path, jars: Path, tmp_path: Path) -> None:
    """No Java, no jars, no folder that can be made: the server starts as ever."""
    assert class_sharing.options("x", tmp_path / "none", jars, cache=tmp_path) == []
    assert class_sharing.options("x", java, tmp_path / "none", cache=tmp_path) == []
    assert class_sharing.options("x", java, jars, cache=java) == []


def test_a_container_writes_none_and_uses_one(java: Path, jars: Path, tmp_path: Path) -> None:
    """Its folder goes with it, and its end would wait for some seconds of work."""
    assert class_sharing.options("x", java, jars, cache=tmp_path, may_write=False) == []
    written(class_sharing.options("x", java, jars, cache=tmp_path)).write_bytes(WHOLE)
    used(class_sharing.options("x", java, jars, cache=tmp_path, may_write=False))


def test_a_jvm_of_pyspark_uses_a_servers(java: Path, jars: Path, tmp_path: Path) -> None:
    """Beside what users say to spark-submit; afterwards the environment is as it was."""
    environ = {"JAVA_HOME": str(tmp_path / "jdk"), "SPARK_SUBMIT_OPTS": "-Dtheirs=1"}
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    java.rename(program)

    def told() -> str:
        with class_sharing.of_spark_server(jars, environ=environ, cache=tmp_path):
            return environ["SPARK_SUBMIT_OPTS"]

    assert told() == "-Dtheirs=1", "a worker writes none"
    written(class_sharing.options("spark", program, jars, cache=tmp_path)).write_bytes(WHOLE)
    assert re.search(r"-XX:SharedArchiveFile=\S+\.jsa -Dtheirs=1$", told())
    assert environ["SPARK_SUBMIT_OPTS"] == "-Dtheirs=1"
    del environ["SPARK_SUBMIT_OPTS"]
    assert told().endswith(".jsa")
    assert "SPARK_SUBMIT_OPTS" not in environ


@pytest.mark.long
@pytest.mark.broker
def test_a_broker_maps_what_another_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says what is mapped; an archive that is damaged or of other jars is no harm."""
    kafka = find_kafka()
    monkeypatch.setattr(class_sharing, "cache_home", lambda: tmp_path / "cache")
    folder = tmp_path / "cache" / "classes"

    def maps() -> str:
        with_one = Broker(tmp_path / "broker")
        try:
            pid = with_one.start(wait=300).nodes[0].pid
            return Path(f"/proc/{pid}/maps").read_text()
        finally:
            with_one.stop()

    assert str(folder) not in maps()
    assert str(folder) in maps()
    (archive,) = folder.iterdir()
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        file.write(b"damage" * 1000)
    assert str(folder) not in maps(), "a damaged archive was used"
    done = subprocess.run(
        [kafka.java, *class_sharing.options("kafka", kafka.java, kafka.libs), "-version"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert "cds" not in done.stderr + done.stdout
    shutil.rmtree(folder)
