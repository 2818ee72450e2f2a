"""Code of a revision: found without importing it, digested, copied."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

import fleet.demo
from fleet.config.spec import GroupSpec
from fleet.errors import CodeElsewhere, ConfigError
from fleet.system.code import code_digest, packed_code, snapshot_code


def group(entrypoint: str, *folders: Path) -> GroupSpec:
    """A fleet that runs this entrypoint."""
    worker = {
        "protocol": "classic",
        "entrypoint": entrypoint,
        "python_path": [str(folder) for folder in folders],
    }
    return GroupSpec.model_validate({"group": "orders", "topics": ["orders"], "worker": worker})


def put(folder: Path, **files: str) -> None:
    """Write files; `__` in a name is a folder's separator."""
    for name, text in files.items():
        file = folder / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_package_is_copied_whole(tmp_path: Path) -> None:
    """All of the top-level package, data too, but no bytecode and nothing hidden."""
    src = tmp_path / "src"
    put(src, a_package__jobs__orders="x = 1\n", a_package__shared="y = 2\n", beside="z = 3\n")
    (src / "a_package" / "model.json").write_text("{}")
    for unwanted in ("__pycache__", ".git"):
        (src / "a_package" / unwanted).mkdir()
        (src / "a_package" / unwanted / "x.pyc").write_text("junk")
    spec = group("a_package.jobs.orders:process", src)
    digest = snapshot_code(spec, tmp_path / "copy")
    copied = sorted(
        p.relative_to(tmp_path / "copy").as_posix()
        for p in (tmp_path / "copy").rglob("*")
        if p.is_file()
    )
    assert copied == ["a_package/jobs/orders.py", "a_package/model.json", "a_package/shared.py"]
    (src / "a_package" / "__pycache__" / "y.pyc").write_text("more")
    assert code_digest(spec) == digest
    (src / "a_package" / "shared.py").write_text("y = 4\n")
    assert code_digest(spec) != digest


IMPORTS = {
    "by name": "import helper\n",
    "from it": "from helper import RATE\n",
    "a package": ("import kit.deep.rates as r\n", "kit__deep__rates"),
    "a package without __init__.py": ("from bare import rates\n", "bare__rates"),
    "on a line that goes on": "import json, \\\n    helper\n",
    "of a letter beyond ASCII": ("from caf\u00e9 import x\n", "caf\u00e9"),
    "in a function": "def process(df, context):\n    from helper import RATE\n",
    "conditionally": "try:\n    import faster\nexcept ImportError:\n    import helper\n",
    "by its name as text": "import importlib\nhelper = importlib.import_module('helper')\n",
    "through another": ("import first_step\n", "helper"),
}


@pytest.mark.parametrize("how", IMPORTS)
def test_what_is_imported_from_the_path_belongs_to_the_revision(how: str, tmp_path: Path) -> None:
    """A change of it is another revision, and the copy holds it; what nobody imports is left."""
    text, changed = IMPORTS[how] if isinstance(IMPORTS[how], tuple) else (IMPORTS[how], "helper")
    src, other = tmp_path / "src", tmp_path / "other"
    put(src, etl=text, first_step="import second_step\n", unused="x = 1\n")
    put(src, café="x = 1\n")
    put(src, kit__deep__rates="from .. import base\n")
    for package in (src / "kit", src / "kit" / "deep"):
        (package / "__init__.py").touch()
    put(
        other,
        second_step="import helper, unused_name\n",
        helper="RATE = 1\n",
        bare__rates="x = 1\n",
    )
    put(src, helper="import not_there, json\nRATE = 1\n", kit__base="")
    spec = group("etl:process", src, other)
    before = snapshot_code(spec, tmp_path / "copy")
    assert before == code_digest(spec)
    (file,) = (tmp_path / "copy").rglob(f"{changed.rpartition('__')[2]}.py")
    here = src if (src / file.relative_to(tmp_path / "copy")).exists() else other
    (here / file.relative_to(tmp_path / "copy")).write_text("RATE = 2\n")
    assert code_digest(spec) != before
    assert not (tmp_path / "copy" / "unused.py").exists()
    now = code_digest(spec)
    put(src, unused="x = 2\n")
    assert code_digest(spec) == now


@pytest.mark.parametrize("how", ["from ns import rates", "from . import rates"])
def test_all_folders_of_a_package_without_init_belong_to_the_revision(
    how: str, tmp_path: Path
) -> None:
    """Python joins its folders; one that an installed package has the name of is not meant."""
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, ns__etl=how, ns__more="import yaml\n", yaml__data="x = 1\n")
    put(two, ns__rates="RATE = 1\n", ns__etl="never = 1\n")
    spec = group("ns.etl:process", one, two)
    digest = snapshot_code(spec, tmp_path / "copy")
    copied = [
        p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("*.py")
    ]
    assert sorted(copied) == ["ns/etl.py", "ns/more.py", "ns/rates.py"]
    assert (tmp_path / "copy/ns/etl.py").read_text().startswith(how)
    put(two, ns__rates="RATE = 2\n")
    assert code_digest(spec) != digest


def test_an_installed_entrypoint_takes_along_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of python_path; its own file stays where it is."""
    put(tmp_path / "site", installed_etl="import beside\n")
    put(tmp_path / "src", beside="RATE = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    spec = group("installed_etl:process", tmp_path / "src")
    digest = snapshot_code(spec, tmp_path / "copy")
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["beside.py"]
    put(tmp_path / "src", beside="RATE = 2\n")
    assert code_digest(spec) != digest


def test_what_is_imported_is_bounded(tmp_path: Path) -> None:
    """Many modules of data, each small enough, are too much together."""
    put(tmp_path, etl="import a, b\n", a__x="", b__x="")
    for name in ("a", "b"):
        with (tmp_path / name / "data.bin").open("wb") as file:
            file.truncate(11 * 1024 * 1024)
    with pytest.raises(ConfigError, match=r"a, b and the entrypoint holds 5 files and 23\.1 MB"):
        code_digest(group("etl:f", tmp_path))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the file, and what to do."""
    put(tmp_path, etl="import helper\n")
    (tmp_path / "helper.py").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"helper\.py, which belongs to the code .* permissions"):
        code_digest(group("etl:f", tmp_path))


def test_the_digest_knows_names_from_content(tmp_path: Path) -> None:
    """Content that moves from one file to another is other code."""
    put(tmp_path / "one", pk__a="ab", pk__b="c")
    put(tmp_path / "two", pk__a="a", pk__b="bc")
    assert code_digest(group("pk.a:f", tmp_path / "one")) != code_digest(
        group("pk.a:f", tmp_path / "two")
    )


def test_the_first_folder_wins(tmp_path: Path) -> None:
    """As on Python's own path."""
    put(tmp_path / "one", twice="1")
    put(tmp_path / "two", twice="2")
    both = group("twice:f", tmp_path / "one", tmp_path / "two")
    assert code_digest(both) == code_digest(group("twice:f", tmp_path / "one"))


def test_installed_code_is_digested_in_place(tmp_path: Path) -> None:
    """What is not on python_path but installed: the module's own file, copied nowhere."""
    before = set(sys.modules)
    digest = snapshot_code(group("email.mime.text:MIMEText"), tmp_path / "copy")
    assert digest == code_digest(group("email.mime.text:f"))
    assert digest != code_digest(group("email.mime.base:f"))
    assert list((tmp_path / "copy").iterdir()) == []
    assert "email.mime.text" in before or "email.mime.text" not in sys.modules
    assert fleet.demo.__name__ == "fleet.demo"
    assert len(code_digest(group("fleet.errors:FleetError"))) == 64


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        pytest.param("nowhere_at_all:f", "neither in worker.python_path", id="unknown"),
        pytest.param("pk.missing:f", "holds neither missing.py nor", id="no-submodule"),
        pytest.param("single.sub:f", "is a single file", id="file-is-no-package"),
        pytest.param("email.nothing:f", "nor installed", id="installed-without-it"),
        pytest.param("sys:exit", "nor installed", id="built-in"),
    ],
)
def test_a_module_that_is_not_there_is_named(tmp_path: Path, entrypoint: str, said: str) -> None:
    """Nothing is started for an entrypoint that cannot be found."""
    put(tmp_path, pk__a="", single="")
    with pytest.raises(ConfigError, match=said):
        code_digest(group(entrypoint, tmp_path))


def test_a_package_with_data_is_too_large(tmp_path: Path) -> None:
    """More than 20 MB are not copied per revision."""
    put(tmp_path, pk__a="")
    with (tmp_path / "pk" / "model.bin").open("wb") as file:
        file.truncate(21 * 1024 * 1024)
    with pytest.raises(ConfigError, match=r"1 files and 22\.0 MB or more.* 21 MB are"):
        snapshot_code(group("pk.a:f", tmp_path), tmp_path / "copy")


def test_linked_folders_are_code_too(tmp_path: Path) -> None:
    """Python imports through a link: it is copied, and what is behind it is in the digest."""
    src = tmp_path / "src"
    put(src, job__main="x = 1\n")
    put(tmp_path / "elsewhere", shared__lib="y = 2\n")
    (src / "job" / "shared").symlink_to(tmp_path / "elsewhere" / "shared")
    (src / "job" / "again").symlink_to(src / "job")
    spec = group("job.main:process", src)
    digest = snapshot_code(spec, tmp_path / "copy")
    assert (tmp_path / "copy" / "job" / "shared" / "lib.py").read_text() == "y = 2\n"
    assert not (tmp_path / "copy" / "job" / "again").exists()
    (tmp_path / "elsewhere" / "shared" / "lib.py").write_text("y = 3\n")
    assert code_digest(spec) != digest


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    """It cannot be copied, and is no defect of ours."""
    put(tmp_path, job__main="x = 1\n")
    (tmp_path / "job" / "data").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"job/data is not a file, or a broken link"):
        code_digest(group("job.main:process", tmp_path))


def in_image(entrypoint: str, *folders: Path, image: str = "worker:1") -> GroupSpec:
    """The same fleet on Kubernetes."""
    local = group(entrypoint, *folders).model_dump()
    local["runtime"] = {"kind": "kubernetes", "image": image}
    return GroupSpec.model_validate(local)


def test_on_kubernetes_installed_code_is_the_images() -> None:
    """Only the image's name counts, whether or not the module is installed here."""
    digest = code_digest(in_image("only_in_the_image:f"))
    assert digest == code_digest(in_image("fleet.errors:FleetError"))
    assert digest != code_digest(in_image("only_in_the_image:f", image="worker:2"))
    assert packed_code(in_image("only_in_the_image:f")) == (digest, None)


def test_code_that_is_carried_is_packed_the_same_each_time(tmp_path: Path) -> None:
    """The copy holds the package, and its digest is the one that the plan was made for."""
    put(tmp_path / "src", pk__a="x = 1\n", pk__b="y = 1\n")
    spec = in_image("pk.a:f", tmp_path / "src")
    digest, packed = packed_code(spec)
    assert digest == code_digest(spec) != code_digest(in_image("pk.a:f"))
    (tmp_path / "src" / "pk" / "a.py").touch()
    assert packed_code(spec) == (digest, packed)
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["pk/a.py", "pk/b.py"]
    put(tmp_path / "src", pk__b="y = 2\n")
    assert code_digest(spec) != digest


def test_code_that_lies_elsewhere_is_not_taken_for_none(tmp_path: Path) -> None:
    """A manager in the cluster has the laptop's fleet.yaml, and not the folder that it names."""
    spec = in_image("pk.a:f", tmp_path / "away")
    for asked in (code_digest, packed_code):
        with pytest.raises(CodeElsewhere, match=r"names .*/away, which is not on this machine"):
            asked(spec)
    put(tmp_path / "src", pk__a="x = 1\n")
    found = in_image("pk.a:f", tmp_path / "away", tmp_path / "src")
    assert code_digest(found) == code_digest(in_image("pk.a:f", tmp_path / "src"))
