"""Java and the Kafka jars: found, verified, or a sentence that says what to do."""

import threading
from pathlib import Path

import pytest

from fleet.broker import jars
from fleet.errors import FleetError, Unreachable


@pytest.mark.parametrize(
    ("text", "major"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', 17, id="17"),
        pytest.param('java version "1.8.0_402"', 8, id="8"),
        pytest.param('openjdk version "25" 2025-09-16', 25, id="25"),
        pytest.param("no such thing", None, id="unknown"),
    ],
)
def test_java_version(text, major) -> None:
    """Read from what `java -version` prints."""
    assert jars.java_major(text) == major


def fake_java(folder: Path, version: str) -> Path:
    """A java that only knows its version."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("variable", "version", "words"),
    [
        pytest.param("PATH", None, "no java on PATH: install Java 17 or 21", id="none"),
        pytest.param("JAVA_HOME", None, "JAVA_HOME=.* has no working bin/java", id="wrong-home"),
        pytest.param("JAVA_HOME", "11.0.2", "is Java 11: install Java 17", id="too-old"),
    ],
)
def test_a_java_that_will_not_do_is_named(tmp_path, variable, version, words) -> None:
    """A wrong JAVA_HOME is not passed over in silence."""
    if version is not None:
        fake_java(tmp_path, version)
    with pytest.raises(FleetError, match=words):
        jars.find_java({variable: str(tmp_path)})


def test_java_home_wins_over_path(tmp_path) -> None:
    """As every Java program does it."""
    found = fake_java(tmp_path / "home", "21")
    fake_java(tmp_path / "path", "11")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert jars.find_java(environ) == found


@pytest.mark.parametrize("exists", [True, False], ids=["empty", "absent"])
def test_bad_kafka_libs(tmp_path, exists) -> None:
    """FLEET_KAFKA_LIBS is used or refused, never passed over."""
    folder = tmp_path / "libs"
    if exists:
        folder.mkdir()
    with pytest.raises(FleetError, match=f"FLEET_KAFKA_LIBS={folder} has no kafka_2.13"):
        jars.find_libs(Path("java"), environ={"FLEET_KAFKA_LIBS": str(folder)}, cache=tmp_path)


def cached(folder: Path) -> Path:
    """A cache with one jar and its checksum."""
    libs = folder / f"kafka-{jars.KAFKA}"
    libs.mkdir()
    (libs / "a-1.jar").write_bytes(b"jar")
    digest = jars._digest(libs / "a-1.jar")
    (libs / "SHA256SUMS").write_text(f"{digest}  a-1.jar\n")
    return libs


def test_sound_cache_is_used_without_network(tmp_path) -> None:
    """Nothing is run: the java given here does not exist."""
    libs = cached(tmp_path)
    assert jars.find_libs(Path("no-java"), environ={}, cache=tmp_path) == libs


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        pytest.param(lambda d: (d / "a-1.jar").write_bytes(b"bad"), "differs", id="changed"),
        pytest.param(lambda d: (d / "a-1.jar").unlink(), "a-1.jar", id="missing"),
        pytest.param(lambda d: (d / "b-1.jar").touch(), "b-1.jar", id="unknown"),
        pytest.param(lambda d: (d / "SHA256SUMS").unlink(), "no readable", id="no-sums"),
        pytest.param(lambda d: (d / "SHA256SUMS").write_text("x\n"), "no readable", id="bad-sums"),
    ],
)
def test_damaged_cache_is_seen(tmp_path, spoil, wrong) -> None:
    """Anything that is not as it was fetched is named."""
    libs = cached(tmp_path)
    assert jars.damage(libs) is None
    spoil(libs)
    assert wrong in str(jars.damage(libs))


@pytest.mark.broker
def test_unreachable_repository(tmp_path) -> None:
    """The message says why and names every way out; nothing half fetched stays."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="m"/><resolvers>'
        '<ibiblio name="m" m2compatible="true" root="http://127.0.0.1:1/maven2/"/>'
        "</resolvers></ivysettings>"
    )
    cache = tmp_path / "cache"
    environ = {"FLEET_IVY_SETTINGS": str(settings)}
    with pytest.raises(Unreachable, match="FLEET_KAFKA_LIBS") as caught:
        jars.find_libs(jars.find_java(), environ=environ, cache=cache)
    assert "Maven Central" in str(caught.value)
    assert [path.name for path in cache.iterdir()] == [f".kafka-{jars.KAFKA}.lock"]


def test_two_at_once_fetch_once(tmp_path, monkeypatch) -> None:
    """The second waits for the first and uses what it fetched."""
    fetched = []
    started = threading.Barrier(2)

    def resolve(java, libs, **_) -> None:
        fetched.append(libs)
        cached(tmp_path)

    def find() -> None:
        started.wait()
        jars.find_libs(Path("java"), environ={}, cache=tmp_path)

    monkeypatch.setattr(jars, "_resolve", resolve)
    threads = [threading.Thread(target=find) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(fetched) == 1
