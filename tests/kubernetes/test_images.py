"""The images: what is in them, what is not, and that each can do its work as it will be run.

What docs/contributing/README.md shows is run here.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleet.errors import FleetError
from k8s.images import image_build, slimming
from tests.support import kube as support

PUBLIC = ".org"
"""How the indexes that everybody has end: many packages name them in their own descriptions; any
other index is this machine's affair."""
LEFT_OUT = re.compile(
    r"etc/apt/sources\.list|var/lib/apt/lists/.+_|(^|/)pip\.conf$|(^|/)\.netrc$|\.whl$|"
    r"site-packages/pip/|(^|/)\.pydistutils"
)
WORKS = {
    "worker": [
        "import confluent_kafka, kafka, pandas, kubernetes",
        "import pyarrow.acero, pyarrow.dataset, pyarrow.fs, pyarrow.parquet",
        "import fleet.kubernetes.client.object_names",
        "from pyspark.sql.connect.session import SparkSession",
        "SparkSession.builder.remote('sc://127.0.0.1:1')",
        "import importlib.util; assert importlib.util.find_spec('dagster') is None",
        "import shutil; assert shutil.which('java') is None",
    ],
    # Its server answers the pods of test_runtime_promises.py, its own JVM (long) test_run_jobs.py.
    "spark": [
        "import pathlib, pyspark, subprocess",
        "jars = pathlib.Path(pyspark.__file__).parent / 'jars'",
        "assert list(jars.glob('spark-connect_*.jar'))",
        "told = subprocess.run(['java', '-version'], capture_output=True, text=True, check=True)",
        "assert 'version' in told.stderr",
    ],
    "manager": [
        "import dagster, dagster_webserver, fleet.dagster.asset_keys",
        "import importlib.util; assert importlib.util.find_spec('fleet.dagster.project')",
        "import dagster_k8s, dagster_postgres, deltalake, psycopg2",
    ],
}


CONTENTS = [
    "import json, shutil",
    "found = json.load(open('/opt/fleet/sbom.cdx.json'))['components']",
    "listed = {each['purl'].partition('@')[0] for each in found}",
    "assert {'pkg:deb/debian/libc6', 'pkg:pypi/fleet-for-kafka', 'pkg:pypi/pyspark'} <= listed",
    "java = 'pkg:deb/debian/openjdk-17-jre-headless'",
    "assert (java in listed) == (shutil.which('java') is not None)",
    "assert not {'pkg:deb/debian/dpkg', 'pkg:deb/debian/binutils'} & listed",
    "assert all(each['version'] for each in found)",
    "assert not [each for each in ('dpkg', 'apt', 'perl', 'su', 'mount') if shutil.which(each)]",
]
"""What an image says of itself, and what none has."""
LARGEST = {"worker": 420, "spark": 896, "manager": 700}
"""MB: 70 % of what they were with a whole Debian, JRE and wheels; 140 of the manager's are
deltalake's, which `record_history` needs."""


def test_versions_are_the_locks() -> None:
    """Every package of an image is pinned, and a worker carries no Dagster and no test tools."""
    locked = set((image_build.repository() / "requirements.lock").read_text().lower().split())
    worker, manager = image_build.pins("worker"), image_build.pins("manager")
    for name, version in manager.items():
        assert {f"{name}=={version}", f"{name.replace('-', '_')}=={version}"} & locked
    assert worker.items() <= manager.items()
    assert {"pyspark", "confluent-kafka", "kafka-python", "kubernetes"} <= worker.keys()
    assert {"dagster-k8s", "dagster-postgres", "psycopg2-binary"} <= manager.keys()
    left_out = {"dagster", "dagster-postgres", "psycopg2-binary", "pytest", "mypy"}
    assert not left_out & worker.keys()
    assert not {"pytest", "mypy", "ruff", "hatchling"} & manager.keys()


def test_code_that_changed_has_another_tag(tmp_path, monkeypatch) -> None:
    """So that no test runs an older image of the same name."""
    for name in ("fleet", "assets", "k8s"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("1\n")
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    monkeypatch.setattr(image_build, "repository", lambda: tmp_path)
    first = image_build.code_tag()
    assert image_build.code_tag() == first
    (tmp_path / "fleet" / "__pycache__").mkdir()
    (tmp_path / "fleet" / "__pycache__" / "a.pyc").touch()
    assert image_build.code_tag() == first
    (tmp_path / "fleet" / "a.py").write_text("2\n")
    assert image_build.code_tag() != first


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("librocksdbjni-linux64.so", False),
        ("librocksdbjni-linux64-musl.so", True),
        ("librocksdbjni-linux-s390x.so", True),
        ("linux/amd64/libzstd-jni.so", False),
        ("darwin/x86_64/libzstd-jni.dylib", True),
        ("org/xerial/snappy/native/Linux/x86_64/libsnappyjava.so", False),
        ("org/xerial/snappy/native/Linux/android-aarch64/libsnappyjava.so", True),
        ("META-INF/native/libnetty_tcnative_linux_x86_64.so", False),
        ("libplain.so", False),
        ("org/apache/spark/windows/Of.class", False),
    ],
)
def test_native_libraries_of_other_platforms_stay_out(name: str, foreign: bool) -> None:
    """As their jars name them; what names no platform stays."""
    if platform.machine() != "x86_64":
        pytest.skip("the names are those of x86_64")
    assert slimming._is_foreign(name) == foreign


@pytest.mark.kubernetes
def test_an_image_in_use_fails_no_build(tmp_path, monkeypatch) -> None:
    """A container that somebody left keeps its image; the others are forgotten."""
    monkeypatch.setattr(image_build, "store", lambda: tmp_path)
    monkeypatch.setattr(image_build, "_KEPT", 0)
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY Containerfile /\n")
    kept, gone = (image_build.name_of("worker", f"code-{name}") for name in ("kept", "gone"))
    for name in (kept, gone):
        image_build._buildah(
            "build", "--quiet", f"--tag={name}", f"--label=is={name}", str(tmp_path)
        )
    image_build._buildah("from", kept)
    image_build._buildah("tag", gone, image_build.name_of("worker", "code-again"))
    assert len(image_build.size(gone).split()) == 2
    said: list[str] = []
    image_build._forget(said.append)
    assert image_build.names() == [kept]
    (why,) = said
    assert kept in why


@pytest.mark.kubernetes
@pytest.mark.parametrize("damage", ["one_image", "a_folder"])
def test_a_store_that_a_killed_build_damaged_is_repaired(
    tmp_path, monkeypatch, caplog, damage
) -> None:
    """Half recorded images go, whole ones stay; a store that cannot be read is made again."""
    monkeypatch.setattr(image_build, "store", lambda: tmp_path)
    base = "scratch"
    for tags in (["--tag=whole"], [], ["--tag=half"]):
        (tmp_path / "Containerfile").write_text(f"FROM {base}\nCOPY Containerfile /file\n")
        words = ["build", "--quiet", "--pull-never", *tags, str(tmp_path)]
        base = image_build._buildah(*words).strip()
    images = tmp_path / "storage" / "overlay-images"
    if damage == "a_folder":
        shutil.rmtree(images)
        images.touch()
    else:
        *whole, half = json.loads((images / "images.json").read_text())
        for key in ("digest", "names", "big-data-names", "big-data-sizes", "big-data-digests"):
            half.pop(key)
        (images / "images.json").write_text(json.dumps([*whole, half]))
        (images / half["id"] / "manifest").unlink()
    with pytest.raises(FleetError):
        image_build._listed()
    assert ("localhost/whole:latest" in image_build.names()) == (damage == "one_image")
    assert "the image store is damaged" in caplog.text


def _hosts() -> set[str]:
    """Where this machine gets packages from."""
    told = [os.environ.get("PIP_INDEX_URL", ""), os.environ.get("PIP_EXTRA_INDEX_URL", "")]
    commands = (
        [sys.executable, "-m", "pip", "config", "list"],
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        ["go", "env", "GOPROXY"],
    )
    told += [
        subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for command in commands
    ]
    found = {urlsplit(url).hostname for url in re.findall(r"https?://[^\s'\",|]+", " ".join(told))}
    return {host for host in found if host and not host.endswith(PUBLIC)}


def _layers(folder: Path, target: str, seen: set[str]) -> list[Path]:
    """The layers of an image that were not seen yet, uncompressed."""
    pushed = folder / target
    image_build._buildah("push", "--quiet", support._name(target), f"dir:{pushed}")
    layers = [
        path for path in pushed.iterdir() if len(path.name) == 64 and tarfile.is_tarfile(path)
    ]
    fresh = [path for path in layers if path.name not in seen]
    seen |= {path.name for path in layers}
    return fresh


@pytest.mark.long
@pytest.mark.kubernetes
def test_no_index_stays_inside(tmp_path) -> None:
    """No address that packages were fetched from, no package lists, no installer."""
    hosts = [host.encode() for host in _hosts()]
    seen: set[str] = set()
    wrong = []
    for target in image_build.TARGETS:
        for layer in _layers(tmp_path, target, seen):
            content = layer.read_bytes()
            wrong += [f"{target}: names a host" for host in hosts if host in content]
            with tarfile.open(layer) as archive:
                wrong += [
                    f"{target}: {name}" for name in archive.getnames() if LEFT_OUT.search(name)
                ]
    assert len(seen) >= 5
    assert not wrong


@pytest.mark.kubernetes
@pytest.mark.parametrize("target", list(image_build.TARGETS))
def test_image_can_do_its_work(kube, namespace, target) -> None:
    """As nobody in particular, on a root file system that is read-only."""
    lines = ["import os", "assert os.getuid() == 10001", *WORKS[target], *CONTENTS]
    lines += [
        "import subprocess",
        "print(subprocess.run(['fleet', '--version'], capture_output=True, text=True).stdout)",
        "open('/tmp/written', 'w')",
        "try: open('/opt/fleet/written', 'w')",
        "except OSError as error: print(error.strerror)",
    ]
    restricted = {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    printed = kube.ran(
        namespace, target, support.image(target), "python3", "-c", "\n".join(lines),
        container={
            "securityContext": restricted,
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        },
        securityContext={"runAsNonRoot": True},
        volumes=[{"name": "tmp", "emptyDir": {}}],
    )  # fmt: skip
    number, unit = image_build.size(support._name(target)).split()
    assert float(number) <= LARGEST[target]
    assert unit == "MB"
    assert "fleet 0." in printed
    assert "Read-only file system" in printed
