"""Without any extra: who looks at a cluster installs little, and is told what is missing.

Faults: an import that draws in Spark, Arrow, Dagster or Kubernetes; a traceback for what is not
installed; a change that is begun and that nobody there could end; Linux needed to look.

What README.md and docs/start/install.md show is run here.
"""

import re
import shutil
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fleet.extras import EXTRAS, pip_line
from k8s.images.image_build import OWN, closure
from tests.support.environments import environment, runner
from tests.support.needs import repository

MOST = 160e6
"""Bytes that the core may have when it is installed, Fleet's own included."""
TOLD = 130
"""MB of that with compiled modules, as README and docs/start/install.md say."""
NOT_IN_IT = {"pyspark", "pyarrow", "dagster", "kubernetes", "deltalake", "pandas"}
WORKER = 'worker: {entrypoint: "job:process", python_path: [.]}'


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory) -> Path:
    """An environment without extras."""
    home = tmp_path_factory.mktemp("core")
    return environment(home / "env", wheel, closure(frozenset()))


def size(name: str) -> int:
    """Bytes of an installed distribution."""
    files = distribution(name).files or ()
    paths = (Path(str(file.locate())) for file in files)
    return sum(path.stat().st_size for path in paths if path.is_file())


def declared(folder: Path, bootstrap: str, fleet: str) -> None:
    """A fleet.yaml with one fleet that acts."""
    folder.joinpath("fleet.yaml").write_text(
        f"cluster: {{bootstrap_servers: '{bootstrap}'}}\nmode: act\n"
        f"fleets:\n- {{group: shop, topics: [shop], {fleet}}}\n"
    )
    folder.joinpath("job.py").write_text("def process(df, context): pass\n")


def test_the_core_is_small() -> None:
    """Files of all its distributions together, and no heavy one among them."""
    names = closure(frozenset())
    assert not names & NOT_IN_IT
    ours = sum(p.stat().st_size for p in (repository() / "fleet").rglob("*") if p.is_file())
    whole = {name: size(name) for name in names} | {"fleet": ours}
    assert sum(whole.values()) <= MOST, sorted(whole.items(), key=lambda each: -each[1])
    for page in ("README.md", "docs/start/install.md"):
        assert f"{TOLD} MB" in (repository() / page).read_text(encoding="utf-8")
    assert 0.7 <= sum(whole.values()) / (TOLD * 1e6) <= 1.05, "a quarter of it are compiled modules"


def test_extras_name_what_installs_a_module() -> None:
    """The table of sentences says what pyproject.toml says."""
    project = tomllib.loads((repository() / "pyproject.toml").read_text())["project"]
    provides = packages_distributions()
    for module, extra in EXTRAS.items():
        listed = {
            canonicalize_name(Requirement(each).name)
            for each in project["optional-dependencies"][extra]
        }
        assert {canonicalize_name(name) for name in provides[module]} & listed, module
    there = set(project["optional-dependencies"]) - {"dev", "manager", "all"}
    assert there == set(EXTRAS.values())


def test_whoever_writes_a_job_has_what_its_test_needs() -> None:
    """README's first job runs pytest with the extras that it names; workers' images have none."""
    (named,) = re.findall(
        r"pip install '\.\[([a-z,]*worker[a-z,]*)\]'", (repository() / "README.md").read_text()
    )
    assert {"pytest", "pyspark"} <= closure(frozenset(named.split(",")))
    assert "pytest" not in closure(frozenset({"worker"}))


def test_nobody_is_sent_to_an_index_for_it() -> None:
    """None has this package, and one of that name would be somebody else's."""
    root = repository()
    texts = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "fleet").rglob("*.py")]
    named = f"{OWN}["
    assert not [str(each) for each in texts if named in each.read_text(encoding="utf-8")]
    assert pip_line("worker") == "pip install '.[worker]' in the clone of Fleet"


def test_look_plan_and_export(core: Path, broker, tmp_path: Path) -> None:
    """All that a stranger does first, with a real broker, and where nothing is Linux's own."""
    core = without_linux(core, tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    fleet = runner(core, folder, FLEET_HOME=str(tmp_path / "home"))
    for words in (
        ["--help"],
        ["init", "--bootstrap", broker.bootstrap_servers],
        ["status"],
        ["plan"],
        ["doctor"],
        ["rebalances"],
        ["render", "alert-rules"],
        ["render", "dashboard"],
        ["exporter", "--once"],
    ):
        done = fleet(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    declared(folder, broker.bootstrap_servers, WORKER)
    done = fleet("dev", "broker", "start")
    assert done.returncode == 1
    assert "need Linux, and this is darwin" in done.stderr


def without_linux(core: Path, folder: Path) -> Path:
    """The same environment, where each Python loads what takes Linux away."""
    made = folder / "env"
    shutil.copytree(core.parent, made, symlinks=True)
    site = next(made.glob("lib/python*/site-packages"))
    shutil.copy(Path(__file__).with_name("without_linux.py"), site)
    (site / "zz.pth").write_text("import without_linux\n")
    script = made / "bin" / "fleet"
    _, rest = script.read_text().split("\n", 1)
    script.write_text(f"#!{made}/bin/python\n{rest}")
    return made / "bin"


@pytest.mark.parametrize(
    ("words", "fleet_yaml", "module", "extra"),
    [
        ("up", WORKER, "pyspark", "worker"),
        ("apply shop", WORKER, "pyspark", "worker"),
        ("worker --group shop", WORKER, "pyarrow", "worker"),
        ("demo", WORKER, "pyspark", "worker"),
        ("history sync", WORKER, "pyarrow", "history"),
        ("history query x", WORKER, "pyarrow", "history"),
        ("plan", "runtime: {kind: kubernetes, image: a}", "kubernetes", "kubernetes"),
    ],
)
def test_what_is_missing_is_one_sentence(
    words: str, fleet_yaml: str, module: str, extra: str, *, core: Path, broker, tmp_path: Path
) -> None:
    """The module, and the line that installs it; nothing is begun."""
    declared(tmp_path, broker.bootstrap_servers, f"create: {{partitions: 1}}, {fleet_yaml}")
    fleet = runner(core, tmp_path, FLEET_HOME=str(tmp_path / "home"))
    done = fleet(*words.split())
    sentence = rf"fleet: module {module} is not installed: run pip install '.*\.whl\[{extra}\]'"
    assert done.returncode == 2
    assert re.fullmatch(sentence, done.stderr.splitlines()[-1]), done.stderr
    if words == "apply shop":
        assert "change of shop" not in fleet("doctor").stdout
