"""What a pod tells its worker: revision, address, code."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

from fleet.config.settings import WorkerSettings
from fleet.config.spec import KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.worker.batch.entrypoint import load
from fleet.worker.pod_environment import (
    put_first,
    raw_revision,
    settled,
    spark_url,
    template_of,
    unpack,
)
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
    there = settled(settings("kubernetes"), {"FLEET_TEMPLATE_HASH": "5d9f"})
    assert there.group.worker is not None
    assert (there.group.worker.http, there.revision) == ("0.0.0.0:9464", "abc~5d9f")
    local = settings("local")
    assert settled(local, {"FLEET_TEMPLATE_HASH": "5d9f"}) is local


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


def test_the_code_beside_the_settings_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is unpacked once, whole, and wins over a folder of the same module."""
    old = tmp_path / "image"
    old.mkdir()
    (old / "pod_job.py").write_text("def process(df, context):\n    raise ValueError\n")
    text = "WHO = 'copied'\n\ndef process(df, context):\n    pass\n"
    packed = archive(tmp_path / "code.tgz", {"pod_job.py": text})
    folder = unpack(packed, tmp_path / "home")
    assert folder is not None
    assert (folder / "pod_job.py").read_text() == text
    stamp = folder.stat().st_mtime_ns
    assert unpack(packed, tmp_path / "home") == folder, "a container that starts again"
    assert folder.stat().st_mtime_ns == stamp
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = load("pod_job:process", (str(folder), str(old)))
    assert loaded.function.__globals__["WHO"] == "copied"
    environ = {"PYTHONPATH": "/app"}
    put_first(folder, environ)
    assert environ == {"PYTHONPATH": f"{folder}:/app"}


def test_no_archive_is_no_code(tmp_path: Path):
    """Installed code comes with the image."""
    assert unpack(tmp_path / "code.tgz", tmp_path) is None


@pytest.mark.parametrize("name", ["../beside.py", "a/../../beside.py"])
def test_an_archive_stays_inside_its_folder(tmp_path: Path, name: str):
    """Nothing is written beside the folder, and the archive is named."""
    packed = archive(tmp_path / "code.tgz", {"fine.py": "x", name: "x"})
    with pytest.raises(ConfigError, match=r"code\.tgz cannot be unpacked .*beside\.py is no file"):
        unpack(packed, tmp_path / "home")
    assert not list((tmp_path / "home" / "code").iterdir())


def test_links_are_no_files(tmp_path: Path):
    """They could lead anywhere."""
    link = tarfile.TarInfo("job.py")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "code.tgz", "w:gz") as tar:
        tar.addfile(link)
    with pytest.raises(ConfigError, match=r"job\.py is no file below its folder"):
        unpack(tmp_path / "code.tgz", tmp_path / "home")


def test_a_damaged_archive_is_named(tmp_path: Path):
    """With what to do."""
    (tmp_path / "code.tgz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="publish the revision again"):
        unpack(tmp_path / "code.tgz", tmp_path / "home")
